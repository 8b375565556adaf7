"""A device ID of a pod is held by one of its containers at a time, and so counts once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.allocations import allocation_totals
from tests.ledger.ledger_values import A, B, entry, evidence, kinds
from vgpu.ledger import ConflictKind, Statement, merge
from vgpu.ledger.device_ids import most_at_once
from vgpu.ledger.index import LedgerIndex
from vgpu.ledger.node import NodeSamples, node_evidence, read_samples
from vgpu.ledger.node_usage import node_usage
from vgpu.model.allocation import Share, effective
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuSample,
    Grant,
    KubeletSample,
    ProcessOwner,
    ProcessSample,
)
from vgpu.model.names import ContainerKind, PodRef, Scheme, Source
from vgpu.model.objects import Container, ContainerState, Pod, Status
from vgpu.model.units import GIB
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.volcano.codec import HAMI, Volcano

GPU = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
MIG = "MIG-0c5d9a2e-1b7f-5e43-9d10-6f2a8c4b7e11"
UID = "u1"
REF = PodRef(UID, "ml", "train")
CODECS = (Gpushare(GIB), Volcano(HAMI), Gaia())


def grant(container, ids, resource="nvidia.com/gpu", env=None):
    return Grant(UID, container, resource, tuple(ids), env or {}, answered=True)


def hami(container, ids, mib):
    env = {"NVIDIA_VISIBLE_DEVICES": GPU, "CUDA_DEVICE_MEMORY_LIMIT_0": f"{mib}m"}
    return grant(container, ids, env=env)


def gpushare(container, units):
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "ALIYUN_COM_GPU_MEM_CONTAINER": str(len(units))}
    return grant(container, [f"{GPU}-_-{unit}" for unit in units], "aliyun.com/gpu-mem", env)


def vcuda(container, cores, blocks):
    core, memory = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
    env = {"NVIDIA_VISIBLE_DEVICES": GPU}
    yield grant(container, [f"{core}-{at}" for at in range(cores)], core, env)
    yield grant(container, [f"{memory}-268435456-{at}" for at in range(blocks)], memory)


def seen(*grants, running=("main",), logs=(), pods=None):
    """The samples of a node without the API; ``running`` is None where no process is seen."""
    gpus = (
        Gpu(GPU, 0, {}, {("memory_total_bytes",): 40 * GIB}),
        Gpu(MIG, 0, {}, {("memory_total_bytes",): 10 * GIB}, GPU),
    )
    ids = {name: name.encode().hex().ljust(64, "0") for name in {*(running or ()), *logs}}
    owners = {
        at: ProcessOwner(ids[name], UID, "containerd") for at, name in enumerate(running or ())
    }
    names = {one: ContainerName("ml", "train", name) for name, one in ids.items()}
    process = ProcessSample(owners, sees_host=running is not None, live_pods=frozenset({UID}))
    return NodeSamples(
        gpu=GpuSample(gpus, processes_known=frozenset({GPU})),
        process=process,
        kubelet=KubeletSample({UID: REF}, names, grants),
        pods=pods,
    )


def ledger(*grants, **options):
    return merge(node_evidence(CODECS, seen(*grants, **options)))


def holders(ledger):
    return sorted(holding.container for holding in ledger.holdings)


WHOLE = [f"{GPU}"]
SITUATIONS = {
    "a whole GPU": ([grant("init", WHOLE), grant("main", WHOLE)], ["main"], (40 * GIB, 1000, 1)),
    "a replica": (
        [grant("init", [f"{GPU}::3"]), grant("main", [f"{GPU}::3"])],
        ["main"],
        (0, 0, 1),
    ),
    "init containers one after another": (
        [grant("first", WHOLE), grant("second", WHOLE), grant("main", WHOLE)],
        ["main"],
        (40 * GIB, 1000, 1),
    ),
    "a slice of HAMi's": (
        [hami("init", [f"{GPU}-7"], 2048), hami("main", [f"{GPU}-7"], 4096)],
        ["main"],
        (4 * GIB, 0, 1),
    ),
    "units of gpu-manager": (
        [*vcuda("init", 30, 4), *vcuda("main", 50, 8)],
        ["main"],
        (2 * GIB, 500, 1),
    ),
    "units of gpushare": (
        [gpushare("init", range(4)), gpushare("main", range(6))],
        ["main"],
        (6 * GIB, 0, 1),
    ),
}


@pytest.mark.parametrize(("grants", "who", "held"), SITUATIONS.values(), ids=SITUATIONS)
def test_an_id_of_an_init_container_and_the_main_one_counts_once(grants, who, held):
    merged = ledger(*grants)
    assert holders(merged) == who
    assert kinds(merged) == []
    total = entry(merged, GPU).held
    assert (total.memory_bytes, total.cores_milli, total.slots) == held
    (allocated, _) = allocation_totals(merged).devices
    assert allocated.shares == held[2]


def test_an_id_of_a_mig_instance_counts_once():
    merged = ledger(grant("init", [MIG]), grant("main", [MIG]))
    assert holders(merged) == ["main"]
    assert entry(merged, MIG).held.slots == 1
    assert kinds(merged) == []


@pytest.mark.parametrize("running", [None, (), ("init",), ("main", "init")])
@pytest.mark.parametrize(
    ("grants", "gib"),
    [
        ([gpushare("init", range(4)), gpushare("main", range(6))], 6),
        ([gpushare("init", range(6)), gpushare("main", range(4))], 6),
        ([gpushare("init", range(4)), gpushare("main", range(2)), gpushare("b", (2, 3, 4))], 5),
        ([hami("init", [f"{GPU}-7"], 2048), hami("main", [f"{GPU}-7"], 6144)], 6),
    ],
)
def test_the_peak_counts_whichever_container_is_seen_to_run(running, grants, gib):
    merged = ledger(*grants, running=running)
    assert entry(merged, GPU).held.memory_bytes == gib * GIB
    assert ConflictKind.OVERCOMMITTED not in kinds(merged)


def test_an_ended_init_container_that_had_more_holds_nothing():
    grants = [gpushare("init", range(6)), gpushare("main", range(4))]
    merged = ledger(*grants, logs=("init",))
    assert holders(merged) == ["main"]
    assert entry(merged, GPU).held.memory_bytes == 4 * GIB
    assert [left.container for left in merged.leftovers] == ["init"]


def test_shares_with_different_ids_are_added_up():
    replicas = [grant("init", [f"{GPU}::1"]), grant("main", [f"{GPU}::1"])]
    merged = ledger(*replicas, grant("beside", [f"{GPU}::2"]))
    assert holders(merged) == ["beside", "main"]
    assert entry(merged, GPU).held.slots == 2


def test_a_running_container_without_a_name_may_be_any_of_its_pod():
    samples = seen(grant("init", WHOLE), grant("main", WHOLE))
    kubelet = KubeletSample({UID: REF}, {}, samples.kubelet.grants)
    nameless = node_evidence(
        CODECS, NodeSamples(gpu=samples.gpu, process=samples.process, kubelet=kubelet)
    )
    assert holders(merge(nameless)) == ["init", "main"]
    assert entry(merge(nameless), GPU).held.slots == 1


def test_an_ended_init_container_has_no_row_of_its_own():
    samples = seen(*SITUATIONS["a slice of HAMi's"][0])
    known, files = read_samples(CODECS, samples)
    usage = node_usage(LedgerIndex(known, merge(known)), files, samples)
    assert [one.container for one in usage.containers] == ["main"]


def test_with_the_pods_spec_the_order_of_its_containers_decides():
    both = (Container("init", kind=ContainerKind.INIT), Container("main"))
    waits = Pod(
        REF,
        containers=both,
        phase="Pending",
        statuses=(Status("init", ContainerState.RUNNING),),
    )
    merged = ledger(*SITUATIONS["units of gpushare"][0], running=("init",), pods=(waits,))
    assert holders(merged) == ["init", "main"]
    assert entry(merged, GPU).held.memory_bytes == 6 * GIB


# ---------------------------------------------------------------- for all

IDS = st.frozensets(st.integers(0, 5), min_size=1)
PODS = st.dictionaries(
    st.sampled_from(("u1", "u2")),
    st.dictionaries(st.sampled_from("abcde"), IDS, min_size=1),
    min_size=1,
)


@given(
    PODS,
    st.none() | st.frozensets(st.tuples(st.sampled_from(("u1", "u2")), st.sampled_from("abcde"))),
)
def test_each_id_of_a_pod_counts_at_most_once(pods, running):
    statements = [
        Statement(
            Source.CHECKPOINT,
            PodRef(uid, "", ""),
            container,
            tuple(Share((A, B)[one % 2]) for one in sorted(ids)),
            Scheme.named("nvidia"),
            slices=(("nvidia.com/gpu", tuple(map(str, sorted(ids)))),),
        )
        for uid, containers in pods.items()
        for container, ids in containers.items()
    ]
    merged = merge(
        evidence(
            *statements, pods=(), pods_complete=False, live_pods=frozenset(pods), running=running
        )
    )
    held = sum(one.held.slots for one in merged.devices)
    assert held <= sum(len(frozenset().union(*own.values())) for own in pods.values())
    for uid, containers in pods.items():
        if len(frozenset().union(*containers.values())) == sum(map(len, containers.values())):
            mine = [one for one in merged.holdings if one.pod.uid == uid]
            assert sum(one.slots for one in mine) == sum(map(len, containers.values()))


SIZES = st.integers(1, 5)
EARLIER = st.tuples(st.sampled_from((ContainerKind.INIT, ContainerKind.SIDECAR)), SIZES)


@given(st.lists(EARLIER, max_size=4), st.lists(SIZES, min_size=1, max_size=3))
def test_the_peak_that_the_order_would_show_is_counted_without_it_too(earlier, apps):
    """The IDs are as the kubelet chooses them: those of init containers first."""
    containers = [*earlier, *((ContainerKind.APP, size) for size in apps)]
    reusable, fresh, ids = set(), iter(range(100)), []
    for kind, size in containers:
        own = set(sorted(reusable)[:size])
        own |= {next(fresh) for _ in range(size - len(own))}
        reusable = reusable | own if kind is ContainerKind.INIT else reusable - own
        ids.append(frozenset(own))
    amounts = [
        (
            len(own),
            frozenset(("r", str(one)) for one in own if sum(one in all_ for all_ in ids) > 1),
        )
        for own in ids
    ]
    peak = effective((kind, size) for kind, size in containers)
    assert peak <= most_at_once(amounts) <= len(frozenset().union(*ids))
