"""Where a container is and how much it has, when sources disagree."""

import pytest

from tests.ledger.ledger_values import A, B, C, entry, evidence, kinds, pod, statement_of, where
from vgpu.ledger import PRECEDENCE, ConflictKind, merge
from vgpu.model.allocation import Device, Share
from vgpu.model.names import Phase, Scheme, Source
from vgpu.model.units import GIB

ALLOCATIONS = [source for source in PRECEDENCE if source is not Source.PROCESS]
HERE = [("u1", "main")]


@pytest.mark.parametrize("better", range(len(PRECEDENCE) - 1))
def test_the_device_of_a_container_comes_from_the_more_trusted_source(better):
    for worse in range(better + 1, len(PRECEDENCE)):
        ledger = merge(
            evidence(statement_of(PRECEDENCE[worse], B), statement_of(PRECEDENCE[better], A))
        )
        assert where(ledger) == {("u1", "main"): [A]}
        assert entry(ledger, B).disputed == (statement_of(PRECEDENCE[worse], B),)
        by_file = Source.SHIM in (PRECEDENCE[worse], PRECEDENCE[better])
        differ = ConflictKind.FILE_DIFFERS if by_file else ConflictKind.GPU_DIFFERS
        assert kinds(ledger) == [differ]


def test_the_order_of_trust_is_the_one_that_is_documented():
    assert PRECEDENCE == (
        Source.PROCESS,
        Source.DRA_STATE,
        Source.POD_RESOURCES,
        Source.CHECKPOINT,
        Source.OWN_CHECKPOINT,
        Source.RESOURCE_CLAIM,
        Source.RESERVATION_POD,
        Source.CONFIG_MAP,
        Source.BIND_REQUEST,
        Source.SHIM,
        Source.LIMIT_FILE,
        Source.ANNOTATIONS,
    )
    assert set(PRECEDENCE) == set(Source)


def test_sources_that_agree_are_all_named_the_most_trusted_first():
    ledger = merge(evidence(*(statement_of(source, A, 2) for source in reversed(ALLOCATIONS))))
    (holding,) = ledger.holdings
    assert holding.source is Source.DRA_STATE
    assert holding.sources == tuple(ALLOCATIONS)
    assert ledger.conflicts == ()


def test_a_device_has_one_name_in_the_ledger_whatever_a_source_calls_it():
    """gpushare and gpu-manager name GPUs by index, KubeShare's GPUIDs are handles."""
    gpus = (Device(uuid=A, index=0, handles=("zxcvb",)), Device(uuid=B, index=1))
    statements = [
        statement_of(Source.ANNOTATIONS, "0"),
        statement_of(Source.SHIM, A),
        statement_of(Source.LIMIT_FILE, "zxcvb"),
    ]
    ledger = merge(evidence(*statements, devices=gpus))
    assert where(ledger) == {("u1", "main"): [A]}
    assert ledger.conflicts == ()


def test_a_devices_only_name_is_its_own_even_if_another_has_it_too():
    gpus = (Device(index=0), Device(uuid=A, index=0))
    assert where(merge(evidence(statement_of(Source.ANNOTATIONS, "0"), devices=gpus))) == {
        ("u1", "main"): ["0"]
    }


def test_a_name_that_two_devices_have_resolves_to_neither():
    gpus = (Device(uuid=A, index=0), Device(uuid=B, index=0))
    ledger = merge(evidence(statement_of(Source.ANNOTATIONS, "0"), devices=gpus))
    assert [holding.share.device for holding in ledger.unplaced] == ["0"]
    assert ledger.conflicts == ()


# ---------------------------------------------------------------- the kernel knows where


def test_a_process_on_some_of_the_allocated_devices_takes_none_of_them_away():
    ledger = merge(
        evidence(
            statement_of(Source.PROCESS, A),
            statement_of(Source.CHECKPOINT, "", shares=(Share(A, GIB), Share(B, GIB))),
        )
    )
    assert where(ledger) == {("u1", "main"): [A, B]}
    assert [h.source for h in ledger.holdings] == [Source.PROCESS, Source.CHECKPOINT]
    assert ledger.conflicts == ()


