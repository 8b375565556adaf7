"""The ledger as the exporter keeps and publishes it."""

import msgspec
import pytest

from exporter.allocations import allocation_totals
from exporter.families import OWN_TABLES
from exporter.problems import conflict_problems
from exporter.sampler import codecs
from exporter.statuspage import render
from exporter.view import ExporterView, gpu_rows
from tests.support.live import parse
from tests.support.registers import HAMI as HAMI_REGISTER
from tests.support.registers import hami_text
from vgpu.ledger import ConflictKind
from vgpu.ledger.conflicts import OF_GPU_GROUPS, OF_RESOURCE_CLAIMS
from vgpu.ledger.container_usage import NodeUsage
from vgpu.metrics.render import Format, Renderer
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    Grant,
    HeldDevices,
    KubeletSample,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionDevice,
    RegionFile,
    ShimSample,
)
from vgpu.model.names import ContainerKind, Phase, PodRef, Source
from vgpu.model.objects import Container, ContainerState, Node, Pod, Status
from vgpu.model.units import GIB, MIB
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.registry import registry
from vgpu.schemes.volcano.codec import Volcano
from vgpu.sources.ledger_builder import LedgerBuilder, possibly_running
from vgpu.sources.observation import Observation, with_names
from vgpu.sources.pods import NodeSample, pod_sample

NODE = "node-1"
A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
WEB = PodRef("11111111-1111-1111-1111-111111111111", "ml", "web")
NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"

GPUS = GpuSample(
    gpus=tuple(
        Gpu(uuid, index, {"name": "X"}, {("memory_total_bytes",): 24.0 * GIB})
        for index, uuid in enumerate((A, B))
    ),
    processes_known=frozenset((A, B)),
)


def pod(gpu=A, units=4096, phase="Running", ref=WEB, served=True, **changes):
    """A pod of one container to which Volcano's scheduler has allocated units of a GPU's memory."""
    annotations = {
        "volcano.sh/vgpu-node": NODE,
        "volcano.sh/vgpu-ids-new": f"{gpu},NVIDIA,{units},30:",
        "volcano.sh/bind-phase": "success" if served else "allocating",
        "volcano.sh/devices-to-allocate": "" if served else f"{gpu},NVIDIA,{units},30:",
    }
    state = ContainerState.RUNNING if phase == "Running" else ContainerState.WAITING
    whole = Pod(
        ref,
        node=NODE,
        annotations=annotations,
        containers=(Container("main", {NUMBER: 1, MEMORY: units}),),
        phase=phase,
        statuses=(Status("main", state, id="c1"),),
    )
    return msgspec.structs.replace(whole, **changes)


def grant(gpu=A, mib=4096, container="main", uid=WEB.uid):
    env = {"NVIDIA_VISIBLE_DEVICES": gpu}
    shared = {"CUDA_DEVICE_MEMORY_LIMIT_0": f"{mib}m", "CUDA_DEVICE_SM_LIMIT": "30"}
    return Grant(uid, container, NUMBER, (f"{gpu}-0",), env | shared)


def kubelet(*grants):
    return KubeletSample({WEB.uid: WEB}, {}, grants)


def kernel(owners=None, live=(WEB.uid,)):
    return ProcessSample(owners or {}, True, frozenset(live))


def region(container="main", pod_uid=WEB.uid):
    devices = (RegionDevice(A, 4 * GIB, 30),)
    made = Region("v1.2", devices, (), 0, 1, 0, 1, 1000, 1, 2)
    return RegionFile(f"/root/{pod_uid}_{container}/x.cache", pod_uid, container, made)


def observation(pods=None, *, complete=True, **parts):
    known = None if pods is None else pod_sample(pods, complete=complete)
    fields = {"gpu": GPUS, "process": kernel(), "kubelet": kubelet()} | parts
    fields["kubelet"] = with_names(fields["kubelet"], known)
    return Observation(pods=known, **fields)


def keeper(gpushare_unit=GIB, volcano_unit=MIB):
    return LedgerBuilder(codecs(gpushare_unit, volcano_unit), NODE)


