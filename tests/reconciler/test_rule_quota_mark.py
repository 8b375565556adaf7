"""The mark of a Namespace over its quota: when it is set and removed, and what protects it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.apply.client import differing
from reconciler.cluster_index import ClusterIndex
from reconciler.judge import Judge
from reconciler.model import Coverage, ObjectKind
from reconciler.plan import make_plan
from reconciler.policy import Mode, Policy
from reconciler.reasons import ActionOutcome, Cause, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.quotas import quota_mark
from tests.reconciler.samples import (
    CODECS_IN_USE,
    SHARE,
    pod,
    replace,
    snapshot,
)
from tests.reconciler.test_hostile import AT_ONCE
from tests.reconciler.test_judge import Bench
from vgpu.inventory.unit_check import NodeDoubt
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, Namespace
from vgpu.quota.check import OVER_QUOTA
from vgpu.quota.limits import cluster_quotas
from vgpu.schemes.row import UnitDoubt

APPLY = Policy(ages=AT_ONCE, modes={Rule.QUOTA_MARK: Mode.APPLY})


def namespace(marked=None, name="ml", **quota):
    declared = {f"vgpu.dev/quota-{key}": text for key, text in quota.items()}
    mark = {} if marked is None else {OVER_QUOTA: marked}
    return Namespace(name, {}, {**declared, **mark}, f"uid-{name}", "7")


def seen(*objects, namespaces, **fields):
    sight = snapshot(
        *objects,
        quotas=cluster_quotas(namespaces, (), None),
        quota_namespaces=tuple(namespaces),
        **fields,
    )
    return replace(sight, complete=sight.complete | {Coverage.QUOTAS})


def found(*objects, **fields):
    return list(quota_mark(ClusterIndex(seen(*objects, **fields), CODECS_IN_USE), Policy()))


def two(**fields):
    return [pod(f"p{number}", gpu=number, **fields) for number in range(2)]


def plan_of(sight, policy=APPLY):
    plan, _ = make_plan(sight, policy, ReconcilerState(), CODECS_IN_USE)
    return plan


def test_a_namespace_over_its_quota_gets_a_mark_that_names_the_limits():
    (finding,) = found(*two(), namespaces=[namespace(memory=str(SHARE), gpus="1", cores="9999")])
    assert (finding.rule, finding.cause) == (Rule.QUOTA_MARK, Cause.MARK_MISSING)
    assert finding.action.after == {OVER_QUOTA: "gpus, memory"}
    assert finding.action.before == {OVER_QUOTA: None}
    assert finding.evidence == (
        "it exceeds its quota: gpus: 2 of 1 (Namespace ml, vgpu.dev/quota-gpus)",
        "it exceeds its quota: memory: 16.0 GiB of 8.0 GiB (Namespace ml, vgpu.dev/quota-memory)",
        "it has no mark",
    )


def test_the_mark_stays_while_the_same_limits_are_exceeded():
    assert not found(*two(), namespaces=[namespace("gpus", gpus="1")])
    (finding,) = found(*two(), namespaces=[namespace("memory", gpus="1")])
    assert finding.action.after == {OVER_QUOTA: "gpus"}


def test_the_mark_goes_when_the_namespace_is_within_its_quota_or_has_none():
    for quota in ({"gpus": "2"}, {}):
        (finding,) = found(*two(), namespaces=[namespace("gpus", **quota)])
        assert (finding.cause, finding.action.after) == (Cause.MARK_LEFT, {OVER_QUOTA: None})
    assert not found(*two(), namespaces=[namespace(gpus="2")])


def test_what_is_not_known_removes_no_mark():
    (finding,) = found(namespaces=[namespace("gpus", gpus="many")])
    assert finding.skip_reason is SkipReason.INCOMPLETE_VIEW
    broken = MalformedObject("Pod", PodRef("u", "ml", "broken"), "no JSON")
    (finding,) = found(namespaces=[namespace("gpus", gpus="1")], malformed=(broken,))
    assert finding.skip_reason is SkipReason.INCOMPLETE_VIEW
    doubt = NodeDoubt("gpu-1", "volcano", 1, UnitDoubt("wrong,"))
    (finding,) = found(*two(), namespaces=[namespace(gpus="1")], unit_doubts=(doubt,))
    assert finding.skip_reason is SkipReason.SIZES_DIFFER


def test_it_is_off_unless_it_is_switched_on():
    sight = seen(*two(), namespaces=[namespace(gpus="1")])
    assert Rule.QUOTA_MARK not in {e.finding.rule for e in plan_of(sight, Policy()).entries}
    by_plan = Policy(ages=AT_ONCE, modes={Rule.QUOTA_MARK: Mode.PLAN})
    skips = {e.finding.rule: e.skip for e in plan_of(sight, by_plan).skipped}
    assert skips[Rule.QUOTA_MARK] is SkipReason.RULE_MODE_PLAN
    assert len(plan_of(sight).actions) == 1


@pytest.mark.parametrize(
    ("fields", "skip"),
    [
        ({"protected_namespaces": ("ml",)}, SkipReason.PROTECTED_NAMESPACE),
        ({"namespaces": ("other",)}, SkipReason.OTHER_NAMESPACE),
        ({"plan_namespaces": ("ml",)}, SkipReason.NAMESPACE_MODE_PLAN),
    ],
)
def test_what_protects_a_namespace_protects_its_mark(fields, skip):
    plan = plan_of(seen(*two(), namespaces=[namespace(gpus="1")]), replace(APPLY, **fields))
    marks = {e.skip for e in plan.skipped if e.finding.rule is Rule.QUOTA_MARK}
    assert (marks, plan.actions) == ({skip}, ())


def test_a_view_without_all_quotas_changes_no_mark():
    sight = seen(*two(), namespaces=[namespace(gpus="1"), namespace("gpus", "other")])
    blind = replace(sight, complete=sight.complete - {Coverage.QUOTAS})
    assert not plan_of(blind).actions


def bench_of(sight):
    judge = Judge(sight, APPLY, ReconcilerState(), CODECS_IN_USE)
    return Bench(*sight.nodes, *sight.pods, *sight.quota_namespaces, judge=judge)


def test_the_mark_is_written_and_an_event_is_reported_on_the_namespace():
    sight = seen(*two(), namespaces=[namespace(gpus="1")])
    bench = bench_of(sight)
    (result,) = bench.apply(*plan_of(sight).actions)
    assert result.outcome is ActionOutcome.DONE
    current = bench.client.get("ml", ObjectKind.NAMESPACE)
    assert not differing(current, {OVER_QUOTA: "gpus"})
    assert "vgpu.dev/quota-gpus" in current.annotations


def test_a_namespace_that_opted_out_meanwhile_or_has_another_mark_is_not_changed():
    sight = seen(*two(), namespaces=[namespace(gpus="1")])
    for change in ({"vgpu.dev/reconcile": "false"}, {OVER_QUOTA: "memory"}):
        bench = bench_of(sight)
        bench.client.annotate("ml", ObjectKind.NAMESPACE, **change)
        (result,) = bench.apply(*plan_of(sight).actions)
        assert result.outcome is ActionOutcome.CHANGED
    opted_out = Namespace("ml", {}, {"vgpu.dev/quota-gpus": "1", "vgpu.dev/reconcile": "false"})
    plan = plan_of(seen(*two(), namespaces=[opted_out]))
    assert SkipReason.OPTED_OUT in {e.skip for e in plan.skipped}


@given(st.integers(0, 3), st.integers(0, 4), st.sampled_from([None, "gpus", "memory"]))
def test_after_one_cycle_the_mark_is_there_exactly_if_the_quota_is_exceeded(pods, limit, marked):
    held = [pod(f"p{number}", gpu=number % 2) for number in range(pods)]
    before = namespace(marked, gpus=str(limit))
    findings = found(*held, namespaces=[before])
    after = {**before.annotations}
    for finding in findings:
        after |= finding.action.after
    assert (after.get(OVER_QUOTA) is not None) == (pods > limit)
    kept = {key: text for key, text in after.items() if text is not None}
    assert not found(*held, namespaces=[replace(before, annotations=kept)])
