"""Applies a plan: one action after the other, each in the audit before and after.

Before each action we must still lead and have time, and the audit must have its intent. A thread
of its own writes Events. An action that a disruption budget refuses waits at the end of the queue,
so that it delays no other action; all actions wait while the API server is too busy. One failure
never stops the others, but after several actions in a row without an answer no more are tried.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec

from reconciler.apply.client import ClusterClient
from reconciler.apply.executor import Answer, Executor
from reconciler.apply.records import event_notes
from reconciler.apply.removal import Remover
from reconciler.judge import Judge
from reconciler.model import ActionResult, Entry, Plan
from reconciler.reasons import ActionOutcome
from vgpu.apiserver.event_recorder import EventRecorder, EventWriter

EVENTS_SECONDS: Final = 10.0
"""Minimum time that the end of a plan waits for events that are not written yet, in seconds."""

MOST_EVENTS: Final = 2000
"""Number of Events that may wait to be written; a cycle with full limits reports about 600."""

MOST_UNREACHED: Final = 3
"""Number of actions in a row without an answer after which no more are tried."""


class AuditSink(Protocol):
    """Records actions; both methods raise AuditError."""

    def intent(self, plan: Plan, entry: Entry) -> None:
        """Record an action before it begins."""
        ...

    def result(self, plan: Plan, result: ActionResult) -> None:
        """Record an action's outcome."""
        ...


class _Turn(msgspec.Struct, frozen=True):
    """An action to be tried, not before that time; ``last`` is the answer to its last try."""

    entry: Entry
    not_before: float = 0.0
    last: Answer | None = None


class ApplyOptions(msgspec.Struct, frozen=True):
    """How plans are applied.

    Attributes:
        remover: removes shims' folders; on a node only.
        clock: returns unix seconds.
        monotonic: returns seconds that never go back.
        sleep: waits the number of seconds; returns true if we are to stop.
        deadline_seconds: maximum time for a plan, in seconds.
        dry_run: the API server is asked and keeps nothing.
        leads: returns whether we may still act.
        stopping: returns whether no further action may begin.
    """

    remover: Remover | None = None
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    deadline_seconds: float = 120.0
    dry_run: bool = False
    leads: Callable[[], bool] = lambda: True
    stopping: Callable[[], bool] = lambda: False


_DEFAULT: Final = ApplyOptions()


class Applier:
    """Applies plans, one at a time. A plan's results come as soon as they are known."""

    def __init__(
        self,
        client: ClusterClient,
        audit: AuditSink,
        options: ApplyOptions = _DEFAULT,
    ) -> None:
        self._client = client
        self._audit = audit
        self._options = options

    def apply(self, plan: Plan, judge: Judge) -> Iterator[ActionResult]:
        """A result for each action of the plan, as they come.

        ``judge`` has the snapshot that the plan was made from. Raises AuditError where an action
        could not be recorded: that action was not begun, or it was the last.
        """
        options = self._options
        executor = Executor(
            self._client, judge, options.remover, dry_run=options.dry_run, leads=options.leads
        )
        events = EventWriter(EventRecorder(MOST_EVENTS), self._client.write_event)
        deadline = options.monotonic() + options.deadline_seconds
        try:
            for entry, answer in self._answers(plan, executor, deadline):
                result = ActionResult(entry, answer.outcome, answer.detail, options.clock())
                try:
                    self._audit.result(plan, result)
                finally:
                    yield result
                if not (options.dry_run or answer.unreached):
                    events.record(*event_notes(result, answer.seen))
        finally:
            left = max(EVENTS_SECONDS, deadline - options.monotonic())
            events.finish(left, options.stopping)

    def _answers(
        self, plan: Plan, executor: Executor, deadline: float
    ) -> Iterator[tuple[Entry, Answer]]:
        options = self._options
        turns = deque(_Turn(entry) for entry in plan.actions)
        unreached = 0
        stopped = False
        while turns:
            turn = turns.popleft()
            stopped = stopped or options.stopping()
            pause = turn.not_before - options.monotonic()
            if pause > 0 and not stopped and options.leads():
                stopped = bool(options.sleep(pause))
            halted = self._halted(deadline, unreached, stopped=stopped)
            if halted is not None:
                yield turn.entry, turn.last or halted
                continue
            if turn.last is None:
                self._audit.intent(plan, turn.entry)
            answer = executor.act(turn.entry)
            unreached = unreached + 1 if answer.unreached else 0
            again = options.monotonic() + (answer.wait or 0.0)
            if answer.wait is None or again >= deadline:
                yield turn.entry, answer
                continue
            later = _Turn(turn.entry, again, answer)
            if answer.outcome is ActionOutcome.THROTTLED:
                turns.appendleft(later)
            else:
                turns.append(later)

    def _halted(self, deadline: float, unreached: int, *, stopped: bool) -> Answer | None:
        """Why no further action is tried."""
        if stopped:
            return Answer(ActionOutcome.OUT_OF_TIME, "stopped by a signal")
        if not self._options.leads():
            return Answer(ActionOutcome.NOT_LEADER)
        if unreached >= MOST_UNREACHED:
            detail = f"not tried: the API server did not answer {unreached} times in a row"
            return Answer(ActionOutcome.OUT_OF_TIME, detail)
        if self._options.monotonic() >= deadline:
            seconds = self._options.deadline_seconds
            return Answer(ActionOutcome.OUT_OF_TIME, f"{seconds:.0f} s have passed")
        return None
