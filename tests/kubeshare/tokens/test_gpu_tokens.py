"""The tenants of a GPU, on a virtual clock: messages for the files, connections, counts."""

import struct
from collections import Counter
from itertools import count

import msgspec
import pytest

from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens.frames import LimitRequest, MalformedMessage, QuotaRequest, UpdateRequest
from kubeshare.tokens.gpu_tokens import (
    HOLD,
    KEPT_CONNECTIONS,
    MAX_CONNECTIONS,
    NEVER,
    GpuTokens,
)
from kubeshare.tokens.scheduler import TokenMode, TokenRules
from tests.kubeshare.tokens.gemini_process import MIB, UUID, pod

MS = 1000
UNKNOWN = TenantEntry(UUID, "ns", "a", 50051, None)
UNKNOWN_C = TenantEntry(UUID, "ns", "c", 50053, None)
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


# ---------------------------------------------------------------- connections


class Pod:
    """Processes of the pod A: one of Gemini 1.0 or of 1.1 for each name."""

    def __init__(self, max_connections=MAX_CONNECTIONS):
        self.gpu = GpuTokens(TokenRules(), 0)
        self.gpu.configure([A], 0)
        self.gpu.max_connections = max_connections
        self.open, self.closed, self.number = {}, [], count()
        self.ids, self.current = Counter(), {}

    def view(self):
        (view,) = self.gpu.views(0)
        return view

    def connect(self, process):
        """Open a connection, and close those that are too many."""
        key = next(self.number)
        self.open[key] = process
        for surplus in self.gpu.connect(A, key, "10.0.0.1"):
            self.close(surplus)
        self.current[process] = key
        return key

    def close(self, key):
        self.closed.append((key, self.open.pop(key)))
        self.gpu.disconnect(key, 0)

    def ask(self, process, kind, *payload, connects=True):
        """A message; whether it is answered at once, and for memory the verdict."""
        if connects or process not in self.current:
            self.connect(process)
        key, id_ = self.current[process], self.ids[process]
        if key not in self.open:
            return False
        self.ids[process] += 1
        answers = self.gpu.request(key, kind(b"ns/a", id_, *payload), 0)
        if kind is UpdateRequest:
            ((_, response, _),) = answers
            return bool(struct.unpack_from("<i", response, 4)[0])
        return key in [each for each, *_ in answers]

    def end(self, process):
        for key in [key for key, each in self.open.items() if each == process]:
            self.close(key)
        del self.ids[process]


def test_two_processes_of_gemini_1_1_send_any_number_of_messages():
    """None is refused, and the end of each frees exactly what it has booked."""
    pod = Pod()
    limit = A.share.memory_bytes
    assert pod.ask("one", UpdateRequest, 400 * MIB, True)
    assert pod.ask("two", UpdateRequest, 500 * MIB, True)
    for round_ in range(5_000):
        for process in ("one", "two"):
            assert pod.ask(process, LimitRequest)
            assert pod.ask(process, QuotaRequest, 0.0, 0.0)
        if round_ == 2_500:
            pod.end("two")
            assert pod.view().booked == 400 * MIB
            assert pod.ask("two", UpdateRequest, 500 * MIB, True), "it starts again"
    assert pod.view().opened > 20_000
    assert pod.view().connections == MAX_CONNECTIONS
    assert pod.view().counts.replaced > 19_000
    assert (pod.view().booked, pod.view().unattributed) == (900 * MIB, 0)
    assert not pod.ask("one", UpdateRequest, limit - 900 * MIB + 1, True)
    pod.end("one")
    assert pod.view().booked == 500 * MIB
    pod.end("two")
    assert pod.view().booked == 0


def test_a_process_of_gemini_1_0_keeps_its_connection():
    """Also beside those of 1.1, and in a pod that has as many processes as it may have."""
    pod = Pod()
    for process in range(MAX_CONNECTIONS):
        assert pod.ask(process, LimitRequest, connects=False)
        assert pod.ask(process, LimitRequest, connects=False)
    assert pod.closed == []
    pod.connect("another")
    assert [process for _, process in pod.closed] == ["another"]
    pod.end(0)
    pod.ids["new"] = 1  # its first message has gone through another connection
    assert pod.ask("new", LimitRequest)
    for _ in range(100):
        pod.connect("new")
    assert {process for _, process in pod.closed} == {"another", 0, "new"}


