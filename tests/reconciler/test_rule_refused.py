"""Pods that the kubelet did not admit: found, the reasons, and the effect of an eviction."""

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Evict
from reconciler.plan import make_plan
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.rejected_pods import refused
from tests.reconciler.samples import (
    CODECS,
    CODECS_IN_USE,
    HOUR,
    NOW,
    ended,
    holder,
    owner,
    pod,
    prestart_failed,
    replace,
    snapshot,
)
from tests.reconciler.samples import refused as sick
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Container, ContainerState, Status
from vgpu.schemes.nvidia.resources import other_names

STYLES = sorted(CODECS)


def find(*objects):
    return list(refused(ClusterIndex(snapshot(*objects), CODECS_IN_USE), Policy()))


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
    assert finding.skip_reason is None


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
    ("reason", "cause"),
    [
        *[(f"OutOf{each}", Cause.OUT_OF_RESOURCE) for each in ("cpu", "memory", "pods")],
        ("OutOfexample.com/foo", Cause.OUT_OF_RESOURCE),
        ("NodeAffinity", Cause.NODE_AFFINITY),
        ("NodeShutdown", Cause.NODE_SHUTDOWN),
        *[
            (each, Cause.OTHER)
            for each in ("", "NodePorts", "SysctlForbidden", "AppArmor", "Preempting", "OutOf")
        ],
        ("unexpectedadmissionerror", Cause.OTHER),
        ("\ud800\x1b[2J", Cause.OTHER),
    ],
)
@pytest.mark.parametrize("style", STYLES)
def test_whatever_the_kubelets_message_is_a_failed_pod_that_never_started_was_refused(
    style, reason, cause
):
    finding = only(sick(pod(style=style), reason=reason))
    assert finding.cause is cause
    assert finding.evidence[0] == f"reason {reason!r}"


@pytest.mark.parametrize("reason", ["Evicted", "DeadlineExceeded"])
def test_an_eviction_and_a_deadline_are_their_owners_affair(reason):
    assert not find(sick(pod(), reason=reason))


NOT_STARTED = {
    "nothing": (),
    "waits": (Status("main", ContainerState.WAITING, reason="ContainerCreating"),),
    "not found": (Status("main", ContainerState.TERMINATED, reason="ContainerStatusUnknown"),),
}
STARTED = {
    "runs": Status("main", ContainerState.RUNNING),
    "ended": Status("main", ContainerState.TERMINATED, reason="Error"),
    "ran before": Status("main", ContainerState.WAITING, restarts=1),
    "ended before": Status("main", ContainerState.WAITING, last_reason="Completed"),
    "was there": Status(
        "main", ContainerState.TERMINATED, id="c0ffee", reason="ContainerStatusUnknown"
    ),
    "could not be started": Status(
        "main", ContainerState.TERMINATED, id="c0ffee", reason="StartError"
    ),
}


@pytest.mark.parametrize("statuses", NOT_STARTED.values(), ids=NOT_STARTED)
def test_a_container_that_only_waited_has_never_started(statuses):
    assert only(replace(sick(pod(), reason="NodeAffinity"), statuses=statuses))


@pytest.mark.parametrize("kind", [ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR])
@pytest.mark.parametrize("status", STARTED.values(), ids=STARTED)
def test_where_any_container_was_started_another_word_is_no_refusal(status, kind):
    waits = Status("other", ContainerState.WAITING)
    statuses = (waits, replace(status, kind=kind))
    for reason in ("NodeAffinity", "OutOfcpu", ""):
        assert not find(replace(sick(pod(), reason=reason), statuses=statuses))
    known = replace(sick(pod()), statuses=statuses)
    assert only(known).cause is Cause.UNEXPECTED_ADMISSION_ERROR  # no other reason is like that


def test_a_failed_pod_that_asks_for_no_gpu_is_no_finding():
    marked = replace(pod(style="kubeshare", claim=None), annotations={"kubeshare/x": "1"})
    assert not find(sick(marked), sick(marked, reason="NodeAffinity"))


# ---------------------------------------------------------------- NVIDIA's own plugin


def nvidias(name, resource):
    return sick(pod(name, claim=None, containers=(Container("main", {resource: 1}),)))


def test_pods_of_nvidias_own_plugin_are_judged_alike_whether_mig_or_whole():
    whole = nvidias("whole", "nvidia.com/gpu")
    slice_ = nvidias("slice", "nvidia.com/mig-1g.5gb")
    seen = snapshot(nvidia_pods=(whole, slice_))
    plan, _ = make_plan(seen, Policy(), ReconcilerState(), CODECS_IN_USE)
    assert {entry.finding.object_ref.name for entry in plan.actions} == {"whole", "slice"}
    assert {entry.finding.rule for entry in plan.actions} == {Rule.REFUSED}


def test_a_pod_that_found_no_resource_under_another_name_is_out_of_it():
    out = replace(nvidias("out", "example.com/gpu"), reason="OutOfexample.com/gpu")
    with other_names(["example.com/gpu"]):
        seen = snapshot(nvidia_pods=(out,))
        plan, _ = make_plan(seen, Policy(), ReconcilerState(), CODECS_IN_USE)
    assert [entry.finding.cause for entry in plan.entries] == [Cause.OUT_OF_RESOURCE]


def test_they_are_no_affair_of_rules_on_messages_and_count_for_nothing():
    stuck = prestart_failed(nvidias("stuck", "nvidia.com/mig-1g.5gb"))
    stuck = replace(stuck, phase="Pending", created_at=NOW, scheduled_at=NOW, started_at=NOW)
    runs = replace(pod("runs", claim=None), containers=stuck.containers, phase="Running")
    plan, _ = make_plan(
        snapshot(nvidia_pods=(stuck, runs)), Policy(), ReconcilerState(), CODECS_IN_USE
    )
    assert (plan.entries, plan.breaker.pods) == ((), 0)