def ledger(pods=None, **parts):
    return keeper().ledger(observation(pods, **parts))


def view(seen):
    """What is published of an observation."""
    builder = keeper()
    book = builder.ledger(seen)
    usage = builder.usage(seen)
    return ExporterView(
        timestamp=1000.0,
        node=NODE,
        interval=15.0,
        usage=usage,
        collectors=(),
        calls={},
        xids=(),
        build={},
        own={},
        gpus=tuple(gpu_rows(seen.gpu, usage)) if seen.gpu else (),
        allocations=allocation_totals(book, seen.pods.finished if seen.pods else frozenset()),
    )


def series(seen):
    text = Renderer(OWN_TABLES).render(view(seen)).body(Format.TEXT).decode()
    return parse(text)


def named(exported, name):
    return {at: value for at, value in exported.items() if at.partition("{")[0] == name}


def conflicts(exported):
    """type -> count, those that are none left out."""
    counts = named(exported, "vgpu_allocation_conflicts").items()
    return {at.split('"')[1]: value for at, value in counts if value}


# ---------------------------------------------------------------- what is published


def test_an_allocation_is_exported_by_container_and_by_device():
    exported = series(observation([pod()], kubelet=kubelet(grant())))
    assert list(named(exported, "vgpu_container_memory_allocated_bytes").values()) == [4 * GIB]
    assert list(named(exported, "vgpu_container_core_allocated_ratio").values()) == [0.3]
    assert list(named(exported, "vgpu_container_shares_allocated").values()) == [1]
    assert exported[f'vgpu_gpu_memory_allocated_bytes{{uuid="{A}"}}'] == 4 * GIB
    assert exported[f'vgpu_gpu_core_allocated_ratio{{uuid="{A}"}}'] == 0.3
    assert exported[f'vgpu_gpu_shares_allocated{{uuid="{A}"}}'] == 1
    for name in ("memory_allocated_bytes", "core_allocated_ratio", "shares_allocated"):
        assert exported[f'vgpu_gpu_{name}{{uuid="{B}"}}'] == 0


def test_every_type_of_conflict_is_exported_and_zero_where_there_is_none():
    seen = observation([pod()], kubelet=kubelet(grant()))
    exported = named(series(seen), "vgpu_allocation_conflicts")
    assert {at.split('"')[1] for at in exported} == {
        kind.value for kind in ConflictKind if kind not in OF_RESOURCE_CLAIMS | OF_GPU_GROUPS
    }
    assert set(exported.values()) == {0}


def test_the_sources_that_the_ledger_has_read_are_exported():
    values = series(observation([pod()]))
    read = {at.split('"')[1] for at, value in values.items() if "source_read" in at and value}
    assert read == {"process", "kubelet-checkpoint", "annotations"}
    of_resource_claims, of_groups = 2, 3  # exported only where there are such objects
    sources = len(Source) - of_resource_claims - of_groups
    assert len(named(values, "vgpu_allocation_source_read")) == sources


def test_another_gpu_than_the_scheduler_reserved_is_a_conflict_in_words():
    seen = observation([pod(gpu=B)], kubelet=kubelet(grant(gpu=A)))
    assert conflicts(series(seen)) == {"card_differs": 1}
    (problem,) = conflict_problems(view(seen))
    assert problem.severity.name == "ERROR"
    for part in ("ml/web/main", "kubelet-checkpoint", "annotations", A[:12], B[:12]):
        assert part in problem.text
    assert problem.text.encode() in render(view(seen), 1000.0, "/metrics")


def test_a_process_in_a_container_without_allocation_is_no_allocation():
    processes = (GpuProcess(100, A, GIB),)
    gpu = msgspec.structs.replace(GPUS, processes=processes)
    owners = kernel({100: ProcessOwner("c1", WEB.uid, "containerd")})
    exported = series(observation(gpu=gpu, process=owners))
    assert conflicts(exported) == {"process_without_allocation": 1}
    assert not named(exported, "vgpu_container_memory_allocated_bytes")
    assert exported[f'vgpu_gpu_shares_allocated{{uuid="{A}"}}'] == 0
    assert exported[f'vgpu_gpu_memory_allocated_bytes{{uuid="{A}"}}'] == 0


