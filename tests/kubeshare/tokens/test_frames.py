"""The bytes of Gemini's protocol, and that no bytes do harm."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeshare.tokens.frames import (
    FrameError,
    LimitRequest,
    MalformedMessage,
    QuotaRequest,
    QuotaTimes,
    UpdateRequest,
    decode,
    limit_response,
    quota_response,
    times,
    update_response,
)

GIB = 1 << 30
WINDOW = 10_000_000

# What Gemini's tag v1.0 sends as the process of the pod "default/a".
HEAD = "09000000000000006465666175 6c742f6100".replace(" ", "")
QUOTA = HEAD + "09000000" + "00000000" + "0000000000000440" + "0000000000004440"
LIMIT = HEAD + "07000000" + "01000000"
UPDATE = HEAD + "08000000" + "02000000" + "0000802500000000" + "01000000"


def padded(text, size=80):
    return bytes.fromhex(text).ljust(size, b"\0")


def test_the_requests_of_gemini_1():
    assert decode(padded(QUOTA)) == QuotaRequest(b"default/a", 9, 2.5, 40.0)
    assert decode(padded(LIMIT)) == LimitRequest(b"default/a", 7)
    assert decode(padded(UPDATE)) == UpdateRequest(b"default/a", 8, 600 << 20, True)
    freed = UPDATE[:-8] + "00000000"
    assert decode(padded(freed)) == UpdateRequest(b"default/a", 8, 600 << 20, False)


def test_the_answers_of_geminis_pod_manager():
    """Its bytes, but for ids and quotas: ``tests/golden/gemini/hook-*.txt``."""
    limit = "0000004000000000"
    assert limit_response(1, 0, GIB) == padded("01000000" + "00" * 8 + limit, 40)
    assert limit_response(4, 600 << 20, GIB) == padded("04000000" + "0000802500000000" + limit, 40)
    assert update_response(8, accepted=True) == padded("0800000001000000", 40)
    assert update_response(8, accepted=False) == padded("0800000000000000", 40)
    assert quota_response(9, 250_000) == padded("090000000000000000406f40", 40)
    assert quota_response(-1, 145_000) == padded("ffffffff0000000000206240", 40)


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 2**63))
def test_the_hook_allocates_no_more_than_is_left(used, limit, size):
    """It computes without a sign: what is used above a limit that was lowered must not wrap."""
    answered, total = struct.unpack_from("<QQ", limit_response(1, used, limit), 4)
    refuses = size > (total - answered) % 2**64
    assert refuses == (size > max(0, limit - used))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (padded("40" + "00" * 7), MalformedMessage.LENGTH),
        (padded("ff" * 8), MalformedMessage.LENGTH),
        (padded(HEAD + "0900000003000000"), MalformedMessage.TYPE),
        (padded(HEAD + "09000000ffffffff"), MalformedMessage.TYPE),
        (padded(UPDATE[:-8] + "02000000"), MalformedMessage.FLAG),
        (struct.pack("<Q52sxii3x", 52, b"n" * 52, 1, 2).ljust(80, b"\0"), MalformedMessage.CUT),
    ],
)
def test_a_message_without_an_answer(message, kind):
    with pytest.raises(FrameError) as caught:
        decode(message[:80])
    assert caught.value.kind is kind


@pytest.mark.parametrize("length", [47, 48, 55, 56, 63])
def test_a_long_name_cuts_off_the_burst_and_then_the_overuse(length):
    whole = struct.pack(f"<Q{length}sxiidd", length, b"n" * length, 4, 0, 3.0, 40.0)
    request = decode(whole[:80].ljust(80, b"\0"))
    claimed, kind = times(request, WINDOW, is_swapped=False)
    overuse, burst = 3000 if length <= 55 else 0, 40_000 if length <= 47 else 0
    assert claimed == QuotaTimes(overuse, burst)
    assert kind is (None if length <= 47 else MalformedMessage.NUMBER)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 3_600_001.0, 1e300])
def test_a_time_that_is_none_counts_as_nothing(value):
    request = QuotaRequest(b"", 1, value, value)
    assert times(request, WINDOW, is_swapped=False) == (QuotaTimes(0, 0), MalformedMessage.NUMBER)
    assert times(request, WINDOW, is_swapped=True)[0] == QuotaTimes(None, 0, 0)
    request = QuotaRequest(b"", 1, value, 40.0)
    assert times(request, WINDOW, is_swapped=False) == (
        QuotaTimes(0, 40_000),
        MalformedMessage.NUMBER,
    )


def test_a_burst_longer_than_the_window_counts_as_the_window():
    """That of a process that is always busy grows without an end; its overuse does not."""
    request = QuotaRequest(b"", 1, 10_001.0, 10_001.0)
    expected = QuotaTimes(0, WINDOW), MalformedMessage.NUMBER
    assert times(request, WINDOW, is_swapped=False) == expected
    assert times(request, WINDOW, is_swapped=True)[0] == QuotaTimes(None, WINDOW, WINDOW)
    request = QuotaRequest(b"", 1, 2.0, 12_000.0)
    assert times(request, WINDOW, is_swapped=False) == (QuotaTimes(2_000, WINDOW), None)


@pytest.mark.parametrize(
    ("first", "second", "burst", "idle"),
    [
        (0.0, 2.0315078336873835e174, 0, 0),
        (371.548, 0.019, 371_548, 19),
        (682.116, 0.033, 682_116, 33),
        (407.293, 98.049, 407_293, 98_049),
    ],
)
def test_gemini_1_1_sends_its_burst_and_its_idle_time(first, second, burst, idle):
    """The numbers are those of the real hook, v1.1-kubeshare with DEBUG=1."""
    claimed = times(QuotaRequest(b"", 8, first, second), WINDOW, is_swapped=True)
    assert claimed == (QuotaTimes(None, burst, idle), MalformedMessage.SWAPPED)


def test_the_first_message_of_a_process_has_no_overuse():
    """Its connection may be one of either version; the number may be what a register had."""
    claimed, _ = times(QuotaRequest(b"", 0, 98.0, 0.0), WINDOW, is_swapped=False)
    assert claimed == QuotaTimes(0, 0)


@given(st.binary(min_size=80, max_size=80), st.booleans())
def test_any_bytes_are_a_request_or_an_error(message, is_swapped):
    try:
        request = decode(message)
    except FrameError:
        return
    assert len(request.name) <= 63
    if isinstance(request, QuotaRequest):
        claimed, _ = times(request, WINDOW, is_swapped=is_swapped)
        for time in (claimed.overuse or 0, claimed.burst, claimed.idle):
            assert 0 <= time <= WINDOW
