"""Promises that nobody kept: whose pod is evicted, whose claim is removed, who gets more time."""

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Edit, Evict
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.scheduler_marks import assumed_expired, assumed_unbound
from tests.reconciler.samples import (
    CODECS,
    CODECS_IN_USE,
    HOUR,
    NOW,
    assumed,
    node,
    pod,
    prestart_failed,
    real_pod,
    replace,
    share_pod,
    snapshot,
    terminating,
    unbound,
    waiting,
)
from vgpu.model.names import Phase
from vgpu.model.objects import Container

ALLOCATED = ("gaia", "gpushare", "hami", "volcano")
"""Styles in which the kubelet's Allocate allocates what was reserved."""

BIND_PHASE = {"volcano": "volcano.sh/bind-phase", "hami": "hami.io/bind-phase"}
GPU_INDEX = "ALIYUN_COM_GPU_MEM_IDX"

TITLES = {"volcano": "Volcano", "hami": "HAMi", "gaia": "gpu-manager", "gpushare": "gpushare"}
"""The systems for people: not their schemes."""


def find(rule, *objects, **fields):
    return list(rule(ClusterIndex(snapshot(*objects, **fields), CODECS_IN_USE), Policy()))


def only(rule, *objects, **fields):
    (finding,) = find(rule, *objects, **fields)
    return finding


def not_admitted(style="volcano", **options):
    """Bound, and the kubelet has not reported anything about it."""
    return replace(assumed(style=style, **options), statuses=(), started_at=None)


# ---------------------------------------------------------------- bound


@pytest.mark.parametrize("style", ALLOCATED)
def test_a_bound_pod_that_allocate_passed_over_gets_a_new_pod(style):
    sick = not_admitted(style)
    finding = only(assumed_expired, sick)
    assert finding.cause is Cause.NEVER_ASSIGNED
    assert finding.action == Evict(sick.ref, sick.resource_version)
    assert (finding.effect, finding.skip_reason) == (Effect.RECOVERY, None)
    assert (finding.since, finding.grace) == (NOW - HOUR, 300.0)
    assert finding.evidence[0].startswith(f"{TITLES[style]}: assumed main: ")


@pytest.mark.parametrize("style", ALLOCATED)
def test_a_pod_that_was_served_is_not_found(style):
    served = pod(style=style)
    assert not find(assumed_expired, served, replace(served, phase="Pending"))


@pytest.mark.parametrize("style", ALLOCATED)
def test_a_young_promise_is_normal_life(style):
    assert not find(assumed_expired, not_admitted(style, age=299.0))
    assert only(assumed_expired, not_admitted(style, age=300.0))


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_only_pending_pods_wait_for_allocate(phase):
    assert not find(assumed_expired, replace(not_admitted(), phase=phase))


@pytest.mark.parametrize("style", ALLOCATED)
def test_the_latest_of_promise_binding_and_admission_counts(style):
    sick = assumed(style=style, age=2 * HOUR)
    assert only(assumed_expired, sick).since == NOW - 2 * HOUR
    assert only(assumed_expired, replace(sick, scheduled_at=NOW - 400)).since == NOW - 400
    assert only(assumed_expired, replace(sick, started_at=NOW - 350)).since == NOW - 350
    assert not find(assumed_expired, replace(sick, started_at=NOW - 100))


def test_a_promise_of_the_future_counts_from_when_it_is_first_seen():
    """Its time stands in an annotation: nobody hides a pod from us with it."""
    sick = not_admitted(age=-HOUR)
    assert only(assumed_expired, sick).since == NOW + HOUR
    plan, memory = make_plan(snapshot(sick), Policy(), ReconcilerState(), CODECS_IN_USE)
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]
    plan, _ = make_plan(snapshot(sick, now=NOW + 400), Policy(), memory, CODECS_IN_USE)
    assert [entry.finding.rule for entry in plan.actions] == [Rule.ASSUMED_EXPIRED]


def test_clocks_that_differ_by_a_minute_do_not_make_it_old_or_impossible():
    assert not find(assumed_expired, not_admitted(age=-59.0))