def test_a_share_of_unknown_size_makes_the_devices_sum_absent():
    bare = Grant(WEB.uid, "main", NUMBER, (f"{A}-0",), {"NVIDIA_VISIBLE_DEVICES": A})
    exported = series(observation(kubelet=kubelet(bare)))
    assert f'vgpu_gpu_memory_allocated_bytes{{uuid="{A}"}}' not in exported
    assert exported[f'vgpu_gpu_shares_allocated{{uuid="{A}"}}'] == 1
    assert exported[f'vgpu_gpu_memory_allocated_bytes{{uuid="{B}"}}'] == 0


def test_before_the_first_sample_no_allocation_is_exported():
    first = ExporterView(1000.0, NODE, 15.0, NodeUsage(), (), {}, (), {}, {})
    text = Renderer(OWN_TABLES).render(first).body(Format.TEXT).decode()
    assert "alloc" not in "".join(line for line in text.splitlines() if line[:1] != "#")
    assert not list(conflict_problems(first))


# ---------------------------------------------------------------- schemes and phases


def info(exported):
    """(container, scheme, source, phase) of each."""
    rows = [
        dict(pair.split("=") for pair in at[at.index("{") + 1 : -1].split(",")) for at in exported
    ]
    keys = ("container", "scheme", "source", "phase")
    return [tuple(row[key].strip('"') for key in keys) for row in rows]


def infos(seen):
    return info(named(series(seen), "vgpu_container_info"))


def test_a_share_that_is_only_reserved_is_exported_as_assumed():
    waiting = pod(phase="Pending", served=False)
    seen = observation([waiting], process=kernel(live=()))
    assert infos(seen) == [("main", "volcano", "annotations", "assumed")]


def test_a_grant_of_the_kubelet_makes_it_assigned():
    seen = observation([pod(served=False)], kubelet=kubelet(grant()))
    assert infos(seen) == [("main", "volcano", "kubelet-checkpoint", "assigned")]


def test_a_process_of_a_pod_that_only_its_annotations_know_has_their_scheme():
    names = KubeletSample({}, {"c1": ContainerName("ml", "web", "main", WEB.uid)})
    gpu = msgspec.structs.replace(GPUS, processes=(GpuProcess(100, A, GIB),))
    owners = kernel({100: ProcessOwner("c1", WEB.uid, "containerd")})
    seen = observation([pod()], gpu=gpu, process=owners, kubelet=names)
    assert infos(seen) == [("main", "volcano", "process", "assigned")]


def test_a_pod_that_has_ended_holds_nothing_whatever_its_annotations_are():
    exported = series(observation([pod(phase="Failed")], process=kernel(live=())))
    assert not named(exported, "vgpu_container_info")
    assert exported[f'vgpu_gpu_memory_allocated_bytes{{uuid="{A}"}}'] == 0


# ---------------------------------------------------------------- init containers


def with_init(reason):
    """A pod whose init container has ended for ``reason``."""
    fetch = Container("fetch", {NUMBER: 1}, ContainerKind.INIT)
    ended = Status("fetch", ContainerState.TERMINATED, kind=ContainerKind.INIT, reason=reason)
    whole = pod(annotations={})
    return msgspec.structs.replace(
        whole, containers=(*whole.containers, fetch), statuses=(*whole.statuses, ended)
    )


INIT = {
    "shim": ShimSample((region("fetch"), region("main"))),
    "kubelet": kubelet(grant(container="fetch"), grant()),
}


def shares(exported, name):
    return {
        part for at in named(exported, name) for part in at.split('"') if part in ("fetch", "main")
    }


