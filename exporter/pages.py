"""What is served under which path: the metrics, the page for people, the probes."""

import re
import time
from collections.abc import Mapping

from exporter import statuspage
from exporter.sampler import Sampler
from vgpu.metrics.render import Format
from vgpu.web.message import Handler, Request, Response, accepts_gzip

HTML = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
    ("X-Content-Type-Options", "nosniff"),
)
PLAIN = (("Content-Type", "text/plain; charset=utf-8"),)
NOT_YET = Response(503, PLAIN, b"no sample has been taken yet\n")

OPENMETRICS, TEXT = "application/openmetrics-text", "text/plain"
WEIGHT = re.compile(r"[01](\.\d{0,3})?")

LEGACY_PATH = "/metric"
"""Where gpu-manager serves its metrics."""


def wanted_format(accept: str) -> Format:
    """OpenMetrics 1.0 if the client wants it at least as much as text, else text 0.0.4."""
    weights: dict[str, float] = {}
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        told = dict(p.split("=", 1) for p in parameters if "=" in p)
        if media != OPENMETRICS or told.get("version", "1.0.0") == "1.0.0":
            weight = told.get("q", "1")
            known = float(weight) if WEIGHT.fullmatch(weight) else 0.0
            weights[media] = max(known, weights.get(media, 0.0))
    wanted = weights.get(OPENMETRICS, 0.0)
    return Format.OPENMETRICS if wanted and wanted >= weights.get(TEXT, 0.0) else Format.TEXT


def routes(sampler: Sampler, telemetry_path: str, legacy_path: bool) -> Mapping[str, Handler]:
    """The exporter's paths; ``legacy_path`` adds gpu-manager's."""

    def metrics(request: Request) -> Response:
        fmt = wanted_format(request.headers.get("accept", ""))
        gzip = accepts_gzip(request.headers.get("accept-encoding"))
        body = sampler.body(fmt, gzip)
        if body is None:
            return NOT_YET
        headers = (("Content-Type", fmt.value), ("Vary", "Accept, Accept-Encoding"))
        return Response(200, (*headers, ("Content-Encoding", "gzip")) if gzip else headers, body)

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
        "/-/healthy": healthy,
        "/healthz": healthy,
        "/-/ready": ready,
        "/readyz": ready,
    }
    if legacy_path:
        paths.setdefault(LEGACY_PATH, metrics)
    return paths
