"""Times that are counted by size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeshare.tokens.tally import Tally
from vgpu.metrics.family import HistogramCounts


@given(st.lists(st.integers(0, 4) | st.integers(0, 4_000_000)))
def test_a_tally_counts_as_a_histogram_does(times):
    tally, counts = Tally.of(1, 2, 3_000_000), HistogramCounts((1e-6, 2e-6, 3))
    for time in times:
        tally.add(time)
        counts.add(time / 1e6)
    assert tally.histogram().buckets == counts.histogram().buckets
    assert tally.histogram().total == pytest.approx(counts.histogram().total)