@pytest.mark.parametrize(
    ("pods", "kept"),
    [
        ([with_init("Completed")], {"main"}),
        ([with_init("Error")], {"main", "fetch"}),  # it will be started again
        (None, {"main", "fetch"}),  # no process is seen, so the owner is unknown
    ],
)
def test_a_finished_init_container_keeps_no_share_once_the_pods_spec_is_known(pods, kept):
    exported = series(observation(pods, **INIT))
    assert shares(exported, "vgpu_container_memory_limit_bytes") == kept
    assert shares(exported, "vgpu_container_memory_allocated_bytes") == kept
    phases = {(row[0], row[3]) for row in infos(observation(pods, **INIT))}
    assert phases == {
        ("main", "assigned"),
        ("fetch", "assigned" if "fetch" in kept else "released"),
    }
    assert exported[f'vgpu_gpu_memory_allocated_bytes{{uuid="{A}"}}'] == 4 * GIB  # one device ID


def test_an_ended_init_container_keeps_no_share_beside_a_running_one_with_its_device_id():
    """Without the API: the kubelet's ID, and the kernel's processes."""
    names = {"c1": ContainerName("ml", "web", "main", WEB.uid)}
    known = msgspec.structs.replace(INIT["kubelet"], containers=names)
    running = kernel({100: ProcessOwner("c1", WEB.uid, "containerd")})
    seen = observation(None, shim=INIT["shim"], kubelet=known, process=running)
    exported = series(seen)
    assert shares(exported, "vgpu_container_memory_limit_bytes") == {"main"}
    assert shares(exported, "vgpu_container_memory_allocated_bytes") == {"main"}
    assert {(row[0], row[3]) for row in infos(seen)} == {
        ("main", "assigned"),
        ("fetch", "released"),
    }
    assert exported[f'vgpu_gpu_memory_allocated_bytes{{uuid="{A}"}}'] == 4 * GIB


def test_a_process_in_an_init_container_counts_whatever_state_the_api_server_reports():
    gpu = msgspec.structs.replace(GPUS, processes=(GpuProcess(100, A, GIB),))
    owners = kernel({100: ProcessOwner("c9", WEB.uid, "containerd")})
    names = {"c9": ContainerName("ml", "web", "fetch", WEB.uid)}
    named = msgspec.structs.replace(INIT["kubelet"], containers=names)
    seen = observation([with_init("Completed")], gpu=gpu, process=owners, kubelet=named)
    exported = series(seen)
    assert shares(exported, "vgpu_container_memory_used_bytes") == {"main", "fetch"}
    assert shares(exported, "vgpu_container_memory_allocated_bytes") == {"main", "fetch"}


# ---------------------------------------------------------------- pods, and trusted sources


def test_a_running_pod_of_an_old_dump_counts_only_while_it_has_a_cgroup():
    gone, waiting = pod(), pod(ref=PodRef("2" * 36, "ml", "new"), phase="Pending")
    dump = pod_sample([gone, waiting], complete=False)
    assert possibly_running(dump, kernel(live=())) == (waiting,)
    assert possibly_running(dump, None) == (gone, waiting)
    assert possibly_running(pod_sample([gone], complete=True), kernel(live=())) == (gone,)


@pytest.mark.parametrize(("complete", "expected"), [(True, {"outlives_pod": 1}), (False, {})])
def test_only_the_api_server_is_evidence_that_a_pod_is_gone(complete, expected):
    other = pod(ref=PodRef("2" * 36, "ml", "other"), annotations={}, containers=())
    seen = observation([other], complete=complete, kubelet=kubelet(grant()))
    assert conflicts(series(seen)) == expected


def test_the_api_servers_names_are_joined_with_the_kubelets():
    pods = pod_sample([pod()], complete=True)
    both = with_names(KubeletSample({"u": PodRef("u", "x", "y")}, {}, ()), pods)
    assert both.pods.keys() == {"u", WEB.uid}
    assert both.containers["c1"].container == "main"
    assert both.grants == ()
    alone = with_names(None, pods)
    assert alone.pods == {WEB.uid: WEB}
    assert alone.grants is None
    assert with_names(None, None) is None


# ---------------------------------------------------------------- units


