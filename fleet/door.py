"""Who may look at the page of a laptop: whoever has the key that was printed, and nobody by chance.

    GET /?key=K       303 to / with the cookie, once; K is no key any more
    GET /?key=K       from the file of --open, which is another site: 200, a page that leads to /
    GET / with cookie 200
    GET /             403

A browser sends requests for other pages, too: those have a foreign Host (DNS rebinding, 421), a
foreign Origin, or ``Sec-Fetch-Site: cross-site`` (403). Other users of the machine have no key.
"""

import hmac
import secrets
import threading
from html import escape
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from vgpu.web.message import Handler, HttpRequest, HttpResponse, plain

_WRONG_HOST: Final = plain(421, "this page is for a browser on this machine: use its own address")
_FOREIGN: Final = plain(403, "another page has asked for this one")
_NO_KEY: Final = plain(403, "open the address that vgpu fleet has printed: its key works once")

_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
"""The hosts of a browser on this machine."""

_HTTP_PORT: Final = "80"
"""The port that a browser leaves out of the Host."""

_OWN_SITES: Final = ("", "same-origin", "none")
"""Values of Sec-Fetch-Site of requests that no other page has caused."""


class Door:
    """Lets requests in that have the cookie of this process."""

    def __init__(self) -> None:
        self._key = secrets.token_urlsafe(32)
        self._value = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._port = ""
        self._hosts: frozenset[str] = frozenset()

    def address(self, url: str, *others: str) -> str:
        """The address to print, with the key; the program listens at ``url`` and the ``others``."""
        ports = [each.rpartition(":")[2].strip("/") for each in (url, *others)]
        self._port = ports[0]
        hosts = {f"{name}:{port}" for name in _NAMES for port in ports}
        self._hosts = frozenset(hosts | ({*_NAMES} if _HTTP_PORT in ports else set()))
        return f"{url.rstrip('/')}/?key={self._key}"

    def guarded(self, handler: Handler) -> Handler:
        """The handler behind the door."""

        def guard(request: HttpRequest) -> HttpResponse:
            return self._refusal(request) or handler(request)

        return guard

    def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        headers = request.headers
        if headers.get("host", "").lower() not in self._hosts:
            return _WRONG_HOST
        origin = headers.get("origin", "")
        is_own = not origin or origin.lower().removeprefix("http://") in self._hosts
        is_sent_by_own = headers.get("sec-fetch-site", "") in _OWN_SITES
        (key, *_) = parse_qs(request.query).get("key", [""])
        has_key = is_own and request.method == "GET" and bool(key)
        if not is_own or not (is_sent_by_own or has_key):
            return _FOREIGN
        if is_sent_by_own and self._has_cookie(headers.get("cookie", "")):
            return None
        if has_key and self._takes(key):
            entered = _entered(request.path, self._cookie_name, self._value)
            return entered if is_sent_by_own else _through_own_page(entered)
        return _NO_KEY if is_sent_by_own else _FOREIGN

    @property
    def _cookie_name(self) -> str:
        return f"vgpu-fleet-{self._port}"

    def _has_cookie(self, header: str) -> bool:
        pairs = (part.strip().partition("=") for part in header.split(";"))
        values = [value for name, _, value in pairs if name == self._cookie_name]
        return any(hmac.compare_digest(value.encode(), self._value.encode()) for value in values)

    def _takes(self, key: str) -> bool:
        """Whether this is the key; from then on it is none."""
        with self._lock:
            is_key = bool(self._key) and hmac.compare_digest(key.encode(), self._key.encode())
            if is_key:
                self._key = ""
            return is_key


def opening_page(address: str) -> str:
    """A file that leads a browser to the address: other users see a command line, not the file."""
    return f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(address)}">'


def _through_own_page(entered: HttpResponse) -> HttpResponse:
    """The same by a page: to where a foreign page redirects, a browser sends no Strict cookie."""
    headers = dict(entered.headers)
    body = opening_page(headers.pop("Location")).encode()
    headers["Content-Type"] = "text/html; charset=utf-8"
    return HttpResponse(HTTPStatus.OK, tuple(headers.items()), body)


def _entered(path: str, name: str, value: str) -> HttpResponse:
    cookie = f"{name}={value}; Path=/; HttpOnly; SameSite=Strict"
    headers = (
        ("Location", path if path.startswith("/") and not path.startswith("//") else "/"),
        ("Set-Cookie", cookie),
        ("Cache-Control", "no-store"),
        ("Referrer-Policy", "no-referrer"),
    )
    return HttpResponse(HTTPStatus.SEE_OTHER, headers)
