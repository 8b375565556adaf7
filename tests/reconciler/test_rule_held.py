"""Shares that are held without use: by pods that do not end, cannot run, or run no kernel."""

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.model import KernelLaunch
from reconciler.plan import make_plan
from reconciler.policy import Ages, Policy
from reconciler.reasons import Cause, Rule
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.unused_shares import held_for_nothing, idle_holder, stuck_terminating
from tests.reconciler.node_samples import on_node
from tests.reconciler.samples import CODECS_IN_USE, HOUR, MINUTE, NOW, node, pod, replace, snapshot
from vgpu.model.names import ContainerKind, Phase
from vgpu.model.objects import Container, ContainerState, Status

STYLES = ("volcano", "hami", "gpushare", "gaia")


def found(rule, *objects, policy=None, **fields):
    return list(rule(ClusterIndex(snapshot(*objects, **fields), CODECS_IN_USE), policy or Policy()))


def waiting(of, reason, *, restarts=0, message="", finished=None, kind=ContainerKind.APP):
    status = Status(
        "main",
        ContainerState.WAITING,
        kind=kind,
        reason=reason,
        message=message,
        restarts=restarts,
        last_finished_at=finished,
    )
    return replace(of, statuses=(status,))


# ---------------------------------------------------------------- stuck_terminating


@pytest.mark.parametrize("style", [*STYLES, "kubeshare"])
def test_a_pod_that_should_have_ended_is_reported_with_what_remains(style):
    stuck = pod("stuck", style, deleted_at=NOW - 2 * HOUR, grace_seconds=30)
    (finding,) = found(stuck_terminating, stuck)
    assert (finding.rule, finding.cause) == (Rule.STUCK_TERMINATING, Cause.CONTAINERS_REMAIN)
    assert finding.action is None
    assert finding.since == NOW - 2 * HOUR
    assert finding.evidence == ("the pod should have ended 2h ago", "container main is running")


@pytest.mark.parametrize("seconds", [-60.0, 0.0, 599.0])
def test_a_pod_that_may_still_end_is_not(seconds):
    assert not found(stuck_terminating, pod("ending", deleted_at=NOW - seconds))


def test_without_its_node_nothing_can_confirm_its_end():
    stuck = pod("stuck", deleted_at=NOW - HOUR)
    (finding,) = found(stuck_terminating, stuck, node(ready=False))
    assert finding.cause is Cause.NODE_AWAY


def test_a_pod_whose_containers_have_ended_holds_nothing():
    gone = Status("main", ContainerState.TERMINATED, reason="Error")
    assert not found(stuck_terminating, pod("gone", deleted_at=NOW - HOUR, statuses=(gone,)))


# ---------------------------------------------------------------- held_for_nothing


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "nope:1"'),
        ("CreateContainerError", "unresolvable CDI devices vgpu.dev/share=x"),
        ("CreateContainerConfigError", 'secret "x" not found'),
        ("RunContainerError", ""),
    ],
)
def test_a_container_that_cannot_start_holds_its_share_for_nothing(style, reason, message):
    sick = waiting(pod("sick", style, age=72 * HOUR), reason, message=message)
    (finding,) = found(held_for_nothing, sick)
    assert (finding.cause, finding.action) == (Cause.CANNOT_START, None)
    assert finding.since == NOW - 72 * HOUR
    text = "\n".join(finding.evidence)
    assert f"container main is waiting: '{reason}'" in text
    assert message in text
    assert "holds 8.0 GiB of " in text
    assert "8.0 GiB for 72 hours: 576 GiB hours" in text


@pytest.mark.parametrize("reason", ["", "ContainerCreating", "PodInitializing"])
def test_a_container_on_its_way_does_not(reason):
    assert not found(held_for_nothing, waiting(pod("new", age=72 * HOUR), reason))


def test_a_crash_loop_lasts_as_long_as_the_waits_between_its_restarts():
    """40 restarts: 310 s for the first five, then 300 s each."""
    sick = waiting(
        pod("sick", age=72 * HOUR), "CrashLoopBackOff", restarts=40, finished=NOW - MINUTE
    )
    (finding,) = found(held_for_nothing, sick)
    assert finding.cause is Cause.CRASH_LOOP
    assert finding.since == NOW - MINUTE - 310 - 35 * 300
    assert "container main is waiting: 'CrashLoopBackOff' after 40 restarts" in finding.evidence