def test_an_amount_in_units_that_are_not_configured_is_unknown_and_no_conflict():
    seen = observation([pod(units=4)], kubelet=kubelet(grant()))
    assert LedgerBuilder(codecs(None, None), NODE).ledger(seen).conflicts == ()
    configured = keeper(volcano_unit=GIB).ledger(seen)
    assert configured.conflicts == ()
    assert [h.share.memory_bytes for h in configured.holdings] == [4 * GIB]
    wrong = keeper(volcano_unit=MIB).ledger(seen)
    assert [conflict.kind for conflict in wrong.conflicts] == [ConflictKind.SIZE_DIFFERS]


def test_a_codec_without_its_unit_reads_everything_but_the_memory():
    asking = pod()
    nameless, *_ = codecs(None, None)
    (request,) = nameless.requests(asking)
    assert (request.count, request.memory_bytes) == (1, None)
    (allocation,) = nameless.claim(asking).allocations
    assert [(s.device, s.memory_bytes, s.cores_milli) for s in allocation.shares] == [
        (A, None, 300)
    ]
    known, _, gpushare, *_ = codecs(GIB, 10 * MIB)
    assert known == Volcano(memory_factor=10)
    assert gpushare == Gpushare(GIB)
    assert {codec.scheme for codec in codecs(None, None)} == set(registry().schemes)


def test_a_codec_without_its_unit_reads_nothing_from_a_pod_without_annotations():
    silent = pod(annotations={}, containers=())
    for codec in codecs(None, None):
        assert codec.claim(silent) is None
        assert codec.requests(silent) == ()


# ---------------------------------------------------------------- what is not done twice


def test_what_did_not_change_is_not_merged_again():
    builder = keeper()
    pods, grants = [pod()], (grant(),)
    first = builder.ledger(observation(pods, kubelet=KubeletSample({}, {}, grants)))
    again = builder.ledger(observation(pods, kubelet=KubeletSample({}, {}, grants)))
    assert again is first


def test_what_changed_is_read_again():
    builder = keeper()
    before = builder.ledger(observation([pod()], kubelet=kubelet(grant())))
    after = builder.ledger(observation([pod(gpu=B)], kubelet=kubelet(grant(gpu=B))))
    assert [h.share.device for h in before.holdings] == [A]
    assert [h.share.device for h in after.holdings] == [B]
    without = builder.ledger(observation(kubelet=kubelet()))
    assert not list(without.holdings)
    assert Source.ANNOTATIONS not in without.read


def test_a_ledger_does_not_depend_on_what_was_kept_before():
    kept = keeper()
    for seen in (
        observation([pod()], kubelet=kubelet(grant())),
        observation([pod(gpu=B)], kubelet=kubelet(grant())),
        observation(None, kubelet=None),
        observation([pod(phase="Failed")], kubelet=kubelet(grant(gpu=B))),
    ):
        assert kept.ledger(seen) == keeper().ledger(seen)


def test_a_released_container_stays_released_whatever_is_reported_later():
    seen = observation([with_init("Completed")], **INIT)
    rows = view(seen).usage.containers
    assert {row.container: row.phase for row in rows}["fetch"] is Phase.RELEASED


def test_an_orphaned_region_is_reported_once():
    seen = observation(
        shim=ShimSample((region(),)), process=kernel(live=()), kubelet=KubeletSample({}, {}, ())
    )
    shown = view(seen)
    assert conflicts(series(seen)) == {"held_by_nobody_alive": 1}
    assert len(shown.usage.orphans) == 1
    assert not list(conflict_problems(shown))


def test_pod_resources_is_a_source_of_its_own():
    held = {HeldDevices("ml", "web", "main", NUMBER): frozenset({f"{A}-0"})}
    with_resources = msgspec.structs.replace(kubelet(grant()), held=held)
    ledger = keeper().ledger(observation([pod()], kubelet=with_resources))
    assert Source.POD_RESOURCES in ledger.read
    (holding,) = ledger.holdings
    assert Source.POD_RESOURCES in holding.sources


# ---------------------------------------------------------------- what the plugins registered

OVERSOLD = hami_text(A, 0, mib=49152, cores=200) + hami_text(B, 1, mib=24576)


