"""What keeps a container from starting."""

import pytest
from msgspec.structs import replace

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_state import BinderState, by_ids, prestart_check
from deviceplugin.allocate.binding import bind
from deviceplugin.reasons import BindRefusal, BindRefused
from tests.deviceplugin.allocation_values import (
    GPUS,
    NODE,
    ROLE,
    A,
    B,
    assignment,
    claimed,
    pod,
    share,
)

IDS = frozenset({"x"})
POD = pod("p", share(A, 2))
ONE = assignment(POD)


def bound(*assignments, allocation_state=None):
    """The state in which these are bound, and all is written."""
    allocation_state = allocation_state or AllocationState.of(GPUS)
    for one in assignments:
        allocation_state = bind(ROLE, NODE, allocation_state, one, POD, now=1.0)
    return BinderState(
        allocation_state, by_ids(assignments), ready=frozenset(one.name for one in assignments)
    )


def why(state, ids=IDS, **options):
    refused = prestart_check(state, ids, **options)
    return refused and refused.why


def test_what_is_bound_and_written_may_start():
    assert prestart_check(bound(ONE), IDS) is None


def test_before_the_recovery_nothing_may():
    assert why(None) is BindRefusal.NOT_RECOVERED


def test_ids_that_the_kubelet_has_not_written_down_may_not():
    assert why(bound(ONE), frozenset({"y"})) is BindRefusal.NOT_SEEN
    assert why(bound(ONE), frozenset({"x", "y"})) is BindRefusal.NOT_SEEN
    assert why(bound(ONE), frozenset()) is BindRefusal.NOT_SEEN


def test_what_is_bound_and_not_written_may_not():
    assert why(replace(bound(ONE), ready=frozenset())) is BindRefusal.NOT_SEEN


def test_a_checkpoint_of_the_kubelets_that_was_never_read_is_no_evidence_of_absence():
    state = bound(ONE)
    assert state.assigned_pods is None
    assert replace(state, read_at=1.0).assigned_pods == {"p"}
    assert replace(state, assignments={}, read_at=1.0).assigned_pods == frozenset()


def test_what_is_written_and_not_bound_may_not():
    assert (
        why(replace(bound(ONE), allocation_state=AllocationState.of(GPUS))) is BindRefusal.NOT_SEEN
    )


def test_a_new_name_of_the_same_container_is_not_the_old_one():
    state = bound(ONE)
    renamed = by_ids([replace(ONE, name="n2")])
    assert why(replace(state, assignments=renamed)) is BindRefusal.NOT_SEEN


def test_the_reason_why_it_is_not_bound_is_reported():
    full = BindRefused(BindRefusal.NO_ROOM, "full", POD.ref, "main")
    state = replace(bound(ONE), refusals={("p", "main"): full})
    assert prestart_check(state, IDS) is full


def test_of_containers_with_the_same_ids_each_has_to_be_bound():
    after = replace(ONE, container="other", name="n2")
    state = replace(bound(ONE), assignments=by_ids([ONE, after]))
    assert why(state) is BindRefusal.NOT_SEEN


def test_another_plugins_answer_is_complete_as_it_is():
    theirs = replace(ONE, name="")
    assert prestart_check(BinderState(AllocationState.of(GPUS), by_ids([theirs])), IDS) is None


def test_what_was_read_before_the_kubelet_asked_is_no_proof():
    state = replace(bound(ONE), read_at=10.0)
    assert why(state, asked_at=10.5) is BindRefusal.NOT_SEEN
    assert prestart_check(state, IDS, 10.0) is None


@pytest.mark.parametrize("reason", list(BindRefusal))
def test_only_room_is_looked_for_more_often(reason):
    state = replace(bound(ONE), refusals={("q", "main"): BindRefused(reason, "x")})
    assert state.waits_for_room == (reason is BindRefusal.NO_ROOM)


def test_claims_are_as_the_values_say():
    assert claimed(pod("q", share(B, 1)))[0].shares == (share(B, 1),)
