"""HTTP/1.1 messages as values: a strict parser of request heads, and responses as one byte string.

RFC 9110 and 9112, without what our clients never need: a body must come with its length, not in
chunks. Anything ambiguous (folded lines, bare CR or LF, repeated framing headers) is refused,
because two parsers that read one request differently are how requests are smuggled past a proxy.
Everything here is pure.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus

import msgspec

MAX_HEAD = 16 * 1024
"""Maximum size of the request line and all headers together, in bytes."""
MAX_LINE = 8 * 1024
"""Maximum size of the request line, in bytes."""
MAX_FIELDS = 100
"""Maximum number of header lines in one request."""

Headers = tuple[tuple[str, str], ...]

_TEXT = bytes([*b"\t\r\n", *range(0x20, 0x7F), *range(0x80, 0x100)])
_VISIBLE = bytes(range(0x21, 0x7F))
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SINGLE = frozenset({"host", "content-length", "transfer-encoding", "authorization"})
_MAX_DIGITS = 18
"""Maximum digits of a Content-Length; with more it is longer than any body may be."""
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: vgpu\r\n"
    for status in HTTPStatus
}


def _stays() -> bool:
    return False


class HttpRequest(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        method: as sent, e.g. ``GET``.
        path: as sent, not percent-decoded; of ``http://host/path`` only ``/path``.
        query: what follows ``?``, raw.
        headers: lower-case name -> value; repeated headers are joined by ``", "``.
        body: as sent; empty where the route takes none.
        client_left: whether the client has left meanwhile, for a handler that waits.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    client_left: Callable[[], bool] = _stays


class HttpResponse(msgspec.Struct, frozen=True):
    """One response. Server, Date, Content-Length and Connection are added when it is sent."""

    status: int
    headers: Headers = ()
    body: bytes = b""


Handler = Callable[[HttpRequest], HttpResponse]
"""Answers the requests of one path, on many threads at once."""


class Head(msgspec.Struct, frozen=True):
    """A request before its body is read.

    Attributes:
        request: without its body.
        keep_alive: whether the client may send another request over this connection.
        body_length: bytes that follow; None if they follow in chunks.
        waits_to_send: whether the client sends the body only after 100 Continue (Expect).
    """

    request: HttpRequest
    keep_alive: bool
    body_length: int | None = 0
    waits_to_send: bool = False

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.body_length != 0


class BadRequest(Exception):  # noqa: N818 - the name HTTP gives it
    """A request that is refused, with the ``status`` and the ``message`` for its sender."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def plain(status: int, message: str, headers: Headers = ()) -> HttpResponse:
    """A response that is one line of text."""
    content_type = ("Content-Type", "text/plain; charset=utf-8")
    return HttpResponse(status, (content_type, *headers), f"{message}\n".encode())


def check_partial(received: bytes) -> None:
    """Refuse the beginning of a request that no further byte can make right.

    Raises:
        BadRequest: it is too long, does not begin like HTTP, or ends its first line wrongly.
    """
    if not received:
        return
    if not received[:1].isalpha():
        raise BadRequest(400, "not an HTTP request; this port speaks plain HTTP")
    newline = received.find(b"\n")
    if newline > 0 and received[newline - 1 : newline] != b"\r":
        raise BadRequest(400, "lines must end in CR LF")
    if newline < 0 and len(received) > MAX_LINE:
        raise BadRequest(414, f"the request line is longer than {MAX_LINE} bytes")
    if len(received) > MAX_HEAD:
        raise BadRequest(431, f"the headers are longer than {MAX_HEAD} bytes")


def parse_head(head: bytes) -> Head:
    """Parse what precedes the empty line of a request.

    Raises:
        BadRequest: for everything that is not a plain, unambiguous HTTP/1.0 or 1.1 request.
    """
    if len(head) > MAX_HEAD:
        raise BadRequest(431, f"the headers are longer than {MAX_HEAD} bytes")
    if head.translate(None, _TEXT):
        raise BadRequest(400, "control character in the request")
    request_line, *fields = head.split(b"\r\n")
    if not head.count(b"\r") == head.count(b"\n") == len(fields):
        raise BadRequest(400, "lines must end in CR LF")
    if len(request_line) > MAX_LINE:
        raise BadRequest(414, f"the request line is longer than {MAX_LINE} bytes")
    if len(fields) > MAX_FIELDS:
        raise BadRequest(431, f"more than {MAX_FIELDS} headers")
    method, path, query, version = _parse_request_line(request_line)
    headers = _parse_fields(fields)
    if version == b"HTTP/1.1" and "host" not in headers:
        raise BadRequest(400, "the Host header is missing")
    is_newest = version == b"HTTP/1.1"
    closes = "close" in headers.get("connection", "").lower()
    return Head(
        HttpRequest(method, path, query, headers),
        keep_alive=is_newest and not closes,
        body_length=_body_length(headers, is_newest),
        waits_to_send=is_newest and headers.get("expect", "").lower() == "100-continue",
    )


