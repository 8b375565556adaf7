from collections.abc import Sequence

from apscheduler.triggers.base import BaseTrigger

class OrTrigger(BaseTrigger):
    def __init__(self, triggers: Sequence[BaseTrigger], jitter: float | None = None) -> None: ...
