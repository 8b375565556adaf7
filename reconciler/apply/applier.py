"""Applies a plan: one action after the other, each told before and after, none at any price.

Before each action we must still lead and have time; its intent is in the audit. Events are written
beside, by a thread of their own. What a disruption
budget refuses waits at the end of the queue, so that it holds up nobody; when the API server is
too busy all wait. One failure never stops the others, but where the server does not answer several
times in a row nothing more is tried.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec

from reconciler.apply.client import ClusterClient
from reconciler.apply.events import event_notes
from reconciler.apply.executor import Answer, Executor
from reconciler.apply.removal import Remover
from reconciler.judge import Judge
from reconciler.model import ActionResult, Entry, Plan
from reconciler.reasons import ActionOutcome
from vgpu.kube.event_recorder import EventRecorder, EventWriter

EVENTS_SECONDS: Final = 10.0
"""Minimum time that the end of a plan waits for events that are not written yet, in seconds."""

MOST_EVENTS: Final = 2000
"""Events that wait to be written; a cycle with full limits reports about 600."""

MOST_UNREACHED: Final = 3
"""After so many actions in a row without an answer nothing more is tried."""


class AuditSink(Protocol):
    """Where actions are told; both raise AuditError."""

    def intent(self, plan: Plan, entry: Entry) -> None:
        """Before anything is done."""
        ...

    def result(self, plan: Plan, result: ActionResult) -> None:
        """What became of it."""
        ...


class _Turn(msgspec.Struct, frozen=True):
    """An action that is to be tried, not before that time; ``last`` is what came of it so far."""

    entry: Entry
    not_before: float = 0.0
    last: Answer | None = None


class ApplyOptions(msgspec.Struct, frozen=True):
    """How plans are applied.

    Attributes:
        remover: removes shims' folders; on a node only.
        clock: gives unix seconds.
        monotonic: gives seconds that never go back.
        sleep: waits so many seconds, and is true if we are to stop.
        deadline_seconds: maximum time that a plan is given.
        dry_run: whether the API server is asked and nothing is kept.
        leads: whether we may still act.
        stopping: whether nothing more may be begun.
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
    """Applies plans, one at a time. A plan's results come as soon as they are there."""

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

        ``judge`` knows the look that the plan was made from. Raises AuditError where an action
        could not be told: it was not begun, or it was the last.
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
        """Why nothing more is tried."""
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
