"""A cluster's ledgers from nodes and pods alone, as ``kubectl get -o json`` has them."""

import pytest
from msgspec import structs

from tests.ledger.ledger_values import A, B, entry, kinds, pod, ref, where
from tests.support.registers import HAMI as HAMI_REGISTER
from tests.support.registers import hami_text
from vgpu.ledger import ConflictKind
from vgpu.ledger.cluster import cluster
from vgpu.ledger.from_api import read_pod
from vgpu.model.allocation import Device, Share
from vgpu.model.names import Phase, Scheme, Source
from vgpu.model.objects import BOUND_DEVICE, Container, ContainerState, Node
from vgpu.model.units import GIB
from vgpu.schemes.counted_claims import ClaimProblem
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.volcano.codec import HAMI, Volcano

CODECS = (Volcano(), Volcano(HAMI), Gpushare(), Gaia(), KubeShare())
REGISTER = f"{A},10,10240,NVIDIA-L40S,true,hami-core:{B},10,10240,NVIDIA-L40S,false,hami-core:"
VOLCANO_NODE = Node("node-0", annotations={"volcano.sh/node-vgpu-register": REGISTER})


def gpushare_node(name="node-0", gpus=2):
    amounts = {"aliyun.com/gpu-mem": 15 * gpus, "aliyun.com/gpu-count": gpus}
    return Node(name, capacity=amounts, allocatable=amounts)


def gpushare_pod(uid, index=None, units=3, **changes):
    annotations = {
        "ALIYUN_COM_GPU_MEM_IDX": str(index),
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "20000000000",
    }
    whole = {
        "containers": (Container("main", {"aliyun.com/gpu-mem": units}),),
        "annotations": {} if index is None else annotations,
    }
    return pod(uid, **(whole | changes))


def volcano_pod(uid, device, memory=1024, **changes):
    annotations = {
        "volcano.sh/vgpu-ids-new": f"{device},NVIDIA,{memory},0:",
        "volcano.sh/vgpu-node": "node-0",
        "volcano.sh/bind-phase": "allocating",
    }
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": memory}
    whole = {"containers": (Container("main", limits),), "annotations": annotations}
    return pod(uid, **(whole | changes))


def of_node(*pods, nodes=(VOLCANO_NODE,), **options):
    return cluster(nodes, pods, CODECS, **options).ledgers["node-0"]


def test_every_node_has_a_ledger_of_its_own():
    nodes = [gpushare_node("node-0"), gpushare_node("node-1"), Node("cpu-only")]
    pods = [gpushare_pod("u1", 0), gpushare_pod("u2", 1, node="node-1")]
    ledgers = cluster(nodes, pods, CODECS).ledgers
    assert list(ledgers) == ["node-0", "node-1", "cpu-only"]
    assert where(ledgers["node-0"]) == {("u1", "main"): ["0"]}
    assert where(ledgers["node-1"]) == {("u2", "main"): ["1"]}
    assert ledgers["cpu-only"].devices == ()
    assert ledgers["node-0"].read == {Source.ANNOTATIONS}


def test_what_is_held_and_what_is_free():
    ledger = of_node(volcano_pod("u1", A), volcano_pod("u2", A, 9216))
    assert entry(ledger, A).held.memory_bytes == 10 * GIB
    assert entry(ledger, A).held.slots == 2
    assert entry(ledger, A).free_memory_bytes == 0
    assert entry(ledger, B).free_memory_bytes == 10 * GIB
    assert not entry(ledger, B).device.healthy
    assert ledger.conflicts == ()


def test_finished_pods_are_left_out():
    over = volcano_pod("u1", A, phase="Succeeded", state=ContainerState.TERMINATED)
    ledger = of_node(over)
    assert not list(ledger.holdings)
    assert ledger.leftovers == ()


def test_a_pod_with_a_reservation_on_a_node_holds_its_share_there_before_it_is_bound():
    promised = volcano_pod("u1", A, node="", phase="Pending", state=None)
    (holding,) = of_node(promised).holdings
    assert holding.phase is Phase.ASSUMED


def test_a_bound_pod_without_a_gpu_waits():
    """gpushare: bound before the extender was there, or with an index that cannot be read."""
    ledger = of_node(gpushare_pod("u1"), nodes=[gpushare_node()])
    (wanted,) = ledger.waiting
    assert (wanted.pod, wanted.request.memory_bytes) == (ref("u1"), 3 * GIB)
    assert not list(ledger.holdings)


def test_pods_that_are_bound_nowhere_are_listed_apart():
    nowhere = {"node": "", "phase": "Pending", "state": None}
    whole = cluster(
        [gpushare_node()],
        [gpushare_pod("u1", **nowhere), gpushare_pod("u2", "x", **nowhere)],
        CODECS,
    )
    assert [wanted.pod.uid for wanted in whole.unbound] == ["u1", "u2"]
    assert [malformed.pod.uid for malformed in whole.malformed] == ["u2"]


