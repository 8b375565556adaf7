"""What processes with Gemini's hook get of a GPU, and what is counted for them.

Formulas of :mod:`kubeshare.tokens.scheduler` and the figures of docs/tokens.md, on a virtual clock.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeshare.gemini_placement import TokenWindow
from kubeshare.tokens.scheduler import TokenRules
from tests.kubeshare.tokens.virtual_hooks import MS, SECOND, HookSimulation, bursty, busy

WINDOW = 10 * SECOND


@pytest.mark.parametrize("limit", [500, 1000])
def test_a_pod_that_keeps_its_tokens_gets_no_more_than_its_limit(limit):
    """The other one gets what it requests, and the page of metrics shows what is true."""
    simulation = HookSimulation({"liar": (500, 500), "honest": (500, limit)})
    liar, honest = simulation.liar("liar"), simulation.hook("honest")
    simulation.start(honest, busy(honest, 2 * MS))
    simulation.start(liar, liar.keeps())
    simulation.run(4 * WINDOW)
    shares = {name: simulation.share(name, WINDOW, 4 * WINDOW) for name in simulation.kernels}
    assert shares["liar"] <= 0.51
    assert shares["honest"] >= 0.48
    view = simulation.view("liar")
    assert view.window_share == pytest.approx(
        simulation.share("liar", 3 * WINDOW, 4 * WINDOW), 0.02
    )
    kept = simulation.share("liar", 0, 4 * WINDOW) * 4 * WINDOW
    assert view.held_time == pytest.approx(kept, 0.02)
    assert view.counts.used < 0.6 * kept  # what it reports
    assert view.counts.unreturned == 0


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
@pytest.mark.parametrize("limit", [20, 50, 100, 200, 500])
def test_no_window_has_more_than_a_tenth_above_the_limit(limit, version, figure):
    """Nor less than nearly all of the limit, for two pods that are always busy."""
    simulation = HookSimulation(dict.fromkeys("ab", (limit, limit)))
    for name in "ab":
        hook = simulation.hook(name, version)
        simulation.start(hook, busy(hook, 5 * MS))
    simulation.run(3 * WINDOW)
    most = max(share for name in "ab" for share in simulation.windows(name, 0))
    mean = min(simulation.share(name, WINDOW, 3 * WINDOW) for name in "ab")
    figure(f"limit {limit / 1000}, {version}: at most {most:.2%}, {mean:.2%} on average")
    assert most <= limit / 1000 * 1.1 + 0.005
    assert mean >= limit / 1000 * 0.93


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
@pytest.mark.parametrize(("number", "length"), [(20, 10 * MS), (1, 30 * MS)])
def test_an_overuse_is_paid_back(version, number, length):
    """A burst that no quota ends: the kernels of 200 ms at once, with a limit of a fifth."""
    simulation = HookSimulation({"a": (200, 200)})
    hook = simulation.hook("a", version)
    simulation.start(hook, busy(hook, length, number))
    simulation.run(5 * WINDOW)
    assert 0.18 <= simulation.share("a", WINDOW, 5 * WINDOW) <= 0.205
    assert max(simulation.windows("a", WINDOW)) <= 0.225


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
@pytest.mark.parametrize("every", [100, 300, 1000])
@pytest.mark.parametrize(("mine", "other"), [(500, 500), (300, 700)])
def test_a_bursty_pod_below_its_request_waits_for_a_short_token(version, every, mine, other):
    """It has one kernel of 2 ms at each time, beside a pod that is always busy."""
    simulation = HookSimulation({"bursty": (mine, 1000), "busy": (other, 1000)})
    hooks = {name: simulation.hook(name, version) for name in simulation.kernels}
    simulation.start(hooks["busy"], busy(hooks["busy"], 5 * MS))
    simulation.start(hooks["bursty"], bursty(hooks["bursty"], 2 * MS, every * MS))
    simulation.run(2 * WINDOW)
    waits = sorted(end - begin for begin, end in hooks["bursty"].waits if begin > 2 * SECOND)
    assert waits[len(waits) // 2] <= 50 * MS
    assert simulation.share("bursty", 2 * SECOND, 2 * WINDOW) >= 1.6 / every
    assert simulation.share("busy", 2 * SECOND, 2 * WINDOW) >= max(0.6, other / 1000)


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
@pytest.mark.parametrize("limit", [200, 1000])
def test_pods_that_are_idle_most_of_the_time_do_not_wait_for_each_other(version, limit):
    """A kernel each 7 s and each 20 s: when one of them asks, the other one's token has ended."""
    simulation = HookSimulation(dict.fromkeys("ab", (200, limit)))
    hooks = {name: simulation.hook(name, version) for name in "ab"}
    simulation.start(hooks["a"], bursty(hooks["a"], 2 * MS, 20 * SECOND))
    simulation.start(hooks["b"], bursty(hooks["b"], 2 * MS, 7 * SECOND, SECOND))
    simulation.run(30 * WINDOW)
    waits = [end - begin for hook in hooks.values() for begin, end in hook.waits]
    assert len(waits) >= 30 * 10 // 20 + 30 * 10 // 7 - 2
    assert max(waits) < SECOND


