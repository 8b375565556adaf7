"""The exporter's paths: the metrics, and the status page."""

import threading
import time
from collections.abc import Callable

import msgspec

from exporter import statuspage
from exporter.sampler import MetricsPage, Sampler
from vgpu.program.pages import HTML, program_routes
from vgpu.web.message import Handler, HttpRequest, HttpResponse, plain
from vgpu.web.metrics import metrics_page
from vgpu.web.routes import Routes

UNREADY = "no sample has been taken yet"
NOT_YET = plain(503, UNREADY)

LEGACY_PATH = "/metric"
"""The path of gpu-manager's metrics."""

STATUS_SECONDS = 1.0
"""Maximum age of a rendered status page, in seconds."""


class _Rendered(msgspec.Struct, frozen=True):
    page: MetricsPage
    at: float
    response: HttpResponse


class _StatusPage:
    """The status page, rendered once for all requests of the same time.

    Rendering takes milliseconds of CPU for each container: rendering for each of many requests
    would leave no CPU for a scrape.
    """

    def __init__(self, sampler: Sampler, path: str, clock: Callable[[], float]) -> None:
        self._sampler = sampler
        self._path = path
        self._clock = clock
        self._rendering = threading.Lock()
        self._kept: _Rendered | None = None

    def __call__(self, _: HttpRequest) -> HttpResponse:
        page, now, kept = self._sampler.page, self._clock(), self._kept
        if page is None:
            return NOT_YET
        fresh = kept is not None and kept.page is page and 0 <= now - kept.at < STATUS_SECONDS
        # While another thread renders, a request gets the older page, if there is one.
        if not fresh and self._rendering.acquire(blocking=kept is None):
            try:
                if self._kept is kept:
                    body = statuspage.render(page.view, now, self._path)
                    self._kept = _Rendered(page, now, HttpResponse(200, HTML, body))
                kept = self._kept
            finally:
                self._rendering.release()
        return kept.response if kept is not None else NOT_YET


def routes(
    sampler: Sampler,
    telemetry_path: str,
    legacy_path: bool,
    clock: Callable[[], float] = time.time,
) -> Routes:
    """The exporter's paths; ``legacy_path`` adds gpu-manager's."""
    metrics = metrics_page(sampler.body, NOT_YET)
    paths: dict[str, Handler] = {
        "/": _StatusPage(sampler, telemetry_path, clock),
        telemetry_path: metrics,
    }
    if legacy_path:
        paths.setdefault(LEGACY_PATH, metrics)
    return program_routes("exporter", paths, ready=lambda: "" if sampler.ready else UNREADY)