def own_node(register=OVERSOLD):
    return Node(NODE, annotations={HAMI_REGISTER: register})


def hami(name, mib):
    """A pod of HAMi's with that much of the first GPU, and 100 % of its cores."""
    annotations = {
        "hami.io/vgpu-node": NODE,
        "hami.io/vgpu-devices-allocated": f"{A},NVIDIA,{mib},100:;",
        "hami.io/bind-phase": "success",
    }
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib, "nvidia.com/gpucores": 100}
    ref = PodRef(f"uid-{name}", "ml", name)
    return pod(ref=ref, annotations=annotations, containers=(Container("main", limits),))


def with_own_node(pods, node):
    live = kernel(live=[one.ref.uid for one in pods])
    seen = observation(pods, process=live, kubelet=None)
    sample = NodeSample(**msgspec.structs.asdict(seen.pods), node=node)
    return msgspec.structs.replace(seen, pods=sample)


TWICE = [hami("a", 20480), hami("b", 20480)]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (None, {"overcommitted": 1}),  # only the driver reports the memory
        (own_node(), {}),
        (own_node(f"{A},10,24576,100,NVIDIA-X,0,true,0,hami-core:"), {"overcommitted": 1}),
        (own_node("nonsense"), {"overcommitted": 1, "malformed": 1}),
        (Node(NODE, capacity={"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 2}), None),
    ],
    ids=["unknown", "oversold", "plain", "illegible", "averages"],
)
def test_gpus_that_are_oversold_on_purpose_are_measured_by_what_is_registered(node, expected):
    seen = with_own_node(TWICE, node)
    assert conflicts(series(seen)) == ({"overcommitted": 1} if expected is None else expected)


def test_more_than_was_registered_is_overcommitted():
    seen = with_own_node([*TWICE, hami("c", 20480)], own_node())
    assert conflicts(series(seen)) == {"overcommitted": 1}


def test_a_register_that_changed_counts_from_the_next_sample_on():
    builder = keeper()
    plain = own_node(f"{A},10,24576,100,NVIDIA-X,0,true,0,hami-core:")
    before = builder.ledger(with_own_node(TWICE, plain))
    assert [one.kind for one in before.conflicts] == [ConflictKind.OVERCOMMITTED]
    assert builder.ledger(with_own_node(TWICE, own_node())).conflicts == ()


def test_a_registered_amount_in_an_unknown_unit_leaves_the_drivers_memory():
    annotations = {"volcano.sh/node-vgpu-register": f"{A},10,48,NVIDIA,true,hami-core:"}
    seen = with_own_node([pod(units=4)], Node(NODE, annotations=annotations))
    gpus = {one.device.uuid: one.device for one in keeper(volcano_unit=None).ledger(seen).devices}
    assert (gpus[A].memory_bytes, gpus[A].slots) == (24 * GIB, 10)


def test_kubeshares_holder_pods_are_no_allocation():
    uuid = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
    holder = PodRef("h1", "kube-system", f"kubeshare-vgpu-{NODE}-zxcvb")
    held = Grant("h1", "main", "nvidia.com/gpu", (uuid,), {"NVIDIA_VISIBLE_DEVICES": uuid})
    claim = {
        "kubeshare/gpu_request": "0.5",
        "kubeshare/gpu_limit": "1.0",
        "kubeshare/gpu_mem": str(GIB),
        "kubeshare/GPUID": "zxcvb",
    }
    seen = observation(
        [pod(annotations=claim, containers=(Container("main"),))],
        gpu=GpuSample((Gpu(uuid, 0, {}, {("memory_total_bytes",): 24.0 * GIB}),)),
        process=kernel(live=(WEB.uid, "h1")),
        kubelet=KubeletSample({"h1": holder}, {}, (held,)),
    )
    exported = series(seen)
    assert exported[f'vgpu_gpu_memory_allocated_bytes{{uuid="{uuid}"}}'] == GIB
    assert exported[f'vgpu_gpu_shares_allocated{{uuid="{uuid}"}}'] == 1