def test_the_only_gpu_of_a_gpushare_node_is_granted_without_annotations():
    """The original plugin then writes nothing on the pod, and its inspect shows it as pending."""
    ledger = of_node(gpushare_pod("u1"), nodes=[gpushare_node(gpus=1)])
    (holding,) = ledger.holdings
    assert holding.share == Share("0", 3 * GIB)
    assert holding.phase is Phase.ASSIGNED
    assert ledger.waiting == ()


def test_gpushares_unhealthy_gpus_keep_their_holders():
    pods = [gpushare_pod("u1", 1)]
    ledger = of_node(*pods, nodes=[gpushare_node()], unhealthy={"node-0": "1"})
    assert [e.device.healthy for e in ledger.devices] == [True, False]
    assert kinds(ledger) == [ConflictKind.DEVICE_UNHEALTHY]
    broken = of_node(*pods, nodes=[gpushare_node()], unhealthy={"node-0": "all"})
    assert [e.device.healthy for e in broken.devices] == [True, True]
    assert kinds(broken) == [ConflictKind.MALFORMED]
    assert "unhealthy-gpu-node-0" in broken.conflicts[0].detail


def test_annotations_that_drifted_from_the_bound_node():
    """volcano#5532."""
    nodes = [VOLCANO_NODE, Node("node-1", annotations=VOLCANO_NODE.annotations)]
    drifted = volcano_pod("u1", A, node="node-1")
    ledgers = cluster(nodes, [drifted], CODECS).ledgers
    assert not list(ledgers["node-0"].holdings)
    assert [holding.share.device for holding in ledgers["node-1"].unplaced] == [""]
    assert kinds(ledgers["node-1"]) == [ConflictKind.NODE_DIFFERS]


def test_a_broken_register_hides_no_pod_and_accuses_no_gpu():
    broken = Node("node-0", annotations={"volcano.sh/node-vgpu-register": "nonsense"})
    ledger = of_node(volcano_pod("u1", A), nodes=[broken])
    assert [holding.share.device for holding in ledger.unplaced] == [A]
    assert kinds(ledger) == [ConflictKind.MALFORMED]


def test_pods_of_a_node_that_is_no_more_are_not_forgotten():
    whole = cluster([], [volcano_pod("u1", A)], CODECS)
    assert [h.share.device for h in whole.ledgers["node-0"].unplaced] == [A]


def test_a_gpu_that_two_systems_register_is_one_device():
    both = Node(
        "node-0",
        annotations={HAMI_REGISTER: hami_text(A, 0) + hami_text(B, 1)},
        capacity=gpushare_node().capacity,
        allocatable=gpushare_node().allocatable,
    )
    ledger = of_node(gpushare_pod("u1", 1), nodes=[both])
    assert [e.device.uuid for e in ledger.devices] == [A, B]
    assert where(ledger) == {("u1", "main"): [B]}


@pytest.mark.parametrize(
    ("node", "waits"),
    [
        (Node("node-0", annotations={HAMI_REGISTER: hami_text(A, 0)}), True),
        (Node("node-0", capacity={"nvidia.com/gpu": 8}), False),
        (VOLCANO_NODE, False),
    ],
    ids=["HAMi", "NVIDIA's plugin", "Volcano"],
)
def test_whole_gpus_of_nvidias_own_plugin_are_not_waited_for(node, waits):
    plain = pod("u1", containers=(Container("main", {"nvidia.com/gpu": 1}),))
    assert bool(of_node(plain, nodes=[node]).waiting) == waits


def test_kubeshares_virtual_gpus_are_resolved_as_far_as_a_share_pod_is_bound():
    annotations = {
        "kubeshare/gpu_request": "0.4",
        "kubeshare/gpu_limit": "1.0",
        "kubeshare/gpu_mem": "1073741824",
        "kubeshare/GPUID": "zxcvb",
    }
    uuid = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
    node = Node("node-0", annotations={"kubeshare/gpu_info": f"{uuid}:10240,"})
    bound = pod("u1", annotations=annotations | {BOUND_DEVICE: uuid})
    waiting = pod("u2", annotations=annotations, phase="Pending", state=None)
    other = pod("u3", annotations=annotations | {"kubeshare/GPUID": "qwert"})
    ledger = of_node(bound, waiting, other, nodes=[node])
    assert where(ledger) == {
        ("u1", "main"): [uuid],
        ("u2", "main"): [uuid],
        ("u3", "main"): [""],
    }
    assert {h.scheme for h in ledger.holdings} == {Scheme.KUBESHARE}
    assert ledger.conflicts == ()


