"""What is remembered from look to look, what is forgotten, and that no text can break it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model import ActionResult
from reconciler.policy import Backoff
from reconciler.reasons import ActionOutcome, Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import (
    MOST,
    VERSION,
    Attempt,
    ReconcilerState,
    attempt_key,
    decode,
    encode,
    learn,
    remember,
)
from tests.reconciler.samples import (
    HOUR,
    NOW,
    assumed,
    editing,
    evicting,
    lock,
    node,
    owner,
    planned,
    pod,
    refused,
    replace,
    reporting,
    snapshot,
)

BACKOFF = Backoff()
SICK = assumed()
FINDING = evicting(SICK, Rule.ASSUMED_EXPIRED, Cause.NEVER_ASSIGNED, since=None, grace=60)
KEY = attempt_key(owner().uid, "gpu-1")


def results(outcome, *findings, at=SICK):
    plan = planned(
        snapshot(at), *(findings or (FINDING,)), memory=ReconcilerState(seen={FINDING.key: 0.0})
    )
    return [ActionResult(entry, outcome) for entry in plan.actions]


# ---------------------------------------------------------------- sight


def test_the_first_look_is_kept_while_it_is_found_in_every_cycle():
    memory = remember(ReconcilerState(), [FINDING], NOW)
    for look in (NOW + 120, NOW + 240):
        memory = remember(memory, [FINDING], look)
        assert memory.seen == {FINDING.key: NOW}


def test_one_cycle_without_it_and_it_is_new_again():
    memory = remember(remember(ReconcilerState(), [FINDING], NOW), [], NOW + 120)
    assert memory.seen == {}
    assert remember(memory, [FINDING], NOW + 240).seen == {FINDING.key: NOW + 240}


def test_a_replacement_under_the_same_name_is_new():
    other = replace(SICK, ref=replace(SICK.ref, uid="uid-of-the-next"))
    memory = remember(ReconcilerState(), [FINDING], NOW)
    again = evicting(other, Rule.ASSUMED_EXPIRED, since=None)
    assert remember(memory, [again], NOW + 120).seen == {again.key: NOW + 120}


def test_another_lock_on_the_same_node_is_new():
    """Else a node whose lock changes hands all the time would seem to have one old lock."""
    first, second = (node(annotations=lock(SICK, age)) for age in (100, 20))
    memory = remember(ReconcilerState(), [editing(first, since=None)], NOW)
    later = remember(memory, [editing(second, since=None)], NOW + HOUR)
    assert set(later.seen.values()) == {NOW + HOUR}


def test_the_same_lock_is_not():
    locked = node(annotations=lock(SICK))
    memory = remember(ReconcilerState(), [editing(locked)], NOW)
    later = remember(memory, [editing(replace(locked, resource_version="9"))], NOW + HOUR)
    assert set(later.seen.values()) == {NOW}


def test_the_same_object_grows_old_for_each_rule_apart():
    other = evicting(SICK, Rule.PRESTART_FAILED, since=None)
    memory = remember(remember(ReconcilerState(), [FINDING], NOW), [FINDING, other], NOW + 60)
    assert memory.seen == {FINDING.key: NOW, other.key: NOW + 60}


def test_nothing_was_seen_in_the_future():
    memory = ReconcilerState(seen={FINDING.key: NOW + HOUR}, failed={FINDING.key: NOW + HOUR})
    memory = remember(memory, [FINDING], NOW)
    assert (memory.seen, memory.failed) == ({FINDING.key: NOW}, {FINDING.key: NOW})


def test_what_can_only_be_reported_needs_no_memory():
    assert remember(ReconcilerState(), [reporting(SICK)], NOW) == ReconcilerState()


def crowd(count, since=None):
    return [evicting(pod(f"train-{number}"), since=since) for number in range(count)]


def test_of_too_many_the_newest_are_forgotten_and_first_those_with_their_own_age():
    memory = remember(ReconcilerState(), [FINDING], NOW)
    aged = crowd(MOST, since=NOW - HOUR)
    silent = [evicting(pod("silent"), since=None)]
    memory = remember(memory, [*aged, *silent, FINDING], NOW + 60)
    assert len(memory.seen) == MOST
    assert memory.seen[FINDING.key] == NOW
    assert memory.seen[silent[0].key] == NOW + 60
    later = remember(memory, [*crowd(MOST), FINDING], NOW + 120)
    assert len(later.seen) == MOST
    assert later.seen[FINDING.key] == NOW


def test_which_ones_are_forgotten_does_not_depend_on_the_order():
    many = crowd(MOST + 50)
    assert remember(ReconcilerState(), many, NOW) == remember(
        ReconcilerState(), reversed(many), NOW
    )


# ---------------------------------------------------------------- attempts

TRIED = set(ActionOutcome) - {
    ActionOutcome.DRY_RUN,
    ActionOutcome.NOT_LEADER,
    ActionOutcome.OUT_OF_TIME,
}
MOOT = {ActionOutcome.GONE, ActionOutcome.CHANGED}


@pytest.mark.parametrize("outcome", ActionOutcome)
def test_an_eviction_counts_when_it_was_tried_whether_or_not_it_succeeded(outcome):
    counted = {KEY: Attempt(1, NOW)} if outcome in TRIED - MOOT else {}
    assert learn(ReconcilerState(), results(outcome), NOW, BACKOFF).attempts == counted


@pytest.mark.parametrize("outcome", ActionOutcome)
def test_what_came_to_nothing_is_remembered_until_it_is_done(outcome):
    failed = {FINDING.key: NOW} if outcome in TRIED - {ActionOutcome.DONE} else {}
    assert learn(ReconcilerState(), results(outcome), NOW, BACKOFF).failed == failed
    before = ReconcilerState(failed={FINDING.key: NOW - 60})
    after = learn(before, results(outcome), NOW, BACKOFF).failed
    assert after == ({} if outcome is ActionOutcome.DONE else failed or before.failed)


def test_a_failure_is_forgotten_with_what_it_was_about():
    memory = ReconcilerState(seen={FINDING.key: NOW}, failed={FINDING.key: NOW})
    assert remember(memory, [FINDING], NOW + 60).failed == {FINDING.key: NOW}
    assert remember(memory, [], NOW + 60).failed == {}


def test_each_eviction_makes_the_next_pause_longer():
    memory = ReconcilerState()
    for count in (1, 2, 3):
        memory = learn(memory, results(ActionOutcome.DONE), NOW + count, BACKOFF)
        assert memory.attempts == {KEY: Attempt(count, NOW + count)}


@pytest.mark.parametrize("effect", [Effect.TIDYING, Effect.REPAIR])
def test_an_eviction_that_makes_nobody_create_a_pod_counts_for_nothing(effect):
    tidy = evicting(SICK, effect=effect)
    assert learn(ReconcilerState(), results(ActionOutcome.DONE, tidy), NOW, BACKOFF).attempts == {}


def test_a_change_of_annotations_counts_for_nothing():
    edit = editing(SICK, "hami.io/vgpu-node", effect=Effect.RECOVERY)
    assert learn(ReconcilerState(), results(ActionOutcome.DONE, edit), NOW, BACKOFF).attempts == {}


def test_attempts_are_forgotten_after_twice_the_longest_pause():
    memory = ReconcilerState(attempts={KEY: Attempt(7, NOW)})
    assert learn(memory, [], NOW + 3599, BACKOFF) == memory
    assert learn(memory, [], NOW + 3600, BACKOFF).attempts == {}


def test_a_clock_that_was_ahead_costs_one_pause_and_not_all_of_its_lead():
    memory = ReconcilerState(attempts={KEY: Attempt(1, NOW + 1e9)})
    assert memory.pause(KEY, NOW, BACKOFF) == 120
    memory = learn(memory, [], NOW, BACKOFF)
    assert memory.pause(KEY, NOW + 120, BACKOFF) == 0


def test_the_newest_attempts_are_kept():
    old = {f"owner-{number}@gpu-1": Attempt(1, NOW - number) for number in range(MOST)}
    memory = learn(ReconcilerState(attempts=old), results(ActionOutcome.DONE), NOW, BACKOFF)
    assert len(memory.attempts) == MOST
    assert memory.attempts[KEY] == Attempt(1, NOW)
    assert f"owner-{MOST - 1}@gpu-1" not in memory.attempts


def test_losing_the_memory_only_means_waiting_again():
    finding = replace(FINDING, since=None)
    memory = ReconcilerState(seen={finding.key: NOW - HOUR})
    assert planned(snapshot(SICK), finding, memory=memory).actions
    (entry,) = planned(snapshot(SICK), finding, memory=decode("lost")).skipped
    assert entry.skip is SkipReason.TOO_YOUNG


# ---------------------------------------------------------------- text

times = st.floats(0, 2e9)
keys = st.text(max_size=40)
memories = st.builds(
    ReconcilerState,
    seen=st.dictionaries(keys, times, max_size=5),
    failed=st.dictionaries(keys, times, max_size=5),
    attempts=st.dictionaries(keys, st.builds(Attempt, st.integers(1, 99), times), max_size=5),
)


@given(memories)
def test_a_memory_is_written_and_read_back_as_it_was(memory):
    assert decode(encode(memory)) == memory


@given(memories, st.randoms(use_true_random=False))
def test_the_same_memory_is_the_same_text(memory, random):
    shuffled = {
        name: dict(random.sample(sorted(kind.items()), len(kind)))
        for name, kind in (("seen", memory.seen), ("failed", memory.failed))
    }
    assert encode(replace(memory, **shuffled)) == encode(memory)


def test_a_full_memory_fits_in_a_config_map():
    long_name = "n" * 253
    findings = [
        editing(pod(f"train-{number}", uid=f"{number:036d}"), rule=Rule.RUNNING_WITHOUT_DEVICE)
        for number in range(MOST)
    ]
    memory = remember(ReconcilerState(), findings, NOW + 0.123456)
    attempts = {f"{number:036d}@{long_name}": Attempt(99, NOW) for number in range(MOST)}
    memory = replace(memory, failed=memory.seen, attempts=attempts)
    assert len(encode(memory)) < 1024 * 1024


HOSTILE = {
    "nothing": "",
    "no JSON": "{",
    "another shape": "[]",
    "another version": json.dumps({"version": VERSION + 1}),
    "a time that is text": json.dumps({"seen": {"key": "now"}}),
    "not a number": '{"seen": {"key": NaN}}',
    "no attempts": json.dumps({"attempts": {"key": [0, 1.0]}}),
    "fewer than none": json.dumps({"attempts": {"key": [-5, 1.0]}}),
    "half an attempt": json.dumps({"attempts": {"key": [1]}}),
    "too much": json.dumps({"seen": {str(number): 1.0 for number in range(MOST + 1)}}),
    "deep": "[" * 100_000,
    "a lone surrogate": '"\ud800"',
    "a huge number": '{"seen": {"key": 1' + "0" * 5000 + "}}",
    "beyond a float": '{"seen": {"key": 1e999}}',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_cannot_be_read_is_an_empty_memory(text):
    assert decode(text) == ReconcilerState()


pieces = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
documents = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("version", "seen", "failed", "attempts", "more"), pieces),
).map(json.dumps)


@given(st.text() | documents)
def test_no_text_breaks_it(text):
    memory = decode(text)
    planned(snapshot(refused(pod())), FINDING, memory=memory)
    learn(remember(memory, [FINDING], NOW), results(ActionOutcome.DONE), NOW, BACKOFF)
    assert decode(encode(memory)) == memory
