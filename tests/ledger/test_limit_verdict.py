"""The verdict about a limit: its order, and what less evidence may change."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.any_node import any_node
from vgpu.ledger.limit_verdict import (
    LimitedProcess,
    LimitEvidence,
    LimitReason,
    LimitState,
    Linked,
    verdict,
    worst,
)
from vgpu.model.units import GIB, MIB
from vgpu.schemes.limit_ways import CGPU, GKE_MPS, HAMI_CORE, MPS, VCUDA, WAYS, LimitKind
from vgpu.schemes.registry import registry
from vgpu.sources.ledger_builder import LedgerBuilder

replace = msgspec.structs.replace
PROVEN = LimitedProcess(Linked.LIBRARY, has_slot=True)
GOOD = LimitEvidence(
    HAMI_CORE,
    reads_maps=True,
    processes=(PROVEN,),
    reserved_bytes=GIB,
    limit_bytes=GIB,
    answered=True,
    region=True,
)
ON_NODE = replace(GOOD, reads_maps=False, processes=(LimitedProcess(has_slot=True),))


def rank(reason):
    """As in the docstring of the module."""
    ranks = {LimitState.IN_PLACE: 2, LimitState.NONE_BY_DESIGN: 2, LimitState.DIFFERENT: 1}
    return 0 if reason is None else ranks.get(reason.state, 0)


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, LimitState.IN_PLACE),
        ({"limit_bytes": 0}, LimitState.MISSING),
        ({"limit_bytes": 2 * GIB}, LimitState.DIFFERENT),
        ({"other_gpu": True}, LimitState.DIFFERENT),
        ({"limit_bytes": 2 * GIB, "disabled": True}, LimitState.MISSING),
        ({"processes": ()}, LimitState.UNKNOWN),
        ({"processes": (), "limit_bytes": 2 * GIB}, LimitState.DIFFERENT),
        ({"processes": None}, LimitState.UNKNOWN),
        ({"region": None}, LimitState.UNKNOWN),
        ({"failed": True, "limit_bytes": 2 * GIB}, LimitState.UNKNOWN),
        ({"failed": True, "limit_bytes": 0}, LimitState.MISSING),
        ({"over_samples": 1}, LimitState.UNKNOWN),
        ({"over_samples": 2, "limit_bytes": 0}, LimitState.EXCEEDED),
        ({"sees_processes": False, "processes": None}, LimitState.UNKNOWN),
    ],
)
def test_each_kind_of_evidence_decides(change, state):
    assert verdict(replace(GOOD, **change)).state is state


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_use_above_the_limit_decides_in_every_way_that_has_one(way):
    evidence = replace(GOOD, way=way, has_module=True, has_instance=True, over_samples=2)
    is_counted = way.kind not in (LimitKind.NOBODY, LimitKind.DRIVER)
    assert (verdict(evidence) is LimitReason.OVER_LIMIT) is is_counted


def test_use_above_a_share_that_nobody_limits_exceeds_no_limit():
    evidence = LimitEvidence(CGPU, has_module=False, over_samples=2)
    assert verdict(evidence) is LimitReason.NOT_LIMITED


def test_the_worst_process_decides():
    bad = LimitedProcess(Linked.NOTHING)
    assert verdict(replace(GOOD, processes=(PROVEN, bad))) is LimitReason.LIBRARY_NOT_MAPPED


def test_a_slot_counts_only_with_the_kubelets_answer_and_only_without_maps():
    assert verdict(ON_NODE) is LimitReason.LIBRARY_WRITES
    assert verdict(replace(ON_NODE, answered=False)) is LimitReason.MAPS_NOT_READ
    assert verdict(replace(ON_NODE, reads_maps=True)) is LimitReason.MAPS_UNREAD


def test_files_on_another_device_cannot_be_compared():
    for linked in (Linked.UNCLEAR, Linked.REPLACED, Linked.UNREAD):
        evidence = replace(GOOD, processes=(LimitedProcess(linked, has_slot=True),))
        assert verdict(evidence).state is LimitState.UNKNOWN


def test_a_library_without_a_region_needs_maps():
    evidence = replace(GOOD, way=VCUDA, region=None)
    assert verdict(evidence) is LimitReason.LIBRARY_MAPPED
    assert verdict(replace(evidence, reads_maps=False)).state is LimitState.UNKNOWN


def test_the_clients_of_mps_are_the_drivers_word():
    client, other = LimitedProcess(is_client=True), LimitedProcess(is_client=False)
    evidence = LimitEvidence(MPS, processes=(client,), limit_bytes=GIB)
    assert verdict(evidence) is LimitReason.MPS_CLIENTS
    assert verdict(replace(evidence, processes=(client, other))) is LimitReason.NOT_MPS_CLIENT
    assert verdict(replace(evidence, limit_bytes=None)).state is LimitState.UNKNOWN


def test_a_limit_that_each_process_can_change_is_never_in_place():
    client, other = LimitedProcess(is_client=True), LimitedProcess(is_client=False)
    evidence = LimitEvidence(GKE_MPS, processes=(client,), limit_bytes=GIB, reserved_bytes=GIB)
    assert verdict(evidence) is LimitReason.LIMIT_IN_ENVIRONMENT
    assert verdict(replace(evidence, limit_bytes=2 * GIB)) is LimitReason.LIMIT_DIFFERS
    assert verdict(replace(evidence, limit_bytes=GIB // 2)) is LimitReason.LIMIT_IN_ENVIRONMENT
    assert verdict(replace(evidence, processes=(other,))) is LimitReason.NOT_MPS_CLIENT
    assert verdict(replace(evidence, over_samples=2)) is LimitReason.OVER_LIMIT


def test_the_order_of_the_reasons_is_that_of_their_states():
    worst_first = [LimitState.EXCEEDED, LimitState.MISSING]
    states = [*dict.fromkeys(reason.state for reason in LimitReason)]
    assert states[:2] == worst_first
    assert {reason.state for reason in LimitReason} == set(LimitState)
    assert worst([LimitReason.NO_PROCESS, LimitReason.LIMIT_ZERO]) is LimitReason.LIMIT_ZERO


maybe = st.sampled_from([None, False, True])
processes = st.builds(
    LimitedProcess,
    linked=st.sampled_from([None, *Linked, Linked.LIBRARY, Linked.LIBRARY]),
    disabled=st.sampled_from([False, False, True, None]),
    preloads=st.sampled_from([False, False, True, None]),
    has_slot=maybe,
    is_client=maybe,
)
evidences = st.builds(
    LimitEvidence,
    way=st.sampled_from(WAYS),
    reads_maps=st.booleans(),
    processes=st.lists(processes, max_size=3).map(tuple) | st.none(),
    reserved_bytes=st.sampled_from([None, GIB]),
    limit_bytes=st.sampled_from([None, 0, GIB, GIB, 2 * GIB]),
    differs=st.sampled_from([False, False, True]),
    other_gpu=st.sampled_from([False, False, True]),
    answered=st.booleans(),
    region=maybe,
    over_samples=st.integers(0, 2),
    failed=st.sampled_from([False, False, True]),
    disabled=st.sampled_from([False, False, True]),
    has_instance=st.booleans(),
    has_module=maybe,
)


def is_writing(process, evidence):
    return evidence.way.has_region and process.has_slot and evidence.answered


def environment_unread(process):
    yield replace(process, disabled=None)
    yield replace(process, preloads=None)


def lessened(evidence):
    """The evidence without the data of each source, one at a time."""
    yield replace(evidence, processes=None, over_samples=0)
    yield replace(evidence, answered=False, failed=True)
    yield replace(evidence, differs=False, failed=True)
    yield replace(evidence, disabled=False, failed=True)
    yield replace(evidence, region=None, other_gpu=False, limit_bytes=None)
    yield replace(evidence, reserved_bytes=None)
    yield replace(evidence, has_instance=False)
    yield replace(evidence, has_module=None)
    for number, process in enumerate(evidence.processes or ()):
        for less in (
            replace(process, linked=None, disabled=False, preloads=False),
            replace(process, has_slot=None),
            replace(process, is_client=None),
            *(() if is_writing(process, evidence) else environment_unread(process)),
        ):
            if not evidence.reads_maps and less.linked is not process.linked:
                continue  # a static binary: the only thing that is known without maps
            before, after = evidence.processes[:number], evidence.processes[number + 1 :]
            yield replace(evidence, processes=(*before, less, *after))


@given(evidences)
def test_the_state_never_improves_when_evidence_is_taken_away(evidence):
    whole = verdict(evidence)
    for less in lessened(evidence):
        assert rank(verdict(less)) <= rank(whole), (less, verdict(less), whole)


@given(evidences)
def test_no_library_is_in_place_with_a_process_that_nothing_proves(evidence):
    if evidence.way.kind is LimitKind.LIBRARY and rank(verdict(evidence)) == 2:
        assert evidence.processes
        for process in evidence.processes:
            by_slot = process.has_slot and evidence.answered and not evidence.reads_maps
            assert by_slot or process.linked is Linked.LIBRARY
            assert not (process.disabled and evidence.way.can_be_disabled)
            is_unread = None in (process.disabled, process.preloads)
            assert not (evidence.reads_maps and is_unread and not is_writing(process, evidence))


COLLECTORS = {"gpu": "nvml", "process": "process", "shim": "shim", "kubelet": "kubelet"} | {
    name: name for name in ("limits", "own", "pods")
}


def reasons(observation):
    builder = LedgerBuilder(registry().codecs({"volcano": MIB, "gpushare": GIB}), "node-1")
    builder.ledger(observation)
    containers = builder.usage(observation).containers
    return {(each.pod.uid, each.container): each.limit_reason for each in containers}


@given(st.integers(0, 2**32))
def test_no_limit_of_a_node_improves_when_a_collector_fails(seed):
    node = any_node(Random(seed))
    whole = reasons(node)
    for field, name in COLLECTORS.items():
        if getattr(node, field) is not None:
            failed = replace(node, **{field: None}, incomplete=node.incomplete | {name})
            for place, reason in reasons(failed).items():
                assert rank(reason) <= rank(whole.get(place)) or place not in whole, (field, place)