def _parse_request_line(line: bytes) -> tuple[str, str, str, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise BadRequest(400, "the request line must be METHOD TARGET VERSION")
    method, target, version = parts
    if not method or method.translate(None, _TOKEN):
        raise BadRequest(400, "the method is not a token")
    if not target or target.translate(None, _VISIBLE):
        raise BadRequest(400, "the request target must be visible ASCII")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        if version.startswith(b"HTTP/"):
            raise BadRequest(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        raise BadRequest(400, "the request line does not end in an HTTP version")
    scheme, _, rest = target.partition(b"://")
    if scheme.lower() in (b"http", b"https"):  # absolute form, RFC 9112 section 3.2.2
        target = b"/" + rest.partition(b"/")[2]
    path, _, query = target.decode("ascii").partition("?")
    return method.decode("ascii"), path, query, version


def _parse_fields(fields: Iterable[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in fields:
        raw, colon, value = line.partition(b":")
        if not colon or not raw or raw.translate(None, _TOKEN):  # also refuses folded lines
            raise BadRequest(400, "a header line must be NAME: VALUE")
        name = raw.decode("ascii").lower()
        text = value.strip(b" \t").decode("latin-1")
        if name not in headers:
            headers[name] = text
        elif name in _SINGLE:
            raise BadRequest(400, f"the header {name} appears twice")
        else:
            headers[name] += f", {text}"
    return headers


def _body_length(headers: Mapping[str, str], is_newest: bool) -> int | None:
    """RFC 9112 section 6.3; None is a body in chunks, ``is_newest`` HTTP/1.1."""
    length = headers.get("content-length")
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if length is not None:
            raise BadRequest(400, "both Content-Length and Transfer-Encoding")
        if not is_newest or coding.lower().rpartition(",")[2].strip() != "chunked":
            raise BadRequest(400, "where the body ends cannot be known; send Content-Length")
        return None
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()):
        raise BadRequest(400, "Content-Length is not a number")
    digits = length.lstrip("0")
    return int(digits or "0") if len(digits) <= _MAX_DIGITS else sys.maxsize


def render(
    response: HttpResponse,
    *,
    unix_time: int,
    head_only: bool = False,
    close: bool = False,
    policy: Headers = (),
) -> bytes:
    """The response as it goes over the wire: one byte string, hence one write.

    ``policy`` holds the operator's headers; they replace the handler's of the same name.
    """
    headers = response.headers
    if policy:
        replaced = {name.lower() for name, _ in policy}
        headers = (*(pair for pair in headers if pair[0].lower() not in replaced), *policy)
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
    head = (
        f"{_STATUS_LINES[response.status]}Date: {_http_date(unix_time)}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        f"{'Connection: close' if close else 'Connection: keep-alive'}\r\n{lines}\r\n"
    ).encode("latin-1")
    return head if head_only else head + response.body


@lru_cache(maxsize=1)
def _http_date(unix_time: int) -> str:
    """IMF-fixdate, RFC 9110 section 5.6.7. Not strftime, which follows the locale."""
    at = time.gmtime(unix_time)
    return (
        f"{_DAYS[at.tm_wday]}, {at.tm_mday:02} {_MONTHS[at.tm_mon - 1]} {at.tm_year} "
        f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"
    )


def accepts_gzip(header: str | None) -> bool:
    """Whether an Accept-Encoding header allows gzip (RFC 9110 section 12.5.3; q=0 forbids)."""
    allowed = {"gzip": False}
    for item in (header or "").lower().split(","):
        coding, *parameters = (part.strip() for part in item.split(";"))
        weights = [part[2:].strip() for part in parameters if part.startswith("q=")]
        allowed[coding] = not weights or _positive(weights[0])
        if coding == "gzip":
            return allowed[coding]
    return allowed.get("x-gzip", False) or allowed.get("*", False)


def _positive(number: str) -> bool:
    try:
        return float(number) > 0
    except ValueError:
        return False
