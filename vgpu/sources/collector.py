"""One collector: a thread that takes passes on request, and a record of their results.

A pass that misses its deadline is abandoned, never repeated beside itself: no second call starts
until the first returns. Data and health are separate: the health can always be published, the
data only while it is fresh.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.sources.samples import CollectorRow

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_EXAMPLES = 20
"""Maximum number of refused inputs of a pass that the log and the status page name."""


class Collector(Generic[T]):
    """Runs ``collect(argument)`` in its own daemon thread, one pass at a time.

    ``collect`` raises SourceError when the whole source cannot be read; any other exception is
    a defect of ours, reported with the reason internal_error. Its data may carry ``rejections``; if
    one of them is EXHAUSTED, the data is kept but the pass has failed: what it missed is unknown.
    """

    def __init__(self, name: str, collect: Callable[[Any], T]) -> None:
        self.name = name
        self.collect = collect
        """One pass over the source."""
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._argument: Any = None
        self._data: T | None = None
        self._sampled_at: float | None = None
        self._ok = False
        self._missed: float | None = None
        self._duration: float | None = None
        self._last_success: float | None = None
        self._last_error = ""
        self._failures: Counter[Reason] = Counter()
        self._rejections: Counter[Reason] = Counter()
        self._rejected: tuple[Rejection, ...] = ()
        self._late: tuple[Rejection, ...] = ()
        self._finished = False
        self._began = 0.0
        self._closed = False
        self.fatal: SourceError | None = None
        """Set when the source reported that this process cannot go on (a replaced driver)."""
        self._thread = threading.Thread(target=self._loop, name=f"collector-{name}", daemon=True)

    # ------------------------------------------------------------ the sampler's side

    def begin(self, argument: Any) -> bool:
        """Start a pass; False if the previous one has not returned yet."""
        if not self._idle.is_set():
            return False
        if not self._thread.is_alive():
            try:
                self._thread.start()
            except RuntimeError as error:  # the next pass tries again
                self._note_exhausted(str(error))
                return True
        self._missed = None
        self._argument = argument
        self._began = time.monotonic()
        self._idle.clear()
        self._work.set()
        return True

    def close(self) -> None:
        """Take no more passes: the thread ends, after the pass under way."""
        self._closed = True
        self._work.set()

    def finish(self, deadline: float) -> None:
        """Wait for the pass under way until ``deadline`` (monotonic seconds), unless it is late."""
        if self.stuck or self._idle.wait(max(0.0, deadline - time.monotonic())):
            return
        with self._lock:
            if self._missed is None and not self._idle.is_set():
                self._missed, self._finished = deadline, True
                self._failures[Reason.TIMEOUT] += 1
                self._fail(Reason.TIMEOUT, "no answer before the deadline; waiting for it")

    @property
    def ok(self) -> bool:
        """Whether the last pass brought its data, all of it, in time."""
        return self._ok and self._missed is None

    @property
    def busy_seconds(self) -> float:
        """Duration of the pass under way so far, in seconds; 0 without one."""
        return 0.0 if self._idle.is_set() else time.monotonic() - self._began

    @property
    def stuck(self) -> bool:
        """Whether a pass has missed its deadline and not returned."""
        return self._missed is not None and not self._idle.is_set()

    def data(self, oldest: float) -> T | None:
        """The newest data, if it was sampled at or after ``oldest`` (monotonic seconds)."""
        with self._lock:
            fresh = self._sampled_at is not None and self._sampled_at >= oldest
            return self._data if fresh else None

    def health(self, late: tuple[Rejection, ...] = ()) -> CollectorRow:
        """The row to publish; ``late`` are refusals that only the join could make."""
        with self._lock:
            self._note(late, self._late)
            self._late = late
            rejected = (*self._rejected, *late)
            stuck = time.monotonic() - self._missed if self.stuck and self._missed else 0.0
            return CollectorRow(
                name=self.name,
                success=self.ok if self._finished else None,
                duration=self._duration,
                last_success=self._last_success,
                stuck_seconds=stuck,
                failures=dict(self._failures),
                rejected=dict(Counter(r.reason for r in rejected)),
                rejections=dict(self._rejections),
                last_error=self._last_error,
                examples=tuple(describe(r) for r in rejected[:MAX_EXAMPLES]),
            )

    # ------------------------------------------------------------ the thread's side

    def _loop(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            if self._closed:
                return
            try:
                self._pass(self._argument)
            except Exception as error:  # no memory for the result
                log.exception("collector pass lost", extra={"collector": self.name})
                self._note_exhausted(repr(error))
            finally:
                self._idle.set()

    def _note_exhausted(self, detail: str) -> None:
        """This pass brought nothing for want of a thread or of memory."""
        with self._lock:
            self._data, self._rejected, self._finished = None, (), True
            self._failures[Reason.EXHAUSTED] += 1
            self._fail(Reason.EXHAUSTED, detail)

    def _pass(self, argument: Any) -> None:
        wall, started = time.time(), time.monotonic()
        data: T | None = None
        failure: tuple[Reason, str] | None = None
        try:
            data = self.collect(argument)
        except SourceError as error:
            failure = (error.reason, str(error))
            if error.reason is Reason.VERSION_MISMATCH:
                self.fatal = error
        except MemoryError:
            failure = (Reason.EXHAUSTED, Reason.EXHAUSTED.explanation)
        except Exception:
            log.exception("collector failed: unexpected error", extra={"collector": self.name})
            failure = (Reason.INTERNAL, Reason.INTERNAL.explanation)
        finished = time.monotonic()
        with self._lock:
            self._duration = finished - started
            self._missed, self._finished = None, True
            if failure is not None:
                self._data, self._rejected = None, ()
                self._failures[failure[0]] += 1
                self._fail(*failure)
                return
            self._data, self._sampled_at = data, started
            rejections: tuple[Rejection, ...] = getattr(data, "rejections", ())
            exhausted = next(
                (rejection for rejection in rejections if rejection.reason is Reason.EXHAUSTED),
                None,
            )
            if exhausted is None:
                self._work_well(wall)
            else:
                self._failures[exhausted.reason] += 1
                self._fail(
                    exhausted.reason, f"{exhausted.object_name}: {exhausted.reason.explanation}"
                )
            self._note(rejections, self._rejected)
            self._rejected = rejections

    def _work_well(self, wall: float) -> None:
        self._last_success = wall
        if not self._ok:
            log.info("collector works", extra={"collector": self.name})
        self._ok, self._last_error = True, ""

    def _fail(self, reason: Reason, detail: str) -> None:
        if self._ok or self._last_error != detail:
            log.warning(
                "collector failed",
                extra={"collector": self.name, "reason": reason.value, "err": detail},
            )
        self._ok, self._last_error = False, detail

    def _note(self, rejections: tuple[Rejection, ...], before: tuple[Rejection, ...]) -> None:
        """Count what was refused, and log what was not refused ``before``."""
        self._rejections.update(r.reason for r in rejections)
        reported = {(r.object_name, r.reason) for r in before}
        fresh = [r for r in rejections if (r.object_name, r.reason) not in reported]
        for rejection in fresh[:MAX_EXAMPLES]:
            log.warning(
                "input refused",
                extra={
                    "collector": self.name,
                    "reason": rejection.reason.value,
                    "object": rejection.object_name,
                    "err": rejection.detail or rejection.reason.explanation,
                },
            )
        if len(fresh) > MAX_EXAMPLES:
            more = len(fresh) - MAX_EXAMPLES
            log.warning("more inputs refused", extra={"collector": self.name, "inputs": more})


def describe(rejection: Rejection) -> str:
    """One line for a log or a page; the object may hold anything, so it is shown as repr."""
    detail = f" ({rejection.detail})" if rejection.detail else ""
    return f"{rejection.object_name!a}: {rejection.reason.explanation}{detail}"
