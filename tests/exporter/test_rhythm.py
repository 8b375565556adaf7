"""The plan of the samples, on a clock that only these tests move."""

import heapq
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.rhythm import LEAD_SECONDS, LONGEST_GAP, SamplePlan

INTERVAL = 15.0
WORST_AGE = 2.0
SAMPLE_SECONDS = 0.05


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
def test_whatever_is_scraped_there_are_two_samples_an_interval_at_most_and_never_none(
    gaps, duration
):
    scrapes = list(itertools.accumulate(gaps))
    _, begins = simulate(scrapes, duration=duration)
    for first, _, third in zip(begins, begins[1:], begins[2:], strict=False):
        assert third - first >= INTERVAL - LEAD_SECONDS - 1e-6
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
