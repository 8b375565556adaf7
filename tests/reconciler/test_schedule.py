"""When cycles begin: cron as crontab(5) has it, never two at a time, nothing dropped unseen."""

import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.executors.base import run_job
from apscheduler.schedulers import SchedulerNotRunningError
from hypothesis import given
from hypothesis import strategies as st

from reconciler.config.value_types import parse_cron
from reconciler.schedule import JITTER, Missed, Schedule, trigger
from tests.support.waiting import WAIT_SECONDS, wait_ended, wait_until

SATURDAY = datetime(2026, 11, 21, 15, 48, 22, tzinfo=UTC)
"""Seconds until a test gives up; none waits so long."""


def fire_times(cron, start, count, jitter=0.0):
    found, before = [], None
    clock = trigger(0, cron, start, jitter)
    for _ in range(count):
        before = clock.get_next_fire_time(before, before or start)
        found.append(before)
    return found


# ---------------------------------------------------------------- a reference, the slow way

DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WORDS = {word: number for number, word in enumerate(DAYS)} | {
    word: number for number, word in enumerate(MONTHS, 1)
}


def allows(field, value, low, high):
    """Whether a cron field allows the value; low and high are the field's."""
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            begin, end = low, high
        else:
            begin = WORDS.get(first) if first in WORDS else int(first)
            end = (WORDS.get(last) if last in WORDS else int(last)) if last else begin
            if step and not last:
                end = high
        if any(value == number for number in range(begin, end + 1, int(step or 1))):
            return True
    return False


def due_on(day, fields):
    weekday = day.isoweekday() % 7
    by_date = allows(fields[2], day.day, 1, 31)
    by_weekday = allows(fields[4], weekday, 0, 6) or (weekday == 0 and allows(fields[4], 7, 0, 6))
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    days = (by_date or by_weekday) if either else (by_date and by_weekday)
    return days and allows(fields[3], day.month, 1, 12)


def reference(cron, start, count):
    fields, found = cron.split(), []
    times = [
        (hour, minute)
        for hour in range(24)
        if allows(fields[1], hour, 0, 23)
        for minute in range(60)
        if allows(fields[0], minute, 0, 59)
    ]
    day = start.replace(hour=0, minute=0, second=0, microsecond=0)
    while len(found) < count:
        if due_on(day, fields):
            for hour, minute in times:
                moment = day.replace(hour=hour, minute=minute)
                if moment >= start:
                    found.append(moment)
        day += timedelta(days=1)
    return found[:count]


def fields_of(low, high, words=()):
    number = st.integers(low, high)
    step = st.integers(1, max(1, high - low)).map("/{}".format)
    spelled = st.sampled_from(words) if words else number.map(str)
    span = st.tuples(number, number).map(lambda ends: f"{min(ends)}-{max(ends)}")
    one = st.one_of(number.map(str), spelled, span, st.tuples(span, step).map("".join))
    return st.one_of(
        st.just("*"), step.map("*{}".format), st.lists(one, min_size=1, max_size=3).map(",".join)
    )


CRONS = st.tuples(
    fields_of(0, 59),
    fields_of(0, 23),
    fields_of(1, 28),
    fields_of(1, 12, MONTHS),
    fields_of(0, 7, DAYS),
).map(" ".join)
MOMENTS = st.datetimes(datetime(2024, 1, 1), datetime(2032, 1, 1)).map(  # noqa: DTZ001
    lambda moment: moment.replace(tzinfo=UTC)
)


@pytest.mark.slow
@given(CRONS, MOMENTS)
def test_a_cron_expression_is_due_at_the_times_of_crontab(cron, start):
    assert fire_times(cron, start, 3) == reference(cron, start, 3)


@pytest.mark.parametrize(
    ("cron", "weekdays"),
    [
        ("0 0 * * 0", {"Sun"}),
        ("0 0 * * 7", {"Sun"}),
        ("0 0 * * 1-5", {"Mon", "Tue", "Wed", "Thu", "Fri"}),
        ("0 0 * * 5-7", {"Fri", "Sat", "Sun"}),
        ("0 0 * * Fri-Sun", {"Fri", "Sat", "Sun"}),
        ("0 0 * * */2", {"Sun", "Tue", "Thu", "Sat"}),
        ("0 0 * * 1/2", {"Mon", "Wed", "Fri"}),
        ("0 0 * * sat,0", {"Sat", "Sun"}),
    ],
)
def test_weekdays_count_from_sunday(cron, weekdays):
    assert {f"{moment:%a}" for moment in fire_times(cron, SATURDAY, 14)} == weekdays


def test_of_two_day_fields_either_will_do():
    times = fire_times("0 0 13 * fri", SATURDAY, 8)
    assert [f"{moment:%a %d}" for moment in times[:3]] == ["Fri 27", "Fri 04", "Fri 11"]
    assert any(moment.day == 13 and moment.weekday() != 4 for moment in times)