@pytest.mark.parametrize("style", ["volcano", "hami"])
def test_the_plugin_may_say_itself_that_it_failed(style):
    failed = {BIND_PHASE[style]: "failed"}
    struck = {CODECS[style].key_set.to_allocate: ";"}
    for annotations in (failed, failed | struck):
        finding = only(assumed_expired, not_admitted(style, annotations=annotations))
        assert (
            f"{TITLES[style]}: the plugin reports that it could not serve the pod"
            in finding.evidence
        )


@pytest.mark.parametrize("style", ["volcano", "hami"])
def test_a_pod_of_which_one_container_was_served_still_waits(style):
    two = (
        *assumed(style=style).containers,
        Container("more", assumed(style=style).containers[0].limits),
    )
    key_set = CODECS[style].key_set
    one = not_admitted(style)
    entry = one.annotations[key_set.devices].strip(";")
    annotations = one.annotations | {
        key_set.devices: f"{entry};{entry}",
        key_set.to_allocate: f";{entry}",
    }
    finding = only(assumed_expired, replace(one, containers=two, annotations=annotations))
    assert [line.split(": ")[1] for line in finding.evidence] == ["assigned main", "assumed more"]


# ---------------------------------------------------------------- who gets more time


@pytest.mark.parametrize(
    ("nodes", "seen", "skip_reason"),
    [
        ((node(plugin=False),), {}, SkipReason.PLUGIN_NOT_READY),
        ((node(ready=False),), {}, SkipReason.NODE_NOT_READY),
        ((node("gpu-2"),), {}, SkipReason.NODE_UNKNOWN),
        ((node(),), {"complete": frozenset({Coverage.PODS})}, SkipReason.INCOMPLETE_VIEW),
    ],
    ids=["no plugin", "not ready", "unknown", "nodes unseen"],
)
@pytest.mark.parametrize("style", ALLOCATED)
def test_without_a_ready_plugin_it_may_be_served_yet(style, nodes, seen, skip_reason):
    assert only(assumed_expired, not_admitted(style), *nodes, **seen).skip_reason is skip_reason


@pytest.mark.parametrize("reason", ["ContainerCreating", "ImagePullBackOff", "PodInitializing"])
def test_gpu_manager_reports_nothing_until_the_container_starts(reason):
    admitted = waiting(assumed(style="gaia"), reason)
    assert only(assumed_expired, admitted).skip_reason is SkipReason.WAITS_FOR_OTHERS


@pytest.mark.parametrize("style", ["gpushare", "hami", "volcano"])
def test_the_others_report_at_admission_so_another_pod_was_served_instead(style):
    admitted = waiting(assumed(style=style), "ContainerCreating")
    assert only(assumed_expired, admitted).skip_reason is None


def test_gpushare_gives_the_only_gpu_of_a_node_without_a_word():
    admitted = waiting(assumed(style="gpushare"), "ContainerCreating")
    one_gpu = node("gpu-1", "gpushare")
    capacity = one_gpu.capacity | {"aliyun.com/gpu-count": 1}
    one_gpu = replace(one_gpu, capacity=capacity, allocatable=capacity)
    assert only(assumed_expired, admitted, one_gpu).skip_reason is SkipReason.WAITS_FOR_OTHERS
    assert only(assumed_expired, not_admitted("gpushare"), one_gpu).skip_reason is None


def test_a_pod_that_prestart_refuses_is_evicted_for_that():
    plan, _ = make_plan(
        snapshot(prestart_failed(assumed(style="gaia"))), Policy(), ReconcilerState(), CODECS_IN_USE
    )
    (action,) = plan.actions
    assert (action.finding.rule, action.also) == (Rule.PRESTART_FAILED, (Rule.ASSUMED_EXPIRED,))


def test_a_terminating_pod_goes_by_itself():
    plan, _ = make_plan(
        snapshot(terminating(not_admitted())), Policy(), ReconcilerState(), CODECS_IN_USE
    )
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TERMINATING]


def test_kubeshare_has_no_allocate():
    """Nor are its SharePods this rule's affair."""
    waits = share_pod(served=False)
    odd = replace(pod("odd", "kubeshare", claim=Phase.ASSUMED), owner=None)
    assert not find(assumed_expired, waits, real_pod(share_pod()), odd)


