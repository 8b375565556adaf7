"""With CDI the kubelet knows how much a container has, and our own plugin knows the GPU."""

import msgspec
import pytest

from tests.ledger.ledger_values import NODE, kinds
from vgpu.ledger import ConflictKind, merge
from vgpu.ledger.from_node import own_statements
from vgpu.ledger.node import NodeSamples, node_evidence
from vgpu.model.admitted_pod import AdmittedPod, Binding
from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.facts import Gpu, GpuSample, Grant, HeldDevices, KubeletSample, ProcessSample
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Source
from vgpu.model.objects import Container, ContainerState, Pod, Status
from vgpu.model.own_checkpoint import Checkpoint
from vgpu.model.units import GIB
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.volcano.codec import HAMI, Volcano

ONE = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
TWO = "GPU-b83f0d62-417e-4c9a-a5d8-e06b3f17c942"
VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}
UID = "u1"
NOW = 1_790_000_000.0


class Case(msgspec.Struct):
    """A pod with 2 GiB on the second GPU, in one language.

    ``grants`` are (resource, device IDs): the kubelet picked those of the first GPU, or none's.
    """

    codec: SchemeCodec
    limits: dict[str, int]
    grants: list[tuple[str, list[str]]]
    cores: int | None


CASES = {
    "volcano": Case(
        Volcano(memory_factor=1024),
        {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 2, "volcano.sh/vgpu-cores": 30},
        [
            ("volcano.sh/vgpu-number", [f"{ONE}-3"]),
            ("volcano.sh/vgpu-memory", [f"{ONE}-memory-{i}" for i in range(2)]),
            ("volcano.sh/vgpu-cores", [f"{ONE}-core-{i}" for i in range(30)]),
        ],
        300,
    ),
    "hami": Case(
        Volcano(HAMI),
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048, "nvidia.com/gpucores": 30},
        [("nvidia.com/gpu", [f"{ONE}-3"])],
        300,
    ),
    "gpushare": Case(
        Gpushare(),
        {"aliyun.com/gpu-mem": 2},
        [("aliyun.com/gpu-mem", [f"{ONE}-_-{i}" for i in range(2)])],
        None,
    ),
    "gaia": Case(
        Gaia(),
        {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 8},
        [
            ("tencent.com/vcuda-core", [f"tencent.com/vcuda-core-{i}" for i in range(30)]),
            ("tencent.com/vcuda-memory", [f"tencent.com/vcuda-memory-{i}" for i in range(8)]),
        ],
        300,
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


DEVICES = tuple(
    Device(uuid=uuid, index=index, memory_bytes=10 * GIB, minor=7 - index)
    for index, uuid in enumerate((ONE, TWO))
)


def claim_on(case, gpu):
    """The pod's annotations, by the scheme's own language."""
    shares = (Share(gpu, 2 * GIB, case.cores),)
    claim = Claim(
        case.codec.scheme,
        pod(case, {}).ref,
        NODE,
        (Allocation("main", shares, Phase.ASSIGNED),),
        assumed_at=NOW,
        assigned_at=NOW,
    )
    named = {name: device for device in DEVICES for name in device.names}
    return case.codec.annotations(claim, named, ("main",))


def pod(case, annotations):
    return Pod(
        ref=PodRef(UID, "ml", "train"),
        node=NODE,
        containers=(Container("main", case.limits),),
        phase="Running",
        statuses=(Status("main", ContainerState.RUNNING),),
        annotations=annotations,
    )


def ledger(case, *, own=TWO, annotated=None, grants=True, resources=False, env=VOID):
    """What is made of the node's sources. None is a source without the pod."""
    admitted_pod = AdmittedPod(
        PodRef(UID, "ml", "train"),
        (Allocation("main", (Share(own or "", 2 * GIB, case.cores),), Phase.ASSIGNED),),
        (Binding("main", "0" * 24, (Share(own or "", 2 * GIB, case.cores),), NOW),),
    )
    kept = Checkpoint(NODE, case.codec.scheme, "boot", NOW, (admitted_pod,) if own else ())
    granted = [
        Grant(UID, "main", resource, tuple(ids), env if position == 0 else {})
        for position, (resource, ids) in enumerate(case.grants)
    ]
    held = {
        HeldDevices("ml", "train", "main", resource): frozenset(ids)
        for resource, ids in case.grants
    }
    gpus = tuple(
        Gpu(device.uuid, device.index, {"minor": f"{device.minor}"}, {}) for device in DEVICES
    )
    evidence = node_evidence(
        (case.codec,),
        NodeSamples(
            node=NODE,
            gpu=GpuSample(gpus),
            process=ProcessSample({}, sees_host=True, live_pods=frozenset({UID})),
            kubelet=KubeletSample({}, {}, tuple(granted) if grants else None),
            held=held if resources else None,
            own=own_statements(kept, "/var/lib/vgpu/checkpoint.json"),
            pods=(pod(case, claim_on(case, annotated) if annotated else {}),),
        ),
    )
    return merge(evidence)


def held(ledger):
    return [(one.share.device, one.share.memory_bytes, one.source) for one in ledger.holdings]


def test_the_gpu_is_that_of_our_own_checkpoint(case):
    merged = ledger(case)
    assert held(merged) == [(TWO, 2 * GIB, Source.OWN_CHECKPOINT)]
    assert kinds(merged) == []
    (holding,) = merged.holdings
    assert (holding.scheme, holding.phase) == (case.codec.scheme, Phase.ASSIGNED)
    assert {Source.CHECKPOINT, Source.OWN_CHECKPOINT} <= {*holding.sources}


@pytest.mark.parametrize("grants", [True, False])
def test_pod_resources_without_a_gpu_do_not_change_the_gpu(case, grants):
    merged = ledger(case, resources=True, grants=grants)
    assert held(merged) == [(TWO, 2 * GIB, Source.OWN_CHECKPOINT)]
    assert kinds(merged) == []
    (holding,) = merged.holdings
    assert Source.POD_RESOURCES in holding.sources


def test_annotations_that_agree_change_nothing(case):
    merged = ledger(case, annotated=TWO)
    assert held(merged) == [(TWO, 2 * GIB, Source.OWN_CHECKPOINT)]
    assert kinds(merged) == []


def test_annotations_that_disagree_are_outranked_and_reported_as_a_conflict(case):
    merged = ledger(case, annotated=ONE)
    assert held(merged) == [(TWO, 2 * GIB, Source.OWN_CHECKPOINT)]
    assert kinds(merged) == [ConflictKind.GPU_DIFFERS]
    assert [statement.source for statement in merged.conflicts[0].statements] == [
        Source.OWN_CHECKPOINT,
        Source.ANNOTATIONS,
    ]
    (disputed,) = [entry for entry in merged.devices if entry.disputed]
    assert disputed.device.uuid == ONE


def test_without_our_checkpoint_the_gpu_comes_from_the_annotations(case):
    merged = ledger(case, own=None, annotated=TWO)
    assert held(merged) == [(TWO, 2 * GIB, Source.ANNOTATIONS)]
    assert kinds(merged) == []


def test_without_checkpoint_and_annotations_the_gpu_is_unknown(case):
    """The ID that the kubelet picked is not the GPU, also where it looks like NVIDIA's own."""
    merged = ledger(case, own=None)
    ((device, _, source),) = held(merged)
    assert (device, source) == ("", Source.CHECKPOINT)
    assert [holding.scheme for holding in merged.unplaced] == [case.codec.scheme]


def test_what_an_answer_names_comes_before_what_we_have_kept():
    """After the way back to the original plugin our checkpoint is still of this boot."""
    merged = ledger(CASES["volcano"], env={"NVIDIA_VISIBLE_DEVICES": ONE})
    assert held(merged) == [(ONE, 2 * GIB, Source.CHECKPOINT)]
    assert kinds(merged) == [ConflictKind.GPU_DIFFERS]


def test_what_an_init_container_has_is_counted_once():
    share = Share(TWO, 2 * GIB, 300)
    admitted_pod = AdmittedPod(
        PodRef(UID, "ml", "train"),
        (Allocation("main", (share,), Phase.ASSIGNED), Allocation("side", (), Phase.ASSIGNED)),
        (
            Binding("fetch", "0" * 24, (Share(TWO, GIB, 300),), NOW),
            Binding("main", "1" * 24, (share,), NOW + 1),
        ),
        since=NOW - 1,
    )
    statements = own_statements(
        Checkpoint(NODE, Scheme.VOLCANO, "boot", NOW, (admitted_pod,)), "here"
    )
    read = [(one.container, one.kind, one.since, one.shares) for one in statements]
    assert read == [
        ("fetch", ContainerKind.INIT, NOW, (Share(TWO, GIB, 300),)),
        ("main", ContainerKind.APP, NOW + 1, (share,)),
        ("side", ContainerKind.APP, NOW - 1, ()),
    ]
    both = (Container("fetch", kind=ContainerKind.INIT), Container("main"))
    evidence = node_evidence(
        (),
        NodeSamples(
            gpu=GpuSample(tuple(Gpu(device.uuid, device.index, {}, {}) for device in DEVICES)),
            own=statements,
            pods=(
                Pod(
                    ref=admitted_pod.pod,
                    node=NODE,
                    containers=both,
                    phase="Pending",
                    statuses=(Status("fetch", ContainerState.RUNNING),),
                ),
            ),
        ),
    )
    (entry,) = [one for one in merge(evidence).devices if one.device.uuid == TWO]
    assert len(entry.holdings) == 2
    assert entry.held.memory_bytes == 2 * GIB


HAMIS = (
    Allocation("fetch", (Share(TWO, 12 * GIB, 0),), Phase.ASSIGNED, ContainerKind.INIT),
    Allocation("watch", (Share(TWO, GIB, 0),), Phase.ASSIGNED, ContainerKind.SIDECAR),
    Allocation("warm", (Share(TWO, 10 * GIB, 0),), Phase.ASSIGNED, ContainerKind.INIT),
    Allocation("main", (Share(TWO, 6 * GIB, 0),), Phase.ASSIGNED),
)


@pytest.mark.parametrize(("initialized", "held_gib"), [(False, 12), (True, 7)])
@pytest.mark.parametrize("spec_is_known", [False, True])
def test_a_pod_is_counted_at_its_peak_with_and_without_the_api_server(
    initialized, held_gib, spec_is_known
):
    """init 12 | sidecar 1, init 10 | sidecar 1, app 6: the second init container needs 11."""
    admitted_pod = AdmittedPod(
        PodRef(UID, "ml", "train"), HAMIS, since=NOW, initialized=initialized
    )
    kept = Checkpoint(NODE, Scheme.VOLCANO, "boot", NOW, (admitted_pod,))
    ended = ContainerState.TERMINATED if initialized else ContainerState.WAITING
    pod = Pod(
        ref=admitted_pod.pod,
        node=NODE,
        containers=tuple(Container(each.container, kind=each.kind) for each in HAMIS),
        phase="Running",
        statuses=tuple(
            Status(name, ended, kind=ContainerKind.INIT, reason="Completed" if initialized else "")
            for name in ("fetch", "warm")
        ),
    )
    grants = (Grant("volcano.sh/vgpu-number", (f"{TWO}-1",), UID, "fetch", VOID),)
    evidence = node_evidence(
        (),
        NodeSamples(
            gpu=GpuSample(tuple(Gpu(device.uuid, device.index, {}, {}) for device in DEVICES)),
            process=ProcessSample({}, sees_host=True, live_pods=frozenset({UID})),
            kubelet=KubeletSample({}, {}, grants),
            own=own_statements(kept, "here"),
            pods=(pod,) if spec_is_known else None,
        ),
    )
    ledger = merge(evidence)
    (entry,) = [one for one in ledger.devices if one.device.uuid == TWO]
    assert entry.held.memory_bytes == held_gib * GIB
    assert {one.container for one in ledger.holdings} == (
        {"watch", "main"} if initialized else {each.container for each in HAMIS}
    )
    assert not ledger.conflicts