def test_connections_that_wait_are_not_closed():
    gpu = GpuTokens(TokenRules(), 0)
    gpu.configure([A, B], 0)
    gpu.max_connections = 20
    gpu.connect(B, "b", "10.0.0.1")
    assert gpu.request("b", QuotaRequest(b"ns/b", 0, 0.0, 0.0), 0)
    for number in range(100):
        surplus = gpu.connect(A, number, "10.0.0.1")
        kind = LimitRequest(b"ns/a", number)
        if number == 1:
            kind = QuotaRequest(b"ns/a", number, 0.0, 0.0)
        gpu.request(number, kind, 0)
        for key in surplus:
            assert key not in {0, 1, number}
            gpu.disconnect(key, 0)
    assert [key for key, *_ in gpu.tick(600 * MS)] == [1]


def test_connections_through_which_nothing_came_are_closed_in_a_pod_with_gemini_1_1():
    """Threads of a process open one each, and ask through the newest."""
    pod = Pod()
    for _ in range(MAX_CONNECTIONS):
        pod.connect("one")
        pod.ask("one", LimitRequest)
        pod.ask("one", LimitRequest, connects=False)
    assert pod.view().connections == MAX_CONNECTIONS
    assert pod.current["one"] in pod.open
    assert len(pod.closed) == MAX_CONNECTIONS


def test_a_bound_that_is_full_of_bookings_keeps_their_sum_for_the_pod():
    pod = Pod()
    size, number = MIB, MAX_CONNECTIONS + 88
    for _ in range(number):
        assert pod.ask("one", UpdateRequest, size, True)
    assert pod.view().connections == MAX_CONNECTIONS
    assert pod.view().booked == number * size
    assert pod.view().unattributed == 88 * size
    assert pod.ask("two", LimitRequest)
    pod.end("one")
    assert pod.view().booked == pod.view().unattributed > 0
    pod.end("two")
    assert pod.view().booked == 0


OWN, OTHER = "10.0.0.1", "10.0.0.66"
AT_OWN = TenantEntry(UUID, "ns", "a", 50051, pod("a"), "", (OWN,))
"""The pod A, whose address is known."""


def test_a_connection_from_another_address_keeps_nothing_of_a_pod():
    """Neither its memory nor its token: nobody of the pod is left."""
    gpu = GpuTokens(TokenRules(), 0)
    gpu.configure([AT_OWN, B], 0)
    gpu.max_connections = 20
    gpu.connect(AT_OWN, "other", OTHER)
    gpu.connect(B, "b", OWN)
    left = set(range(39))
    for key in range(40):
        for surplus in gpu.connect(AT_OWN, key, OWN):
            gpu.disconnect(surplus, 0)
            left.discard(surplus)
        gpu.request(key, UpdateRequest(b"ns/a", key, MIB, True), 0)
    assert gpu.request(39, QuotaRequest(b"ns/a", 40, 0.0, 0.0), 0)
    assert gpu.request("b", QuotaRequest(b"ns/b", 0, 0.0, 0.0), 0) == []
    (view, _) = gpu.views(0)
    assert (view.booked, view.unattributed) == (40 * MIB, 20 * MIB)
    for key in left:
        assert gpu.disconnect(key, 10 * MS) == []
    assert [key for key, *_ in gpu.disconnect(39, 10 * MS)] == ["b"], "the token is returned"
    (view, _) = gpu.views(10 * MS)
    assert (view.booked, view.unattributed, view.connections) == (0, 0, 1)
    assert view.counts.unreturned == 0


