"""The tenants of a GPU, on a virtual clock: messages that wait for the files, and counts."""

import struct

import pytest

from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens.frames import LimitRequest, MalformedMessage, QuotaRequest, UpdateRequest
from kubeshare.tokens.gpu_tokens import HOLD, NEVER, GpuTokens
from kubeshare.tokens.scheduler import TokenMode, TokenRules
from tests.kubeshare.tokens.gemini_process import UUID, pod

MS = 1000
UNKNOWN = TenantEntry(UUID, "ns", "a", 50051, None)
A, B = (TenantEntry(UUID, "ns", name, 50051, pod(name)) for name in "ab")


def tokens(*entries, mode=TokenMode.EXCLUSIVE):
    """With a connection for each tenant, by its name."""
    gpu = GpuTokens(TokenRules(mode), 0)
    assert gpu.configure(entries, 0) == []
    for entry in entries:
        gpu.connect(entry, entry.pod, "10.0.0.1")
    return gpu


def counts(gpu, name="a", now=0):
    return next(view.counts for view in gpu.views(now) if view.entry.pod == name)


@pytest.mark.parametrize("mode", TokenMode)
@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (LimitRequest(b"ns/a", 7), struct.pack("<iQQ20x", 7, 0, 0)),
        (UpdateRequest(b"ns/a", 7, 1, True), struct.pack("<ii32x", 7, 0)),
    ],
)
def test_memory_is_refused_after_a_time_to_a_pod_that_no_file_names(mode, request_, refusal):
    gpu = tokens(UNKNOWN, mode=mode)
    assert gpu.request("a", request_, 5) == []
    assert gpu.wake_at == 5 + HOLD
    assert gpu.tick(5 + HOLD - 1) == []
    assert gpu.tick(5 + HOLD) == [("a", refusal, False)]
    assert gpu.wake_at == NEVER
    assert counts(gpu).unknown == 1


def test_a_token_has_no_such_time():
    gpu = tokens(UNKNOWN)
    assert gpu.request("a", QuotaRequest(b"ns/a", 1, 0.0, 0.0), 5) == []
    assert gpu.wake_at == NEVER
    ((key, response, is_token),) = gpu.configure([A], 10**9)
    assert (key, response, is_token) == ("a", struct.pack("<id28x", 1, 300.0), True)


def test_used_time_is_that_from_a_grant_to_its_return_with_the_overrun():
    gpu = tokens(A, B)
    first, ask = (QuotaRequest(b"", number, 0.0, 9000.0) for number in range(2))
    assert gpu.request("a", first, 0)
    assert gpu.request("b", first, 1 * MS) == []
    assert gpu.request("a", ask, 40 * MS)  # returned before its end; b has it now
    assert counts(gpu, "a").used == 40 * MS
    assert counts(gpu, "b").waits.total == 39 * MS
    late = QuotaRequest(b"", 1, 25.0, 9000.0)
    assert gpu.request("b", late, 2000 * MS)  # after its quota of 1000 ms, of which it ran 25 more
    used = counts(gpu, "b")
    assert (used.used, used.overused, used.granted) == (1025 * MS, 25 * MS, 1000 * MS)
    assert gpu.disconnect("b", 2001 * MS) == []
    assert counts(gpu, "b").used == 1025 * MS  # it waited


def test_the_overuse_of_gemini_1_1_is_what_its_burst_and_its_idle_time_leave():
    """It opens a connection for each message, and sends burst and idle time.

    Of the 400 ms after its first token it was idle for 98 ms at most, and a burst took 40 ms.
    """
    gpu = tokens(A)
    message = {id_: QuotaRequest(b"", id_, 40.0, 98.0) for id_ in range(3)}
    for key in ("c1", "c2"):
        gpu.connect(A, key, "10.0.0.1")
    assert gpu.request("c1", message[1], 0) == [("c1", struct.pack("<id28x", 1, 170.0), True)]
    assert gpu.request("c2", message[2], 570 * MS)
    assert (counts(gpu).overused, counts(gpu).used) == (40 * MS, 210 * MS)
    assert counts(gpu).malformed == {MalformedMessage.SWAPPED: 2}


def test_a_bursty_process_of_gemini_1_1_has_no_overuse():
    """It asked for its next token after a pause: the recorded numbers of the real hook."""
    gpu = tokens(A)
    for id_ in (1, 2):
        gpu.connect(A, id_, "10.0.0.1")
    assert gpu.request(1, QuotaRequest(b"", 1, 2.1, 98.049), 0)
    assert gpu.request(2, QuotaRequest(b"", 2, 2.1, 98.049), 240 * MS)
    assert counts(gpu).overused == 0


def test_a_pod_that_has_returned_its_token_has_nothing_left_of_it():
    """Its process that returned it ends while it waits; another one asks within the old quota."""
    gpu = tokens(A, B)
    gpu.connect(A, "a2", "10.0.0.1")
    assert gpu.request("a", QuotaRequest(b"", 0, 0.0, 0.0), 0)
    assert gpu.request("b", QuotaRequest(b"", 0, 0.0, 0.0), 10 * MS) == []
    granted = gpu.request("a", QuotaRequest(b"", 1, 0.0, 9000.0), 40 * MS)
    assert [key for key, _, _ in granted] == ["b"]
    assert gpu.disconnect("a", 50 * MS) == []
    assert gpu.request("a2", QuotaRequest(b"", 0, 0.0, 10.0), 60 * MS) == []
