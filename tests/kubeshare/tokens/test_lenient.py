"""Mode lenient grants what Gemini's rules grant, at the same times."""

import itertools
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeshare.gemini_placement import TokenWindow
from kubeshare.tokens.scheduler import (
    Ask,
    Configure,
    Leave,
    Tenant,
    Tick,
    TokenMode,
    TokenRules,
    TokenState,
    Withdraw,
    step,
)
from tests.kubeshare.tokens.lenient_oracle import LenientOracle

BASE, LEAST, WINDOW = 250_000, 100_000, 2_000_000
RULES = TokenRules(TokenMode.LENIENT, TokenWindow(BASE, LEAST, WINDOW))
BEGIN = 5_000_000
NAMES = "abcd"

shares = st.lists(
    st.tuples(st.integers(50, 600), st.integers(0, 400)).map(lambda it: (it[0], sum(it))),
    min_size=1,
    max_size=len(NAMES),
)
asks = st.lists(
    st.tuples(
        st.integers(0, 400_000),
        st.sampled_from(NAMES),
        st.integers(0, 200_000),
        st.just(0) | st.integers(1000, 600_000),
    ),
    max_size=60,
)


class Pair:
    """The scheduler and the oracle, which see the same."""

    def __init__(self, configured):
        self.shares = dict(zip(NAMES, configured, strict=False))
        self.oracle = LenientOracle(BEGIN, BASE, LEAST, WINDOW, self.shares)
        tenants = tuple(Tenant(name, *share) for name, share in self.shares.items())
        self.result = step(TokenState(BEGIN), Configure(tenants), BEGIN, RULES)
        self.now = BEGIN
        self.grants = []

    def take(self, event, expected):
        self.result = step(self.result.state, event, self.now, RULES)
        granted = [(grant.tenant, grant.quota) for grant in self.result.grants]
        assert granted == ([expected] if expected else [])
        assert self.result.wake_at == self.oracle.sleeps_until
        assert list(self.result.state.queue) == self.oracle.waiting
        assert not self.result.unreturned
        self.grants += [(self.now, *grant) for grant in granted]

    def advance(self, until):
        while self.result.wake_at is not None and self.result.wake_at <= until:
            assert self.result.wake_at > self.now, "the scheduler asks to be called at once"
            self.now = self.result.wake_at
            self.take(Tick(), self.oracle.look(self.now))
        self.now = until

    def reload(self, shares):
        self.shares = shares
        tenants = tuple(Tenant(name, *share) for name, share in shares.items())
        self.take(Configure(tenants), self.oracle.reload(shares, self.now))

    def ask(self, name, overuse, burst):
        if name in self.shares and name not in self.result.state.queue:
            expected = self.oracle.ask(name, overuse, burst, self.now)
            self.take(Ask(name, overuse, burst), expected)


@given(shares, asks)
def test_grants_and_their_times_are_those_of_the_rules(configured, script):
    pair = Pair(configured)
    for delay, name, overuse, burst in script:
        pair.advance(pair.now + delay)
        pair.ask(name, overuse, burst)
    pair.advance(pair.now + 3 * WINDOW)


@pytest.mark.slow
@given(shares, st.integers(0, 2**32))
@example([(50, 50)] * 3, 991618)  # an overuse of a token that has left the window
def test_long_sequences_with_reloads_and_tenants_that_leave(configured, seed):
    """Three hundred events of a seed: minutes of a GPU, many times the window."""
    chance = random.Random(seed)
    pair = Pair(configured)
    for _ in range(300):
        pair.advance(pair.now + chance.choice((0, 1, 20_000, 150_000, 400_000, 3_000_000)))
        name = chance.choice([*pair.shares])
        match chance.random():
            case kind if kind < 0.9:
                burst = chance.choice((0, 1000, 40_000, 300_000, 600_000))
                pair.ask(name, chance.choice((0, 0, 5_000, 200_000)), burst)
            case kind if kind < 0.96:
                expected = pair.oracle.withdraw(name, pair.now)
                pair.take(chance.choice((Withdraw, Leave))(name), expected)
            case _:
                pair.reload(
                    {
                        each: (request, chance.randint(request, 1000))
                        for each in pair.shares
                        for request in (chance.randint(10, 600),)
                    }
                )
    pair.advance(pair.now + 3 * WINDOW)


def test_the_first_quotas_are_those_that_geminis_scheduler_gave():
    pair = Pair([(500, 1000)])
    pair.advance(BEGIN + 1_000_000)
    pair.ask("a", 0, 0)
    pair.advance(BEGIN + 1_250_000)
    pair.ask("a", 0, 40_000)
    assert [quota for _, _, quota in pair.grants] == [250_000, 145_000]


def test_tenants_at_their_limits_wait_until_the_oldest_entry_leaves_the_window():
    pair = Pair([(100, 200), (100, 300)])
    pair.ask("a", 0, 0)
    pair.ask("b", 0, 0)
    for _ in range(400):
        pair.advance(pair.now + 10_000)
        for name in "ab":
            holder = pair.result.state.holder
            if holder is None or holder.tenant != name or pair.now >= holder.start + holder.quota:
                pair.ask(name, 0, 0)
    times = [time for time, _, _ in pair.grants]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) > WINDOW / 2


def test_time_that_two_tenants_share_counts_for_each_in_half():
    """With it, a has used 325 ms and c 360 ms; if it counted whole, a would have used 400 ms."""
    pair = Pair([(50, 1000)] * 3)
    begin = BEGIN + 1_000_000
    for time, name, overuse, burst in (
        (0, "c", 0, 470_000),
        (360_000, "a", 0, 0),
        (400_000, "b", 0, 0),
        (760_000, "a", 150_000, 0),
        (800_000, "c", 0, 0),
    ):
        pair.advance(begin + time)
        pair.ask(name, overuse, burst)
    pair.advance(begin + 860_000)
    assert [name for _, name, _ in pair.grants] == ["c", "a", "b", "a"]
