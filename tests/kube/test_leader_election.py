"""Elections: never two who lead at once, whatever the network does; in the end there is one."""

import threading
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from tests.support.waiting import wait_until
from vgpu.apiserver import leader_election
from vgpu.apiserver.connection import ClusterError
from vgpu.apiserver.leader_election import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    Election,
    LeaderElector,
)
from vgpu.model.objects import Lease

UNREACHABLE = ClusterError(0, "Unreachable", "https://api: read timed out")


class Server:
    """One Lease, as the API server keeps it."""

    def __init__(self):
        self.kept = None
        self._version = 0
        self._writing = threading.Lock()

    def lease(self, namespace, name):
        return self.kept

    def write_lease(self, lease):
        with self._writing:
            known = self.kept.resource_version if self.kept else ""
            if lease.resource_version != known:
                raise ClusterError(409, "Conflict", "the object has been modified")
            self._version += 1
            self.kept = replace(lease, resource_version=str(self._version))
            return self.kept

    def serve(self, wanted):
        return self.lease("", "") if wanted is None else self.write_lease(wanted)


# ---------------------------------------------------------------- all schedules


@dataclass
class Candidate:
    """An election, its clock, and where its conversation with the server stands."""

    election: Election
    step: object = None
    wanted: Lease | None = None
    answered: bool = False
    answer: object = None
    late: list = field(default_factory=list)  # writes without an answer, which may still arrive

    def begin(self, step):
        self.step, self.answered = step, False
        self._go(lambda: next(step))

    def serve(self, server):
        self.answered = True
        try:
            self.answer = server.serve(self.wanted)
        except ClusterError as error:
            self.answer = error

    def hear(self, answer):
        step = self.step
        if isinstance(answer, ClusterError):
            self._go(lambda: step.throw(answer))
        else:
            self._go(lambda: step.send(answer))

    def _go(self, onward):
        try:
            self.wanted, self.answered = onward(), False
        except (StopIteration, ClusterError):
            self.step = None


class Elections(RuleBasedStateMachine):
    """Candidates whose clocks differ and run unevenly, over a network that delays and loses."""

    def __init__(self):
        super().__init__()
        self.time = 0.0
        self.server = Server()
        self.candidates = []
        self.made = 0

    def candidate(self, rate, offset):
        self.made += 1
        return Candidate(
            Election(
                "ns",
                "l",
                f"candidate-{self.made}",
                monotonic=lambda: offset + rate * self.time,
                clock=lambda: -offset,  # no decision may depend on it
            )
        )

    rates = st.sampled_from([1.0, 1.45])
    offsets = st.sampled_from([0.0, 1e6, -1e6])
    who = st.integers(0, 1)
    pauses = st.sampled_from([0.1, RETRY_SECONDS, 7.0, 9.9, LEASE_SECONDS])

    @initialize(rates=st.tuples(rates, rates), offsets=st.tuples(offsets, offsets))
    def start(self, rates, offsets):
        self.candidates = [self.candidate(*clock) for clock in zip(rates, offsets, strict=True)]

    @rule(seconds=pauses)
    def time_passes(self, seconds):
        self.time += seconds

    @rule(who=who)
    def steps(self, who):
        chosen = self.candidates[who]
        if chosen.step is None:
            chosen.begin(chosen.election.step())

    @rule(who=who)
    def request_arrives(self, who):
        chosen = self.candidates[who]
        if chosen.step is not None and not chosen.answered:
            chosen.serve(self.server)

    @rule(who=who)
    def answer_arrives(self, who):
        chosen = self.candidates[who]
        if chosen.step is not None and chosen.answered:
            chosen.hear(chosen.answer)

    @rule(who=who)
    def whole_step(self, who):
        """The usual case."""
        chosen = self.candidates[who]
        if chosen.step is None:
            chosen.begin(chosen.election.step())
        while chosen.step is not None:
            if not chosen.answered:
                chosen.serve(self.server)
            chosen.hear(chosen.answer)

    @rule(who=who, there=pauses, back=pauses, beside=st.booleans())
    def slow_step(self, who, there, back, beside):
        """Requests and answers take their time, and the other one is not slow."""
        chosen = self.candidates[who]
        if chosen.step is None:
            chosen.begin(chosen.election.step())
        while chosen.step is not None:
            self.time += there
            if not chosen.answered:
                chosen.serve(self.server)
            if beside:
                self.whole_step(1 - who)
            self.time += back
            chosen.hear(chosen.answer)
            if beside:
                self.whole_step(1 - who)
            self.at_most_one_leads()

    @rule(who=who)
    def patience_ends(self, who):
        """The answer is lost, or the request is still on its way."""
        chosen = self.candidates[who]
        if chosen.step is not None:
            if not chosen.answered and chosen.wanted is not None:
                chosen.late.append(chosen.wanted)
            chosen.hear(UNREACHABLE)

    @precondition(lambda self: any(each.late for each in self.candidates))
    @rule(who=who)
    def late_write_arrives(self, who):
        late = self.candidates[who].late
        if late:
            with suppress(ClusterError):  # it names a version that is no more
                self.server.write_lease(late.pop(0))

    @rule(who=who)
    def stops(self, who):
        chosen = self.candidates[who]
        if chosen.step is None:
            chosen.begin(chosen.election.release())

    @rule(who=who, rate=rates, offset=offsets)
    def dies_and_comes_back(self, who, rate, offset):
        late = self.candidates[who].late
        self.candidates[who] = self.candidate(rate, offset)
        self.candidates[who].late = late

    @rule()
    def somebody_labels_it(self):
        if self.server.kept is not None:
            self.server.write_lease(self.server.kept)

    @invariant()
    def at_most_one_leads(self):
        leaders = [each for each in self.candidates if each.election.leads()]
        assert len(leaders) <= 1

    @invariant()
    def who_leads_holds_the_lease(self):
        for each in self.candidates:
            if each.election.leads():
                assert self.server.kept.holder == each.election.identity

    def teardown(self):
        if not self.candidates:
            return
        for who in (0, 1):
            self.candidates[who].late.clear()
        for _ in range(3 * LEASE_SECONDS):
            self.time += RETRY_SECONDS
            for who in (0, 1):
                self.whole_step(who)
                self.at_most_one_leads()
        assert sum(each.election.leads() for each in self.candidates) == 1


