"""Locks that nobody needs, locks that somebody may need, and nodes deregistered by mistake."""

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.model import (
    Coverage,
    NobodyWaitsGuard,
    ObjectKind,
    ObjectRef,
    OwnerGuard,
    OwnerState,
)
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.scheduler_marks import stale_handshake, stale_lock
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    NOW,
    assumed,
    ended,
    handshake,
    lock,
    node,
    pod,
    replace,
    snapshot,
    terminating,
    unbound,
)
from vgpu.schemes.codec import HandshakeState

HAMI_LOCK = "hami.io/mutex.lock"
TIME_OUT = 300.0
OWNER = pod("owner", "hami")


def find(rule, *objects, **fields):
    return list(rule(ClusterIndex(snapshot(*objects, **fields), CODECS_IN_USE), Policy()))


def only(rule, *objects, **fields):
    (finding,) = find(rule, *objects, **fields)
    return finding


def locked(text, *, age=HOUR, key=HAMI_LOCK, **fields):
    """A node whose lock has this text, in which ``{}`` is the time."""
    (stamp,) = lock(style="volcano", age=age).values()
    return node(annotations={key: text.format(stamp)}, uid="uid-of-gpu-1", **fields)


def owned(of=OWNER, **options):
    return locked(f"{{}},{of.ref.namespace},{of.ref.name}", **options)


def plan_of(*objects):
    plan, _ = make_plan(snapshot(*objects), Policy(), ReconcilerState(), CODECS_IN_USE)
    return plan


# ---------------------------------------------------------------- a lock that names its owner

STATES = {
    OwnerState.GONE: (),
    OwnerState.ENDED: (ended(OWNER),),
    OwnerState.SERVED: (OWNER,),
    OwnerState.WAITS: (assumed("owner", "hami"),),
    OwnerState.TERMINATING: (terminating(OWNER),),
}
KEPT = {
    OwnerState.WAITS: SkipReason.OWNER_WAITS,
    OwnerState.TERMINATING: SkipReason.OWNER_TERMINATES,
}


@pytest.mark.parametrize(
    ("state", "cause", "from_age"),
    [
        (OwnerState.GONE, Cause.OWNER_GONE, 60.0),
        (OwnerState.ENDED, Cause.OWNER_ENDED, 0.0),
        (OwnerState.SERVED, Cause.OWNER_SERVED, TIME_OUT),
        (OwnerState.WAITS, Cause.LOCK_EXPIRED, TIME_OUT),
        (OwnerState.TERMINATING, Cause.LOCK_EXPIRED, TIME_OUT),
    ],
)
def test_the_owners_state_decides_what_becomes_of_a_lock_and_when(state, cause, from_age):
    finding = only(stale_lock, owned(age=from_age), *STATES[state])
    assert (finding.rule, finding.cause, finding.effect) == (
        Rule.STALE_LOCK,
        cause,
        Effect.REPAIR,
    )
    assert (finding.since, finding.grace) == (NOW - from_age, from_age)
    assert finding.skip_reason is KEPT.get(state)
    assert finding.evidence[1] == f"its owner 'ml/owner' is: {state}"
    (guard,) = finding.action.guards
    assert guard == OwnerGuard("ml", "owner", state)
    if from_age:
        assert not find(stale_lock, owned(age=from_age - 1), *STATES[state])


def test_the_edit_takes_away_this_very_lock_and_nothing_else():
    here = owned()
    finding = only(stale_lock, here)
    object_ref = ObjectRef(
        ObjectKind.NODE, "", "gpu-1", "uid-of-gpu-1", part=HAMI_LOCK, node="gpu-1"
    )
    assert finding.object_ref == finding.action.target == object_ref
    assert finding.action.before == {HAMI_LOCK: here.annotations[HAMI_LOCK]}
    assert finding.action.after == {HAMI_LOCK: None}
    assert finding.action.resource_version == ""


@pytest.mark.parametrize(
    ("owner", "state"),
    [
        (pod("owner", "hami", phase="Pending"), OwnerState.SERVED),
        (unbound("owner", "hami"), OwnerState.WAITS),
        (replace(OWNER, phase="Failed"), OwnerState.ENDED),
        (replace(terminating(ended(OWNER)), phase="Running"), OwnerState.TERMINATING),
        (terminating(unbound("owner", "hami")), OwnerState.TERMINATING),
        (pod("owner", "hami", namespace="else"), OwnerState.GONE),
    ],
    ids=["assigned", "never bound", "failed", "nearly gone", "unbound, going", "another's"],
)
def test_an_owner_is_looked_at_closely(owner, state):
    assert only(stale_lock, owned(), owner).action.guards[0].state is state