def test_the_device_comes_from_the_kernel_and_the_size_from_the_claim():
    ledger = merge(
        evidence(statement_of(Source.PROCESS, B), statement_of(Source.ANNOTATIONS, A, 4, cores=300))
    )
    (holding,) = ledger.holdings
    assert holding.share == Share(B, 4 * GIB, 300)
    assert holding.source is Source.PROCESS
    assert holding.scheme is Scheme.VOLCANO
    assert kinds(ledger) == [ConflictKind.GPU_DIFFERS]


def test_processes_on_fewer_other_devices_than_allocated_free_none_of_these():
    """It is unknown which of the two allocated devices is wrong."""
    allocated = statement_of(Source.CHECKPOINT, "", shares=(Share(A, GIB), Share(B, GIB)))
    ledger = merge(evidence(statement_of(Source.PROCESS, C), allocated))
    assert where(ledger) == {("u1", "main"): [A, B, C]}
    assert kinds(ledger) == [ConflictKind.GPU_DIFFERS]


def test_processes_on_as_many_other_devices_show_where_the_container_is():
    ledger = merge(
        evidence(
            statement_of(Source.PROCESS, "", shares=(Share(A), Share(C))),
            statement_of(Source.CHECKPOINT, "", shares=(Share(A, GIB), Share(B, GIB))),
        )
    )
    assert where(ledger) == {("u1", "main"): [A, C]}
    assert len(entry(ledger, B).disputed) == 1


def test_a_mig_instance_and_its_gpu_are_one_place():
    """Annotations name a slot of the GPU, the plugin's answer names the instance."""
    devices = (Device(uuid=A, index=0), Device(uuid="MIG-1", parent=A, memory_bytes=5 * GIB))
    statements = [
        statement_of(Source.ANNOTATIONS, f"{A}[1-0]", 5),
        statement_of(Source.CHECKPOINT, "MIG-1", 4),
    ]
    for process in ([], [statement_of(Source.PROCESS, A)], [statement_of(Source.PROCESS, "MIG-1")]):
        ledger = merge(evidence(*statements, *process, devices=devices))
        assert where(ledger) == {("u1", "main"): ["MIG-1"]}
        assert ledger.conflicts == ()


# ---------------------------------------------------------------- how much


def test_the_size_comes_from_the_most_trusted_allocation_that_has_one():
    ledger = merge(
        evidence(
            statement_of(Source.CHECKPOINT, A),
            statement_of(Source.OWN_CHECKPOINT, A, 3),
            statement_of(Source.ANNOTATIONS, A, 3, cores=200),
            statement_of(Source.LIMIT_FILE, A, 3, cores=200),
        )
    )
    (holding,) = ledger.holdings
    assert holding.share == Share(A, 3 * GIB, 200)
    assert ledger.conflicts == ()


def test_the_size_comes_from_a_limit_only_where_no_allocation_has_one():
    ledger = merge(
        evidence(statement_of(Source.SHIM, A, 3, cores=200), statement_of(Source.CHECKPOINT, ""))
    )
    (holding,) = ledger.holdings
    assert holding.share == Share(A, 3 * GIB, 200)


def test_several_shares_of_one_device_add_up():
    two = (Share(A, 2 * GIB, 100), Share(A, 2 * GIB, 100))
    counted = (Share("", 2 * GIB, None), Share("", 2 * GIB, None))
    ledger = merge(
        evidence(
            statement_of(Source.ANNOTATIONS, "", shares=two),
            statement_of(Source.POD_RESOURCES, "", shares=counted),
        )
    )
    (holding,) = ledger.holdings
    assert holding.share == Share(A, 4 * GIB, 200)
    assert holding.slots == 2
    assert ledger.conflicts == ()


def test_all_cores_of_a_device_without_an_amount_of_memory_are_the_whole_device():
    """gpu-manager's exclusive GPUs, and NVIDIA's own plugin."""
    ledger = merge(evidence(statement_of(Source.ANNOTATIONS, A, cores=1000)))
    assert entry(ledger, A).held.memory_bytes == 10 * GIB
    assert entry(ledger, A).free_memory_bytes == 0