def test_a_process_that_waits_gets_its_token_whatever_its_address_is_meanwhile():
    gpu = GpuTokens(TokenRules(), 0)
    gpu.configure([AT_OWN, B], 0)
    gpu.connect(B, "b", OWN)
    assert gpu.request("b", QuotaRequest(b"ns/b", 0, 0.0, 0.0), 0)
    gpu.connect(AT_OWN, "waits", OWN)
    assert gpu.request("waits", QuotaRequest(b"ns/a", 0, 0.0, 0.0), 0) == []
    gpu.configure([msgspec.structs.replace(AT_OWN, addresses=(OTHER,)), B], 0)
    gpu.connect(AT_OWN, "another", "10.0.0.67")
    assert gpu.disconnect("another", 0) == []
    assert [key for key, *_ in gpu.disconnect("b", 10 * MS)] == ["waits"]


def test_a_connection_from_another_address_shows_nothing_of_a_pods_hook():
    """Nor is it closed in place of one of the pod, whose newest connections are kept."""
    gpu = GpuTokens(TokenRules(), 0)
    gpu.configure([AT_OWN], 0)
    gpu.max_connections = 40
    for key in range(40):
        assert gpu.connect(AT_OWN, key, OWN) == []
        if key % 2:  # of Gemini 1.0; the others have not asked yet
            assert gpu.request(key, LimitRequest(b"ns/a", 0), 0)
    for other in range(-20, 0):
        assert gpu.connect(AT_OWN, other, OTHER) == []
        assert gpu.request(other, LimitRequest(b"ns/a", 7), 0) == []
    assert gpu.connect(AT_OWN, "refused", OWN) == ["refused"]
    gpu.disconnect("refused", 0)
    gpu.disconnect(39, 0)
    assert gpu.connect(AT_OWN, "newer", OWN) == []
    assert gpu.request("newer", LimitRequest(b"ns/a", 7), 0), "now Gemini 1.1"
    closed = []
    for key in range(100, 130):
        (surplus,) = gpu.connect(AT_OWN, key, OWN)
        closed.append(surplus)
        gpu.disconnect(surplus, 0)
        assert gpu.request(key, LimitRequest(b"ns/a", key), 0)
    assert not {*closed} & {*range(-20, 0)} | {*closed} & {*range(1, 39, 2)}


def test_a_process_that_spoke_before_its_address_was_known_is_one_of_gemini_1_0():
    """Its first message counts, not the first one that is answered."""
    gpu = GpuTokens(TokenRules(), 0)
    gpu.configure([AT_OWN], 0)
    gpu.max_connections = 40
    gpu.connect(AT_OWN, "first", OTHER)
    assert gpu.request("first", LimitRequest(b"ns/a", 0), 0) == []
    gpu.configure([msgspec.structs.replace(AT_OWN, addresses=(OTHER,))], 0)
    assert gpu.request("first", LimitRequest(b"ns/a", 1), 0)
    for key in range(39):
        assert gpu.connect(AT_OWN, key, OTHER) == []
    assert gpu.connect(AT_OWN, "refused", OTHER) == ["refused"]


def restored_from_an_older_daemon(number, first_ids=None):
    """A pod with connections of an older daemon, which has kept no ids of first messages."""
    pod = Pod(max_connections=10**6)
    for process in range(number):
        assert pod.ask(process, LimitRequest)
    keys = [*pod.open]
    record = pod.gpu.record({key: number for number, key in enumerate(keys)})
    (each,) = record.pods
    record = msgspec.structs.replace(
        record, pods=(msgspec.structs.replace(each, first_ids=first_ids),)
    )
    pod.gpu = GpuTokens.restored(record, TokenRules(), keys)
    return pod


