"""Watches the driver: one thread samples it, one waits for events, and neither waits for the other.

Promises: an event is judged at once, even while a sample hangs; a driver that hangs delays nobody,
not even the end of the program; a driver that is not there yet is looked for ever more rarely,
and said to be missing once; a device that was there once stays known.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from deviceplugin.health.device_health import UNKNOWN_DEVICE, Health, changes, heard, missed, seen
from deviceplugin.health.incident import UnhealthyReason
from deviceplugin.health.rules import HealthRules
from vgpu.facts import GpuSample, GpuSource, XidCount
from vgpu.sources.collector import Collector
from vgpu.sources.samples import CollectorRow

log = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 10.0
"""A sample that takes longer is a miss; a new start of the driver takes seconds."""

LONGEST_PAUSE_SECONDS: Final = 60.0
"""Between two looks for a driver that has never been there."""

_SAID: Final = {True: (logging.INFO, "healthy"), False: (logging.WARNING, "unhealthy")}

EVENT_WAIT_SECONDS: Final = 5.0
CLOSING_SECONDS: Final = 3.0


Links = Mapping[tuple[str, str], int]
"""An ``nvmlGpuTopologyLevel_t`` by two UUIDs."""


class TopologyDriver(GpuSource, Protocol):
    """A driver that can also tell how near its GPUs are."""

    def links(self) -> Links:
        """See :data:`Links`; for the thread that samples. Raises SourceError."""
        ...


class HealthWatch:
    """Keeps the node's :class:`~deviceplugin.health.device_health.Health`; safe to be asked from
    any thread.
    """

    def __init__(
        self,
        source: GpuSource,
        rules: HealthRules,
        interval: float,
        changed: Callable[[Health], None],
        *,
        deadline: float = DEADLINE_SECONDS,
        links: Callable[[], Links] | None = None,
    ) -> None:
        """Make a watch that samples every ``interval`` seconds.

        ``changed`` is called from the watch's threads, one call at a time, with the first
        inventory and whenever a device is new, better, worse or has another size.
        ``links`` asks the driver how near GPUs are; it is asked once, with the first inventory.
        """
        self._source = source
        self._rules = rules
        self._interval = interval
        self._deadline = deadline
        self._changed = changed
        self._collector: Collector[GpuSample] = Collector("nvml", self._ask)
        self._ask_links = links
        self._links: Links = {}
        self._lock = threading.Lock()  # held while the health becomes another, and is told
        self._health = Health.at_start(source.xids())
        self._first = threading.Event()
        self._stopping = threading.Event()
        self._sampling = threading.Thread(target=self._sample, name="health", daemon=True)
        self._on_fatal: Callable[[], None] = lambda: None

    # ------------------------------------------------------------ what is known

    @property
    def health(self) -> Health:
        """Everything that is known, at one moment."""
        return self._health

    def collector(self) -> CollectorRow:
        """How sampling goes."""
        return self._collector.health()

    @property
    def links(self) -> Links:
        """As ``links`` told with the first inventory; nothing if it was not to be asked."""
        return self._links

    @property
    def fatal(self) -> str | None:
        """Why only a new process can go on: the driver was replaced; None if it can."""
        return str(self._collector.fatal) if self._collector.fatal else None

    # ------------------------------------------------------------ life

    def start(self, on_fatal: Callable[[], None]) -> None:
        """Begin; ``on_fatal`` is called once :attr:`fatal` is set, and nothing is sampled then."""
        self._on_fatal = on_fatal
        self._sampling.start()

    def wait_first(self, timeout: float | None = None) -> bool:
        """Wait for the first inventory; whether it is there."""
        return self._first.wait(timeout)

    def stop(self, grace: float = 2.0) -> bool:
        """Stop; False if something is stuck in the driver and was left there."""
        self._stopping.set()
        if self._sampling.is_alive():
            self._sampling.join(grace)
        if self._sampling.is_alive() or self._collector.busy_seconds:
            return False
        closing = threading.Thread(target=self._source.close, name="closing", daemon=True)
        closing.start()  # the driver may have stopped answering since the last sample
        closing.join(CLOSING_SECONDS)
        return not closing.is_alive()

    # ------------------------------------------------------------ the threads

    def _sample(self) -> None:
        pause = self._interval
        while not self._stopping.is_set():
            try:
                self._sample_once()
            except Exception:
                log.exception("judging the devices failed on a defect")
            if self._collector.fatal:
                self._on_fatal()
                return
            self._stopping.wait(pause)
            pause = next_pause(pause, self._interval, found=self._first.is_set())

    def _ask(self, now: float) -> GpuSample:
        """All that is asked of the driver. Raises SourceError."""
        sample = self._source.sample(now)
        if self._ask_links is not None and not self._first.is_set():
            self._links = self._ask_links()
        return sample

    def _sample_once(self) -> None:
        now, rules = time.monotonic(), self._rules
        self._collector.begin(time.time())
        self._collector.finish(now + self._deadline)
        sample = self._collector.data(now)
        if sample is None:
            detail = self._collector.health().last_error
            self._become(lambda health: missed(health, detail, now, rules))
            return
        self._become(lambda health: seen(health, sample, now, rules))
        if not self._first.is_set():
            self._first.set()
            threading.Thread(target=self._listen, name="events", daemon=True).start()

    def _listen(self) -> None:
        known: tuple[XidCount, ...] = ()
        while not self._stopping.is_set():
            try:
                self._source.wait_xids(EVENT_WAIT_SECONDS)
                xids = self._source.xids()
                if xids != known:
                    self._hear(xids)
                    known = xids
            except Exception:
                log.exception("hearing events failed on a defect")
                self._stopping.wait(EVENT_WAIT_SECONDS)

    def _hear(self, xids: tuple[XidCount, ...]) -> None:
        before, now, rules = self._health, time.monotonic(), self._rules
        after = self._become(lambda health: heard(health, xids, now, rules))
        blamed_on_none = UNKNOWN_DEVICE, UnhealthyReason.XID
        if after.events.get(blamed_on_none, 0) > before.events.get(blamed_on_none, 0):
            log.warning("a critical XID names no device: all devices keep their health")

    def _become(self, judged: Callable[[Health], Health]) -> Health:
        """The health that follows from the present one; whoever uses devices is told of changes."""
        with self._lock:
            before = self._health
            after = self._health = judged(before)
            news = changes(before, after)
            for change in news:
                level, state = _SAID[change.healthy]
                log.log(level, "%s: %s", state, change.detail, extra={"device": change.uuid})
            if news:
                try:
                    self._changed(after)
                except Exception:
                    log.exception("reporting a device's health failed on a defect")
            return after


def next_pause(pause: float, interval: float, *, found: bool) -> float:
    """Seconds between samples, after ``pause``: ever longer until the driver has been found."""
    return interval if found else max(interval, min(2 * pause, LONGEST_PAUSE_SECONDS))