@pytest.mark.parametrize("gpuid", ["0", "GPU-1", "zxcvb"])
def test_a_virtual_gpu_is_no_missing_gpu_whatever_it_is_called(gpuid):
    annotations = {
        "kubeshare/gpu_request": "0.4",
        "kubeshare/gpu_limit": "1.0",
        "kubeshare/gpu_mem": "1073741824",
        "kubeshare/GPUID": gpuid,
    }
    one, two = (f"GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b0{n}" for n in (5, 6))
    node = Node(
        "node-0",
        annotations={"kubeshare/gpu_info": f"{two}:10240,"},
        capacity=gpushare_node().capacity,  # its GPUs have indices
    )
    waiting = pod("u1", annotations=annotations, phase="Pending", state=None)
    unknown = of_node(waiting, nodes=[node])
    assert where(unknown) == {("u1", "main"): [""]}
    assert unknown.conflicts == ()
    known = of_node(waiting, pod("u2", annotations=annotations | {BOUND_DEVICE: two}), nodes=[node])
    assert where(known) == {("u1", "main"): [two], ("u2", "main"): [two]}
    gone = of_node(waiting, pod("u2", annotations=annotations | {BOUND_DEVICE: one}), nodes=[node])
    assert {conflict.kind for conflict in gone.conflicts} == {ConflictKind.DEVICE_MISSING}


def test_annotations_of_a_pod_that_requests_nothing_hold_nothing_and_are_reported():
    for containers in ((Container("main"),), (Container("main", {"nvidia.com/gpumem": 1}),)):
        ledger = of_node(volcano_pod("u1", A), volcano_pod("u2", A, containers=containers))
        assert where(ledger) == {("u1", "main"): [A]}
        assert entry(ledger, A).held.memory_bytes == GIB
        assert [(each.pod.uid, each.problem) for each in ledger.malformed] == [
            ("u2", ClaimProblem.REQUESTS_NOTHING)
        ]


def test_a_bound_pod_holds_at_least_what_it_requests():
    """Amounts that its owner has set to 0 give nothing away."""
    forged = volcano_pod("u1", A)
    forged = structs.replace(
        forged, annotations={**forged.annotations, "volcano.sh/vgpu-ids-new": f"{A},NVIDIA,0,0:"}
    )
    ledger = of_node(forged)
    assert entry(ledger, A).held.memory_bytes == GIB
    assert kinds(ledger) == ["malformed"]
    whole = structs.replace(forged, containers=(Container("main", {"volcano.sh/vgpu-number": 1}),))
    assert entry(of_node(whole), A).free_memory_bytes == 0


@pytest.mark.parametrize("on_node", [False, True])
def test_a_pod_without_a_limit_is_named_and_holds_its_gpu(on_node):
    """Its scheduler reserved 0 bytes for 0 percent, which HAMi-core reads as no limit."""
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 0}
    containers = (Container("main", limits),)
    unlimited = volcano_pod("u1", A, 0, containers=containers)
    devices = {"volcano": {A: Device(A, memory_bytes=10 * GIB)}}
    reading = read_pod(unlimited, CODECS, devices=devices, on_node=on_node)
    (statement,) = reading.statements
    assert statement.shares == (Share(A, 10 * GIB, 0),)
    (malformed,) = reading.malformed
    assert f"main has no limit of the memory of {A}" in malformed.detail
    assert entry(of_node(unlimited), A).free_memory_bytes == 0


def test_a_pod_of_a_resource_that_no_system_knows_holds_what_its_annotations_have():
    """HAMi's and Volcano's resources can have other names; the node advertises this one."""
    renamed = Container("main", others={"acme.com/vgpu": 1})
    node = structs.replace(VOLCANO_NODE, others=frozenset({"acme.com/vgpu"}))
    assert where(of_node(volcano_pod("u1", A, containers=(renamed,)), nodes=[node])) == {
        ("u1", "main"): [A]
    }
    other = structs.replace(VOLCANO_NODE, others=frozenset({"rdma/hca"}))
    assert where(of_node(volcano_pod("u1", A, containers=(renamed,)), nodes=[other])) == {}


@pytest.mark.parametrize("gated", [True, False])
def test_a_reservation_holds_no_more_than_its_pod_requests(gated):
    waiting = volcano_pod("u1", A, node="", phase="Pending", state=None, gated=gated)
    forged = structs.replace(
        waiting,
        annotations={
            **waiting.annotations,
            "volcano.sh/vgpu-ids-new": f"{A},NVIDIA,9216,0:{B},NVIDIA,9216,0:",
        },
    )
    held = [each.share for each in of_node(forged).holdings]
    assert [(share.device, share.memory_bytes) for share in held] == ([] if gated else [(A, GIB)])


def test_a_reservation_holds_nothing_on_a_node_of_another_system():
    """HAMi's claim names a Volcano node; both systems have GPUs by UUID."""
    annotations = {
        "hami.io/vgpu-node": "node-0",
        "hami.io/vgpu-devices-allocated": f"{A},NVIDIA,1024,0:;",
    }
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
    theirs = pod("a", annotations=annotations, containers=(Container("main", limits),), node="")
    ledger = cluster([VOLCANO_NODE], [theirs], CODECS).ledgers["node-0"]
    assert list(ledger.holdings) == []
    assert [each.kind for each in ledger.conflicts] == [ConflictKind.MALFORMED]
