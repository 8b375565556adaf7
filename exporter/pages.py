"""The exporter's paths: the metrics, the status page, and the processes."""

import threading
import time
from collections.abc import Callable

import msgspec

from exporter import statuspage
from exporter.processes import process_list
from exporter.sampler import MetricsPage, Sampler
from exporter.view import ExporterView
from vgpu.program.pages import HTML, program_routes
from vgpu.web.message import Handler, Headers, HttpRequest, HttpResponse, plain
from vgpu.web.metrics import metrics_page
from vgpu.web.routes import Routes

UNREADY = "no sample has been taken yet"
NO_PAGE = plain(503, "there is no page: no sample has been taken yet, or the last one has failed")

LEGACY_PATH = "/metric"
"""The path of gpu-manager's metrics."""

PROCESSES_PATH = "/processes"
"""The path of the processes, with which `vgpu top` shows those of each container."""

KEPT_SECONDS = 1.0
"""Maximum age of a page that was rendered for an earlier request, in seconds."""

JSON: Headers = (("Content-Type", "application/json"),)


class _Rendered(msgspec.Struct, frozen=True):
    page: MetricsPage
    at: float
    response: HttpResponse


class _RenderedOnce:
    """A page that is rendered once for all requests of the same time.

    Rendering takes up to milliseconds of CPU for each container: rendering for each of many
    requests would leave no CPU for a scrape.
    """

    def __init__(
        self,
        sampler: Sampler,
        headers: Headers,
        render: Callable[[ExporterView, float], bytes],
        clock: Callable[[], float],
    ) -> None:
        self._sampler = sampler
        self._headers = headers
        self._render = render
        self._clock = clock
        self._rendering = threading.Lock()
        self._kept: _Rendered | None = None

    def __call__(self, _: HttpRequest) -> HttpResponse:
        page, now, kept = self._sampler.page, self._clock(), self._kept
        if page is None:
            return NO_PAGE
        fresh = kept is not None and kept.page is page and 0 <= now - kept.at < KEPT_SECONDS
        # While another thread renders, a request gets the older page, if there is one.
        if not fresh and self._rendering.acquire(blocking=kept is None):
            try:
                if self._kept is kept:
                    body = self._render(page.view, now)
                    self._kept = _Rendered(page, now, HttpResponse(200, self._headers, body))
                kept = self._kept
            finally:
                self._rendering.release()
        return kept.response if kept is not None else NO_PAGE


def routes(
    sampler: Sampler,
    telemetry_path: str,
    legacy_path: bool,
    clock: Callable[[], float] = time.time,
) -> Routes:
    """The exporter's paths; ``legacy_path`` adds gpu-manager's."""
    metrics = metrics_page(sampler.body, NO_PAGE)

    def status_page(view: ExporterView, now: float) -> bytes:
        return statuspage.render(view, now, telemetry_path)

    def processes(view: ExporterView, _: float) -> bytes:
        return msgspec.json.encode(process_list(view))

    paths: dict[str, Handler] = {
        "/": _RenderedOnce(sampler, HTML, status_page, clock),
        PROCESSES_PATH: _RenderedOnce(sampler, JSON, processes, clock),
        telemetry_path: metrics,
    }
    if legacy_path:
        paths.setdefault(LEGACY_PATH, metrics)
    return program_routes("exporter", paths, ready=lambda: "" if sampler.ready else UNREADY)
