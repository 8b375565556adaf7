"""Answers of our own scheduler, as kube-scheduler repeats them, are never unknown or misread."""

import pytest
from msgspec import structs

from scheduler.cluster.reservations import lease_name
from scheduler.reasons import NOT_READY, BindFailure
from tests.explain.test_explain_pods import decisive, explanation
from tests.explain.test_refusals import hami, hami_node
from tests.reconciler.samples import HOUR, lock, pod
from tests.scheduler.model_api import ModelApi, gpushare_node
from tests.scheduler.served import Served
from vgpu.placement.result import PlacementReason
from vgpucli.explain.model import ExplainOutcome, WayStep
from vgpucli.explain.scheduler_message import PartKind, parsed

NODE, POD = "volume-1", "selector-0"
"""Names with words of other checks in them."""

REJECTED = "binding rejected: "


def faulty(fault):
    def break_it(served):
        served.api.fault = fault

    return break_it


def delete(served):
    served.api.delete(POD)


def recreate(served):
    one = served.api.pods[POD]
    served.api.store(structs.replace(one, ref=structs.replace(one.ref, uid="another")))


def bind_elsewhere(served):
    served.api.store(structs.replace(served.api.pods[POD], node="volume-2"))


def end(served):
    served.api.store(structs.replace(served.api.pods[POD], deleted_at=1.0))


def change_all_the_time(served):
    def change():
        served.api.store(served.api.pods[POD])
        served.api.interruptions[served.api.requests + 1] = change

    served.api.interruptions[served.api.requests + 1] = change


def spoil_lease(served):
    served.api.leases[lease_name(NODE)] = ("1", '{"uid-x": 7}')


@pytest.mark.parametrize(
    ("spoil", "failure"),
    [
        (faulty("refused"), BindFailure.REFUSED),
        (faulty("late"), BindFailure.UNREACHABLE),
        (faulty("down"), BindFailure.UNREACHABLE),
        (faulty("lease down"), BindFailure.UNREACHABLE),
        (faulty("lease not written"), BindFailure.UNREACHABLE),
        (spoil_lease, BindFailure.LEASE_UNREADABLE),
        (delete, BindFailure.GONE),
        (recreate, BindFailure.GONE),
        (end, BindFailure.GONE),
        (bind_elsewhere, BindFailure.BOUND_ELSEWHERE),
        (change_all_the_time, BindFailure.CONFLICT),
    ],
)
def test_what_the_scheduler_answers_to_a_failed_bind_has_its_reason(spoil, failure):
    with Served(ModelApi(), leases=True) as served:
        served.cache.set_node(NODE, gpushare_node(NODE, 1))
        ref = served.api.pending(POD, 1)
        spoil(served)
        assert served.bind(ref, NODE) is failure
        answer = served.error
    for message in (answer, REJECTED + answer):
        (part,) = parsed(message).parts
        assert (part.kind, part.failure) == (PartKind.BIND, failure)


@pytest.mark.parametrize("failure", BindFailure)
@pytest.mark.parametrize("front", ["", REJECTED])
def test_each_failed_bind_of_our_own_is_a_known_reason_with_advice(failure, front):
    (part,) = parsed(front + failure.explanation).parts
    assert (part.failure, part.name) == (failure, "")
    explained = explanation(hami(unschedulable=front + failure.explanation), hami_node())
    assert decisive(explained) == (WayStep.RESERVED, ExplainOutcome.FAILED, [failure.value])
    assert explained.advice
    assert "GPUs are not the reason" not in explained.advice


def test_the_schedulers_need_of_locks_is_advised():
    explained = explanation(hami(unschedulable=PlacementReason.NEEDS_LOCK.explanation), hami_node())
    assert "--original-plugin" in explained.advice


@pytest.mark.parametrize("front", ["", REJECTED])
def test_the_lock_that_our_scheduler_waited_for_is_named_with_its_owner(front):
    locked = hami_node(annotations=lock(pod("other", "hami", phase="Pending"), age=HOUR))
    message = front + BindFailure.NODE_LOCKED.explanation
    explained = explanation(hami(unschedulable=message), locked)
    assert decisive(explained)[2] == ["lock_expired", "node_locked"]
    assert "node gpu-1 is locked for pod ml/other" in explained.conclusion


@pytest.mark.parametrize("reason", PlacementReason)
def test_a_placement_that_is_refused_at_the_bind_is_read_as_at_the_filter(reason):
    (refused,) = parsed(f"0/1 nodes are available: 1 {reason.explanation}.").parts
    (bound,) = parsed(REJECTED + reason.explanation).parts
    assert bound.kind is refused.kind is not PartKind.UNKNOWN


def test_a_scheduler_that_is_not_ready_is_an_extender_that_answers_an_error():
    for front in ("", REJECTED):
        (part,) = parsed(f"{front}{NOT_READY}volumes are not read").parts
        assert part.kind is PartKind.EXTENDER


def test_the_lock_of_a_node_that_is_closed_is_another_ones_only_if_the_text_names_it():
    owner = pod("other", "hami", phase="Pending")
    away = hami_node("gpu-1", ready=False, annotations=lock(owner, age=HOUR))
    locked = hami_node("gpu-2", annotations=lock(pod("young", "hami", phase="Pending"), age=5))
    for message, code, text in (
        (BindFailure.NODE_LOCKED.explanation, "node_locked", "node gpu-2 is locked for pod"),
        ("node gpu-1 has been locked within 5m0s", "lock_expired", "node gpu-1 is locked for pod"),
    ):
        explained = explanation(hami(unschedulable=message), away, locked)
        assert decisive(explained)[2][0] == code
        assert text in explained.conclusion
