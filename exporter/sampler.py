"""The sampler: again and again one pass of all collectors, one join, one rendered page.

A sample is taken just before a scrape is expected, or at each interval. The page is replaced as a
whole; a scrape reads only the newest page, and reads neither the driver nor the disk. It waits up
to half a second for a sample that is late or under way, and never for a driver that hangs.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from exporter.allocations import AllocationTotals, allocation_totals
from exporter.compat import Compat
from exporter.compat.tables import nameless
from exporter.compat.tables import tables as compat_tables
from exporter.details import Detail
from exporter.families import process_tables
from exporter.sample_timer import SampleTimer
from exporter.units import UnitRow, unit_rows
from exporter.view import ExporterView, gpu_rows
from vgpu.ledger import Ledger
from vgpu.ledger.container_usage import NodeUsage, token_uses
from vgpu.metrics.render import Exposition, Format, Renderer
from vgpu.model.facts import GpuSource
from vgpu.model.names import Source
from vgpu.model.objects import Node
from vgpu.model.reasons import Rejection
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.registry import registry
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.observation import Collectors, observe
from vgpu.sources.samples import CollectorRow, NodeSample, Observation

log = logging.getLogger(__name__)

_Part = TypeVar("_Part")

COLLECTORS: Final[Mapping[Source, str]] = {
    Source.SHIM: "shim",
    Source.LIMIT_FILE: "limits",
    Source.OWN_CHECKPOINT: "plugin",
}
"""The collectors of the sources whose data the ledger can refuse."""

STALE_INTERVALS = 3
"""Number of intervals for which a collector that does not answer keeps its last data."""

KEEP_READY_PAGES = 10
"""Number of pages after its last request for which a form (format, compression) is pre-rendered."""

XID_WAIT_SECONDS = 8.0
"""Maximum time of one wait for XIDs, in seconds: it delays a re-initialisation of the driver."""

CLOSING_SECONDS = 3.0
"""Maximum time to wait for the driver's release, in seconds."""

WAITING_SECONDS = 0.5
"""The same while a thread waits for XIDs in the driver: it may wait for longer, so the process ends
without the release."""

HESITATION_SECONDS = 1.0
"""Maximum time of a driver call, in seconds, before the wait for XIDs pauses: it may hang."""


class SamplerSettings(msgspec.Struct, frozen=True):
    """The sampler's settings from the flags. Times are in seconds."""

    node: str
    interval: float = 15.0
    timeout: float = 10.0
    compat: tuple[Compat, ...] = (Compat.VOLCANO,)
    compat_breakdown: bool = False
    details: frozenset[Detail] = frozenset()
    gpushare_unit_bytes: int | None = None
    volcano_unit_bytes: int | None = None
    expected_gpus: int | None = None
    build: Mapping[str, str] = {}


class MetricsPage(msgspec.Struct, frozen=True):
    """One snapshot with its rendering. Immutable; readers may keep it."""

    view: ExporterView
    exposition: Exposition