TestElections = Elections.TestCase
TestElections.settings = settings(stateful_step_count=40)


# ---------------------------------------------------------------- one election


class Moment:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def converse(election, server, step=None):
    """One step with prompt answers."""
    talker = Candidate(election)
    talker.begin(step or election.step())
    while talker.step is not None:
        talker.serve(server)
        talker.hear(talker.answer)


def election(name="a", now=None):
    return Election("ns", "l", name, monotonic=now or Moment(), clock=lambda: 5.0)


def test_the_first_candidate_takes_the_lease_and_the_second_waits():
    server, now = Server(), Moment()
    first, second = election("a", now), election("b", now)
    converse(first, server)
    converse(second, server)
    assert (first.leads(), second.leads()) == (True, False)
    assert server.kept.holder == second.holder == "a"
    assert server.kept.duration_seconds == LEASE_SECONDS


def test_the_term_counts_from_when_the_write_was_sent():
    server, now = Server(), Moment()
    first = election("a", now)
    step = first.step()
    next(step)
    wanted = step.send(None)
    now.now += 9.5
    with pytest.raises(StopIteration):
        step.send(server.serve(wanted))
    assert first.leads()
    now.now += 0.5
    assert not first.leads()


def test_a_renewal_keeps_since_when_it_leads():
    server, now = Server(), Moment()
    first = election("a", now)
    converse(first, server)
    acquired = server.kept
    now.now += 2
    converse(first, server)
    assert server.kept.acquired_at == acquired.acquired_at
    assert server.kept.transitions == acquired.transitions
    assert server.kept.resource_version != acquired.resource_version


def test_a_lease_counts_from_its_last_seen_change_whatever_times_it_has():
    server, now = Server(), Moment()
    server.write_lease(Lease("ns", "l", holder="old", duration_seconds=15, renewed_at=1.0))
    second = election("b", now)
    converse(second, server)
    now.now += LEASE_SECONDS
    converse(second, server)
    assert not second.leads()
    now.now += 0.1
    converse(second, server)
    assert second.leads()
    assert server.kept.transitions == 1


def test_a_lease_with_a_longer_duration_is_respected_for_that_long():
    server, now = Server(), Moment()
    server.write_lease(Lease("ns", "l", holder="old", duration_seconds=60))
    second = election("b", now)
    for _ in range(6):
        converse(second, server)
        now.now += 10
    assert not second.leads()
    now.now += 1
    converse(second, server)
    assert second.leads()


def test_a_leader_that_sees_another_holder_steps_down_at_once():
    server, now = Server(), Moment()
    first = election("a", now)
    converse(first, server)
    server.write_lease(replace(server.kept, holder="thief"))
    converse(first, server)
    assert not first.leads()


def test_another_holder_is_a_rival_once_it_has_renewed_the_lease():
    """A holder that was killed leaves a Lease that nobody renews."""
    server, other, ours = Server(), election("other"), election("ours")
    converse(other, server)
    for _ in range(2):
        converse(ours, server)
        assert (ours.holder, ours.rival) == (other.identity, "")
    converse(other, server)
    converse(ours, server)
    assert ours.rival == other.identity
    server.serve(next(other.release()))
    converse(ours, server)
    assert (ours.leads(), ours.rival) == (True, "")


@pytest.mark.parametrize(("renewed_by", "released_to"), [("a", ""), ("thief", "thief")])
def test_a_lease_is_released_also_in_a_version_that_was_not_seen(renewed_by, released_to):
    """As when the answer to the last renewal was lost; another holder keeps it."""
    server, first = Server(), election("a")
    converse(first, server)
    server.write_lease(replace(server.kept, holder=renewed_by))
    converse(first, server, first.release())
    assert server.kept.holder == released_to
    assert not first.leads()


