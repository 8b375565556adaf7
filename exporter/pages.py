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

LEGACY_PATH = "/metric"
"""Where gpu-manager serves its metrics."""


def wanted_format(accept: str) -> Format:
    """OpenMetrics if the client asks for it with a positive weight, text 0.0.4 otherwise."""
    for part in accept.split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        if media.lower() == "application/openmetrics-text":
            weight = next((p[2:] for p in parameters if p.lower().startswith("q=")), "1")
            version = next((p[8:] for p in parameters if p.lower().startswith("version=")), "")
            known = version in ("", "0.0.1", "1.0.0")
            if known and not re.fullmatch(r"0(\.0*)?", weight):
                return Format.OPENMETRICS
    return Format.TEXT


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
        if sampler.page is None:
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
