"""When the sampler's thread takes its next sample, in time that passes while it waits."""

import threading

import pytest

from exporter.sample_timer import SampleTimer
from tests.exporter.passing_time import PassingTime
from tests.support.waiting import WAIT_SECONDS

INTERVAL = 15.0


def timer_at(now):
    """A timer, and the time in which it waits."""
    passing = PassingTime(now)
    return SampleTimer(INTERVAL, monotonic=lambda: now[0], changed=passing), passing


def test_without_a_scrape_the_next_sample_is_an_interval_later():
    now = [1000.0]
    timer, _ = timer_at(now)
    timer.sampled(begun=1000.0)
    timer.wait()
    assert now == [1000.0 + INTERVAL]


def test_a_sample_is_due_just_before_the_next_scrape_of_a_scraper_with_a_rhythm():
    now = [1000.0]
    timer, _ = timer_at(now)
    for now[0] in (1002.0, 1017.0, 1032.0):
        timer.scraped()
    timer.sampled(begun=1032.0)
    timer.wait()
    assert 1045.0 <= now[0] < 1047.0


def test_a_sample_that_is_due_later_than_it_was_is_not_taken_early():
    """A scrape during the wait is the third one of a rhythm, whose fourth one comes later."""
    now = [1000.0]
    timer, passing = timer_at(now)
    passing.events.append((1030.8, timer.scraped))
    for now[0] in (1006.0, 1018.0):
        timer.scraped()
    timer.sampled(begun=1016.0)
    timer.wait()
    assert 1040.0 <= now[0] < 1043.0
    assert len(passing.waits) == 2


def test_a_scrape_that_brings_the_next_sample_forward_ends_the_wait():
    """It is the third one of a rhythm, and the fourth one comes when the interval ends."""
    times, waited = iter([700.0, 1000.0, 1000.0, 1000.0, 1300.0]), threading.Event()

    class Noted(threading.Condition):
        def wait(self, timeout=None):
            waited.set()
            return super().wait(timeout)

    timer = SampleTimer(600.0, monotonic=lambda: next(times, 1599.5), changed=Noted())
    timer.scraped()
    timer.scraped()
    timer.sampled(begun=1000.0)
    waiting = threading.Thread(target=timer.wait, daemon=True)
    waiting.start()
    assert waited.wait(WAIT_SECONDS)
    timer.scraped()
    waiting.join(WAIT_SECONDS)
    assert not waiting.is_alive()


def test_the_end_ends_the_wait_under_way_and_later_ones():
    timer = SampleTimer(3600.0)
    timer.sampled(begun=0.0)
    waiting = threading.Thread(target=timer.wait, daemon=True)
    waiting.start()
    timer.end()
    waiting.join(WAIT_SECONDS)
    assert not waiting.is_alive()
    timer.wait()


def late_timer(now):
    """A timer whose sample is late, for a page of 20 seconds ago."""
    timer, _ = timer_at(now)
    timer.sampled(begun=now[0])
    now[0] += 20.0
    return timer


def waited(timer, now, is_stuck=lambda: False):
    begun = now[0]
    timer.wait_for_page(is_stuck)
    return now[0] - begun


def test_a_scrape_of_a_fresh_page_waits_for_nothing():
    now = [1000.0]
    timer, _ = timer_at(now)
    timer.sampled(begun=1000.0)
    now[0] = 1001.0
    timer.begin()
    assert waited(timer, now) == 0
    now[0] = 1003.0
    assert waited(timer, now) == pytest.approx(0.5)


def test_scrapes_wait_half_a_second_together():
    now = [1000.0]
    timer = late_timer(now)
    assert waited(timer, now) == pytest.approx(0.5)
    assert [waited(timer, now) for _ in range(3)] == [0, 0, 0]


def test_no_scrape_waits_for_a_driver_that_hangs():
    now = [1000.0]
    assert waited(late_timer(now), now, is_stuck=lambda: True) == 0


def test_no_scrape_waits_after_the_end():
    now = [1000.0]
    timer = late_timer(now)
    timer.end()
    assert waited(timer, now) == 0


def test_scrapes_of_other_threads_get_the_page_as_soon_as_it_is_there():
    """The exporter got no CPU for a while: its sample begins when the scrapes are there."""
    times = iter([1000.0])
    timer = SampleTimer(INTERVAL, monotonic=lambda: next(times, 1020.0))
    timer.sampled(begun=1000.0)
    scrapes = [
        threading.Thread(target=timer.wait_for_page, args=(lambda: False,), daemon=True)
        for _ in range(4)
    ]
    for scrape in scrapes:
        scrape.start()
    assert all(scrape.is_alive() for scrape in scrapes)
    timer.sampled(timer.begin())
    for scrape in scrapes:
        scrape.join(WAIT_SECONDS)
        assert not scrape.is_alive()
