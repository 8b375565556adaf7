"""The long-running reconciler: cycles on a schedule while it leads, its metrics and probes.

At SIGTERM and SIGINT the reconciler begins no further action, waits for the running one, and only
then returns the Lease, so that no other reconciler acts at the same time.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from reconciler.cycle import Cycle, Cycles, Ending
from reconciler.metrics import ReconcilerMetrics
from reconciler.model import Plan
from reconciler.reasons import ActionOutcome
from reconciler.schedule import Missed
from vgpu.apiserver.leader_election import LeaderElector
from vgpu.inventory import doubt_notes
from vgpu.program.pages import Complaint, no_complaint, program_routes
from vgpu.program.termination import EXIT_FAILURE, exit_now
from vgpu.web.metrics import metrics_page
from vgpu.web.routes import Routes

log = logging.getLogger(__name__)

ELECTION_SECONDS: Final = 10.0
"""Maximum time that the first cycle waits for the leader election, in seconds."""

LEAVING_SECONDS: Final = 20.0
"""Maximum time to wait for a running action at the end, in seconds; a kubelet kills after 30."""

HUNG_SECONDS: Final = 300.0
"""Time after a cycle's deadline at which the cycle counts as hung, in seconds."""

STEP_SECONDS: Final = 0.1
"""Interval between two looks at a Lease that is waited for, in seconds."""


class Loop:
    """Runs cycles, one at a time, while we lead and until we are asked to stop."""

    def __init__(
        self,
        cycles: Cycles,
        numbers: ReconcilerMetrics,
        leader: LeaderElector | None,
        stopping: threading.Event,
        *,
        deadline: float,
        notify: Callable[[Cycle], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``leader`` None is no election; ``deadline`` is the maximum time to apply a plan, in
        seconds. ``notify`` is called with each cycle.
        """
        self._notify = notify
        self._cycles = cycles
        self._numbers = numbers
        self._leader = leader
        self._stopping = stopping
        self._patience = deadline + HUNG_SECONDS
        self._clock = clock
        self._monotonic = monotonic
        self._running = threading.Lock()
        self._since: float | None = None
        self._notes: tuple[str, ...] = ()
        self._doubted: set[str] = set()
        self.ready = False
        self.token: Complaint = no_complaint

    def complaint(self) -> str:
        """Why it is not ready; "" if it is."""
        return self.token() or ("" if self.ready else "no cycle has ended yet")

    def cycle(self) -> None:
        """One cycle. Only a defect of this program raises."""
        with self._running:
            if self._stopping.is_set():
                return
            self._since = self._monotonic()
            try:
                cycle = self._cycle()
            finally:
                self._since = None
            self._numbers.note(cycle)
            log_cycle(cycle)
            if cycle.plan is not None:
                self._log_notes(cycle.plan)
            self.ready = self.ready or cycle.ending is not Ending.BLIND
            self._notify(cycle)

    def _log_notes(self, plan: Plan) -> None:
        """Log each note when it begins; that a unit is unconfirmed once, whichever the nodes."""
        for note in plan.notes:
            if note not in self._notes:
                log.warning("the plan has a new note", extra={"reason": note})
        self._notes = plan.notes
        units = {doubt.row.name for doubt in plan.unit_doubts}
        began = [doubt for doubt in plan.unit_doubts if doubt.row.name not in self._doubted]
        for note in doubt_notes(began):
            log.warning("a unit of memory is unconfirmed", extra={"reason": note})
        for name in sorted(self._doubted - units):
            log.info("a unit of memory is confirmed again", extra={"scheme": name})
        self._doubted = units

    def missed(self, reason: Missed, error: BaseException | None) -> None:
        """Count and log a cycle that did not take place, or not to its end."""
        self._numbers.note_missed(reason)
        extra = {"reason": reason, "detail": reason.explanation}
        log.error("a cycle was missed", extra=extra, exc_info=error)

    @property
    def hung(self) -> bool:
        """Whether a cycle has been running for longer than it can take."""
        since = self._since
        return since is not None and self._monotonic() - since > self._patience

    def finish(self, timeout: float) -> bool:
        """Wait for the running cycle; returns whether none runs any more."""
        if not self._running.acquire(timeout=timeout):
            return False
        self._running.release()
        return True

    def _cycle(self) -> Cycle:
        leader = self._leader
        if leader is None or self._leads(leader):
            return self._cycles.run()
        self._cycles.forget()
        now = self._clock()
        if leader.holder in ("", leader.identity):
            return Cycle(now, Ending.BLIND, error="the Lease can be neither read nor renewed")
        return Cycle(now, Ending.STANDBY)

    def _leads(self, leader: LeaderElector) -> bool:
        """Whether we lead; waits for the first result of the election."""
        until = self._monotonic() + ELECTION_SECONDS
        while not (leader.leads() or leader.holder) and self._monotonic() < until:
            if self._stopping.wait(STEP_SECONDS):
                break
        return leader.leads()


def log_cycle(cycle: Cycle) -> None:
    """Log the outcome of a cycle and of its actions."""
    for result in cycle.results:
        finding = result.entry.finding
        object_ref = finding.object_ref
        is_done = result.outcome is ActionOutcome.DONE
        log.info(
            "action done" if is_done else "action not done",
            extra={
                "action": type(finding.action).__name__.lower(),
                "rule": finding.rule,
                "reason": finding.cause,
                "kind": object_ref.kind,
                "object": f"{object_ref.namespace}/{object_ref.name}".lstrip("/"),
                "node": object_ref.node,
                "outcome": result.outcome,
                "detail": result.detail,
            },
        )
    plan = cycle.plan
    fields: dict[str, object] = {"result": cycle.ending}
    if plan is not None:
        fields |= {
            "plan": plan.id,
            "actions": len(plan.actions),
            "skipped": len(plan.skipped),
            "findings": len(plan.findings),
            "breaker_tripped": plan.breaker.tripped,
        }
    fields["seconds"] = f"{sum(cycle.seconds.values()):.3f}"
    if cycle.error:
        log.warning("cycle failed", extra=fields | {"reason": cycle.error})
    else:
        log.info("cycle ended", extra=fields)


def routes(loop: Loop, numbers: ReconcilerMetrics) -> Routes:
    """The paths that are served."""
    metrics = metrics_page(lambda fmt, gzip: numbers.render().body(fmt, gzip))
    return program_routes(
        "reconciler",
        {"/metrics": metrics},
        healthy=lambda: "a cycle has been under way for too long" if loop.hung else "",
        ready=loop.complaint,
    )


def leave(loop: Loop, leader: LeaderElector | None, stopping: threading.Event) -> None:
    """Begin no further cycle, wait for the running one, then stop leading.

    A cycle that hangs ends the process, and the Lease expires by itself.
    """
    stopping.set()
    if not loop.finish(LEAVING_SECONDS):
        log.error("cycle did not stop in time; exiting without releasing the Lease")
        exit_now(EXIT_FAILURE)
    if leader is not None:
        leader.stop()
