"""What is served under which path: the metrics, the page for people, the probes."""

import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from exporter import statuspage
from exporter.sampler import MetricsPage, Sampler
from vgpu.program.probes import probes
from vgpu.web.message import Handler, HttpRequest, HttpResponse
from vgpu.web.metrics import metrics_page

HTML = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
    ("X-Content-Type-Options", "nosniff"),
)
PLAIN = (("Content-Type", "text/plain; charset=utf-8"),)
NOT_YET = HttpResponse(503, PLAIN, b"no sample has been taken yet\n")

LEGACY_PATH = "/metric"
"""Where gpu-manager serves its metrics."""


STATUS_SECONDS = 1.0
"""Maximum age of a rendered page for people, in seconds."""


class _Rendered(msgspec.Struct, frozen=True):
    page: MetricsPage
    at: float
    response: HttpResponse


class _StatusPage:
    """The page for people, rendered once for all who ask at a time.

    Rendering takes milliseconds of processor for each container: one for each of many requests
    would leave nothing for a scrape.
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
        # While another renders, who has an older page is given that.
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
) -> Mapping[str, Handler]:
    """The exporter's paths; ``legacy_path`` adds gpu-manager's."""
    metrics = metrics_page(sampler.body, NOT_YET)
    status = _StatusPage(sampler, telemetry_path, clock)

    def healthy(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, PLAIN, b"vgpu exporter is healthy\n")

    def ready(_: HttpRequest) -> HttpResponse:
        if not sampler.ready:
            return NOT_YET
        return HttpResponse(200, PLAIN, b"vgpu exporter is ready\n")

    paths: dict[str, Handler] = {
        "/": status,
        telemetry_path: metrics,
        **probes(healthy, ready),
    }
    if legacy_path:
        paths.setdefault(LEGACY_PATH, metrics)
    return paths
