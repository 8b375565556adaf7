"""Waiting for what something else does: for a condition, never for a time.

    wait_until(lambda: server.threads == 1, "one thread is left", context=log.read_text)

The error of a wait that times out names what it waited for and the last state that it saw.
"""

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from time import monotonic, sleep  # those of now: a test may put others into the module
from typing import TypeVar

T = TypeVar("T")

WAIT_SECONDS = 60.0
"""Maximum time to wait for anything, in seconds: what takes longer is broken, not slow."""

PAUSE_SECONDS = 0.25
"""Maximum time between two looks at a condition, in seconds."""

_SHORTEST = 0.001
_PART = 0.2

_LONGEST = 4000
"""Maximum number of characters of an error that names many things."""


def wait_until(
    condition: Callable[[], T],
    what: str,
    *,
    seconds: float = WAIT_SECONDS,
    failures: tuple[type[Exception], ...] = (),
    context: Callable[[], str] = str,
    pause: float = PAUSE_SECONDS,
) -> T:
    """The first true answer of ``condition``; one of ``failures`` counts as not yet.

    ``pause`` is the longest pause between two questions; the first ones are shorter:

        pause after t seconds of waiting = min(max(1 ms, t / 5), pause)

    Raises:
        AssertionError: with the last answer and ``context()`` when ``seconds`` have passed.
    """
    begun = monotonic()
    while True:
        asked = monotonic()
        late = asked > begun + seconds  # from before the question: one answer always comes after it
        try:
            last: object = (answer := condition())
            if answer:
                return answer
        except failures as error:
            last = error
        if late:
            message = f"never {what} in {seconds:g} s; at last: {last!r}\n{context()}"
            raise AssertionError(message.rstrip())
        sleep(_pause(asked - begun, pause))


def wait_emptied(
    left: Callable[[], Collection[object]],
    what: str,
    *,
    seconds: float = WAIT_SECONDS,
    pause: float = PAUSE_SECONDS,
) -> None:
    """Wait until nothing is left of many things; ``seconds`` is the maximum time without progress.

    Raises:
        AssertionError: with what is left.
    """
    fewest, since = sys.maxsize, 0.0
    while rest := left():
        now = monotonic()
        if len(rest) < fewest:
            fewest, since = len(rest), now
        elif now > since + seconds:
            message = f"{what}: {len(rest)} are left, and none went for {seconds:g} s: {rest}"
            raise AssertionError(message[:_LONGEST])
        sleep(_pause(now - since, pause))


def _pause(waited: float, longest: float) -> float:
    """A look costs CPU time, most of all one at an API server: a long wait has few of them."""
    return min(max(_SHORTEST, _PART * waited), longest)


def item_of(items: queue.SimpleQueue[T] | queue.Queue[T], what: str) -> T:
    """The next item of a queue, which another thread is to put there."""
    return wait_until(lambda: [items.get_nowait()], what, failures=(queue.Empty,))[0]


def result_of(future: Future[T], what: str) -> T:
    """The result of what another thread does."""
    wait_until(future.done, what, context=stacks)
    return future.result()


def wait_ended(thread: threading.Thread, what: str) -> None:
    """Wait for the end of a thread; without it, the error shows where all threads are."""
    wait_until(lambda: not thread.is_alive(), what, context=stacks)


def wait_for_tick(folder: Path) -> None:
    """Wait until what changes from now on has another ctime: file systems' clocks tick slowly."""
    probe = folder / "probe-of-the-clock"
    probe.touch()
    before = probe.stat().st_ctime_ns

    def ticked() -> bool:
        probe.touch()
        return probe.stat().st_ctime_ns > before

    wait_until(ticked, "another time of the file system's clock")
    probe.unlink()


def stacks() -> str:
    """Where each other thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)[-6:])}"
        for ident, frame in frames
        if ident != threading.get_ident()
    )
