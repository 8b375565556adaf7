"""What is served under which path: the metrics, the page for people, the probes."""

import time
from collections.abc import Mapping

from exporter import statuspage
from exporter.sampler import Sampler
from vgpu.web.message import Handler, Request, Response
from vgpu.web.metrics import metrics_page
from vgpu.web.probes import probes

HTML = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
    ("X-Content-Type-Options", "nosniff"),
)
PLAIN = (("Content-Type", "text/plain; charset=utf-8"),)
NOT_YET = Response(503, PLAIN, b"no sample has been taken yet\n")

LEGACY_PATH = "/metric"
"""Where gpu-manager serves its metrics."""


def routes(sampler: Sampler, telemetry_path: str, legacy_path: bool) -> Mapping[str, Handler]:
    """The exporter's paths; ``legacy_path`` adds gpu-manager's."""
    metrics = metrics_page(sampler.body, NOT_YET)

    def status(_: Request) -> Response:
        page = sampler.page
        if page is None:
            return NOT_YET
        return Response(200, HTML, statuspage.render(page.view, time.time(), telemetry_path))

    def healthy(_: Request) -> Response:
        return Response(200, PLAIN, b"vgpu exporter is healthy\n")

    def ready(_: Request) -> Response:
        if not sampler.ready:
            return NOT_YET
        return Response(200, PLAIN, b"vgpu exporter is ready\n")

    paths = {
        "/": status,
        telemetry_path: metrics,
        **probes(healthy, ready),
    }
    if legacy_path:
        paths.setdefault(LEGACY_PATH, metrics)
    return paths