def test_a_lease_that_was_deleted_is_recreated():
    server, now = Server(), Moment()
    first = election("a", now)
    converse(first, server)
    server.kept = None
    converse(first, server)
    assert first.leads()
    assert server.kept.holder == "a"


# ---------------------------------------------------------------- the thread


class Hanging(Server):
    """Answers until ``hangs`` is set; ``hanging`` is set when a request hangs."""

    def __init__(self):
        super().__init__()
        self.hangs = False
        self.hanging = threading.Event()
        self.go_on = threading.Event()

    def write_lease(self, lease):
        if self.hangs:
            self.hanging.set()
            self.go_on.wait()
        return super().write_lease(lease)


class Pauses:
    """The pauses of a thread, each as long as the test wants."""

    def __init__(self):
        self._entered = threading.Semaphore(0)
        self._leave = threading.Semaphore(0)
        self._are_over = False
        self.seconds = []

    def __call__(self, seconds):
        self.seconds.append(seconds)
        self._entered.release()
        if not self._are_over:
            self._leave.acquire()

    def wait(self):
        wait_until(lambda: self._entered.acquire(blocking=False), "the thread pauses")

    def end(self):
        self._leave.release()

    def end_all(self):
        """The thread may go round again before it is stopped: no pause lasts any more."""
        self._are_over = True
        self._leave.release()


@pytest.fixture
def candidate():
    """Makes leaders that are stopped at the end: leader, its pauses, its clock."""
    made = []

    def make(server, name="a"):
        pauses, now = Pauses(), Moment()
        leader = LeaderElector(server, "ns", "l", name, monotonic=now, clock=now, pause=pauses)
        made.append((leader, pauses))
        leader.start()
        return leader, pauses, now

    yield make
    for leader, pauses in made:
        pauses.end_all()
        leader.stop()


def test_two_candidates_of_one_name_are_not_one(candidate):
    server = Server()
    (first, first_pauses, _), (second, second_pauses, _) = (
        candidate(server, "pod-a"),
        candidate(server, "pod-a"),
    )
    first_pauses.wait()
    second_pauses.wait()
    assert first.identity != second.identity
    assert [first.leads(), second.leads()].count(True) == 1
    assert all(RETRY_SECONDS * 0.8 <= s <= RETRY_SECONDS * 1.2 for s in first_pauses.seconds)


def test_a_thread_that_hangs_does_not_lead_for_ever(candidate):
    server = Hanging()
    leader, pauses, now = candidate(server)
    pauses.wait()
    assert leader.leads()
    server.hangs = True
    pauses.end()
    wait_until(server.hanging.is_set, "the server hangs")
    assert leader.leads()
    now.now += RENEW_SECONDS
    assert not leader.leads()
    server.go_on.set()


def test_a_leader_that_stops_releases_the_lease(candidate):
    server = Server()
    leader, pauses, _ = candidate(server)
    pauses.wait()
    pauses.end_all()
    leader.stop()
    assert not leader.leads()
    assert (server.kept.holder, server.kept.duration_seconds) == ("", 1)
    other, pauses, _ = candidate(server, "b")
    pauses.wait()
    assert other.leads()


def test_a_candidate_without_the_lease_releases_nothing(candidate):
    server = Server()
    held = server.write_lease(Lease("ns", "l", holder="other", duration_seconds=15))
    leader, pauses, _ = candidate(server)
    pauses.wait()
    pauses.end_all()
    leader.stop()
    assert server.kept == held


def test_a_leader_that_cannot_release_the_lease_in_time_reports_it(candidate, caplog, monkeypatch):
    monkeypatch.setattr(leader_election, "RELEASE_SECONDS", 0.0)
    server = Hanging()
    leader, pauses, _ = candidate(server)
    pauses.wait()
    server.hangs = True
    pauses.end_all()
    leader.stop()
    assert [record.lease for record in caplog.records if "expires by itself" in record.message] == [
        "ns/l"
    ]
    server.go_on.set()
    wait_until(lambda: server.kept.holder == "", "it is released late")


@pytest.mark.parametrize("error", [UNREACHABLE, RuntimeError("a defect")])
def test_no_failure_ends_the_thread(candidate, caplog, error):
    server = Server()
    broken = [error, error]

    def lease(namespace, name):
        if broken:
            raise broken.pop()
        return server.kept

    failing = Server()
    failing.lease, failing.write_lease = lease, server.write_lease
    leader, pauses, _ = candidate(failing)
    for _ in range(2):
        pauses.wait()
        assert not leader.leads()
        pauses.end()
    pauses.wait()
    assert leader.leads()
    assert any(
        str(error) in f"{record.exc_info} {getattr(record, 'err', '')}" for record in caplog.records
    )


def test_an_election_that_was_never_started_can_be_stopped():
    leader = LeaderElector(Server(), "ns", "l", "a")
    leader.stop()
    assert not leader.leads()