@pytest.mark.parametrize("state", KEPT)
def test_a_lock_is_never_taken_from_a_pod_that_allocate_may_serve(state):
    plan = plan_of(owned(), *STATES[state])
    skips = {entry.finding.rule: entry.skip for entry in plan.skipped}
    assert skips[Rule.STALE_LOCK] is KEPT[state]
    assert not [entry for entry in plan.actions if entry.finding.rule is Rule.STALE_LOCK]


def test_first_the_waiting_pod_goes_and_then_its_lock():
    waits = replace(assumed("owner", "hami"), statuses=())
    assert [entry.finding.rule for entry in plan_of(owned(), waits).actions] == [
        Rule.ASSUMED_EXPIRED
    ]
    assert [entry.finding.rule for entry in plan_of(owned()).actions] == [Rule.STALE_LOCK]


def test_an_ended_owners_lock_goes_in_the_first_cycle():
    for age in (0.0, -30.0):  # the scheduler's clock may be ahead
        assert len(plan_of(owned(age=age), ended(OWNER)).actions) == 1


def test_without_all_pods_in_view_no_owner_is_gone():
    seen = snapshot(owned(), complete=frozenset({Coverage.NODES}))
    plan, _ = make_plan(seen, Policy(), ReconcilerState(), CODECS_IN_USE)
    assert [entry.skip for entry in plan.skipped] == [SkipReason.INCOMPLETE_VIEW]


def test_nothing_is_done_to_a_node_that_is_not_ready():
    assert only(stale_lock, owned(ready=False)).skip_reason is SkipReason.NODE_NOT_READY


# ---------------------------------------------------------------- a lock that does not

ANONYMOUS = [
    ("hamivgpu", "{}"),
    ("vgpu4pd", "{}"),
    (HAMI_LOCK, "{}"),
    (HAMI_LOCK, "{},ml"),
    (HAMI_LOCK, "{},ml,owner,more"),
    (HAMI_LOCK, "{},,owner"),
]


@pytest.mark.parametrize(("key", "text"), ANONYMOUS)
def test_a_lock_without_owner_goes_past_the_time_out_if_nobody_waits(key, text):
    finding = only(stale_lock, locked(text, key=key), OWNER)
    assert (finding.cause, finding.skip_reason) == (Cause.NOBODY_WAITS, None)
    assert finding.object_ref.part == key
    assert finding.action.guards == (NobodyWaitsGuard("gpu-1"),)
    assert (finding.since, finding.grace) == (NOW - HOUR, TIME_OUT)
    assert not find(stale_lock, locked(text, key=key, age=TIME_OUT - 1))


@pytest.mark.parametrize(
    "waiting",
    [
        assumed(style="volcano"),
        unbound(style="volcano"),
        assumed(style="gaia"),
        pod(claim=None, phase="Pending"),
    ],
    ids=["bound", "promised", "another scheme's", "without a claim"],
)
@pytest.mark.parametrize(("key", "text"), ANONYMOUS)
def test_it_stays_while_any_pod_waits_there(key, text, waiting):
    finding = only(stale_lock, locked(text, key=key), waiting)
    assert (finding.cause, finding.skip_reason) == (Cause.LOCK_EXPIRED, SkipReason.OWNER_WAITS)
    assert finding.evidence[1] == "1 waiting on gpu-1: ml/train-0"
    assert not find(stale_lock, locked(text, key=key, age=TIME_OUT - 1), waiting)


def test_a_pod_that_waits_elsewhere_does_not_keep_it():
    elsewhere = assumed(node="gpu-2")
    finding = only(stale_lock, locked("{}", key="hamivgpu"), node("gpu-2"), elsewhere)
    assert finding.cause is Cause.NOBODY_WAITS


@pytest.mark.parametrize("text", ["", "yesterday", ",,", "\x1b[2J\n", "x" * 10**5])
@pytest.mark.parametrize("key", [HAMI_LOCK, "hamivgpu", "vgpu4pd"])
def test_an_unreadable_lock_counts_from_when_it_is_first_seen(key, text):
    here = node(annotations={key: text})
    finding = only(stale_lock, here)
    assert (finding.cause, finding.since) == (Cause.NOBODY_WAITS, None)
    assert len(finding.evidence[0]) < 400
    plan, memory = make_plan(snapshot(here), Policy(), ReconcilerState(), CODECS_IN_USE)
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]
    plan, _ = make_plan(snapshot(here, now=NOW + TIME_OUT + 60), Policy(), memory, CODECS_IN_USE)
    assert len(plan.actions) == 1


