"""A namespace over its quota: which pods would have to end, in which order, and which not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage
from reconciler.plan import make_plan
from reconciler.policy import Mode, Policy
from reconciler.reasons import ActionOutcome, Cause, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.quotas import over_quota
from tests.reconciler.samples import (
    CODECS,
    CODECS_IN_USE,
    HOUR,
    NOW,
    SHARE,
    node,
    owner,
    pod,
    replace,
    snapshot,
    waiting,
)
from tests.reconciler.test_hostile import AT_ONCE
from tests.reconciler.test_judge import bench_of
from vgpu.inventory.unit_check import NodeDoubt
from vgpu.model.objects import Namespace, ResourceQuota
from vgpu.quota.limits import cluster_quotas
from vgpu.schemes.row import UnitDoubt

DECLARED = "Namespace ml, vgpu.dev/quota-memory"
APPLY = Policy(ages=AT_ONCE, modes={Rule.OVER_QUOTA: Mode.APPLY})


def quotas(*resource_quotas, **annotations):
    """The quotas of namespace ml."""
    declared = {f"vgpu.dev/quota-{key}": text for key, text in annotations.items()}
    return cluster_quotas([Namespace("ml", annotations=declared)], resource_quotas, None)


def seen(*objects, **fields):
    sight = snapshot(*objects, **fields)
    return replace(sight, complete=sight.complete | {Coverage.QUOTAS})


def found(*objects, **fields):
    return list(over_quota(ClusterIndex(seen(*objects, **fields), CODECS_IN_USE), Policy()))


def names(findings):
    return [finding.object_ref.name for finding in findings]


def crowd(count=4, **fields):
    """Pods of one namespace, each with an eighth of a GPU, 8 GiB."""
    return [pod(f"p{number}", gpu=number % 2, **fields) for number in range(count)]


@pytest.mark.parametrize("style", CODECS)
def test_the_pods_of_every_system_count(style):
    pods = [pod(f"p{number}", style, gpu=number % 2) for number in range(3)]
    assert not found(*pods, quotas=quotas(memory=str(3 * SHARE)))
    assert len(found(*pods, quotas=quotas(memory=str(2 * SHARE)))) == 1


def test_the_evidence_names_the_limit_the_amounts_and_how_many_have_to_end():
    first, second = found(*crowd(), quotas=quotas(memory="16Gi"))
    assert (first.rule, first.cause) == (Rule.OVER_QUOTA, Cause.QUOTA_EXCEEDED)
    assert first.evidence == (
        f"namespace ml exceeds its quota: memory: 32.0 GiB of 16.0 GiB ({DECLARED})",
        "this pod counts 8.0 GiB of memory",
        "it is number 1 of 2 pods that would have to end, of 4 in the namespace",
    )
    assert second.action.pod.name == second.object_ref.name


def test_the_least_important_come_first_then_those_that_do_not_run_then_the_youngest():
    pods = [
        pod("old", priority=0, age=9 * HOUR),
        pod("young", priority=0, age=HOUR),
        waiting(pod("starting", priority=0, age=9 * HOUR, phase="Pending"), "ImagePullBackOff"),
        pod("important", priority=9, age=HOUR),
        pod("of-job", priority=-9, kind="Job", owner=owner("Job")),
    ]
    order = ["starting", "young", "old", "important", "of-job"]
    for least in range(len(pods)):
        limit = str(least * SHARE)
        expected = order[: len(pods) - least]
        assert sorted(names(found(*pods, quotas=quotas(memory=limit)))) == sorted(expected)


def test_a_pod_that_is_being_deleted_leaves_by_itself():
    pods = [*crowd(2), pod("leaving", priority=100, deleted_at=NOW - HOUR)]
    assert not found(*pods, quotas=quotas(memory=str(2 * SHARE)))
    assert len(found(*pods, quotas=quotas(memory=str(SHARE)))) == 1


def test_other_namespaces_and_pods_that_hold_nothing_do_not_count():
    pods = [pod("a"), pod("b", namespace="other"), pod("c", node="", claim=None)]
    failed = replace(pod("d"), phase="Failed")
    assert not found(*pods, failed, quotas=quotas(memory=str(SHARE), gpus="1"))


def test_a_resource_quota_counts_units_of_its_resource():
    units = pod("a").containers[0].limits["volcano.sh/vgpu-memory"]
    hard = {"requests.volcano.sh/vgpu-memory": str(units)}
    declared = quotas(ResourceQuota("ml", "q", hard))
    assert not found(pod("a"), pod("b", "hami", gpu=1), quotas=declared)
    (finding,) = found(pod("a"), pod("b"), quotas=declared)
    assert "volcano.sh/vgpu-memory" in finding.evidence[0]


def test_a_limit_that_cannot_be_read_is_not_exceeded():
    assert not found(*crowd(), quotas=quotas(memory="16GB"))


def test_sizes_in_a_doubtful_unit_end_nobody():
    doubt = NodeDoubt("gpu-1", "volcano", 1, UnitDoubt("wrong,"))
    declared = quotas(memory="1Gi")
    (first, *_) = found(*crowd(), quotas=declared, unit_doubts=(doubt,))
    assert first.skip_reason is SkipReason.SIZES_DIFFER


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans(), st.integers(0, 3)), max_size=8))
def test_what_remains_is_always_within_the_quota(traits):
    pods = [
        pod(
            f"p{number}",
            priority=priority,
            age=HOUR * (1 + age),
            kind="Job" if is_job else "ReplicaSet",
            gpu=number % 2,
        )
        for number, (priority, is_job, age) in enumerate(traits)
    ]
    ended = found(*pods, quotas=quotas(memory="20Gi"))
    assert len(pods) - len(ended) == min(len(pods), 2)


# ---------------------------------------------------------------- plan and apply


def planned(policy, *objects, **fields):
    plan, _ = make_plan(seen(*objects, **fields), policy, ReconcilerState(), CODECS_IN_USE)
    return plan


def test_by_default_it_is_planned_and_set_to_apply_it_evicts_running_pods():
    declared = quotas(memory=str(3 * SHARE))
    by_default = planned(Policy(ages=AT_ONCE), *crowd(), quotas=declared)
    assert [entry.skip for entry in by_default.skipped] == [SkipReason.RULE_MODE_PLAN]
    assert len(planned(APPLY, *crowd(), quotas=declared).actions) == 1


def test_a_quota_that_may_be_incomplete_ends_nobody():
    sight = seen(*crowd(), quotas=quotas(memory="1Gi"))
    blind = replace(sight, complete=sight.complete - {Coverage.QUOTAS})
    plan, _ = make_plan(blind, APPLY, ReconcilerState(), CODECS_IN_USE)
    assert not plan.actions
    assert {entry.skip for entry in plan.skipped} == {SkipReason.INCOMPLETE_VIEW}


def test_the_limits_of_a_cycle_hold():
    few = replace(APPLY, limits=replace(APPLY.limits, per_namespace=1))
    owners = [owner(name=f"of-{number}") for number in range(4)]
    pods = [pod(f"p-{each.name}", gpu=at % 2, owner=each) for at, each in enumerate(owners)]
    plan = planned(few, *pods, quotas=quotas(memory=str(SHARE)))
    assert len(plan.actions) == 1
    assert {entry.skip for entry in plan.skipped} == {SkipReason.NAMESPACE_LIMIT}


def test_with_a_limit_the_least_important_come_first():
    few = replace(APPLY, limits=replace(APPLY.limits, per_namespace=2))
    pods = [
        pod(f"p{number}", gpu=number % 2, priority=-number, owner=owner(name=f"of-{number}"))
        for number in range(5)
    ]
    plan = planned(few, *pods, quotas=quotas(memory=str(SHARE)))
    assert names(entry.finding for entry in plan.actions) == ["p4", "p3"]


def test_each_eviction_is_judged_by_all_pods_of_the_namespace():
    """The pods of one namespace may be on several nodes: the judge has to see them all."""
    pods = [
        pod(f"p{number}", node=f"gpu-{number}", owner=owner(name=f"of-{number}"))
        for number in range(3)
    ]
    nodes = [node(f"gpu-{number}") for number in range(3)]
    sight = seen(*pods, *nodes, quotas=quotas(memory=str(2 * SHARE)))
    bench, actions = bench_of(sight, APPLY)
    (entry,) = actions
    bench.client.touch(entry.finding.object_ref.name)
    results = bench.apply(*actions)
    assert [result.outcome for result in results] == [ActionOutcome.DONE]


# ---------------------------------------------------------------- since when


def test_a_pod_is_as_old_as_the_state_of_its_namespace_however_young_it_is():
    """Else a namespace whose pods are replaced all the time would never grow old."""
    policy = Policy(modes={Rule.OVER_QUOTA: Mode.APPLY})
    grace = policy.ages.over_quota + policy.ages.clock_skew
    declared = quotas(memory=str(SHARE))

    def cycle(state, after, *pods):
        sight = seen(*pods, now=NOW + after, quotas=declared)
        return make_plan(sight, policy, state, CODECS_IN_USE)

    stays = pod("stays", priority=1)
    plan, state = cycle(ReconcilerState(), 0, stays, pod("first", gpu=1))
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]
    plan, state = cycle(state, grace - 1, stays, pod("second", gpu=1))
    (entry,) = plan.skipped
    assert (entry.finding.since, entry.skip) == (NOW, SkipReason.TOO_YOUNG)
    assert state.seen == {"over_quota/namespace/ml": NOW}
    plan, state = cycle(state, grace + 1, stays, pod("third", gpu=1))
    assert names(entry.finding for entry in plan.actions) == ["third"]
    plan, state = cycle(state, grace + 2, stays)
    assert not state.seen, "the namespace is within its quota"
    plan, state = cycle(state, grace + 3, stays, pod("fourth", gpu=1))
    assert [entry.finding.since for entry in plan.skipped] == [NOW + grace + 3]


def test_another_namespace_has_an_age_of_its_own():
    declared = {
        **quotas(memory="1Gi"),
        **cluster_quotas([Namespace("b", annotations={"vgpu.dev/quota-gpus": "0"})], (), None),
    }
    state = ReconcilerState(seen={"over_quota/namespace/ml": NOW - HOUR})
    sight = seen(pod("a"), pod("b", namespace="b", gpu=1), quotas=declared)
    plan, state = make_plan(sight, APPLY, state, CODECS_IN_USE)
    since = {entry.finding.object_ref.namespace: entry.finding.since for entry in plan.entries}
    assert since == {"ml": NOW - HOUR, "b": NOW}
