from datetime import tzinfo

from apscheduler.triggers.base import BaseTrigger

class CronTrigger(BaseTrigger):
    def __init__(
        self,
        *,
        month: str,
        day: str,
        day_of_week: str,
        hour: str,
        minute: str,
        second: str,
        timezone: tzinfo,
    ) -> None: ...