def test_a_lock_of_the_future_is_no_lock_of_today():
    assert not find(stale_lock, locked("{}", key="hamivgpu", age=-59.0))
    assert only(stale_lock, locked("{}", key="hamivgpu", age=-HOUR))


def test_every_lock_of_a_node_is_an_object_of_its_own():
    here = node(annotations=dict.fromkeys(("hamivgpu", "vgpu4pd", HAMI_LOCK), "x"))
    findings = find(stale_lock, here)
    assert len({finding.object_ref.key for finding in findings}) == len(findings) == 3


def test_of_many_that_wait_a_few_are_named():
    waiting = [assumed(f"train-{number}") for number in range(9)]
    evidence = only(stale_lock, locked("{}", key="hamivgpu"), *reversed(waiting)).evidence[1]
    assert evidence == "9 waiting on gpu-1: ml/train-0, ml/train-1, ml/train-2"


def test_a_node_without_a_lock_has_nothing_to_say():
    assert not find(stale_lock, node(), assumed(), pod())


# ---------------------------------------------------------------- handshakes

GIVEN_UP = {
    "volcano.sh/node-vgpu-handshake": "volcano",
    "hami.io/node-handshake": "hami",
}


@pytest.mark.parametrize(("key", "style"), GIVEN_UP.items())
def test_a_node_that_was_deregistered_though_its_plugin_lives_is_registered_again(key, style):
    here = node(annotations=handshake(style=style), uid="uid-of-gpu-1")
    finding = only(stale_handshake, here)
    assert (finding.cause, finding.effect) == (Cause.PLUGIN_LIVES, Effect.REPAIR)
    assert (finding.since, finding.grace) == (NOW - HOUR, 120.0)
    assert finding.action.before == {key: here.annotations[key]}
    assert finding.action.after == {key: None}
    assert finding.object_ref == ObjectRef(
        ObjectKind.NODE, "", "gpu-1", "uid-of-gpu-1", part=key, node="gpu-1"
    )
    assert [entry.finding.rule for entry in plan_of(here).actions] == [Rule.STALE_HANDSHAKE]


def test_the_older_key_is_known_too():
    (text,) = handshake(style="volcano").values()
    old = node(annotations={"volcano.sh/node-handshake": text})
    assert only(stale_handshake, old).object_ref.part == "volcano.sh/node-handshake"


@pytest.mark.parametrize("style", GIVEN_UP.values())
@pytest.mark.parametrize(
    "state", [state for state in HandshakeState if state is not HandshakeState.DELETED]
)
def test_a_plugin_with_a_recent_handshake_is_skipped(style, state):
    assert not find(stale_handshake, node(annotations=handshake(state, style=style)))


@pytest.mark.parametrize("style", GIVEN_UP.values())
def test_where_no_plugin_lives_the_mark_is_right(style):
    annotations = handshake(style=style)
    assert not find(stale_handshake, node(annotations=annotations, plugin=False))
    assert not find(stale_handshake, node(annotations=annotations, ready=False))
    assert not find(stale_handshake, node("gpu-1", "gaia", annotations=annotations))


@pytest.mark.parametrize("style", GIVEN_UP.values())
def test_a_plugin_has_two_minutes_to_answer_for_itself(style):
    assert not find(stale_handshake, node(annotations=handshake(age=119.0, style=style)))
    assert find(stale_handshake, node(annotations=handshake(age=120.0, style=style)))


@pytest.mark.parametrize("text", ["Deleted_", "Deleted_yesterday", "Deleted_\ud800" + "x" * 10**5])
@pytest.mark.parametrize("key", GIVEN_UP)
def test_a_mark_without_a_time_counts_from_when_it_is_first_seen(key, text):
    finding = only(stale_handshake, node(annotations={key: text}))
    assert finding.since is None
    assert len(finding.evidence[0]) < 400


@pytest.mark.parametrize("text", ["", "deleted_", "Gone_2026.01.01 00:00:00", "\ud800"])
@pytest.mark.parametrize("key", GIVEN_UP)
def test_another_word_gives_no_node_up(key, text):
    assert not find(stale_handshake, node(annotations={key: text}))
