"""Who may look at the page of a laptop: whoever has the key that was printed, and nobody by chance.

    GET /?key=K       303 to / with the cookie, once; K is no key any more
    GET / with cookie 200
    GET /             403

A browser sends requests for other pages, too: those have a foreign Host (DNS rebinding, 421), a
foreign Origin, or ``Sec-Fetch-Site: cross-site`` (403). Other users of the machine have no key.
"""

import hmac
import secrets
import threading
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from vgpu.web.message import Handler, HttpRequest, HttpResponse, plain

_WRONG_HOST: Final = plain(421, "this page is for a browser on this machine: use its own address")
_FOREIGN: Final = plain(403, "another page has asked for this one")
_NO_KEY: Final = plain(403, "open the address that vgpu fleet has printed: its key works once")

_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
"""The hosts of a browser on this machine."""

_OWN_SITES: Final = ("", "same-origin", "none")
"""Values of Sec-Fetch-Site of requests that no other page has caused."""


class Door:
    """Lets requests in that have the cookie of this process."""

    def __init__(self) -> None:
        self._key = secrets.token_urlsafe(32)
        self._value = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._port = ""

    def address(self, url: str) -> str:
        """The address to print, with the key; ``url`` is where the program listens."""
        self._port = url.rpartition(":")[2].strip("/")
        return f"{url.rstrip('/')}/?key={self._key}"

    def guarded(self, handler: Handler) -> Handler:
        """The handler behind the door."""

        def guard(request: HttpRequest) -> HttpResponse:
            return self._refusal(request) or handler(request)

        return guard

    def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        headers = request.headers
        hosts = {f"{name}:{self._port}" for name in _NAMES}
        if headers.get("host", "").lower() not in hosts:
            return _WRONG_HOST
        origin = headers.get("origin", "")
        is_own = not origin or origin.lower().removeprefix("http://") in hosts
        if not is_own or headers.get("sec-fetch-site", "") not in _OWN_SITES:
            return _FOREIGN
        if self._has_cookie(headers.get("cookie", "")):
            return None
        (key, *_) = parse_qs(request.query).get("key", [""])
        if request.method == "GET" and self._takes(key):
            return _entered(request.path, self._cookie_name, self._value)
        return _NO_KEY

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


def _entered(path: str, name: str, value: str) -> HttpResponse:
    cookie = f"{name}={value}; Path=/; HttpOnly; SameSite=Strict"
    headers = (
        ("Location", path if path.startswith("/") and not path.startswith("//") else "/"),
        ("Set-Cookie", cookie),
        ("Cache-Control", "no-store"),
        ("Referrer-Policy", "no-referrer"),
    )
    return HttpResponse(HTTPStatus.SEE_OTHER, headers)
