"""When cycles begin: at an interval, or by a cron expression, in UTC; never two at a time.

APScheduler 3 is used without its silent behaviour: runs that are late by more than a second are
not dropped, runs that have piled up are one run, and weekdays, which it counts from Monday, are
passed by name. Runs that it still misses are reported.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    SchedulerEvent,
)
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from reconciler.config.value_types import DAYS, Cron, parse_cron
from vgpu.model.reasons import Explained

JITTER: Final = 0.1
"""Maximum delay of a cycle, as a part of the interval; so not all reconcilers begin at once."""


class Missed(Explained):
    """Why a cycle that was due did not take place, or not to its end."""

    STILL_RUNNING = "still_running", "the cycle before had not ended"
    TOO_LATE = "too_late", "the scheduler came to it too late"
    FAILED = "failed", "it ended with a defect of this program; the log has the details"


_MISSED: Final[Mapping[int, Missed]] = {
    EVENT_JOB_MAX_INSTANCES: Missed.STILL_RUNNING,
    EVENT_JOB_MISSED: Missed.TOO_LATE,
    EVENT_JOB_ERROR: Missed.FAILED,
}


def trigger(every: float, cron: str, now: datetime, jitter: float = JITTER) -> BaseTrigger:
    """A trigger at an interval of ``every`` seconds, or by the expression if there is one.

    ``jitter`` is the maximum delay of a run, as a part of the interval; for an expression, of the
    time between the next two runs. Raises ValueError.
    """
    if not cron:
        return IntervalTrigger(seconds=every, jitter=every * jitter, timezone=UTC)
    triggers = [*_cron_triggers(parse_cron(cron))]
    exact = OrTrigger(triggers)
    first = exact.get_next_fire_time(None, now)
    second = first and exact.get_next_fire_time(first, first + timedelta(microseconds=1))
    if first is None or second is None:
        raise ValueError(f"{cron!r} never comes")
    return OrTrigger(triggers, jitter=(second - first).total_seconds() * jitter)


def _cron_triggers(cron: Cron) -> Iterable[CronTrigger]:
    """One trigger for days that both fields allow, or one for each field."""
    weekdays = ",".join(DAYS[day] for day in sorted(cron.weekdays))
    days = _listed(cron.days)
    either = (("*", weekdays), (days, "*")) if cron.either_day else ((days, weekdays),)
    for day, weekday in either:
        yield CronTrigger(
            month=_listed(cron.months),
            day=day,
            day_of_week=weekday,
            hour=_listed(cron.hours),
            minute=_listed(cron.minutes),
            second="0",
            timezone=UTC,
        )


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


class Schedule:
    """Runs a job again and again on a thread of its own, one run at a time.

    ``missed`` is called for each run that did not take place or raised. With ``every``, the first
    run begins at once.
    """

    def __init__(
        self,
        job: Callable[[], None],
        missed: Callable[[Missed, BaseException | None], None],
        every: float,
        cron: str = "",
    ) -> None:
        """Raises ValueError for an invalid cron expression."""
        self._missed = missed
        logging.getLogger("apscheduler").setLevel(logging.WARNING)  # two lines a run otherwise
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(self._heard, sum(_MISSED))
        now = datetime.now(UTC)
        at_once = {} if cron else {"next_run_time": now}
        self._job = self._scheduler.add_job(job, trigger(every, cron, now), **at_once)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def stop(self) -> None:
        """Begin no further run; does not wait for a running one."""
        self._scheduler.shutdown(wait=False)

    def _heard(self, event: SchedulerEvent) -> None:
        self._missed(_MISSED[event.code], getattr(event, "exception", None))
