"""The plan of the samples, on a clock that only these tests move."""

import heapq
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.rhythm import (
    FRESH_SECONDS,
    LEAD_SECONDS,
    LONGEST_GAP,
    TOLERANCE_SECONDS,
    WAIT_SECONDS,
    SamplePlan,
)

INTERVAL = 15.0
WORST_AGE = 2.0
SAMPLE_SECONDS = 0.05
SHORTEST = INTERVAL / 3 - TOLERANCE_SECONDS


def simulate(scrapes, interval=INTERVAL, duration=SAMPLE_SECONDS, begin=0.0):
    """(time, age of the page) of each scrape, and the begins of all samples."""
    plan = SamplePlan(interval)
    begins, pages, ages = [], [], []

    def sample(at):
        begins.append(at)
        pages.append((at + duration, at))
        plan.sampled(at, at + duration)

    sample(begin)
    for scrape in scrapes:
        while plan.due <= scrape:
            sample(max(plan.due, pages[-1][0]))
        finished = [begun for done, begun in pages if done <= scrape] or [begin]
        ages.append((scrape, scrape - finished[-1]))
        plan.scraped(scrape)
    return ages, begins


def regular(first, period, count=20, jitter=()):
    late = itertools.chain(jitter, itertools.repeat(0.0))
    return [first + number * period + next(late) for number in range(count)]


phases = st.floats(0.1, 15.0)
jitters = st.lists(st.floats(0.0, 0.1), max_size=20)


@pytest.mark.slow
@given(phases, st.floats(0.6 * INTERVAL, 4 * INTERVAL), jitters)
def test_a_scraper_with_a_rhythm_gets_fresh_pages_from_its_fourth_scrape_on(first, period, jitter):
    ages, _ = simulate(regular(first, period, jitter=jitter))
    assert max(age for _, age in ages[3:]) <= WORST_AGE


@pytest.mark.slow
@given(phases, st.floats(0.0, 15.0), jitters, st.floats(-15.0, 0.0))
def test_two_scrapers_with_one_interval_get_fresh_pages_after_three_scrapes_each(
    first, apart, jitter, begin
):
    one, other = regular(first, INTERVAL, jitter=jitter), regular(first + apart, INTERVAL)
    ages, begins = simulate(list(heapq.merge(one, other)), begin=begin)
    assert max(age for _, age in ages[8:]) <= WORST_AGE
    assert len(begins) <= 2 * (begins[-1] - begins[0]) / (INTERVAL - LEAD_SECONDS) + 2


@given(st.lists(st.floats(0.01, 40.0), max_size=80), st.floats(0.0, 5.0))
def test_whatever_is_scraped_there_are_two_samples_a_period_at_most_and_never_none(gaps, duration):
    scrapes = list(itertools.accumulate(gaps))
    _, begins = simulate(scrapes, duration=duration)
    for first, _, third in zip(begins, begins[1:], begins[2:], strict=False):
        assert third - first >= SHORTEST - LEAD_SECONDS - 1e-6
    for one, following in itertools.pairwise(begins):
        assert following - one <= LONGEST_GAP * INTERVAL + 1e-6


@pytest.mark.parametrize("scrapes", [[], [100.0], [3.0, 4.0, 9.0, 31.0, 32.5, 57.0]])
def test_without_a_rhythm_the_interval_is_kept(scrapes):
    plan = SamplePlan(INTERVAL)
    plan.sampled(0.0, SAMPLE_SECONDS)
    for scrape in scrapes:
        plan.scraped(scrape)
        assert plan.due == INTERVAL


def test_a_request_out_of_rhythm_changes_nothing():
    scrapes = sorted([*regular(7.0, INTERVAL), 133.3, 201.0, 204.0])
    ages, _ = simulate(scrapes)
    assert max(age for at, age in ages[3:] if at not in {133.3, 201.0, 204.0}) <= WORST_AGE


def test_after_the_scraper_has_gone_the_interval_is_kept_again():
    _, begins = simulate([*regular(7.0, INTERVAL, count=10), 1000.0])
    late = [following - one for one, following in itertools.pairwise(begins) if one > 200]
    assert late == pytest.approx([INTERVAL] * len(late))


def test_a_scraper_that_missed_once_is_still_expected():
    scrapes = regular(7.0, INTERVAL)
    del scrapes[10]
    ages, _ = simulate(scrapes)
    assert max(age for _, age in ages[3:]) <= WORST_AGE


def test_scrapes_in_quick_succession_are_no_rhythm():
    plan = SamplePlan(INTERVAL)
    plan.sampled(0.0, SAMPLE_SECONDS)
    for scrape in (0.0, 1.0, 2.0, 3.0, 4.0):
        plan.scraped(scrape)
        assert plan.due == INTERVAL


def test_a_slow_sample_begins_early_enough():
    ages, _ = simulate(regular(7.0, INTERVAL), duration=1.0)
    assert max(age for _, age in ages[3:]) <= WORST_AGE


def test_a_sample_that_hung_until_its_deadline_makes_no_later_one_early():
    plan = SamplePlan(INTERVAL)
    for number in range(4):
        plan.scraped(7.0 + number * INTERVAL)
    plan.sampled(51.0, 61.0)
    assert 67.0 - WORST_AGE <= plan.due <= 67.0 - LEAD_SECONDS


@pytest.mark.slow
@given(st.floats(0.1, 5.0), st.floats(5.0, 0.6 * INTERVAL), jitters)
def test_a_scraper_that_is_faster_than_the_interval_gets_fresh_pages_too(first, period, jitter):
    ages, begins = simulate(regular(first, period, jitter=jitter))
    assert max(age for _, age in ages[4:]) <= WORST_AGE
    assert len(begins) <= 21


def test_a_long_interval_is_kept_whatever_is_scraped_in_between():
    """Who sets it wants few samples: frequent scrapes look like three scrapers, and count less."""
    _, begins = simulate(regular(7.0, 15.0, count=40), interval=120.0)
    assert len(begins) <= 2 * 40 * 15.0 / (120.0 - LEAD_SECONDS) + 2


steps = st.lists(st.tuples(st.sampled_from(["scrape", "begin", "end"]), st.floats(0.0, 9.0)))


@given(steps)
def test_scrapes_wait_only_for_a_newer_page_and_half_a_second_for_each(steps):
    """For each sample, first wait ≤ t < first wait + 0.5 s, whatever happens in between."""
    plan, now, begun, last, first = SamplePlan(INTERVAL), 0.0, None, None, None
    for step, seconds in steps:
        now += seconds
        if step == "begin" and begun is None:
            begun = now
            plan.begins()
        elif step == "end" and begun is not None:
            plan.sampled(begun, now)
            begun, last, first = None, begun, None
        elif step == "scrape":
            plan.scraped(now)
            is_late = last is not None and plan.due <= now
            is_old = last is None or now - last > FRESH_SECONDS
            wanted = (begun is not None or is_late) and is_old
            first = now if wanted and first is None else first
            rest = first + WAIT_SECONDS - now if wanted else 0.0
            assert plan.patience(now) == pytest.approx(max(0.0, rest))