def test_a_leap_day_comes_when_there_is_one():
    assert fire_times("0 0 29 2 *", SATURDAY, 1) == [datetime(2028, 2, 29, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("* * * *", "4 fields, not five: minute, hour"),
        ("60 * * * *", "minute '60': must be from 0 to 59"),
        ("* 24 * * *", "hour '24'"),
        ("* * 0 * *", "day of month '0'"),
        ("* * * 13 *", "month '13'"),
        ("* * * * 8", "day of week '8': must be from 0 to 7 or sun"),
        ("* * * * mon-fry", "day of week 'fry'"),
        ("5-1 * * * *", "5 is after 1"),
        ("*/0 * * * *", "minute '0'"),
        ("1,,2 * * * *", "minute ''"),
        ("¹ * * * *", "minute '¹'"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4,6,9,11 *", "never comes"),
        ("@hourly", "1 fields"),
    ],
)
def test_what_is_no_cron_expression_is_refused_by_field(cron, why):
    with pytest.raises(ValueError, match=why.replace("*", r"\*")):
        parse_cron(cron)


@given(st.text(max_size=20) | st.text("*/-,0123456789 sunmofri", max_size=20))
def test_any_text_is_a_cron_expression_or_a_value_error(text):
    try:
        cron = parse_cron(text)
    except ValueError:
        return
    assert cron.minutes
    assert cron.weekdays <= set(range(7))


@given(st.sampled_from(["*/2 * * * *", "0 * * * *", "30 3 * * mon"]), MOMENTS)
def test_a_cycle_is_late_by_a_tenth_of_the_time_between_two_at_most(cron, start):
    first, second = reference(cron, start, 2)
    found = fire_times(cron, start, 1, jitter=JITTER)[0]
    assert first <= found <= first + (second - first) * JITTER


# ---------------------------------------------------------------- for real


class Job:
    """Counts its runs, and how many are under way at a time; may be held, and may fail."""

    def __init__(self):
        self.runs, self.together, self.most = 0, 0, 0
        self.ran = threading.Semaphore(0)
        self.held = threading.Event()
        self.held.set()
        self.error = None
        self.missed = []
        self.heard = threading.Semaphore(0)

    def __call__(self):
        self.together += 1
        self.most = max(self.most, self.together)
        self.runs += 1
        self.ran.release()
        self.held.wait(WAIT_SECONDS)
        self.together -= 1
        if self.error:
            raise self.error

    def wait_ran(self):
        wait_until(lambda: self.ran.acquire(blocking=False), "a cycle runs", context=self.seen)

    def wait_heard(self):
        wait_until(lambda: self.heard.acquire(blocking=False), "it is reported", context=self.seen)

    def seen(self):
        return f"{self.runs} have run, {self.missed} were reported"

    def hear(self, reason, error):
        self.missed.append((reason, error))
        self.heard.release()


@pytest.fixture
def job():
    return Job()


@pytest.fixture
def start(job):
    started = []

    def begin(every, cron=""):
        started.append(Schedule(job, job.hear, every, cron))
        started[-1].start()
        return started[-1]

    yield begin
    job.held.set()
    for each in started:
        with suppress(SchedulerNotRunningError):  # the test has stopped it
            each.stop()


def test_the_first_cycle_is_at_once(job, start):
    start(3600.0)
    job.wait_ran()


def test_two_cycles_never_run_at_a_time_and_the_missed_one_is_counted(job, start):
    job.held.clear()
    start(0.01)
    job.wait_heard()
    assert job.missed[0] == (Missed.STILL_RUNNING, None)
    job.held.set()
    for _ in range(4):
        job.wait_ran()
    assert job.most == 1


def test_a_cycle_that_fails_is_reported_and_the_next_one_comes(job, start):
    job.error = RuntimeError("a defect")
    start(0.01)
    for _ in range(2):
        job.wait_ran()
        job.wait_heard()
    assert (Missed.FAILED, job.error) in job.missed


def test_a_cycle_that_is_an_hour_late_is_run_all_the_same(job, start):
    schedule = start(3600.0)
    job.wait_ran()
    late = datetime.now(UTC) - timedelta(hours=1)
    events = run_job(schedule._job, "default", [late], "apscheduler.test")
    assert [event.code for event in events] == [EVENT_JOB_EXECUTED]
    assert job.runs == 2


def test_cycles_that_have_piled_up_are_one(start):
    assert start(3600.0)._job.coalesce


def test_nothing_has_queued_up_that_begins_after_the_end(job, start):
    before = set(threading.enumerate())
    job.held.clear()
    schedule = start(0.01)
    job.wait_heard()
    threads = set(threading.enumerate()) - before
    schedule.stop()
    job.held.set()
    for thread in threads:
        wait_ended(thread, "the scheduler and its worker end")
    assert job.runs == 1
