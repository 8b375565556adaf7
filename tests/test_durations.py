"""Durations: what Prometheus writes is read, and what we write is read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.durations import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15s", 15),
        ("500ms", 0.5),
        ("1m30s", 90),
        ("1d1h", 90000),
        ("2.5", 2.5),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_durations_as_prometheus_writes_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "1x", "1s1m", "-1s", "1.5m", "\u0661s", "1 s", "1e3", "inf"]
)
def test_anything_else_is_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text):
    try:
        assert parse_duration(text) >= 0
    except ValueError:
        return


@given(st.integers(0, 10**9).map(lambda milli: milli / 1000))
def test_what_is_written_is_read_as_the_same(seconds):
    assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (90, "1m30s"), (120, "2m"), (86400, "1d"), (0.25, "0.25s"), (3601, "1h1s")],
)
def test_the_shortest_text_is_written(seconds, text):
    assert duration_text(seconds) == text
