"""Packed spans are what a tuple of them would be."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kubeshare.tokens.spans import Spans


def pairs_of(steps):
    """Disjoint spans, in order."""
    times = [*itertools.accumulate(steps)]
    return [*zip(times[::2], times[1::2], strict=False)]


@given(
    st.lists(st.integers(1, 50), max_size=12).map(pairs_of), st.integers(0, 400), st.integers(0, 60)
)
def test_spans_are_the_same_as_a_tuple_of_pairs(pairs, time, overuse):
    spans = Spans()
    for pair in pairs:
        spans = spans.added(*pair)
    assert [*spans] == pairs
    assert bool(spans) == bool(pairs)
    assert spans.total == sum(end - start for start, end in pairs)
    kept = [pair for pair in pairs if pair[1] >= time]
    assert [*spans.since(time)] == kept
    assert spans.since(time).total == sum(end - start for start, end in kept)
    assert spans.time_since(time) == sum(max(0, end - max(start, time)) for start, end in pairs)
    ended = [*pairs[:-1], *((start, min(time, end + overuse)) for start, end in pairs[-1:])]
    assert [*spans.ended(time, overuse)] == ended
    assert spans.ended(time, overuse).total == sum(end - start for start, end in ended)


def test_a_span_ends_at_its_least_time_or_later():
    spans = Spans().added(1, 5).added(7, 20)
    assert [*spans.ended(30, 4, 28)] == [(1, 5), (7, 28)]
    assert [*spans.ended(30, 4, 22)] == [(1, 5), (7, 24)]
    assert spans.ended(30, 4, 28).total == 25