def test_a_share_without_a_device_is_on_no_device():
    statement = statement_of(Source.POD_RESOURCES, "", shares=(Share("", GIB, 100),) * 2)
    ledger = merge(evidence(statement))
    (holding,) = ledger.unplaced
    assert holding.share == Share("", 2 * GIB, 200)
    assert holding.slots == 2
    assert ledger.conflicts == ()


def test_of_a_device_whose_memory_is_unknown_nobody_knows_what_is_free():
    ledger = merge(evidence(statement_of(Source.ANNOTATIONS, A, 2), devices=(Device(uuid=A),)))
    assert entry(ledger, A).free_memory_bytes is None
    assert entry(ledger, A).held.memory_bytes == 2 * GIB


def test_what_a_pod_holds_on_all_devices():
    statement = statement_of(Source.ANNOTATIONS, "", shares=(Share(A), Share(B), Share("GPU-gone")))
    ledger = merge(evidence(statement))
    assert [holding.share.device for holding in ledger.of_pod("u1")] == [A, B, "GPU-gone"]
    assert ledger.of_pod("u2") == ()


# ---------------------------------------------------------------- since when, and how far


def test_one_source_that_knows_it_assigned_makes_it_assigned():
    ledger = merge(
        evidence(
            statement_of(Source.ANNOTATIONS, A, phase=Phase.ASSUMED, since=10.0),
            statement_of(Source.OWN_CHECKPOINT, A, since=30.0),
            statement_of(Source.CHECKPOINT, A),
        )
    )
    (holding,) = ledger.holdings
    assert holding.phase is Phase.ASSIGNED
    assert holding.since == 30.0


def test_a_reservation_is_held_from_when_it_was_made():
    statement = statement_of(Source.ANNOTATIONS, A, phase=Phase.ASSUMED, since=10.0)
    ledger = merge(evidence(statement, pods=(pod("u1", "Pending", None),)))
    (holding,) = ledger.holdings
    assert (holding.phase, holding.since) == (Phase.ASSUMED, 10.0)


def test_what_is_released_is_not_held():
    ledger = merge(evidence(statement_of(Source.OWN_CHECKPOINT, A, phase=Phase.RELEASED)))
    assert where(ledger) == {}
    assert ledger.conflicts == ()


# ---------------------------------------------------------------- which source the size comes from


@pytest.mark.parametrize("source", ALLOCATIONS)
def test_a_holding_names_the_source_of_its_size(source):
    """A process shows the device and no size."""
    ledger = merge(evidence(statement_of(Source.PROCESS, A), statement_of(source, A, 2)))
    (holding,) = ledger.holdings
    assert (holding.share.memory_bytes, holding.sized_by) == (2 * GIB, source)


def test_a_size_that_all_sources_have_is_attributed_to_the_most_trusted_one():
    unsized = statement_of(Source.POD_RESOURCES, A)
    sized = [
        statement_of(source, A, 2)
        for source in (Source.ANNOTATIONS, Source.SHIM, Source.CHECKPOINT)
    ]
    (holding,) = merge(evidence(unsized, *sized)).holdings
    assert (holding.source, holding.sized_by) == (Source.POD_RESOURCES, Source.CHECKPOINT)


@pytest.mark.parametrize("limit", [Source.SHIM, Source.LIMIT_FILE])
def test_an_enforced_limit_is_no_size_where_an_allocation_has_one(limit):
    statements = statement_of(limit, A, 9), statement_of(Source.ANNOTATIONS, A, 2)
    (holding,) = merge(evidence(*statements)).holdings
    assert (holding.share.memory_bytes, holding.sized_by) == (2 * GIB, Source.ANNOTATIONS)


def test_an_unknown_size_has_no_source():
    (holding,) = merge(evidence(statement_of(Source.CHECKPOINT, A))).holdings
    assert (holding.share.memory_bytes, holding.sized_by) == (None, None)


def test_the_size_of_a_share_of_another_device_has_no_source_on_this_one():
    statements = statement_of(Source.PROCESS, B), statement_of(Source.CHECKPOINT, A, 2)
    (holding,) = (one for one in merge(evidence(*statements)).holdings if one.share.device == B)
    assert (holding.share.memory_bytes, holding.sized_by) == (2 * GIB, None)
