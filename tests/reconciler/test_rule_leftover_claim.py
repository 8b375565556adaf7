"""Pods that need no device any more, and would still be allocated one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Edit
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.leftovers import leftover_claim
from tests.reconciler.samples import (
    CODECS,
    CODECS_IN_USE,
    HOUR,
    NOW,
    assumed,
    ended,
    pod,
    refused,
    replace,
    snapshot,
    unbound,
)
from vgpu.model.names import Phase
from vgpu.model.objects import Container, ContainerState, Status
from vgpu.schemes.volcano.claim import struck

STYLES = ("hami", "volcano")
A, B = "GPU-a,NVIDIA,1024,10:", "GPU-b,NVIDIA,1024,10:"
FOREIGN = "MLU-a,MLU,1,1:"


def find(*objects):
    return list(leftover_claim(ClusterIndex(snapshot(*objects), CODECS_IN_USE), Policy()))


def only(*objects):
    (finding,) = find(*objects)
    return finding


def keys(style):
    return CODECS[style].key_set


def never_struck(style, **options):
    """Served and running, but the copy of its devices is still there."""
    key_set = keys(style)
    served = pod(style=style, **options)
    annotations = served.annotations | {key_set.to_allocate: served.annotations[key_set.devices]}
    return replace(served, annotations=annotations)


def marked(style, **texts):
    """With these annotations by their names in the dialect, None for none."""
    one = never_struck(style)
    annotations = one.annotations | {
        getattr(keys(style), name): text for name, text in texts.items()
    }
    kept = {key: text for key, text in annotations.items() if text is not None}
    return replace(one, annotations=kept)


# ---------------------------------------------------------------- who is found


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("style", STYLES)
def test_a_pod_that_has_ended_is_no_candidate_any_more(style, phase):
    sick = ended(assumed(style=style), phase)
    finding = only(sick)
    assert (finding.cause, finding.effect) == (Cause.ENDED_WITH_CLAIM, Effect.REPAIR)
    assert (finding.since, finding.grace) == (NOW - HOUR, 60.0)
    key = keys(style).to_allocate
    edit = finding.action
    assert isinstance(edit, Edit)
    assert (edit.target, edit.resource_version) == (finding.object_ref, sick.resource_version)
    assert edit.before == {key: sick.annotations[key]}
    assert edit.after == {key: {"hami": ";", "volcano": ""}[style]}


@pytest.mark.parametrize("style", STYLES)
def test_nor_is_one_that_was_served_and_runs(style):
    finding = only(never_struck(style))
    assert (finding.cause, finding.since) == (Cause.SERVED_WITH_CLAIM, None)
    assert finding.grace == 60.0
    plan, memory = make_plan(
        snapshot(never_struck(style)), Policy(), ReconcilerState(), CODECS_IN_USE
    )
    assert not plan.actions
    later = snapshot(never_struck(style), now=NOW + 120)
    plan, _ = make_plan(later, Policy(), memory, CODECS_IN_USE)
    assert [entry.finding.rule for entry in plan.actions] == [Rule.LEFTOVER_CLAIM]


@pytest.mark.parametrize("style", STYLES)
def test_after_the_repair_the_claim_is_fully_assigned(style):
    """The plugin's own text: the pod's claim is assigned, and nothing of it is in doubt."""
    sick = never_struck(style)
    edited = replace(sick, annotations=sick.annotations | only(sick).action.after)
    healthy = pod(style=style)
    assert edited.annotations == healthy.annotations
    claim = CODECS[style].claim(edited)
    assert [each.phase for each in claim.allocations] == [Phase.ASSIGNED]
    assert not claim.unserved
    assert not claim.remarks
    assert not find(edited)


@pytest.mark.parametrize("bind_phase", ["allocating", "failed", "", "perhaps", None])
@pytest.mark.parametrize("style", STYLES)
def test_a_living_pod_that_is_not_known_to_be_served_keeps_its_claim(style, bind_phase):
    assert not find(marked(style, bind_phase=bind_phase))


@pytest.mark.parametrize("style", STYLES)
def test_a_living_pod_is_served_when_all_its_containers_run(style):
    sick = never_struck(style)
    more = replace(sick, containers=(*sick.containers, Container("more")))
    assert not find(more)
    waits = Status("more", ContainerState.WAITING)
    assert not find(replace(more, statuses=(*more.statuses, waits)))
    runs = Status("more", ContainerState.RUNNING)
    assert only(replace(more, statuses=(*more.statuses, runs)))
    assert not find(replace(sick, phase="Pending"))


@pytest.mark.parametrize("style", STYLES)
def test_a_pod_without_another_record_of_its_devices_keeps_the_claim(style):
    assert not find(marked(style, devices=None))


@pytest.mark.parametrize("style", sorted(CODECS))
def test_healthy_pods_of_every_scheme_are_not_found(style):
    healthy = pod(style=style)
    waits = assumed("train-1", style)
    assert not find(healthy, replace(ended(healthy), ref=waits.ref), waits, unbound("new", style))


def test_a_refused_pod_is_evicted_at_once_and_needs_no_second_write():
    plan, _ = make_plan(
        snapshot(refused(assumed(style="volcano"))), Policy(), ReconcilerState(), CODECS_IN_USE
    )
    (action,) = plan.actions
    assert (action.finding.rule, action.also) == (Rule.REFUSED, (Rule.LEFTOVER_CLAIM,))


def test_a_refused_pod_that_may_not_be_evicted_is_at_least_no_candidate():
    bare = refused(assumed(style="volcano", kind=None))
    plan, _ = make_plan(snapshot(bare), Policy(), ReconcilerState(), CODECS_IN_USE)
    assert [entry.finding.rule for entry in plan.actions] == [Rule.LEFTOVER_CLAIM]


# ---------------------------------------------------------------- what is struck


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (A, ""),
        (A[:-1], ""),
        (f"{A};", ";"),
        (f"{A};{B}", ";"),
        (f"{A}{B};;{B};", ";;;"),
        (f"{A}{FOREIGN};{B}", f"{FOREIGN};"),
        (f"{FOREIGN}{A[:-1]}", FOREIGN[:-1]),
        ("", ""),
        (";;", ";;"),
        (FOREIGN, FOREIGN),
        ("GPU-a", "GPU-a"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_our_entries_are_struck_and_all_else_stays(text, rest):
    assert struck(text) == rest


@given(st.lists(st.sampled_from([A, B, FOREIGN, ";", ":", ",", "NVIDIA", "x"])).map("".join))
def test_what_was_struck_has_nothing_left_to_strike(text):
    rest = struck(text)
    assert struck(rest) == rest
    assert rest.count(";") == text.count(";")
    assert len(rest) <= len(text)


@pytest.mark.parametrize("text", ["garbage", ",,,", "\ud800", ":::;;;", "GPU-a", "x" * 10**5])
@pytest.mark.parametrize("style", STYLES)
def test_a_text_without_devices_is_left_as_it_is(style, text):
    assert not find(ended(marked(style, to_allocate=text)))