@pytest.mark.parametrize("number", [300, MAX_CONNECTIONS, 8_000])
def test_a_pod_with_gemini_1_1_lives_on_whatever_an_older_daemon_has_accepted(number):
    """Its oldest connections are closed then, until it has no more than others may have."""
    pod = restored_from_an_older_daemon(number)
    pod.ids["one"], pod.ids["two"] = 500, 7_000
    pod.ask("new", LimitRequest)  # its first id shows no version
    messages = 1_000
    for _ in range(messages // 2):
        for process in ("one", "two"):
            assert pod.ask(process, LimitRequest)
    left = max(MAX_CONNECTIONS, number + 3 - messages)
    assert pod.view().connections == left
    assert pod.view().counts.replaced == len(pod.closed) == number + 1 + messages - left
    assert [key for key, _ in pod.closed[:number]] == [*range(number)][: len(pod.closed)]


@pytest.mark.parametrize("number", [300, MAX_CONNECTIONS, 600])
def test_a_pod_with_gemini_1_0_keeps_what_an_older_daemon_has_accepted(number):
    """Their next messages show that they are of 1.0; it has the usual maximum then."""
    pod = restored_from_an_older_daemon(number)
    for new in range(max(MAX_CONNECTIONS - number, KEPT_CONNECTIONS)):
        assert pod.ask(f"new {new}", LimitRequest)
    assert pod.closed == []
    pod.connect("another")
    for process in range(number):
        assert pod.ask(process, LimitRequest, connects=False)
    pod.connect("another")
    pod.ids["newer"] = 1
    for _ in range(number):
        pod.ask("newer", LimitRequest)
    for process in range(number):
        assert pod.ask(process, LimitRequest, connects=False)
    assert {process for _, process in pod.closed} <= {"another", "newer"}


def test_connections_that_no_message_has_used_are_not_those_of_an_older_daemon():
    pod = restored_from_an_older_daemon(MAX_CONNECTIONS, first_ids={})
    pod.connect("another")
    assert [process for _, process in pod.closed] == ["another"]


def test_at_the_end_every_process_that_waits_gets_the_smallest_token():
    gpu = tokens(A, B, UNKNOWN_C)
    ask = QuotaRequest(b"", 3, 0.0, 9000.0)
    assert gpu.request("a", ask, 0)
    assert gpu.request("b", ask, 0) == []
    assert gpu.request("c", LimitRequest(b"", 4), 0) == []
    smallest = struct.pack("<id28x", 3, 20.0)
    refusal = struct.pack("<iQQ20x", 4, 0, 0)
    assert sorted(gpu.end(1)) == [
        ("b", smallest, True),
        ("c", refusal, False),
    ]
    assert gpu.end(2) == []


def test_a_token_counts_until_it_came_back_if_others_waited():
    gpu = tokens(A, B)
    first, again = QuotaRequest(b"", 0, 0.0, 0.0), QuotaRequest(b"", 1, 0.0, 9000.0)
    assert gpu.request("a", first, 0)
    assert gpu.request("b", first, 100 * MS) == []
    assert gpu.request("a", again, 500 * MS)  # its quota was 300 ms, and it reports no overuse
    views = {view.entry.pod: view for view in gpu.views(500 * MS)}
    assert (views["a"].window_share, views["a"].held_time) == (1.0, 500 * MS)
    assert views["a"].counts.used == 300 * MS


def test_a_token_for_which_nobody_waited_counts_as_its_quota():
    """A pod that computes nothing for a while loses nothing by it; it had the token."""
    gpu = tokens(A, B)
    assert gpu.request("a", QuotaRequest(b"", 0, 0.0, 0.0), 0)
    (view, _) = gpu.views(500 * MS)
    assert (view.window_share, view.held_time) == (0.6, 500 * MS)
    assert gpu.request("a", QuotaRequest(b"", 1, 0.0, 9000.0), 500 * MS)
    (view, _) = gpu.views(600 * MS)
    assert (view.held_time, view.counts.held) == (600 * MS, 500 * MS)


def test_a_token_that_is_taken_counts_until_then_and_its_overuse_only_once():
    gpu = tokens(A, B)
    first = QuotaRequest(b"", 0, 0.0, 0.0)
    assert gpu.request("a", first, 0)
    assert gpu.request("b", first, 100 * MS) == []
    assert gpu.tick(600 * MS)  # quota and grace
    assert gpu.request("a", QuotaRequest(b"", 1, 350.0, 9000.0), 800 * MS) == []
    (view, _) = gpu.views(1000 * MS)
    assert (view.window_share, view.held_time) == (0.65, 600 * MS)
    assert view.counts.unreturned == 1
