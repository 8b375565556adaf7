"""Containers that cannot start, and whether another try would help."""

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Evict
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.rejected_pods import no_gpu_matched
from reconciler.rules.rejected_pods import prestart_failed as find_prestart
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    NO_GPU,
    NOW,
    node,
    pod,
    prestart_failed,
    replace,
    snapshot,
    waiting,
)
from tests.reconciler.samples import no_gpu_matched as poisoned
from vgpu.model.objects import ContainerState, Status

GAIA = pod("train-0", "gaia")
GPUSHARE = pod("infer-0", "gpushare")


def find(rule, *objects, **fields):
    return list(rule(ClusterIndex(snapshot(*objects, **fields), CODECS_IN_USE), Policy()))


def only(rule, *objects, **fields):
    (finding,) = find(rule, *objects, **fields)
    return finding


def started_badly(sick, reason="StartError", message=NO_GPU, phase="Running"):
    """containerd reports it as the container's termination."""
    status = Status("main", ContainerState.TERMINATED, reason=reason, message=message)
    return replace(sick, phase=phase, statuses=(status,), status_at=None)


@pytest.mark.parametrize("style", ["gaia", "volcano", "hami", "gpushare"])
def test_a_container_that_the_plugin_refuses_to_start_gets_a_new_pod(style):
    sick = prestart_failed(pod(style=style))
    finding = only(find_prestart, sick)
    assert finding.cause is Cause.PRESTART_CHECK_FAILED
    assert finding.action == Evict(sick.ref, sick.resource_version)
    assert (finding.effect, finding.skip_reason) == (Effect.RECOVERY, None)
    assert finding.since == NOW - HOUR
    assert finding.evidence == (
        "container main is waiting: 'CreateContainerConfigError'",
        "message 'PreStartContainer check failed: device not found'",
    )


def test_a_pod_that_has_anothers_answer_has_its_own_cause():
    message = "PreStartContainer check failed: a/b main: the answer was made for another pod; it"
    finding = only(find_prestart, prestart_failed(pod(style="volcano"), message))
    assert finding.cause is Cause.CROSSED
    assert finding.skip_reason is None


def test_the_words_may_stand_anywhere_in_the_message():
    wrapped = "rpc error: code = Unknown desc = " + "x" * 5_000 + " Allocate check failed, no node"
    finding = only(find_prestart, prestart_failed(GAIA, wrapped))
    assert finding.cause is Cause.ALLOCATE_CHECK_FAILED
    assert "Allocate check failed, no node" in finding.evidence[1]
    assert len(finding.evidence[1]) < 400


@pytest.mark.parametrize("unit", ["8GiB", "8138MiB", "1GiB"])
def test_a_poisoned_environment_is_found_where_the_runtime_stumbles_on_it(unit):
    sick = poisoned(GPUSHARE, f"no-gpu-has-{unit}-to-run")
    finding = only(no_gpu_matched, sick)
    assert finding.cause is Cause.NO_GPU_TO_RUN
    assert finding.action == Evict(sick.ref, sick.resource_version)
    assert not find(find_prestart, sick)


@pytest.mark.parametrize(
    "message", ["", "no-gpu-has--to-run", "no-gpu-has-8-to-run", "no-gpu-has-GiB-to-run", "no-gpu"]
)
def test_what_only_looks_like_it_is_not_found(message):
    assert not find(no_gpu_matched, poisoned(GPUSHARE, message))


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ContainerCreating", "CrashLoopBackOff"])
def test_containers_that_wait_for_something_else_are_not_found(reason):
    sick = waiting(GAIA, reason, f"back-off 5m0s: {reason}")
    assert not find(find_prestart, sick)
    assert not find(no_gpu_matched, sick)


# ---------------------------------------------------------------- a container that has ended


def test_a_start_that_the_runtime_reports_as_an_end_is_found_too():
    finding = only(no_gpu_matched, started_badly(GPUSHARE))
    assert finding.since is None
    assert finding.effect is Effect.RECOVERY


