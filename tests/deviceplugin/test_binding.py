"""Why a container is not bound, from one look to the next."""

import pytest

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_state import BinderState, by_ids
from deviceplugin.allocate.binding import bind_all
from deviceplugin.reasons import BindRefusal
from tests.deviceplugin.allocation_values import (
    GPUS,
    NODE,
    ROLE,
    A,
    assignment,
    pod,
    replace,
    share,
)

PHASE = "volcano.sh/bind-phase"
NOW = 1_790_000_000.0


def looks(*pods):
    """The one refusal of a pod's container after each look, at which the pod was so."""
    one = assignment(pods[0])
    state = BinderState(AllocationState.of(GPUS), by_ids([one]))
    refusals = []
    for seen in pods:
        found = bind_all(ROLE, NODE, state, lambda _, seen=seen: seen, recent=(), now=NOW)
        state = replace(state, allocation_state=found.allocation_state, refusals=found.refusals)
        refusals += found.refusals.values() or [None]
    return refusals


def annotated(one, **annotations):
    return replace(one, annotations={**one.annotations, **annotations})


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"volcano.sh/vgpu-node": "node-2"}, BindRefusal.OTHER_NODE),
        ({"volcano.sh/vgpu-ids-new": "one, two:"}, BindRefusal.MALFORMED),
    ],
)
def test_our_own_mark_of_a_refusal_is_not_its_reason(wrong, why):
    refused = annotated(pod("p"), **wrong)
    first, second = looks(refused, annotated(refused, **{PHASE: "failed"}))
    assert first.why is why
    assert (second.why, str(second)) == (why, str(first))


def test_an_attempt_that_another_thread_abandoned_has_failed():
    (refused,) = looks(annotated(pod("p"), **{PHASE: "failed"}))
    assert refused.why is BindRefusal.CLAIM_FAILED


def test_what_heals_is_bound():
    promised = pod("p", share(A, 2))
    first, second = looks(replace(promised, annotations={}), promised)
    assert first.why is BindRefusal.NO_CLAIM
    assert second is None
