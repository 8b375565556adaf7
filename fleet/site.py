"""The answers to requests: pages and their JSON, rendered once for each snapshot.

path, query ──▶ view of the newest snapshot ──▶ body, ETag
kept until the snapshot or an explanation changes
"""

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, urlencode

from fleet.history import HistoryView
from fleet.keeper import Keeper, Kept
from fleet.language import COOKIE, LANGUAGES, PARAMETER, chosen_language, texts_of
from fleet.pages import JSON, Answered, SitePage, find_page, link
from fleet.render import rendered, text_of
from fleet.snapshot import FleetSnapshot
from vgpu.model.document_text import json_text
from vgpu.web.message import Handler, Headers, HttpRequest, HttpResponse, plain

HEADERS: Final[Headers] = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self';"
            " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "private, no-cache"),
    ("Vary", "Cookie, Accept-Language"),
)
"""Headers of each answer: nothing foreign is loaded, and nobody frames the page."""

FILES: Final[Mapping[str, str]] = {
    "/style.css": "text/css; charset=utf-8",
    "/refresh.js": "text/javascript; charset=utf-8",
}
"""The files that are served as they are."""

MOST_KEPT: Final = 64
"""Maximum number of rendered pages that are kept."""

_COOKIE_FOR: Final = "Path=/; Max-Age=31536000; HttpOnly; SameSite=Strict"

_NOT_YET: Final = plain(503, "the cluster has not been read yet", (("Retry-After", "2"),))
_NOT_FOUND: Final = plain(404, "there is no such page, or the object is not there any more")


class Site:
    """All pages of the newest snapshot."""

    def __init__(self, keeper: Keeper, refresh: float) -> None:
        """``refresh`` is after how many seconds a browser asks again, 0 for never."""
        self._keeper = keeper
        self._refresh = refresh
        self._lock = threading.Lock()
        self._answered: tuple[int, Answered] | None = None
        self._bodies: dict[tuple[object, ...], tuple[str, bytes]] = {}
        self._explained = 0

    def changed(self) -> None:
        """An explanation was made: views that show it are rendered again."""
        with self._lock:
            self._explained += 1
            self._bodies.clear()

    def prepare(self, snapshot: FleetSnapshot) -> None:
        """Compute what the first page of a new snapshot needs, on the thread that has read it."""
        kept = self._keeper.kept
        if kept.snapshot is snapshot:
            self._of(kept.number, snapshot).prepare()

    def routes(self) -> dict[str, Handler]:
        """The handlers by path."""
        files = {path: _file(path, content_type) for path, content_type in FILES.items()}
        return {"/": self.answer, "/*": self.answer, **files}

    def answer(self, request: HttpRequest) -> HttpResponse:
        """The page that a request asks for."""
        kept = self._keeper.kept
        if kept.snapshot is None:
            return _NOT_YET
        is_json = request.path.endswith(JSON)
        path = request.path.removesuffix(JSON)
        found = find_page("/" if path == "/index" else path)
        if found is None:
            return _NOT_FOUND
        page, names = found
        query = {name: texts[-1] for name, texts in parse_qs(request.query).items()}
        headers, parameter = request.headers, query.pop(PARAMETER, "")
        language = chosen_language(
            parameter, headers.get("cookie", ""), headers.get("accept-language", "")
        )
        shown = JSON if is_json else language
        made = self._body(kept, kept.snapshot, page, names, query, shown=shown)
        if made is None:
            return _NOT_FOUND
        etag, body = made
        more: Headers = (*HEADERS, ("ETag", etag))
        if parameter in LANGUAGES:
            more = (*more, ("Set-Cookie", f"{COOKIE}={parameter}; {_COOKIE_FOR}"))
        if etag in [each.strip() for each in headers.get("if-none-match", "").split(",")]:
            return HttpResponse(HTTPStatus.NOT_MODIFIED, more)
        kind = "application/json" if is_json else "text/html"
        more = (*more, ("Content-Type", f"{kind}; charset=utf-8"))
        return HttpResponse(HTTPStatus.OK, more, body)

    def _body(
        self,
        kept: Kept,
        snapshot: FleetSnapshot,
        page: SitePage,
        names: tuple[str, ...],
        query: Mapping[str, str],
        *,
        shown: str,
    ) -> tuple[str, bytes] | None:
        turn = 0 if snapshot.history is None else snapshot.history.turn
        asked = tuple(sorted(query.items()))
        key = (kept.number, kept.failure, turn, page.path, names, asked, shown)
        with self._lock:
            known, explained = self._bodies.get(key), self._explained
        if known is not None:
            return known
        view = page.view(self._of(kept.number, snapshot), names, query)
        if view is None:
            return None
        if shown == JSON:
            body = json_text(view).encode() + b"\n"
        else:
            own = link(page.path, *names)
            as_of = datetime.fromtimestamp(snapshot.as_of, UTC)
            values = {
                "view": view,
                "page": page,
                "snapshot": snapshot,
                "now": snapshot.as_of,
                "view_time": f"{as_of:%Y-%m-%dT%H:%M:%SZ}",
                "shown_time": f"{as_of:%Y-%m-%d %H:%M:%S} UTC",
                "json_path": f"{'/index' if own == '/' else own}{JSON}{_query(query)}",
                "with_query": lambda **changed: f"{own}{_query({**query, **changed})}",
                "t": texts_of(shown),
                "failure": kept.failure,
                "refresh": self._refresh,
            }
            body = rendered(page.template, values)
        made = f'"{blake2b(body, digest_size=12).hexdigest()}"', body
        with self._lock:
            if len(self._bodies) >= MOST_KEPT:
                self._bodies.clear()
            if explained == self._explained and not _is_incomplete(view):
                self._bodies[key] = made
        return made

    def _of(self, number: int, snapshot: FleetSnapshot) -> Answered:
        with self._lock:
            if self._answered is None or self._answered[0] != number:
                self._answered = number, Answered(snapshot)
            return self._answered[1]


def _query(query: Mapping[str, str]) -> str:
    return f"?{urlencode(query)}" if query else ""


def _is_incomplete(view: object) -> bool:
    """Whether Prometheus did not answer: the next request asks again."""
    history = getattr(view, "history", None)
    return isinstance(history, HistoryView) and bool(history.problem)


def _file(path: str, content_type: str) -> Handler:
    body = text_of(path.removeprefix("/"))
    response = HttpResponse(200, (*HEADERS, ("Content-Type", content_type)), body)
    return lambda _: response