def test_a_containers_own_termination_message_is_no_evidence():
    """A tenant writes its termination message as it likes."""
    assert not find(no_gpu_matched, started_badly(GPUSHARE, reason="Error"))
    assert not find(find_prestart, started_badly(GAIA, "Error", "PreStartContainer check failed"))


def test_a_running_container_is_not_found_whatever_its_message_is():
    status = Status("main", ContainerState.RUNNING, message="PreStartContainer check failed")
    assert not find(find_prestart, replace(GAIA, statuses=(status,)))


def test_a_pod_that_has_failed_over_it_and_is_replaced_is_tidied_without_asking_the_plugin():
    failed = started_badly(GPUSHARE, phase="Failed")
    finding = only(no_gpu_matched, failed, node(plugin=False))
    assert (finding.effect, finding.skip_reason) == (Effect.TIDYING, None)
    alone = replace(failed, owner=None)
    finding = only(no_gpu_matched, alone, node(plugin=False))
    assert (finding.effect, finding.skip_reason) == (Effect.RECOVERY, SkipReason.PLUGIN_NOT_READY)
    assert not find(no_gpu_matched, replace(failed, phase="Succeeded"))


# ---------------------------------------------------------------- whether another try would help


@pytest.mark.parametrize(
    ("nodes", "seen", "skip_reason"),
    [
        ((node(),), {}, None),
        ((node(plugin=False),), {}, SkipReason.PLUGIN_NOT_READY),
        ((node(ready=False),), {}, SkipReason.NODE_NOT_READY),
        ((node("gpu-2"),), {}, SkipReason.NODE_UNKNOWN),
        ((node(),), {"complete": frozenset({Coverage.PODS})}, SkipReason.INCOMPLETE_VIEW),
    ],
    ids=["ready", "no plugin", "not ready", "unknown", "nodes unseen"],
)
@pytest.mark.parametrize(
    ("rule", "sick"),
    [(find_prestart, prestart_failed(GAIA)), (no_gpu_matched, poisoned(GPUSHARE))],
    ids=["prestart", "no gpu"],
)
def test_the_plugin_must_be_ready_or_the_next_pod_fails_again(rule, sick, nodes, seen, skip_reason):
    assert only(rule, sick, *nodes, **seen).skip_reason is skip_reason


def test_a_pod_that_crashes_on_it_again_and_again_runs_as_far_as_kubernetes_is_concerned():
    plan, _ = make_plan(
        snapshot(started_badly(GPUSHARE)), Policy(), ReconcilerState(), CODECS_IN_USE
    )
    (entry,) = plan.skipped
    assert (entry.finding.rule, entry.skip) == (Rule.NO_GPU_MATCHED, SkipReason.RUNNING)
    willing = Policy(evict_running=True)
    plan, memory = make_plan(
        snapshot(started_badly(GPUSHARE)), willing, ReconcilerState(), CODECS_IN_USE
    )
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]
    later = snapshot(started_badly(GPUSHARE), now=NOW + 120)
    plan, _ = make_plan(later, willing, memory, CODECS_IN_USE)
    assert [entry.finding.rule for entry in plan.actions] == [Rule.NO_GPU_MATCHED]


def test_the_end_of_the_container_dates_it_where_no_status_is_dated():
    sick = started_badly(GPUSHARE)
    dated = replace(sick.statuses[0], finished_at=NOW - 90)
    assert only(no_gpu_matched, replace(sick, statuses=(dated,))).since == NOW - 90


def test_in_a_back_off_the_last_termination_gives_the_reason():
    """All that containerd leaves of it most of the time."""
    status = Status(
        "main",
        ContainerState.WAITING,
        reason="CrashLoopBackOff",
        message="back-off 5m0s restarting failed container",
        last_reason="StartError",
        last_message=f"nvidia-container-cli: device error: {NO_GPU}: unknown device",
    )
    sick = replace(GPUSHARE, statuses=(status,))
    assert NO_GPU in only(no_gpu_matched, sick).evidence[1]
    its_own = replace(status, last_reason="Error")
    assert not find(no_gpu_matched, replace(sick, statuses=(its_own,)))