# ---------------------------------------------------------------- killed by a shutdown

KILLED = ended(pod(), "Failed")
KILLED = replace(KILLED, reason="Terminated", message="Pod was terminated in response to imminent")


@pytest.mark.parametrize("killed", [KILLED, replace(KILLED, statuses=())], ids=["ran", "waited"])
def test_what_a_nodes_shutdown_has_killed_is_only_reported_unless_configured(killed):
    assert not find(killed)
    plan, _ = make_plan(snapshot(killed), Policy(), ReconcilerState(), CODECS_IN_USE)
    (entry,) = plan.entries
    finding = entry.finding
    assert (finding.rule, finding.cause) == (Rule.TERMINATED, Cause.NODE_WENT_DOWN)
    assert entry.skip is SkipReason.RULE_MODE_PLAN
    acts = Policy(modes={Rule.TERMINATED: Mode.APPLY})
    plan, _ = make_plan(snapshot(killed), acts, ReconcilerState(), CODECS_IN_USE)
    assert [entry.finding.effect for entry in plan.actions] == [Effect.TIDYING]


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


def test_a_job_makes_no_pod_for_one_that_it_has_counted():
    assert only(sick(pod(kind="Job"))).effect is Effect.TIDYING


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "PyTorchJob", "Strange", None])
def test_where_nothing_has_replaced_it_the_eviction_is_a_recovery(kind):
    assert only(sick(pod(kind=kind))).effect is Effect.RECOVERY


@pytest.mark.parametrize(
    ("sibling", "effect"),
    [
        (pod("train-1", kind="StatefulSet", age=HOUR / 2), Effect.TIDYING),
        (pod("train-1", kind="StatefulSet", age=HOUR), Effect.TIDYING),
        (pod("train-1", kind="StatefulSet", age=2 * HOUR), Effect.RECOVERY),
        (
            pod("train-1", kind="StatefulSet", age=HOUR / 2, owner=owner("StatefulSet", "else")),
            Effect.RECOVERY,
        ),
        (pod("train-1", kind="StatefulSet", age=HOUR / 2, deleted_at=NOW), Effect.RECOVERY),
        (ended(pod("train-1", kind="StatefulSet", age=HOUR / 2)), Effect.RECOVERY),
        (pod("train-1", kind="StatefulSet", created_at=None), Effect.RECOVERY),
    ],
    ids=["younger", "same second", "older", "another's", "terminating", "ended", "of no age"],
)
def test_a_living_pod_of_the_same_owner_that_is_not_older_is_the_replacement(sibling, effect):
    rejected = sick(pod(kind="StatefulSet", age=2 * HOUR, status_at=NOW - HOUR))
    findings = find(rejected, sibling)
    assert [each.effect for each in findings] == [effect]


# ---------------------------------------------------------------- since when


def test_it_failed_when_the_kubelet_wrote_its_last_status():
    rebooted = sick(pod(age=24 * HOUR, status_at=NOW - 5.0))
    assert only(rebooted).since == NOW - 5.0


def test_without_that_the_latest_reported_time_counts():
    times = {"status_at": None, "created_at": NOW - 9.0, "started_at": NOW - 7.0}
    died = Status("main", ContainerState.TERMINATED, finished_at=NOW - 3.0)
    assert only(replace(sick(pod()), **times)).since == NOW - 7.0
    assert only(replace(sick(pod()), **times, statuses=(died,))).since == NOW - 3.0
    unknown_times = dict.fromkeys(times)
    assert only(replace(sick(pod()), **unknown_times)).since is None


def test_it_is_skipped_for_a_minute_and_the_margin_of_the_clocks():
    def skip(age):
        plan, _ = make_plan(
            snapshot(sick(pod(status_at=NOW - age))), Policy(), ReconcilerState(), CODECS_IN_USE
        )
        return plan.entries[0].skip

    assert skip(119.0) is SkipReason.TOO_YOUNG
    assert skip(120.0) is None


# ---------------------------------------------------------------- through the whole plan


def test_of_three_rejected_pods_only_the_one_that_is_recreated_is_evicted():
    """gpu-manager's own example: a naked pod, one that a pod owns, one of a ReplicaSet."""
    naked = sick(pod("pod-1", "gaia", kind=None))
    of_a_pod = sick(pod("pod-2", "gaia", kind="Pod"))
    of_a_set = sick(pod("pod-3", "gaia", kind="ReplicaSet"))
    plan, _ = make_plan(
        snapshot(naked, of_a_pod, of_a_set), Policy(), ReconcilerState(), CODECS_IN_USE
    )
    (action,) = plan.actions
    assert action.finding.object_ref.uid == of_a_set.ref.uid
    assert (action.finding.rule, action.finding.effect) == (Rule.REFUSED, Effect.TIDYING)
    assert {entry.finding.object_ref.name: entry.skip for entry in plan.skipped} == {
        "pod-1": SkipReason.BARE_POD,
        "pod-2": SkipReason.OWNER_KIND,
    }


def test_a_message_of_any_length_and_content_is_quoted_shortly():
    hostile = "\x1b[2J\ud800\n" + "x" * 10**6
    (_, message) = only(sick(pod(), message=hostile)).evidence
    assert len(message) < 400
    assert message.startswith(r"message '\x1b[2J\ud800\nxxx")


def test_a_healthy_cluster_has_nothing_to_say():
    assert not find(*(pod(f"{style}-0", style) for style in STYLES), holder())
