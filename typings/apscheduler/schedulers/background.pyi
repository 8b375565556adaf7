from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo

from apscheduler.events import SchedulerEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.triggers.base import BaseTrigger

class _Job:
    next_run_time: datetime | None

class BackgroundScheduler:
    def __init__(
        self,
        *,
        timezone: tzinfo,
        executors: Mapping[str, ThreadPoolExecutor],
        job_defaults: Mapping[str, object],
    ) -> None: ...
    def add_job(
        self, func: Callable[[], object], trigger: BaseTrigger, *, next_run_time: datetime = ...
    ) -> _Job: ...
    def add_listener(self, callback: Callable[[SchedulerEvent], None], mask: int) -> None: ...
    def start(self) -> None: ...
    def shutdown(self, wait: bool = True) -> None: ...
