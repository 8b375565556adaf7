"""The routes of every program: probes, and a page at ``/`` with links."""

from collections.abc import Callable
from html import escape
from typing import Final

from vgpu import __version__
from vgpu.web.message import Handler, HttpRequest, HttpResponse, plain
from vgpu.web.routes import Route, Routes, route_of

HEALTHY: Final = ("/-/healthy", "/healthz")
READY: Final = ("/-/ready", "/readyz")
"""Paths of the liveness and readiness probes, in both spellings."""

PROBES: Final = (*HEALTHY, *READY)
"""All paths of probes."""

RESERVED: Final = frozenset({"/", *PROBES})
"""Paths of every program."""

HTML: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
    ("X-Content-Type-Options", "nosniff"),
)
"""Headers of a page for people, which loads nothing and runs nothing."""

Complaint = Callable[[], str]
"""Why a program is not healthy, or not ready; "" if it is. Called on many threads at once."""

_PAGE: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root{{color-scheme:light dark}}
body{{max-width:40em;margin:2em auto;padding:0 16px;font:15px/1.6 system-ui,sans-serif}}
h1{{font-size:20px}}a{{color:inherit}}ul{{padding-left:20px}}
</style></head><body>
<h1>{title}</h1>
<p>version {version}</p>
<ul>
{links}
</ul>
</body></html>
"""


def no_complaint() -> str:
    """The complaint of a program that is always healthy."""
    return ""


def program_routes(
    name: str, own: Routes, *, ready: Complaint = no_complaint, healthy: Complaint = no_complaint
) -> Routes:
    """The routes of the program ``name``: its ``own``, the probes, and a page at ``/``.

    The page links all pages; the program's own page at ``/`` replaces it.
    """
    probes = {
        **dict.fromkeys(HEALTHY, _probe(f"vgpu {name} is healthy", healthy)),
        **dict.fromkeys(READY, _probe(f"vgpu {name} is ready", ready)),
    }
    served = {**own, **probes}
    shown = [path for path, entry in served.items() if _is_shown(path) and _reads(entry)]
    return {"/": _landing_page(f"vgpu {name}", shown), **served}


def _probe(fine: str, complaint: Complaint) -> Handler:
    def probe(_: HttpRequest) -> HttpResponse:
        problem = complaint()
        return plain(503, problem) if problem else plain(200, fine)

    return probe


def _is_shown(path: str) -> bool:
    return path not in (HEALTHY[1], READY[1]) and not path.endswith("/*")


def _reads(entry: Handler | Route) -> bool:
    return "GET" in route_of(entry).methods


def _landing_page(title: str, paths: list[str]) -> Handler:
    links = "\n".join(f'<li><a href="{escape(path)}">{escape(path)}</a></li>' for path in paths)
    page = _PAGE.format(title=escape(title), version=escape(__version__), links=links)
    response = HttpResponse(200, HTML, page.encode())
    return lambda _: response
