"""Pods that wait because their scheduler promised more than there is: who is named and blamed."""

import pytest

from deviceplugin.kubelet.server import prestart_text
from deviceplugin.reasons import BindRefusal, BindRefused
from reconciler.cluster_index import ClusterIndex
from reconciler.model import Evict
from reconciler.plan import make_plan
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import Attempt, ReconcilerState, attempt_key
from reconciler.rules.rejected_pods import over_promised
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    MINUTE,
    NOW,
    node,
    owner,
    pod,
    prestart_failed,
    replace,
    snapshot,
    terminating,
    with_ledgers,
)
from vgpu.model.names import ContainerKind, Phase
from vgpu.model.objects import Container

STYLES = ("volcano", "hami", "gpushare", "gaia")


def no_room(sick):
    """The pod as the kubelet has it when our plugin finds no room for it."""
    error = BindRefused(
        BindRefusal.NO_ROOM, "device GPU-x: not enough free memory", sick.ref, "main"
    )
    return prestart_failed(sick, prestart_text(error))


def crowd(style, number=6, **fields):
    """Pods with an eighth of GPU 0 each, each of another owner; five fit. The last one waits."""
    holders = [
        pod(f"train-{at}", style, owner=owner(name=f"train-{at}"), **fields)
        for at in range(number - 1)
    ]
    late = pod("late", style, claim=Phase.ASSUMED, owner=owner(name="late"), **fields)
    return [*holders, no_room(late)]


def find(*pods, policy=None):
    """The findings; gpu-manager's number names a GPU on a node of gpu-manager alone."""
    of_gaia = any("tencent.com/predicate-gpu-idx-0" in pod.annotations for pod in pods)
    seen = with_ledgers(snapshot(*([node("gpu-1", "gaia")] if of_gaia else []), *pods))
    return list(over_promised(ClusterIndex(seen, CODECS_IN_USE), policy or Policy()))


@pytest.mark.parametrize("style", STYLES)
def test_the_pod_that_waits_gets_another_try_and_everybody_involved_is_named(style):
    pods = crowd(style)
    (finding,) = find(*pods)
    late = pods[-1]
    assert finding.object_ref.name == "late"
    assert finding.action == Evict(late.ref, late.resource_version)
    assert (finding.effect, finding.since) == (Effect.RECOVERY, NOW - HOUR)
    evidence = "\n".join(finding.evidence)
    assert finding.cause.explanation in evidence
    for each in pods:
        assert f"{each.ref.namespace}/{each.ref.name}/main holds" in evidence


def with_containers(style, *specs):
    """The crowd, whose first pod has these containers, too."""
    first, *others = crowd(style)
    return [replace(first, containers=(*first.containers, *specs)), *others]


@pytest.mark.parametrize(
    ("pods", "cause"),
    [
        (crowd("gpushare"), Cause.FREE_BELOW_ZERO),
        (crowd("gaia"), Cause.CACHE_BEHIND),
        (crowd("hami"), Cause.SUM_EXCEEDED),
        (
            with_containers("hami", Container("setup", kind=ContainerKind.INIT)),
            Cause.INIT_CONTAINERS_MISCOUNTED,
        ),
        (
            with_containers("volcano", Container("setup", kind=ContainerKind.INIT)),
            Cause.SUM_EXCEEDED,
        ),
        (crowd("volcano"), Cause.SUM_EXCEEDED),
    ],
    ids=["gpushare", "gaia", "hami", "hami with init", "volcano with init", "volcano"],
)
def test_the_likely_defect_is_what_this_scheduler_is_known_for(pods, cause):
    (finding,) = find(*pods)
    assert finding.cause is cause


def test_volcano_is_blamed_for_two_containers_of_a_pod_on_one_gpu():
    first, *others = crowd("volcano", 5)
    key = "volcano.sh/vgpu-ids-new"
    (spec,) = first.containers
    twice = replace(
        first,
        containers=(spec, replace(spec, name="second")),
        annotations=first.annotations | {key: ";".join([first.annotations[key].rstrip(";")] * 2)},
    )
    (finding,) = find(twice, *others)
    assert finding.cause is Cause.SAME_GPU_TWICE


@pytest.mark.parametrize("style", STYLES)
def test_without_the_plugins_refusal_there_is_none(style):
    *holders, late = crowd(style)
    assert not find(*holders, pod("late", style, claim=Phase.ASSUMED))
    assert not find(*holders, prestart_failed(late))


@pytest.mark.parametrize("style", STYLES)
def test_a_pod_that_waits_for_one_that_goes_is_none(style):
    first, *others = crowd(style)
    assert not find(terminating(first), *others)
    assert not find(*others)  # it is gone: what is left fits


def planned(pods, policy=None, memory=None):
    plan, _ = make_plan(
        with_ledgers(snapshot(*pods)),
        policy or Policy(),
        memory or ReconcilerState(),
        CODECS_IN_USE,
    )
    return plan


def test_it_is_healed_as_a_refused_start_is():
    (action,) = planned(crowd("volcano")).actions
    assert action.finding.rule is Rule.OVER_PROMISED
    assert Rule.PRESTART_FAILED in action.also
    off = Policy(modes={Rule.OVER_PROMISED: Mode.OFF})
    (action,) = planned(crowd("volcano"), off).actions
    assert action.finding.rule is Rule.PRESTART_FAILED


def test_it_is_not_healed_before_its_grace_is_over():
    *holders, late = crowd("volcano")
    young = replace(late, status_at=NOW - MINUTE, started_at=NOW - MINUTE)
    assert not planned([*holders, young]).actions


def test_its_owner_is_backed_off_since_the_scheduler_will_place_it_the_same_way():
    pods = crowd("volcano")
    key = attempt_key(pods[-1].owner.uid, "gpu-1")
    plan = planned(pods, memory=ReconcilerState(attempts={key: Attempt(1, NOW - 10)}))
    assert not plan.actions
    (skipped,) = [each for each in plan.skipped if each.finding.rule is Rule.OVER_PROMISED]
    assert skipped.skip is SkipReason.BACKING_OFF
