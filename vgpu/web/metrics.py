"""A page of metrics over HTTP: in the format that the client prefers, compressed if it may be."""

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from vgpu.metrics.family import FamilyTable
from vgpu.metrics.render import Format, Renderer
from vgpu.web.message import Handler, HttpRequest, HttpResponse, accepts_gzip, plain

_OPENMETRICS: Final = "application/openmetrics-text"
_TEXT: Final = "text/plain"
_WEIGHT: Final = re.compile(r"[01](\.\d{0,3})?")
_NOT_YET: Final = plain(503, "there are no metrics yet")


def wanted_format(accept: str) -> Format:
    """OpenMetrics 1.0 if the client wants it at least as much as text, else text 0.0.4."""
    weights: dict[str, float] = {}
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        values = dict(p.split("=", 1) for p in parameters if "=" in p)
        if media != _OPENMETRICS or values.get("version", "1.0.0") == "1.0.0":
            weight = values.get("q", "1")
            quality = float(weight) if _WEIGHT.fullmatch(weight) else 0.0
            weights[media] = max(quality, weights.get(media, 0.0))
    wanted = weights.get(_OPENMETRICS, 0.0)
    return Format.OPENMETRICS if wanted and wanted >= weights.get(_TEXT, 0.0) else Format.TEXT


class LiveMetrics:
    """Tables over a view that is taken again for each request. Safe to use from several threads."""

    def __init__(self, tables: Iterable[FamilyTable], view: Callable[[], Any]) -> None:
        self._view = view
        self._renderer = Renderer(tables)
        self._lock = threading.Lock()

    def body(self, fmt: Format, gzip: bool) -> bytes:
        """The page of now in one format, compressed or not."""
        with self._lock:
            exposition = self._renderer.render(self._view())
        return exposition.body(fmt, gzip)


def metrics_page(
    body: Callable[[Format, bool], bytes | None], not_yet: HttpResponse = _NOT_YET
) -> Handler:
    """Answers with ``body(format, compressed)``; None there is ``not_yet``."""

    def metrics(request: HttpRequest) -> HttpResponse:
        fmt = wanted_format(request.headers.get("accept", ""))
        gzip = accepts_gzip(request.headers.get("accept-encoding"))
        content = body(fmt, gzip)
        if content is None:
            return not_yet
        headers = (("Content-Type", fmt.value), ("Vary", "Accept, Accept-Encoding"))
        packed = (*headers, ("Content-Encoding", "gzip")) if gzip else headers
        return HttpResponse(200, packed, content)

    return metrics
