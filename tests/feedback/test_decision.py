"""Who has to wait for a higher priority, and whose core limit is lifted."""

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from vgpu.schemes.volcano.hami_core import FeedbackWords
from vgpucli.feedback.decision import (
    BLOCKED,
    LIFTED,
    LIMITED,
    RELEASED,
    Contender,
    decide,
    recent_kernel_to_write,
    released,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
WORDS = st.builds(FeedbackWords, st.integers(-1, 2) | INT32, st.integers(0, 1) | INT32)
DEVICES = st.frozensets(st.sampled_from("ABC"), min_size=1)
CONTENDERS = st.lists(
    st.builds(Contender, DEVICES, st.integers(0, 3), WORDS),
    max_size=6,
)


def one(devices="A", priority=1, recent=2, switch=LIMITED):
    return Contender(frozenset(devices), priority, FeedbackWords(recent, switch))


def words(*contenders):
    return [(each.recent_kernel, each.utilization_switch) for each in decide(contenders)]


def observed(contenders):
    """The rules of HAMi's ``Observe``, in two passes over arrays as it has them.

    Written from the description of these rules; it takes numbers as the library writes them.
    """
    recent = [each.words.recent_kernel for each in contenders]
    switches = [each.words.utilization_switch for each in contenders]
    active = {}
    for index, each in enumerate(contenders):
        if recent[index] > 0:
            recent[index] -= 1
            if recent[index] > 0:
                for device in each.devices:
                    active.setdefault(device, [0, 0, 0, 0])[each.priority] += 1
    for index, each in enumerate(contenders):
        counts = [active.get(device, [0, 0, 0, 0]) for device in each.devices]
        higher = any(sum(count[: each.priority]) > 0 for count in counts)
        same = any(count[each.priority] > 1 for count in counts)
        if higher:
            recent[index] = -1 if recent[index] >= 0 else recent[index]
        elif recent[index] < 0:
            recent[index] = 0
        switches[index] = 1 if higher or same else 0
    return list(zip(recent, switches, strict=True))


@given(
    st.lists(
        st.builds(
            Contender,
            DEVICES,
            st.integers(0, 3),
            st.builds(FeedbackWords, st.integers(-1, 2), st.integers(0, 1)),
        ),
        max_size=8,
    )
)
def test_decisions_are_those_of_the_original_rules(contenders):
    assert words(*contenders) == observed(contenders)


def test_a_low_priority_waits_while_a_higher_one_works_on_its_gpu():
    high, low = one(priority=0), one(priority=1)
    assert words(high, low) == [(1, LIFTED), (BLOCKED, LIMITED)]


def test_it_goes_on_when_the_higher_one_has_launched_nothing_for_two_rounds():
    high, low = one(priority=0, recent=1), one(priority=1, recent=BLOCKED)
    assert words(high, low) == [(0, LIFTED), (RELEASED, LIFTED)]


def test_an_active_container_on_another_gpu_pauses_nobody():
    assert words(one("A", 0), one("B", 1)) == [(1, LIFTED), (1, LIFTED)]


def test_one_of_several_gpus_is_enough():
    assert words(one("B", 0), one("AB", 1))[1] == (BLOCKED, LIMITED)


def test_equal_priorities_limit_each_other_while_both_work():
    assert words(one(), one()) == [(1, LIMITED), (1, LIMITED)]
    assert words(one(), one(recent=0)) == [(1, LIFTED), (0, LIFTED)]


def test_more_than_two_priorities_are_ordered():
    assert words(one(priority=5), one(priority=7), one(priority=9)) == [
        (1, LIFTED),
        (BLOCKED, LIMITED),
        (BLOCKED, LIMITED),
    ]


@given(CONTENDERS)
def test_nobody_waits_unless_a_higher_priority_is_active_on_a_gpu_of_theirs(contenders):
    decisions = decide(contenders)
    for waiting, decided in zip(contenders, decisions, strict=True):
        active = [
            other
            for other, own in zip(contenders, decisions, strict=True)
            if other.words.recent_kernel > 1
            and other.priority < waiting.priority
            and other.devices & waiting.devices
        ]
        assert (decided.recent_kernel == BLOCKED) == bool(active)
        assert decided.recent_kernel >= BLOCKED


@given(CONTENDERS)
def test_the_highest_priority_of_a_node_never_waits(contenders):
    top = min((each.priority for each in contenders), default=0)
    for contender, decided in zip(contenders, decide(contenders), strict=True):
        assert contender.priority > top or decided.recent_kernel != BLOCKED


@given(CONTENDERS)
def test_without_launches_everybody_is_free_after_two_rounds(contenders):
    for _ in range(2):
        decided = decide(contenders)
        contenders = [
            msgspec.structs.replace(each, words=now)
            for each, now in zip(contenders, decided, strict=True)
        ]
    assert decide(contenders) == [FeedbackWords(RELEASED, LIFTED)] * len(contenders)


@given(CONTENDERS, st.integers(-(2**31), 2**31 - 1), WORDS)
def test_a_container_without_a_confirmed_gpu_changes_nothing_for_others(
    contenders, priority, forged
):
    *others, own = decide([*contenders, Contender(frozenset(), priority, forged)])
    assert others == decide(contenders)
    assert own == released(forged)


@given(CONTENDERS, DEVICES, st.integers(-(2**31), -1), WORDS)
def test_an_impossible_priority_changes_nothing_for_others(contenders, devices, priority, forged):
    *others, own = decide([*contenders, Contender(devices, priority, forged)])
    assert others == decide(contenders)
    assert own == released(forged)


@given(WORDS)
def test_a_released_container_is_never_paused(now):
    free = released(now)
    assert free.recent_kernel >= 0
    assert free.utilization_switch == LIMITED
    assert released(free) == free


@given(WORDS, INT32)
@example(FeedbackWords(1, 1), 2)
def test_a_launch_between_reading_and_writing_is_lost_only_to_a_block(read, current):
    (decided,) = decide([Contender(frozenset("A"), 0, read)])
    written = recent_kernel_to_write(read.recent_kernel, decided.recent_kernel, current)
    after = current if written is None else written
    assert after >= 0  # the highest priority is never left blocked, whatever stands there now
    if current > 0 and current != read.recent_kernel:
        assert after == current
    assert recent_kernel_to_write(read.recent_kernel, BLOCKED, current) == (
        BLOCKED if current >= 0 else None
    )
