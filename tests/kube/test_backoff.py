"""Back-off: longer after each failure, each item by itself, and never all clients at once."""

from hypothesis import given
from hypothesis import strategies as st

from vgpu.apiserver.backoff import LONGEST_SECONDS, ItemBackoff, backoff_seconds


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_pause_is_between_nothing_and_twice_the_last_ones_longest(failures, jitter):
    seconds = backoff_seconds(failures, jitter)
    assert 0 <= seconds <= min(LONGEST_SECONDS, 2 ** min(failures - 1, 10))
    assert backoff_seconds(failures, 1.0) >= backoff_seconds(max(1, failures - 1), 1.0)


def test_an_item_waits_longer_after_each_failure_and_starts_over_after_a_success():
    backoff = ItemBackoff(lambda: 1.0)
    waits = [backoff.add("a", 100.0, "1") - 100 for _ in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert backoff.until("a", "2") == 160
    assert (backoff.failures("a"), backoff.failures("b"), len(backoff)) == (9, 0, 1)
    backoff.forget("a")
    assert backoff.until("a", "2") == 0
    backoff.add("a", 100.0, "2", moved_on=True)
    assert backoff.until("a", "2") == 101
    assert backoff.until("a", "3") == 0
    backoff.prune({"b"})
    assert len(backoff) == 0


def test_the_bounds_of_a_backoff_are_those_of_its_constructor():
    backoff = ItemBackoff(lambda: 0.5, first=0.01, longest=0.05)
    assert [backoff.add("a", 0.0) for _ in range(5)] == [0.005, 0.01, 0.02, 0.025, 0.025]