def test_a_crash_loop_is_no_older_than_its_pod():
    sick = waiting(pod("sick", age=HOUR), "CrashLoopBackOff", restarts=4000, finished=NOW)
    (finding,) = found(held_for_nothing, sick)
    assert finding.since == NOW - HOUR


def test_a_few_restarts_are_no_finding():
    sick = waiting(pod("new", age=HOUR), "CrashLoopBackOff", restarts=3, finished=NOW - MINUTE)
    assert not found(held_for_nothing, sick)


def test_a_pod_that_was_ready_is_stuck_since_then():
    sick = replace(waiting(pod("sick", age=72 * HOUR), "ErrImagePull"), unready_at=NOW - HOUR)
    (finding,) = found(held_for_nothing, sick)
    assert finding.since == NOW - HOUR


def test_another_containers_trouble_is_not_this_shares():
    two = replace(
        pod("two"),
        containers=(*pod("two").containers, Container("side")),
        statuses=(
            Status("main", ContainerState.RUNNING),
            Status("side", ContainerState.WAITING, reason="ImagePullBackOff"),
        ),
    )
    assert not found(held_for_nothing, two)


def test_an_init_container_that_cannot_start_keeps_all_shares_from_use():
    sick = pod("sick", age=72 * HOUR)
    init = Status("fetch", ContainerState.WAITING, reason="ErrImagePull", kind=ContainerKind.INIT)
    main = Status("main", ContainerState.WAITING, reason="PodInitializing")
    (finding,) = found(held_for_nothing, replace(sick, statuses=(main, init)))
    assert "container fetch is waiting" in finding.evidence[0]


def test_a_reservation_is_left_to_its_own_rules():
    promised = waiting(pod("promised", claim=Phase.ASSUMED), "ImagePullBackOff")
    assert not found(held_for_nothing, promised)


def test_both_only_report_whatever_their_mode():
    stuck = pod("stuck", deleted_at=NOW - 2 * HOUR)
    sick = waiting(pod("sick", age=72 * HOUR), "ImagePullBackOff")
    plan, _ = make_plan(snapshot(stuck, sick), Policy(), ReconcilerState(), CODECS_IN_USE)
    assert not plan.actions
    assert {entry.finding.rule for entry in plan.findings} == {
        Rule.STUCK_TERMINATING,
        Rule.HELD_FOR_NOTHING,
    }


# ---------------------------------------------------------------- idle_holder

IDLE = Policy(ages=Ages(idle=2 * HOUR))


def idle(*launches, policy=IDLE, of=None):
    holder = of or pod("notebook", age=72 * HOUR)
    seen = replace(on_node(holder), last_kernels=launches)
    return list(idle_holder(ClusterIndex(seen, CODECS_IN_USE), policy))


def launch(at):
    return KernelLaunch(pod("notebook").kubelet_uid, "main", at)


def test_a_container_without_a_kernel_is_reported_where_asked_for():
    (finding,) = idle(launch(NOW - 3 * HOUR))
    assert (finding.rule, finding.cause, finding.action) == (
        Rule.IDLE_HOLDER,
        Cause.NO_KERNEL,
        None,
    )
    assert finding.evidence[0] == "container main launched its last kernel 3h ago"
    assert "holds 8.0 GiB of " in finding.evidence[1]
    assert not idle(launch(NOW - 3 * HOUR), policy=Policy())
    assert not idle(launch(NOW - HOUR))


def test_one_that_never_launched_a_kernel_is_idle_since_its_start():
    (finding,) = idle(launch(0.0))
    assert (
        finding.evidence[0] == "container main has launched no kernel since its pod started 3d ago"
    )


def test_one_that_does_not_run_is_not_idle():
    ended = Status("main", ContainerState.TERMINATED, reason="Completed")
    assert not idle(launch(1.0), of=pod("notebook", statuses=(ended,)))
    assert not idle(KernelLaunch("uid-of-nobody", "main", 1.0))
