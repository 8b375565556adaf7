from datetime import tzinfo

from apscheduler.triggers.base import BaseTrigger

class IntervalTrigger(BaseTrigger):
    def __init__(self, *, seconds: float, jitter: float, timezone: tzinfo) -> None: ...