# ---------------------------------------------------------------- never bound


@pytest.mark.parametrize("style", ALLOCATED)
def test_the_claim_of_a_pod_that_was_never_bound_is_taken_back(style):
    """And nothing that its user asked for, nor what others wrote."""
    asked = {"nvidia.com/use-gputype": "A100", "tencent.com/vcuda-core-limit": "50"}
    codec = CODECS[style]
    sick = unbound(style=style, annotations=asked)
    finding = only(assumed_unbound, sick)
    assert (finding.cause, finding.effect) == (Cause.NEVER_BOUND, Effect.REPAIR)
    assert (finding.since, finding.grace) == (NOW - HOUR, 300.0)
    edit = finding.action
    assert isinstance(edit, Edit)
    assert (edit.target, edit.resource_version) == (finding.object_ref, sick.resource_version)
    keys = codec.claim_keys(sick)
    assert edit.before == {key: sick.annotations[key] for key in keys}
    assert edit.after == dict.fromkeys(keys)
    left = {key: text for key, text in sick.annotations.items() if key not in edit.after}
    assert left == asked
    assert codec.claim(replace(sick, annotations=left)) is None


@pytest.mark.parametrize("style", ALLOCATED)
def test_a_scheduler_that_has_just_promised_is_about_to_bind(style):
    assert not find(assumed_unbound, unbound(style=style, age=299.0))


@pytest.mark.parametrize(
    "other",
    [
        unbound(gated=True),
        replace(unbound(), annotations={}),
        replace(unbound(), node="gpu-1"),
        replace(unbound(), phase="Failed"),
        replace(pod(style="kubeshare", claim=Phase.ASSUMED), node=""),
    ],
    ids=["gated", "without a claim", "bound", "failed", "KubeShare 1"],
)
def test_its_neighbours_are_skipped(other):
    assert not find(assumed_unbound, other)


@pytest.mark.parametrize("assigned", ["false", "true"])
def test_a_claim_that_came_with_the_pod_is_no_older_than_the_pod(assigned):
    """Somebody copied another pod's annotations into a new one."""
    annotations = {"ALIYUN_COM_GPU_MEM_ASSIGNED": assigned}
    copied = unbound(style="gpushare", age=24 * HOUR, annotations=annotations)
    assert not find(assumed_unbound, replace(copied, created_at=NOW - 10))
    assert only(assumed_unbound, replace(copied, created_at=NOW - 400)).since == NOW - 400


def test_a_promise_without_a_time_counts_from_when_it_is_first_seen():
    sick = unbound(style="gaia")
    annotations = {key: text for key, text in sick.annotations.items() if "time" not in key}
    assert only(assumed_unbound, replace(sick, annotations=annotations)).since is None


def test_the_schedulers_own_words_are_evidence():
    sick = unbound(style="gaia", unschedulable="pod ml/train-0 had been predicated!")
    reason = "its scheduler: 'pod ml/train-0 had been predicated!'"
    assert reason in only(assumed_unbound, sick).evidence


def test_promises_in_two_languages_are_both_taken_back():
    other = unbound(style="gaia")
    sick = unbound(style="gpushare")
    both = replace(
        sick,
        annotations=sick.annotations | other.annotations,
        containers=(*sick.containers, replace(other.containers[0], name="more")),
    )
    both = replace(
        both,
        annotations={
            key.replace("gpu-idx-0", "gpu-idx-1"): text for key, text in both.annotations.items()
        },
    )
    edit = only(assumed_unbound, both).action
    assert edit.after.keys() == both.annotations.keys()


# ---------------------------------------------------------------- unreadable


@pytest.mark.parametrize("rule", [assumed_expired, assumed_unbound])
def test_a_claim_that_nobody_can_read_is_reported_and_left_to_a_person(rule):
    make = not_admitted if rule is assumed_expired else unbound
    finding = only(rule, make(style="gpushare", annotations={GPU_INDEX: "\x1b[31mcard one"}))
    assert (finding.cause, finding.action) == (Cause.MALFORMED, None)
    (line,) = finding.evidence
    assert "ml/train-0" in line
    assert GPU_INDEX in line
    assert r"\x1b[31mcard one" in line
