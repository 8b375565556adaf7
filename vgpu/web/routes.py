"""The route of a path: methods, maximum body, and the answers to all other requests."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vgpu.web.message import Handler, Head, HttpResponse, plain
from vgpu.web.names import canonical_name

_NOT_FOUND: Final = plain(404, "404 page not found")
_NO_BODY: Final = plain(413, "request bodies are not read here")
_NO_LENGTH: Final = plain(411, "send the body with a Content-Length, not in chunks")


class Route(msgspec.Struct, frozen=True):
    """The handler of one path, and its limits.

    Attributes:
        handler: answers the requests that are not refused.
        methods: the allowed methods; HEAD comes with GET. Without any the path does not exist.
        max_body: Maximum size of a request's body, in bytes; 0 takes none.
        too_long: the answer to a longer body, for a client that reads no other status; None is 413.
        client_sans: the names (subjectAltName) of which a client's certificate must have one, as
            :func:`vgpu.web.names.canonical_name` writes them; None lets every client in.
    """

    handler: Handler
    methods: tuple[str, ...] = ("GET",)
    max_body: int = 0
    too_long: HttpResponse | None = None
    client_sans: frozenset[str] | None = None

    def allowed(self) -> tuple[str, ...]:
        """The methods, as the Allow header names them."""
        return (*self.methods, "HEAD") if "GET" in self.methods else self.methods

    def refusal(self, head: Head) -> HttpResponse | None:
        """The answer to a request whose body is not even read; None if it is to be handled."""
        if not self.methods:
            return _NOT_FOUND
        allowed = self.allowed()
        if head.request.method not in allowed:
            return plain(405, "Method Not Allowed", (("Allow", ", ".join(allowed)),))
        return self._body_refusal(head.body_length)

    def _body_refusal(self, length: int | None) -> HttpResponse | None:
        if length == 0:
            return None
        if not self.max_body:
            return _NO_BODY
        if length is None:
            return _NO_LENGTH
        if length <= self.max_body:
            return None
        return self.too_long or plain(413, f"the body is longer than {self.max_body} bytes")


NOWHERE: Final = Route(lambda _: _NOT_FOUND, methods=())
"""The route of all other paths."""

Routes = Mapping[str, Handler | Route]
"""Path -> its route; a bare handler answers GET and HEAD and takes no body. A path is exact, unless
it ends in ``/*``, which stands for one or more further segments."""

_BELOW: Final = "/*"


def route_of(entry: Handler | Route) -> Route:
    """An entry of :data:`Routes`, written out."""
    return entry if isinstance(entry, Route) else Route(entry)


def restricted(routes: Routes, sans: Iterable[str]) -> Routes:
    """The routes for clients whose certificate has one of the names; without names as they are."""
    names = frozenset(map(canonical_name, sans))
    if not names:
        return routes
    return {
        path: msgspec.structs.replace(route_of(entry), client_sans=names)
        for path, entry in routes.items()
    }


def find_route(routes: Mapping[str, Route], path: str) -> tuple[str, Route]:
    """The entry of a path: the exact one, or else the longest one that it is below."""
    if path in routes:
        return path, routes[path]
    folder = path
    while folder:
        folder, _, _ = folder.rpartition("/")
        key = folder + _BELOW
        if key in routes and path != f"{folder}/":
            return key, routes[key]
    return "", NOWHERE
