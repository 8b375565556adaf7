"""What is to be written to the API server, from what the binder has found."""

import pytest

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_state import BinderState, by_ids, desired_state_of
from deviceplugin.reasons import BindRefusal, BindRefused
from tests.deviceplugin.allocation_values import (
    GPUS,
    ROLE,
    A,
    assignment,
    claimed,
    made,
    pod,
    running,
    share,
)
from vgpu.model.names import ContainerKind

APP = ContainerKind.APP
TWO = made("p", [("x", APP, (share(A, 2),)), ("y", APP, (share(A, 2),))])
EMPTY = AllocationState.of(GPUS)


def served(one, state):
    pods = {one.kubelet_uid: one}
    return one.kubelet_uid in desired_state_of(ROLE.resources[0], state, pods, None).served


def refused(one, *containers, why=BindRefusal.NO_ROOM, known=True):
    """The kubelet has our answer for these, and they are not bound."""
    ref = one.ref if known else None
    found = {
        (one.kubelet_uid, name): BindRefused(why, "so it is", ref, name) for name in containers
    }
    rows = [assignment(one, name, name, (name,)) for name in containers]
    return BinderState(EMPTY, by_ids(rows), found)


@pytest.mark.parametrize(
    "why",
    [
        BindRefusal.NO_ROOM,
        BindRefusal.NO_CLAIM,
        BindRefusal.UNHEALTHY_DEVICE,
        BindRefusal.NOT_WRITTEN,
    ],
)
def test_who_has_its_answers_is_served_though_it_waits(why):
    """The kubelet does not ask for it again, so that its node need not be locked for it."""
    assert served(TWO, refused(TWO, "x", "y", why=why))


def test_who_may_still_be_asked_for_is_not_served():
    assert not served(TWO, BinderState(EMPTY))
    assert not served(TWO, refused(TWO, "x"))
    admitted = EMPTY.admitted(TWO, claimed(TWO), 1.0)
    bound = admitted.bound(assignment(TWO, "x"), TWO, ROLE.codec.requests(TWO), 1.0)
    assert not served(TWO, BinderState(bound))
    assert not served(TWO, refused(TWO, "x", "y", why=BindRefusal.NOT_SEEN, known=False))


def test_who_has_its_answers_of_different_kinds_is_served():
    admitted = EMPTY.admitted(TWO, claimed(TWO), 1.0)
    bound = admitted.bound(assignment(TWO, "x"), TWO, ROLE.codec.requests(TWO), 1.0)
    waiting = {("p", "y"): BindRefused(BindRefusal.NOT_WRITTEN, "full", TWO.ref, "y")}
    assert served(TWO, BinderState(bound, refusals=waiting))
    assert served(running(TWO, "y"), BinderState(bound))
    theirs = by_ids([assignment(TWO, "y", name="", env={"NVIDIA_VISIBLE_DEVICES": A})])
    assert served(TWO, BinderState(bound, theirs))


def test_a_pod_that_asks_for_nothing_is_not_served_by_us():
    """Another vendor's plugin may be asked for it, under the same lock."""
    assert not served(made("q", [("main", APP, ())]), BinderState(EMPTY))


def test_one_final_refusal_is_enough():
    assert served(TWO, refused(TWO, "x", why=BindRefusal.OTHER_NODE))
    assert not served(pod("q"), refused(TWO, "x", why=BindRefusal.OTHER_NODE))
