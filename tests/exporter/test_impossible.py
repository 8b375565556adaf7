"""Numbers and devices that cannot be, as a tenant may write them: refused, and in no sum."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.sampler import COLLECTORS, codecs
from tests.support.registers import HAMI as HAMI_REGISTER
from tests.support.registers import hami_text
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    HeldDevices,
    KubeletSample,
    LimitFile,
    LimitSample,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionDevice,
    RegionFile,
    RegionProcess,
    RegionUse,
    ShimSample,
)
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.reasons import Reason
from vgpu.model.units import GIB, MIB, TIB
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.observation import Observation, with_names
from vgpu.sources.pods import pod_sample, with_node

NOW = 1_790_000_000.0
TOMORROW = int(NOW) + 86_400
NODE = "node-1"
A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
WEB = PodRef("11111111-1111-1111-1111-111111111111", "ml", "web")
PATH = f"/root/{WEB.uid}_main/x.cache"
GPUS = tuple(
    Gpu(
        uuid,
        index,
        {"pci_bus_id": f"00000000:0{index + 1}:00.0"},
        {("memory_total_bytes",): 24.0 * GIB},
    )
    for index, uuid in enumerate((A, B))
)
NUMBER = "volcano.sh/vgpu-number"


def driver(*processes):
    known = frozenset((A, B))
    return GpuSample(GPUS, processes=processes, processes_known=known, utilization_known=known)


def slot(total, status=1, host_pid=100):
    return RegionProcess(1, host_pid, status, (RegionUse(0, 0, total, 0, total, None),))


def region(*slots, limit=4 * GIB, device=A, priority=1, last=1000):
    devices = (RegionDevice(device, limit, 30),)
    made = Region("v1.2", devices, slots, len(slots), 1, 2, priority, last, 1, 2)
    return ShimSample((RegionFile(PATH, WEB.uid, "main", made),))


def kernel(named=True):
    return ProcessSample(
        {100: ProcessOwner("c1", WEB.uid, "containerd")}, True, frozenset((WEB.uid,))
    )


def kubelet(named=True, **changes):
    links = {"c1": ContainerName(WEB.namespace, WEB.name, "main", WEB.uid)} if named else {}
    return msgspec.structs.replace(KubeletSample({WEB.uid: WEB}, links), **changes)


def pod(gpu=A, mib=4096, cores=30):
    annotations = {
        "volcano.sh/vgpu-node": NODE,
        "volcano.sh/vgpu-ids-new": f"{gpu},NVIDIA,{mib},{cores}:",
        "volcano.sh/bind-phase": "success",
        "volcano.sh/devices-to-allocate": "",
    }
    limits = {NUMBER: 1, "volcano.sh/vgpu-memory": mib}
    return Pod(
        WEB,
        node=NODE,
        annotations=annotations,
        containers=(Container("main", limits),),
        phase="Running",
    )


def oversold(gib):
    """Our node, whose plugin has registered so much memory of each GPU."""
    gpus = (hami_text(uuid, mib=gib * 1024) for uuid in (A, B))
    return Node(NODE, annotations={HAMI_REGISTER: "".join(gpus)})


def joined(pods=None, node=None, **parts):
    """Usage and ledger of one observation."""
    known = None if pods is None else with_node(pod_sample(pods, complete=True), node)
    fields = {"gpu": driver(), "process": kernel(), "kubelet": kubelet()} | parts
    fields["kubelet"] = with_names(fields["kubelet"], known)
    seen = Observation(pods=known, at=NOW, **fields)
    builder = LedgerBuilder(codecs(GIB, MIB), NODE)
    ledger = builder.ledger(seen)
    return builder.usage(seen), ledger


def refusals(result):
    return [(COLLECTORS[source], one.object_name, one.reason) for source, one in result.refused]


IMPLAUSIBLE = [("shim", PATH, Reason.IMPLAUSIBLE)]

# ---------------------------------------------------------------- numbers of a region


@pytest.mark.parametrize("limit", [2**53, 16 * TIB + 1])
def test_a_limit_that_no_device_has_is_unknown_and_in_no_sum(limit):
    result, ledger = joined(shim=region(slot(GIB), limit=limit))
    (share,) = result.shares
    assert (share.limit_bytes, share.unlimited, share.accounted.total) == (None, False, GIB)
    assert refusals(result) == IMPLAUSIBLE
    assert A in result.refused[0][1].detail
    assert [holding.share.memory_bytes for holding in ledger.holdings] == [None]


@pytest.mark.parametrize(("limit", "expected"), [(48 * GIB, 48 * GIB), (48 * GIB + 1, None)])
def test_a_limit_is_bounded_by_what_is_registered_of_the_gpu_which_may_be_oversold(limit, expected):
    result, ledger = joined([], oversold(48), shim=region(limit=limit))
    assert [share.limit_bytes for share in result.shares] == [expected]
    assert [holding.share.memory_bytes for holding in ledger.holdings] == [expected]


def test_where_nothing_is_registered_a_gpu_may_be_oversold_up_to_a_bound():
    result, _ = joined(shim=region(slot(20 * GIB), limit=48 * GIB))
    (share,) = result.shares
    assert (share.limit_bytes, share.accounted.total) == (48 * GIB, 20 * GIB)
    assert not result.refused


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ([25 * GIB], 25 * GIB),  # the shim counts contexts a little differently
        ([26 * GIB], None),
        ([13 * GIB, 13 * GIB], None),
        ([2**53], None),
    ],
)
def test_more_in_use_than_there_is_of_the_gpu_is_refused(slots, expected):
    shim = region(*map(slot, slots))
    result, _ = joined([], oversold(24), shim=shim)
    (share,) = result.shares
    assert (share.accounted and share.accounted.total) == expected
    assert share.limit_bytes == 4 * GIB
    assert refusals(result) == ([] if expected else IMPLAUSIBLE)


def test_dead_slots_that_claim_more_than_there_is_cost_only_what_they_claim():
    shim = region(slot(GIB), *[slot(20 * GIB, status=0)] * 2)
    result, _ = joined([], oversold(24), shim=shim)
    (share,) = result.shares
    assert (share.accounted.total, share.accounted.phantom) == (GIB, None)
    assert refusals(result) == IMPLAUSIBLE


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (int(NOW), int(NOW)),
        (TOMORROW, TOMORROW),
        (TOMORROW + 1, None),
        (2**64 - 1, None),
    ],
)
def test_a_kernel_launch_in_the_future_is_rejected(last, expected):
    result, _ = joined(shim=region(slot(GIB), last=last))
    assert [row.last_kernel_time for row in result.containers] == [expected]
    assert refusals(result) == ([] if expected else IMPLAUSIBLE)


@pytest.mark.parametrize(("priority", "expected"), [(0, 0), (1, 1), (-1, None), (-(2**31), None)])
def test_a_priority_below_the_highest_is_none(priority, expected):
    result, _ = joined(shim=region(priority=priority))
    assert [row.priority for row in result.containers] == [expected]
    assert refusals(result) == (IMPLAUSIBLE if expected is None else [])


WORDS = st.integers(0, 2**64 - 1) | st.integers(0, 64 * GIB)


@given(st.lists(st.tuples(WORDS, st.sampled_from((0, 1, 2)))), WORDS, WORDS, st.integers())
def test_no_sum_exceeds_what_is_registered_whatever_a_region_contains(slots, limit, last, priority):
    processes = [slot(total, status) for total, status in slots]
    shim = region(*processes, limit=limit, last=last, priority=priority)
    result, ledger = joined([], oversold(24), shim=shim)
    (share,), (row,) = result.shares, result.containers
    assert (share.limit_bytes or 0) <= 24 * GIB
    assert all((one.share.memory_bytes or 0) <= 24 * GIB for one in ledger.holdings)
    if share.accounted is not None:
        in_use = (share.accounted.total, share.accounted.data, share.accounted.phantom or 0)
        assert max(in_use) <= 24 * GIB * 1.05
    assert (row.priority or 0) >= 0
    assert (row.last_kernel_time or 0) <= TOMORROW


def test_the_status_page_describes_an_implausible_value_in_words():
    result, _ = joined([], oversold(24), shim=region(limit=25 * GIB, priority=-1))
    (limit, priority) = sorted(one.detail for _, one in result.refused)
    assert limit == f"a memory limit of 25.0 GiB of {A}, which has 24.0 GiB"
    assert priority == "priority -1"


# ---------------------------------------------------------------- limit files and annotations


@pytest.mark.parametrize("scheme", [Scheme.GAIA, Scheme.KUBESHARE])
def test_a_limit_file_with_more_memory_than_there_is_limits_nothing(scheme):
    limit = LimitFile(
        scheme, "/vm/x", pod_uid=WEB.uid, container="main", device=A, memory_bytes=2**53
    )
    result, ledger = joined(limits=LimitSample((limit,)))
    assert result.shares == ()
    assert refusals(result) == [("limits", "/vm/x", Reason.IMPLAUSIBLE)]
    assert [holding.share.memory_bytes for holding in ledger.holdings] == [None]


def test_a_limit_file_that_names_its_gpu_by_bus_id_has_the_bound_of_that_gpu():
    limit = LimitFile(
        Scheme.GAIA,
        "/vm/x",
        pod_uid=WEB.uid,
        container="main",
        pci_bus_id="0000:01:00.0",
        memory_bytes=31 * GIB,
    )
    gpu = driver()
    first, *others = gpu.gpus
    info = {**first.info, "pci_bus_id": "00000000:01:00.0"}
    gpu = msgspec.structs.replace(gpu, gpus=(msgspec.structs.replace(first, info=info), *others))
    result, ledger = joined([], oversold(30), gpu=gpu, limits=LimitSample((limit,)))
    assert result.shares == ()
    assert refusals(result) == [("limits", "/vm/x", Reason.IMPLAUSIBLE)]
    assert A in result.refused[0][1].detail
    assert [holding.share.memory_bytes for holding in ledger.holdings] == [None]


def test_a_claim_of_more_memory_than_any_device_has_is_malformed_and_in_no_sum():
    _, ledger = joined([pod(mib=2**31 - 1)])
    assert [holding.share.memory_bytes for holding in ledger.holdings] == [None]
    (conflict,) = ledger.conflicts
    assert (conflict.kind.value, conflict.pod) == ("malformed", WEB)
    assert "2147483647 MiB" in conflict.detail


def test_a_claim_of_more_cores_than_any_device_has_is_malformed_and_in_no_sum():
    _, ledger = joined([pod(cores=2**31 - 1)])
    (holding,) = ledger.holdings
    assert (holding.share.memory_bytes, holding.share.cores_milli) == (4 * GIB, None)
    assert [conflict.kind.value for conflict in ledger.conflicts] == ["malformed"]


# ---------------------------------------------------------------- forged devices


def other_gpu(result):
    return [share.device for share in result.shares if share.device == B]


HELD = {HeldDevices(WEB.namespace, WEB.name, "main", "nvidia.com/gpu"): frozenset({A})}
RUNS_ON_A = GpuProcess(100, A, GIB)


@pytest.mark.parametrize(
    "contradiction",
    [
        {"gpu": driver(RUNS_ON_A)},
        {"gpu": driver(RUNS_ON_A), "kubelet": kubelet(named=False)},
        {"kubelet": kubelet(held=HELD)},
        {"pods": [pod(gpu=A)]},
    ],
    ids=["driver", "driver, without names", "pod-resources", "annotations"],
)
def test_a_forged_device_is_refused_without_a_checkpoint_if_any_other_source_contradicts(
    contradiction,
):
    result, _ = joined(shim=region(slot(GIB), device=B), **contradiction)
    assert other_gpu(result) == []
    assert refusals(result) == [("shim", PATH, Reason.FORGED)]
    assert B in result.refused[0][1].detail
    assert A in result.refused[0][1].detail


@pytest.mark.parametrize(
    "agreement",
    [
        {},
        {"gpu": driver(GpuProcess(100, B, GIB))},
        {"kubelet": kubelet(held={next(iter(HELD)): frozenset({B})})},
        {"pods": [pod(gpu=B)]},
        {"gpu": driver(GpuProcess(100, B, GIB)), "pods": [pod(gpu=A)]},  # it does run there
    ],
    ids=["nobody else", "driver", "pod-resources", "annotations", "driver against annotations"],
)
def test_a_device_that_nobody_contradicts_is_published(agreement):
    result, _ = joined(shim=region(slot(GIB), device=B), **agreement)
    assert other_gpu(result) == [B]
    assert result.refused == ()


def test_a_container_that_works_on_one_of_its_devices_has_the_others_too():
    two = region()
    of_region = tuple(RegionDevice(uuid, 4 * GIB, 30) for uuid in (A, B))
    (file,) = two.files
    both = msgspec.structs.replace(
        file, region=msgspec.structs.replace(file.region, devices=of_region)
    )
    result, _ = joined(shim=ShimSample((both,)), gpu=driver(RUNS_ON_A))
    assert sorted(share.device for share in result.shares) == [A, B]
    assert result.refused == ()


def test_a_limit_file_for_another_gpu_than_the_container_works_on_is_refused():
    limit = LimitFile(
        Scheme.GAIA, "/vm/x", pod_uid=WEB.uid, container="main", device=B, memory_bytes=GIB
    )
    result, _ = joined(limits=LimitSample((limit,)), gpu=driver(RUNS_ON_A))
    assert other_gpu(result) == []
    assert refusals(result) == [("limits", "/vm/x", Reason.FORGED)]