class Sampler:
    """Samples on its own thread after ``start``, or once with ``sample``."""

    def __init__(
        self,
        settings: SamplerSettings,
        collectors: Collectors,
        driver: GpuSource | None,
        process_numbers: Callable[[], Mapping[str, float]],
        timer: SampleTimer | None = None,
    ) -> None:
        """``timer`` decides when the thread takes a sample."""
        self._settings = settings
        self._collectors = collectors
        self._driver = driver
        self._own_numbers = process_numbers
        compat = compat_tables(settings.compat, settings.compat_breakdown)
        self._tables = (*process_tables(settings.details), *compat)
        self._schemes = codecs(settings.gpushare_unit_bytes, settings.volcano_unit_bytes)
        self._units_in_force = {
            "volcano": settings.volcano_unit_bytes,
            "gpushare": settings.gpushare_unit_bytes,
        }
        self._forget()
        self._most_gpus = 0
        self._asked: dict[tuple[Format, bool], int] = {}
        self._passes = 0
        self._defects = 0
        self._dropped = 0
        self._page: MetricsPage | None = None
        self._timer = timer or SampleTimer(settings.interval)
        self._stop = threading.Event()
        self._waits = False
        self._threads: list[threading.Thread] = []
        self.fatal: str | None = None
        """Why the process must end; None if it need not."""

    def _forget(self) -> None:
        """Keep nothing of earlier samples: what was interrupted may have kept a half."""
        self._renderer = Renderer(self._tables, values=True)
        self._ledger_builder = LedgerBuilder(self._schemes, self._settings.node)
        self._units_of: tuple[Ledger, Node | None] | None = None
        self._units: tuple[UnitRow, ...] = ()
        self._summed: tuple[AllocationTotals, frozenset[tuple[str, str]]] | None = None

    # ------------------------------------------------------------ for the web

    @property
    def page(self) -> MetricsPage | None:
        """The newest page; None before the first one, and while not even health can be rendered."""
        return self._page

    @property
    def ready(self) -> bool:
        """Whether a sample has been taken."""
        return self._passes > 0

    def wait_until_ready(self, ended: Callable[[], bool]) -> MetricsPage | None:
        """The first page with a sample; None if ``ended`` is true before."""
        while not self.ready and not ended():
            time.sleep(0.05)
        return self._page if self.ready else None

    def body(self, fmt: Format, gzip: bool) -> bytes | None:
        """The newest page in one form; a form in use is rendered before the next scrape."""
        page = self._page
        if page is None:
            return None
        self._asked[fmt, gzip] = self._passes
        self._timer.scraped()
        self._timer.wait_for_page(self._is_stuck)
        page = self._page
        return None if page is None else page.exposition.body(fmt, gzip)

    def _is_stuck(self) -> bool:
        """Whether a call of a collector has not returned since an earlier sample."""
        return any(collector.stuck for collector in self._collectors.all())

    # ------------------------------------------------------------ life

    def start(self, on_fatal: Callable[[], None]) -> None:
        """Sample now, and then before each expected scrape or at each interval.

        Until the first sample, the page has only the process's own metrics, so that a driver that
        hangs from the start cannot fail a scrape.
        """
        self._page = self._render(time.time(), Observation(), NodeUsage())

        def loop() -> None:
            while not self._stop.is_set():
                begun = self._timer.begin()
                try:
                    self.sample()
                except Exception:  # also for want of memory
                    log.exception("sample failed; the page has no data of the node")
                    self._withdraw()
                if self.fatal is not None:
                    on_fatal()
                    return
                self._timer.sampled(begun)
                self._timer.wait()

        self._spawn("sampler", loop)

    def watch_xids(self) -> None:
        """Record XIDs as they arrive; no call begins while another is stuck in the driver."""
        driver, collector = self._driver, self._collectors.nvml
        if driver is None or collector is None:
            return

        def loop() -> None:
            while not self._stop.is_set():
                if not collector.ok or collector.busy_seconds > HESITATION_SECONDS:
                    self._stop.wait(1.0)
                    continue
                try:
                    self._waits = True
                    driver.wait_xids(XID_WAIT_SECONDS)
                except Exception:
                    log.exception("unexpected error while waiting for XIDs")
                    self._stop.wait(XID_WAIT_SECONDS)
                finally:
                    self._waits = False

        self._spawn("xid", loop)

    def _spawn(self, name: str, loop: Callable[[], None]) -> None:
        thread = threading.Thread(target=loop, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self, grace: float = 2.0) -> bool:
        """Stop sampling; False if a call in the driver goes on, be it a wait for XIDs.

        ``grace`` is the maximum time to wait for the sample under way, in seconds.
        """
        self._stop.set()
        self._timer.end()
        deadline = time.monotonic() + grace
        for thread in self._threads:
            if thread.name == "sampler":
                thread.join(max(0.0, deadline - time.monotonic()))
        stuck = self._is_stuck()
        alive = any(thread.is_alive() for thread in self._threads if thread.name == "sampler")
        if stuck or alive:
            return False
        if self._driver is None:
            return True
        closing = threading.Thread(target=self._driver.close, name="closing", daemon=True)
        closing.start()  # the driver may have stopped answering since the last pass
        closing.join(WAITING_SECONDS if self._waits else CLOSING_SECONDS)
        return not closing.is_alive()

    # ------------------------------------------------------------ one sample

    def sample(self) -> MetricsPage:
        """One pass of all collectors; publishes and returns the new page."""
        now = time.time()
        stale = STALE_INTERVALS * self._settings.interval
        defects = self._defects
        seen = observe(self._collectors, now, self._settings.timeout, stale)
        nvml = self._collectors.nvml
        if nvml is not None and nvml.fatal is not None:
            self.fatal = str(nvml.fatal)
        ledger = self._guarded("ledger", lambda: self._ledger_builder.ledger(seen))
        totals = self._guarded("sums", lambda: self._totals(ledger, seen))
        usage = self._guarded("usage", lambda: self._usage(ledger, seen))
        units = self._guarded("units", lambda: self._unit_rows(ledger, seen))
        page = self._render(now, seen, usage, totals, units or ())
        for form, asked in list(self._asked.items()):
            if self._passes - asked <= KEEP_READY_PAGES:
                page.exposition.body(*form)
        self._page = page
        self._passes += 1
        if self._defects != defects:
            self._forget()
        return page

    def _withdraw(self) -> None:
        """Replace the page by one without data of the node: an old page must not look like a new.

        It has the health of the collectors and of the exporter. If not even that can be rendered,
        there is no page, and scrapes fail.
        """
        self._defects += 1
        page = None
        try:
            self._forget()
            page = self._render(time.time(), Observation(), NodeUsage(), is_withdrawn=True)
        except Exception:
            log.exception("page cannot be rendered; scrapes fail until the next sample")
        self._page = page

    def _totals(self, ledger: Ledger | None, seen: Observation) -> AllocationTotals | None:
        """The sums of this pass: those of the pass before if the ledger is the same."""
        if ledger is None:
            return None
        finished = seen.pods.finished if seen.pods else frozenset[tuple[str, str]]()
        kept = self._summed
        if kept is None or kept[0].ledger is not ledger or kept[1] != finished:
            kept = self._summed = (allocation_totals(ledger, finished), finished)
        return kept[0]

    def _unit_rows(self, ledger: Ledger | None, seen: Observation) -> tuple[UnitRow, ...]:
        """The units that are set: those of the pass before if ledger and node are the same."""
        if ledger is None:
            return ()
        node = seen.pods.node if isinstance(seen.pods, NodeSample) else None
        made_of = self._units_of
        if made_of is None or made_of[0] is not ledger or made_of[1] is not node:
            name = self._settings.node
            self._units = unit_rows(self._units_in_force, name, node, ledger.holdings)
            self._units_of = ledger, node
        return self._units

    def _usage(self, ledger: Ledger | None, seen: Observation) -> NodeUsage:
        """What containers have and use by this pass; nothing without a ledger."""
        return self._ledger_builder.usage(seen) if ledger else NodeUsage()

    def _guarded(self, part: str, make: Callable[[], _Part]) -> _Part | None:
        """The result of ``make``; None if that fails.

        After a defect of ours, the new page lacks the data, instead of an old page staying.
        """
        try:
            return make()
        except Exception:
            self._defects += 1
            log.exception("unexpected error; the page lacks a part", extra={"part": part})
            return None

    def _render(
        self,
        now: float,
        seen: Observation,
        usage: NodeUsage | None,
        totals: AllocationTotals | None = None,
        units: tuple[UnitRow, ...] = (),
        *,
        is_withdrawn: bool = False,
    ) -> MetricsPage:
        """The page; without a usage, it has nothing of the node but the ledger's sums."""
        settings, driver = self._settings, self._driver
        heard_at = seen.pods.heard_at if seen.pods else None
        if usage is None:
            seen, usage = Observation(), NodeUsage()
        gpus = tuple(gpu_rows(seen.gpu, usage)) if seen.gpu else ()
        answering = sum(row.answers and not row.gpu.parent for row in gpus)
        counted = seen.gpu.counted if seen.gpu else 0
        self._most_gpus = max(self._most_gpus, counted, answering)
        expected = settings.expected_gpus
        if expected is None:
            expected = self._most_gpus or None
        view = ExporterView(
            timestamp=now,
            node=settings.node,
            interval=settings.interval,
            usage=usage,
            driver=seen.gpu,
            gpus=gpus,
            statuses=seen.pods.statuses if seen.pods else None,
            tokens=token_uses(seen.tokens, usage.shares) if seen.tokens else (),
            collectors=tuple(self._health(usage.refused)),
            calls=driver.calls() if driver else {},
            xids=driver.xids() if driver else (),
            xids_watched=driver.xids_watched() if driver else frozenset(),
            build=settings.build,
            own={
                **(self._guarded("own metrics", self._own_numbers) or {}),
                **({} if heard_at is None else {"vgpu_api_heard_timestamp_seconds": heard_at}),
                "vgpu_join_failures_total": self._defects,
                "vgpu_dropped_series": self._dropped,
            },
            skipped_series=nameless(usage, settings.compat),
            gpus_expected=expected,
            allocations=totals,
            volcano_unit_bytes=settings.volcano_unit_bytes,
            units=units,
            is_withdrawn=is_withdrawn,
        )
        exposition = self._renderer.render(view)
        self._dropped = exposition.dropped
        return MetricsPage(view, exposition)

    def _health(self, refused: Iterable[tuple[Source, Rejection]]) -> Iterable[CollectorRow]:
        """The collectors' health, with the parts of their data that the ledger refused."""
        named = [(COLLECTORS[source], rejection) for source, rejection in refused]
        for collector in self._collectors.all():
            yield collector.health(tuple(r for name, r in named if name == collector.name))


def codecs(
    gpushare_unit_bytes: int | None, volcano_unit_bytes: int | None
) -> tuple[SchemeCodec, ...]:
    """All codecs; the units are of aliyun.com/gpu-mem and of volcano.sh/vgpu-memory.

    What a unit means is set by the operator and never guessed: without it, amounts that count in it
    are unknown.
    """
    return registry().codecs({"gpushare": gpushare_unit_bytes, "volcano": volcano_unit_bytes})