def test_a_hook_that_ignores_its_quota_keeps_its_limit_on_average():
    """Gemini's newest one runs for 6 s with each token, and waits until its limit has grown."""
    simulation = HookSimulation({"a": (200, 200)})
    hook = simulation.hook("a", "head")
    simulation.start(hook, busy(hook, 20 * MS))
    simulation.run(12 * WINDOW)
    assert 0.17 <= simulation.share("a", 0, 12 * WINDOW) <= 0.21


def test_a_busy_pod_alone_has_the_longest_tokens():
    """Its burst grows beyond the window, since no pause interrupts it."""
    simulation = HookSimulation({"a": (500, 1000)}, latency=100)
    hook = simulation.hook("a")
    simulation.start(hook, busy(hook, 5 * MS))
    simulation.run(3 * WINDOW)
    assert simulation.view("a").quota == simulation.rules.max_quota
    assert simulation.view("a").counts.grants < 40


def test_busy_pods_have_long_tokens_beside_each_other_and_alone():
    """Each of them misses no larger part of its request than the other one."""
    simulation = HookSimulation(dict.fromkeys("ab", (500, 1000)))
    hooks = {name: simulation.hook(name) for name in "ab"}
    simulation.start(hooks["a"], busy(hooks["a"], 5 * MS))
    simulation.run(WINDOW)
    assert simulation.share("a", 0, WINDOW) >= 0.98
    simulation.start(hooks["b"], busy(hooks["b"], 5 * MS))
    simulation.run(3 * WINDOW)
    assert simulation.view("a").counts.grants + simulation.view("b").counts.grants < 60
    assert simulation.share("b", 2 * WINDOW, 3 * WINDOW) >= 0.48


def test_short_tokens_end_when_the_bursty_pod_has_ended():
    simulation = HookSimulation(dict.fromkeys("ab", (500, 1000)))
    hooks = {name: simulation.hook(name) for name in "ab"}
    simulation.start(hooks["a"], busy(hooks["a"], 5 * MS))
    simulation.start(hooks["b"], bursty(hooks["b"], 2 * MS, 100 * MS))
    simulation.run(SECOND * 5)
    before = simulation.view("a").counts.grants
    simulation.end(hooks["b"])
    simulation.run(SECOND * 10)
    assert simulation.view("a").counts.grants - before < 12


def test_a_process_with_a_long_burst_has_a_token_for_more_than_one_kernel():
    """A burst of 45 ms within 3 s ends each token of 50 ms after 5 ms: its rest comes on top."""

    def hiccups(hook):
        yield from hook.begin()
        for number in itertools.count():
            yield from hook.launch(45 * MS if number % 200 == 0 else 2 * MS)
            yield from hook.synchronise()

    simulation = HookSimulation(dict.fromkeys("ab", (500, 1000)))
    hooks = {name: simulation.hook(name) for name in "ab"}
    simulation.start(hooks["a"], hiccups(hooks["a"]))
    simulation.start(hooks["b"], bursty(hooks["b"], 2 * MS, 100 * MS))
    simulation.run(WINDOW)
    assert simulation.share("a", 2 * SECOND, WINDOW) >= 0.6
    assert simulation.view("a").counts.grants < 250


SMALL = TokenRules(
    window=TokenWindow(30 * MS, 2 * MS, SECOND), max_quota=100 * MS, max_grace=100 * MS
)

pods = st.tuples(
    st.sampled_from(["v1.0", "v1.1"]),
    st.sampled_from([3 * MS, 10 * MS]),  # a kernel
    st.sampled_from([1, 1, 8]),  # kernels at once
    st.sampled_from([0, 0, 10 * MS, 70 * MS]),  # a pause
    st.integers(20, 1000),  # its limit
    st.integers(0, 200 * MS),  # when it begins
)


@pytest.mark.slow
@given(st.lists(pods, min_size=1, max_size=4))
def test_whatever_pods_compute_their_limits_hold_and_tokens_never_overlap(drawn):
    """Kernels in any window: below the limit but for the overrun of one token."""

    def program(hook, length, number, pause, since):
        yield since
        yield from hook.begin()
        while True:
            for _ in range(number):
                yield from hook.launch(length)
            yield from hook.synchronise()
            yield hook.simulation.now + pause

    names = [f"p{number}" for number in range(len(drawn))]
    shares = {
        name: (each[4] // len(drawn), each[4]) for name, each in zip(names, drawn, strict=True)
    }
    simulation = HookSimulation(shares, SMALL, latency=100)
    for name, (version, length, number, pause, _, since) in zip(names, drawn, strict=True):
        hook = simulation.hook(name, version)
        simulation.start(hook, program(hook, length, number, pause, since))
    simulation.run(2 * SECOND)
    assert sum(simulation.view(name).held_time for name in names) <= simulation.now
    for name, (_, length, number, _, limit, _) in zip(names, drawn, strict=True):
        burst = length * number / SECOND  # the most that runs after a quota
        for share in simulation.windows(name, 0):
            assert share <= limit / 1000 + burst + 0.001
        assert simulation.share(name, 0, simulation.now) <= 1.5 * limit / 1000 + burst / 2 + 0.001
