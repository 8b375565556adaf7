"""No port waits for more than one round of the others, whatever comes to them."""

from collections import deque
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kubeshare.tokens.round_robin import QUANTUM, serve_round

MOST = 6
"""Maximum cost of a message here."""

PORTS = 5
ARRIVALS = st.lists(
    st.lists(st.tuples(st.integers(0, PORTS - 1), st.integers(1, MOST)), max_size=40), max_size=20
)
"""What comes before each round: to which port, and what it costs."""


class Source:
    """A port with its messages."""

    def __init__(self):
        self.debt, self.queue, self.rounds = 0, deque(), []

    def serve(self, allowance, log):
        spent = 0
        while spent < allowance and self.queue:
            cost, came = self.queue.popleft()
            spent += cost
            log.append((self, cost, came))
        self.rounds[-1] = spent
        return spent


def play(schedule):
    """The messages in the order in which they were handled, with the work done when they came."""
    sources, log = [Source() for _ in range(PORTS)], []
    rounds = [*schedule]
    while rounds or any(source.queue for source in sources):
        for number, cost in rounds.pop(0) if rounds else ():
            sources[number].queue.append((cost, len(log)))
        ready = [source for source in sources if source.queue]
        for source in sources:
            source.rounds.append(0)
        serve_round(ready, lambda source, allowance: source.serve(allowance, log))
    return sources, log


@given(ARRIVALS)
def test_a_port_spends_a_quantum_a_round_and_one_message_more(schedule):
    sources, _ = play(schedule)
    for source in sources:
        for begin in range(len(source.rounds)):
            for end in range(begin + 1, len(source.rounds) + 1):
                assert sum(source.rounds[begin:end]) <= (end - begin) * QUANTUM + MOST - 1


@given(ARRIVALS)
def test_a_port_without_a_backlog_waits_for_one_round_of_the_others(schedule):
    """It has one message, and has had none before: at most ``(PORTS - 1) * (QUANTUM + MOST)``."""
    first = {}
    _, log = play(schedule)
    for position, (source, _, came) in enumerate(log):
        if source not in first:
            first[source] = position
            others = sum(cost for each, cost, _ in log[came:position] if each is not source)
            assert others <= (PORTS - 1) * (QUANTUM + MOST - 1)


@given(ARRIVALS)
def test_everything_is_handled_in_its_order(schedule):
    sources, log = play(schedule)
    assert len(log) == sum(map(len, schedule))
    for source in sources:
        times = [came for each, _, came in log if each is source]
        assert times == sorted(times)


def test_a_port_with_k_messages_waits_for_a_quantum_of_each_other_one_before_the_next():
    """All are full, as those of a flood: between two messages of one port pass at most as many."""
    _, log = play([[(port, 1) for port in range(PORTS) for _ in range(100)]])
    for port in {source for source, *_ in log}:
        positions = [number for number, (source, *_) in enumerate(log) if source is port]
        gaps = [later - before - 1 for before, later in pairwise(positions)]
        assert max(gaps) <= (PORTS - 1) * QUANTUM
