"""Pods of KAI Scheduler and Koordinator: no rule acts on one, and the plan shows why."""

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Scope
from reconciler.plan import make_plan
from reconciler.plan.eligibility import eviction_skip_reason
from reconciler.policy import OBSERVED, Ages, Mode, Policy
from reconciler.reasons import Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from tests.reconciler.node_samples import on_node, statement
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    NOW,
    assumed,
    lock,
    node,
    pod,
    refused,
    replace,
    snapshot,
    waiting,
)
from vgpu.model.names import PodRef, Source
from vgpu.model.objects import Container

ALL_IN = Policy(
    modes=dict.fromkeys(Rule, Mode.APPLY),
    ages=Ages(idle=60.0),
    owners=("ReplicaSet", "StatefulSet", "Job"),
    evict_bare=True,
    evict_running=True,
    act_on_schemes=OBSERVED,
    protected_namespaces=(),
)
"""Everything that an operator may allow."""

MARKS = {
    "group": {"labels": {"runai-gpu-group": "g"}},
    "groups": {"labels": {"runai-gpu-group/g": "g"}},
    "koordinator": {"annotations": {"scheduling.koordinator.sh/device-allocated": "{}"}},
}
FULL = frozenset({Coverage.PODS, Coverage.NODES, Coverage.SHARE_PODS, Coverage.LEDGER})


def marked(one, mark="group"):
    """The pod with another scheduler's mark beside its own annotations."""
    return replace(
        one,
        labels=one.labels | MARKS[mark].get("labels", {}),
        annotations=one.annotations | MARKS[mark].get("annotations", {}),
    )


def fraction(name="tenant", **fields):
    """A pod of KAI: it requests no resource."""
    plain = pod(name, claim=None, phase="Running", containers=(Container("main"),))
    return replace(plain, annotations={"gpu-fraction": "0.5"}, **fields)


def reservation(**fields):
    """KAI's pod that keeps the GPU of a group: bare, and of NVIDIA's own plugin."""
    bare = pod("gpu-reservation-1", claim=None, phase="Running", kind=None)
    return replace(
        bare,
        ref=PodRef("uid-of-reservation", "kai-resource-reservation", "gpu-reservation-1"),
        labels={"app": "kai-resource-reservation"},
        containers=(Container("main", {"nvidia.com/gpu": 1}),),
        **fields,
    )


def plan(seen, policy=ALL_IN):
    return make_plan(seen, policy, ReconcilerState(), CODECS_IN_USE)[0]


def only_skipped(made):
    assert (made.actions, made.findings) == ((), ())
    assert {entry.skip for entry in made.skipped} == {SkipReason.OTHER_SCHEDULER}
    return made.skipped


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("style", ["volcano", "hami", "gpushare"])
def test_no_rule_acts_on_one_whatever_is_wrong_with_it(mark, style):
    sick = (
        refused(pod("refused", style, kind="StatefulSet")),
        assumed("unserved", style, age=2 * HOUR),
        assumed("unbound", style, node="", age=2 * HOUR),
        waiting(pod("stuck", style), "CreateContainerError", "PreStartContainer check failed"),
    )
    ours = plan(snapshot(node(), *sick))
    assert ours.actions or ours.skipped
    theirs = plan(snapshot(node(), *(marked(one, mark) for one in sick)))
    assert {entry.finding.rule for entry in only_skipped(theirs)} >= {
        Rule.REFUSED,
        Rule.PRESTART_FAILED,
    }


@pytest.mark.parametrize("phase", ["Failed", "Running"])
def test_a_reservation_pod_is_judged_by_no_rule(phase):
    """KAI ends the running pods of a group whose reservation pod is gone."""
    sick = refused(reservation()) if phase == "Failed" else reservation(deleted_at=NOW - HOUR)
    for seen in (snapshot(node(), nvidia_pods=(sick,)), snapshot(node(), sick)):
        assert plan(seen).entries == ()
        assert eviction_skip_reason(sick, ALL_IN, ClusterIndex(seen, CODECS_IN_USE).reaction)


def test_a_report_about_one_is_skipped_with_the_same_reason():
    stuck = marked(pod("stuck", deleted_at=NOW - 2 * HOUR))
    (entry,) = only_skipped(plan(snapshot(node(), stuck), Policy()))
    assert (entry.finding.rule, entry.finding.action) == (Rule.STUCK_TERMINATING, None)
    assert entry.detail == "KAI Scheduler, by runai-gpu-group"


@pytest.mark.parametrize("policy", [ALL_IN, Policy()])
def test_a_process_of_one_is_not_accused(policy):
    tenant = fraction()
    working = statement(tenant, source=Source.PROCESS)
    seen = on_node(node(), tenant, statements=[working], complete=FULL)
    (entry,) = only_skipped(plan(seen, policy))
    assert entry.finding.rule is Rule.UNOWNED_PROCESS
    assert "gpu-fraction" in entry.detail


def test_a_request_of_one_is_not_missed_by_the_sharing_systems():
    running = pod("train", "hami", claim=None, phase="Running")
    hamis = node("gpu-1", "hami")
    for scope in Scope:
        look = on_node if scope is Scope.NODE else cluster_look
        accused = plan(look(hamis, running, complete=FULL))
        assert [one.finding.rule for one in accused.entries] == [Rule.RUNNING_WITHOUT_DEVICE]
        assert plan(look(hamis, marked(running, "koordinator"), complete=FULL)).entries == ()


def cluster_look(*objects, **fields):
    """What the API server alone shows, with the ledger of its annotations."""
    seen = on_node(*objects, known={"read": frozenset({Source.ANNOTATIONS})}, **fields)
    return replace(seen, scope=Scope.CLUSTER)


def test_a_lock_is_not_taken_from_one():
    owner = marked(pod("owner", "hami", phase="Succeeded"), "koordinator")
    locked = node("gpu-1", "hami", annotations=lock(owner))
    assert plan(snapshot(locked, replace(owner, annotations={}))).actions
    (entry,) = only_skipped(plan(snapshot(locked, owner)))
    assert entry.finding.rule is Rule.STALE_LOCK
    unlisted = snapshot(locked, lock_owners={(owner.ref.namespace, owner.ref.name): owner})
    only_skipped(plan(unlisted))


def test_a_plan_that_frees_nodes_does_not_move_one():
    cluster_index = ClusterIndex(snapshot(node()), CODECS_IN_USE)
    skip_reason = eviction_skip_reason(marked(pod("train")), ALL_IN, cluster_index.reaction)
    assert skip_reason == (SkipReason.OTHER_SCHEDULER, "")
