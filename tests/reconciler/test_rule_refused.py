"""Pods that the kubelet did not admit: found, told why, and what evicting them is good for."""

import pytest

from reconciler.memory import Memory
from reconciler.model import Evict
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, Skip
from reconciler.rules.refused import refused
from reconciler.scene import Scene
from tests.reconciler.samples import (
    HOUR,
    LANGUAGES,
    NOW,
    SPOKEN,
    ended,
    holder,
    owner,
    pod,
    replace,
    snapshot,
)
from tests.reconciler.samples import refused as sick
from vgpu.kube import ContainerState, Status

STYLES = sorted(LANGUAGES)


def find(*objects):
    return list(refused(Scene(snapshot(*objects), SPOKEN), Policy()))


def only(*objects):
    (finding,) = find(*objects)
    return finding


@pytest.mark.parametrize("style", STYLES)
def test_a_rejected_pod_of_every_scheme_is_evicted(style):
    rejected = sick(pod(style=style))
    finding = only(rejected)
    assert finding.cause is Cause.UNEXPECTED_ADMISSION_ERROR
    assert finding.action == Evict(rejected.ref, rejected.resource_version)
    assert finding.evidence == (
        "reason 'UnexpectedAdmissionError'",
        f"message {rejected.message!r}",
    )
    assert finding.objection is None


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("UnexpectedAdmissionError", Cause.UNEXPECTED_ADMISSION_ERROR),
        ("UnexpectedPredicateFailureType", Cause.UNEXPECTED_ADMISSION_ERROR),
        ("TopologyAffinityError", Cause.TOPOLOGY_AFFINITY_ERROR),
        ("PreStartContainerCheckErr", Cause.PRESTART_CHECK_ERROR),
        ("OutOfvolcano.sh/vgpu-number", Cause.OUT_OF_RESOURCE),
        ("OutOfnvidia.com/gpumem", Cause.OUT_OF_RESOURCE),
        ("OutOfaliyun.com/gpu-mem", Cause.OUT_OF_RESOURCE),
        ("OutOftencent.com/vcuda-core", Cause.OUT_OF_RESOURCE),
    ],
)
def test_each_reason_that_is_ours_has_its_cause(reason, cause):
    assert only(sick(pod(), reason=reason)).cause is cause


@pytest.mark.parametrize(
    "reason",
    [
        *("", "Evicted", "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOf", "NodeAffinity"),
        *("unexpectedadmissionerror", "UnexpectedAdmissionError ", "outofnvidia.com/gpu"),
        *("NodeShutdown", "\ud800"),
    ],
)
def test_other_failures_are_their_owners_affair(reason):
    assert not find(sick(pod(), reason=reason))


@pytest.mark.parametrize("style", STYLES)
def test_pods_that_run_wait_or_have_ended_are_not_found(style):
    running = pod(style=style)
    assert not find(running, ended(running), ended(running, "Failed"))
    assert not find(
        replace(sick(running), phase="Pending"), replace(sick(running), phase="Running")
    )


# ---------------------------------------------------------------- what evicting it is good for


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController"])
def test_a_replica_set_has_replaced_a_failed_pod_already(kind):
    assert only(sick(pod(kind=kind))).effect is Effect.TIDYING


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "Job", "PyTorchJob", None])
def test_where_nothing_has_replaced_it_the_eviction_is_a_recovery(kind):
    assert only(sick(pod(kind=kind))).effect is Effect.RECOVERY


@pytest.mark.parametrize(
    ("sibling", "effect"),
    [
        (pod("train-1", kind="Job", age=HOUR / 2), Effect.TIDYING),
        (pod("train-1", kind="Job", age=HOUR), Effect.TIDYING),
        (pod("train-1", kind="Job", age=2 * HOUR), Effect.RECOVERY),
        (pod("train-1", kind="Job", age=HOUR / 2, owner=owner("Job", "else")), Effect.RECOVERY),
        (pod("train-1", kind="Job", age=HOUR / 2, deleted_at=NOW), Effect.RECOVERY),
        (ended(pod("train-1", kind="Job", age=HOUR / 2)), Effect.RECOVERY),
        (pod("train-1", kind="Job", created_at=None), Effect.RECOVERY),
    ],
    ids=["younger", "same second", "older", "another's", "terminating", "ended", "of no age"],
)
def test_a_living_pod_of_the_same_owner_that_is_not_older_is_the_replacement(sibling, effect):
    rejected = sick(pod(kind="Job", age=2 * HOUR, status_at=NOW - HOUR))
    findings = find(rejected, sibling)
    assert [each.effect for each in findings] == [effect]


# ---------------------------------------------------------------- since when


def test_it_failed_when_the_kubelet_wrote_its_last_status():
    rebooted = sick(pod(age=24 * HOUR, status_at=NOW - 5.0))
    assert only(rebooted).since == NOW - 5.0


def test_without_that_the_latest_time_that_is_told_counts():
    told = {"status_at": None, "created_at": NOW - 9.0, "started_at": NOW - 7.0}
    died = Status("main", ContainerState.TERMINATED, finished_at=NOW - 3.0)
    assert only(replace(sick(pod()), **told)).since == NOW - 7.0
    assert only(replace(sick(pod()), **told, statuses=(died,))).since == NOW - 3.0
    untold = dict.fromkeys(told)
    assert only(replace(sick(pod()), **untold)).since is None


def test_it_is_left_alone_for_a_minute_and_the_margin_of_the_clocks():
    def skip(age):
        plan, _ = make_plan(snapshot(sick(pod(status_at=NOW - age))), Policy(), Memory(), SPOKEN)
        return plan.entries[0].skip

    assert skip(119.0) is Skip.TOO_YOUNG
    assert skip(120.0) is None


# ---------------------------------------------------------------- through the whole plan


def test_of_three_rejected_pods_only_the_one_that_is_made_again_goes():
    """gpu-manager's own example: a naked pod, one that a pod owns, one of a ReplicaSet."""
    naked = sick(pod("pod-1", "gaia", kind=None))
    of_a_pod = sick(pod("pod-2", "gaia", kind="Pod"))
    of_a_set = sick(pod("pod-3", "gaia", kind="ReplicaSet"))
    plan, _ = make_plan(snapshot(naked, of_a_pod, of_a_set), Policy(), Memory(), SPOKEN)
    (action,) = plan.actions
    assert action.finding.subject.uid == of_a_set.ref.uid
    assert (action.finding.rule, action.finding.effect) == (Rule.REFUSED, Effect.TIDYING)
    assert {entry.finding.subject.name: entry.skip for entry in plan.skipped} == {
        "pod-1": Skip.BARE_POD,
        "pod-2": Skip.OWNER_KIND,
    }


def test_a_message_of_any_length_and_content_is_quoted_shortly():
    hostile = "\x1b[2J\ud800\n" + "x" * 10**6
    (_, message) = only(sick(pod(), message=hostile)).evidence
    assert len(message) < 400
    assert message.startswith(r"message '\x1b[2J\ud800\nxxx")


def test_a_healthy_cluster_has_nothing_to_say():
    assert not find(*(pod(f"{style}-0", style) for style in STYLES), holder())
