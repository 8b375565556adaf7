"""The rounds of `vgpu feedback`: read all regions, decide, write the words that differ."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.schemes.volcano.hami_core import FeedbackWords
from vgpucli.feedback.confirmed_devices import ConfirmedDevices
from vgpucli.feedback.decision import BLOCKED, LIFTED, Contender, decide, released, takes_part
from vgpucli.feedback.metrics import FeedbackState, FeedbackView
from vgpucli.feedback.region_words import (
    RECENT_KERNEL,
    UTILIZATION_SWITCH,
    ContainerRegion,
    read_only_problem,
    read_regions,
    write_words,
)

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 5.0
"""Interval between two rounds, in seconds: that of HAMi's monitor, which the meaning of
``recent_kernel`` depends on."""

CHECK_SECONDS: Final = 60.0
"""Minimum interval between two checks whether HAMi's monitor runs, in seconds."""

ENDING_SECONDS: Final = 10.0
"""Maximum time to wait at the end for the round under way, in seconds."""

Clock = Callable[[], float]


class FeedbackLoop:
    """Rounds on a thread of its own, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        roots: Sequence[str],
        devices: ConfirmedDevices,
        *,
        other_writer: Callable[[], str] = str,
        give_up: Callable[[str], None] = log.error,
        clock: Clock = time.time,
    ) -> None:
        """``roots`` are the folders of regions.

        ``other_writer`` returns another program that writes the same words, or "". If there is one,
        the rounds end, and ``give_up`` is called with the reason. It may raise SourceError: while
        that is unknown, all containers are let go, and no round takes place. ``clock`` returns
        unix seconds.
        """
        self._roots = roots
        self._devices = devices
        self._other_writer = other_writer
        self._give_up = give_up
        self._clock = clock
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)
        self._writes: Counter[str] = Counter({RECENT_KERNEL: 0, UTILIZATION_SWITCH: 0})
        self._reported: frozenset[tuple[str, Reason]] = frozenset()
        self._problem = "no round has ended yet"
        self._yielded = False
        self._view = FeedbackView()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> bool:
        """End after the round under way, and let go of all containers; False if it is stuck.

        If another program writes the words, it has them: nothing is written then.
        """
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(ENDING_SECONDS)
        if self._thread.is_alive():
            return False
        if not self._yielded:
            log.info("containers released", extra={"containers": self.release()})
        return True

    def complaint(self) -> str:
        """Why it does not work as it should; "" if it does."""
        return self._problem

    def view(self) -> FeedbackView:
        """The values of the page of metrics."""
        return self._view

    def release(self) -> int:
        """Let go of every container; returns the number of containers that had to be changed."""
        reading = read_regions(self._roots)
        changed, rejections = 0, [*reading.rejections]
        for region in reading.regions:
            before = region.feedback.words
            if released(before) != before:
                changed += self._write(region, released(before), rejections)
        self._report(rejections)
        return changed

    def round(self) -> None:
        """Read, decide and write once."""
        now = self._clock()
        confirmed = self._devices.read(now)
        reading = read_regions(self._roots, lambda: {uid for uid, _ in confirmed})
        contenders = [contender(region, confirmed) for region in reading.regions]
        decisions = decide(contenders)
        rejections = [*reading.rejections]
        for region, decided in zip(reading.regions, decisions, strict=True):
            if decided != region.feedback.words:
                self._write(region, decided, rejections)
        self._report(rejections)
        self._problem = self._devices.problem or read_only_problem(self._roots)
        self._view = FeedbackView(
            ready=not self._problem,
            rounds=self._view.rounds + 1,
            last_round=self._clock(),
            containers=Counter(map(_state, contenders, decisions)),
            unlimited=sum(words.utilization_switch == LIFTED for words in decisions),
            writes=dict(self._writes),
            rejected=Counter(rejection.reason for rejection in rejections),
        )

    def _run(self) -> None:
        checked_at, may_write = time.monotonic(), True
        while not self._ending.is_set():
            try:
                if not may_write or time.monotonic() - checked_at >= CHECK_SECONDS:
                    checked_at, may_write = time.monotonic(), self._is_alone()
                if self._yielded:
                    return
                if may_write:
                    self.round()
                else:
                    self.release()
            except Exception:
                log.exception("unexpected error in a round")
                self._complain("unexpected error; the log has it")
            self._ending.wait(ROUND_SECONDS)

    def _is_alone(self) -> bool:
        """Whether it is known that no other program writes the words; one that does has them."""
        try:
            writer = self._other_writer()
        except SourceError as error:
            self._complain(f"it is unknown whether HAMi's monitor runs: {error}")
            return False
        if writer:
            self._yielded = True
            self._problem = writer
            self._give_up(writer)
        return not writer

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("feedback not ready", extra={"reason": problem})
        self._problem = problem
        self._view = msgspec.structs.replace(self._view, ready=False)

    def _write(
        self, region: ContainerRegion, words: FeedbackWords, rejections: list[Rejection]
    ) -> bool:
        """Whether a word was written. A tenant can keep it from that: it costs itself only."""
        try:
            written = write_words(region, words)
        except SourceError as error:
            if error.reason is not Reason.ABSENT:  # it has ended
                rejections.append(error.rejection())
            return False
        self._writes.update(written)
        return bool(written)

    def _report(self, rejections: Iterable[Rejection]) -> None:
        """Log what was not refused in the round before."""
        refused = {(each.object_name, each.reason): each for each in rejections}
        for key, each in refused.items():
            if key not in self._reported:
                log.warning(
                    "input refused",
                    extra={"object": key[0], "reason": key[1], "detail": each.detail},
                )
        self._reported = frozenset(refused)


def contender(
    region: ContainerRegion, confirmed: Mapping[tuple[str, str], frozenset[str]]
) -> Contender:
    """A container as the decision knows it: only with devices that both its region and the node
    have.
    """
    feedback = region.feedback
    devices = confirmed.get(region.container, frozenset()).intersection(feedback.devices)
    return Contender(devices, feedback.priority, feedback.words)


def _state(contender: Contender, decided: FeedbackWords) -> FeedbackState:
    if not takes_part(contender):
        return FeedbackState.UNCONFIRMED
    if decided.recent_kernel == BLOCKED:
        return FeedbackState.BLOCKED
    return FeedbackState.ACTIVE if decided.recent_kernel > 0 else FeedbackState.IDLE
