"""The HTTP client of every program for servers that are not the API server.

One request and its answer on a connection of its own: no proxy of the environment, no redirect, no
compression. Whatever answers is not trusted:

    seconds of an exchange, from the first connection to the last byte <= ``seconds``
    bytes of its status lines and headers <= HEAD_LIMIT, and of its content <= ``limit``

The resolver of host names has its own time limit, which Python cannot shorten. No error and no name
that is shown has a header, the path or the query of a URL, or a password.
"""

import enum
import socket
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from vgpu.io.deadline_socket import DeadlineSocket, TooManyBytes
from vgpu.model.printable_text import printable

HEAD_LIMIT: Final = 64 * 1024
"""Maximum size of all status lines and headers of an answer, in bytes."""

_CHUNK: Final = 64 * 1024
_PORTS: Final = {"http": 80, "https": 443}
_OK: Final = 200


class HttpFailure(enum.Enum):
    """Why an exchange has failed."""

    REFUSED = "no server listens there"
    TIMEOUT = "no answer in time"
    CERTIFICATE = "the server's certificate is not valid"
    TOO_LARGE = "the answer is too large"
    TRUNCATED = "the answer was cut short"
    MALFORMED = "the answer is not HTTP"
    UNREACHABLE = "the server cannot be reached"


class HttpError(Exception):
    """An exchange has failed; ``detail`` is one printable line about it, or ""."""

    def __init__(self, failure: HttpFailure, detail: str = "") -> None:
        super().__init__(f"{failure.value}: {detail}" if detail else failure.value)
        self.failure = failure
        self.detail = detail


class BadUrl(ValueError):  # noqa: N818  # as BadOption
    """A URL cannot be used; the message has the reason and no part of the URL."""


class UrlWithUser(BadUrl):
    """The URL has a user or password."""


class HttpUrl(msgspec.Struct, frozen=True):
    """A URL without user and password; ``target`` is its path and query as they are sent."""

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The parts of ``http://HOST[:PORT][/PATH]``. Raises BadUrl."""
        try:
            parts = urlsplit(text)
            host, port, user = parts.hostname, parts.port, parts.username
        except ValueError:
            raise BadUrl("host or port are not those of a URL") from None
        if user is not None or "@" in parts.netloc:
            raise UrlWithUser("a password in it would be seen")
        if parts.scheme not in _PORTS or not host or not _is_host(host):
            raise BadUrl("give http://HOST:PORT or https://HOST:PORT")
        if not (_is_plain(f"{parts.path}?{parts.query}") and text.isprintable()):
            raise BadUrl("its path has characters that need %-encoding")
        return cls(parts.scheme, host, port or _PORTS[parts.scheme], parts.path, parts.query)

    @property
    def target(self) -> str:
        """The path and query of a request."""
        path = self.path or "/"
        return f"{path}?{self.query}" if self.query else path

    @property
    def origin(self) -> str:
        """The URL without path and query, which may be secrets: how it is shown."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


def shown_url(text: str) -> str:
    """The text of a URL that cannot be used, quoted; "" where it may have a password."""
    return "" if "@" in text else repr(printable(text.partition("?")[0]))


def _is_host(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable() and not set(host) & set(' "<>\\^`{|}')


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def is_header_value(text: str) -> bool:
    """Whether HTTP can carry the text as the value of a header."""
    return text.isprintable() and text.isascii()


class HttpAnswer(msgspec.Struct, frozen=True):
    """The answer; ``content`` is b"" for another status than 200."""

    status: int
    content: bytes


class HttpClient(msgspec.Struct, frozen=True):
    """Exchanges with the server of a URL. Any thread may use it.

    Attributes:
        url: the URL, whose target is the default of a request.
        tls: the certificates, for https.
        seconds: maximum time of an exchange, in seconds.
        limit: maximum size of the content, in bytes; with 0 it is not read.
        server_name: the name in the server's certificate, if it is not the host.
    """

    url: HttpUrl
    tls: ssl.SSLContext | None
    seconds: float
    limit: int
    server_name: str | None = None

    def exchange(
        self,
        headers: Mapping[str, str],
        target: str = "",
        method: str = "GET",
        body: bytes | None = None,
    ) -> HttpAnswer:
        """One request, and its answer. Raises HttpError."""
        connection = _Connection(self, time.monotonic() + self.seconds)
        try:
            connection.request(method, target or self.url.target, body, dict(headers))
            with connection.getresponse() as response:
                content = self._content(response) if response.status == _OK and self.limit else b""
                return HttpAnswer(response.status, content)
        except HttpError:
            raise
        except Exception as error:  # noqa: BLE001  # a defect is raised again
            raise _failure(error, self.seconds) from None
        finally:
            connection.close()

    def _content(self, response: HTTPResponse) -> bytes:
        if response.getheader("Content-Encoding", "identity").lower() != "identity":
            raise HttpError(HttpFailure.MALFORMED, "it is compressed")
        content = bytearray()
        while chunk := response.read1(_CHUNK):
            content += chunk
            if len(content) > self.limit:
                raise HttpError(HttpFailure.TOO_LARGE, f"more than {_size(self.limit)}")
        if response.length:  # missing bytes, which read1 does not report
            raise HttpError(HttpFailure.TRUNCATED)
        return bytes(content)


class _Connection(HTTPConnection):
    """One connection, all of which ends at a deadline."""

    def __init__(self, client: HttpClient, deadline: float) -> None:
        super().__init__(client.url.host, client.url.port)
        self._client, self._deadline = client, deadline
        self._bounded: DeadlineSocket | None = None

    def connect(self) -> None:
        url, tls = self._client.url, self._client.tls
        sock = _connected(url.host, url.port, self._deadline)
        try:
            if tls is not None:
                sock.settimeout(_left(self._deadline))
                sock = tls.wrap_socket(sock, server_hostname=self._client.server_name or url.host)
        except BaseException:
            sock.close()
            raise
        self._bounded = DeadlineSocket(sock)
        self._bounded.settimeout(None)
        self._bounded.deadline, self._bounded.allowance = self._deadline, HEAD_LIMIT
        self.sock = self._bounded

    def getresponse(self) -> HTTPResponse:
        response = super().getresponse()
        if self._bounded is not None:
            self._bounded.allowance = None
        return response


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """A connection to one of the host's addresses, which share the time. Raises OSError."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError("the host has no address")
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(deadline) / (len(addresses) - number))
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _failure(error: Exception, seconds: float) -> HttpError:  # noqa: PLR0911  # a table
    """The error without what it quotes: a message of ``http.client`` may have a header's value."""
    match error:
        case ssl.SSLCertVerificationError():
            return HttpError(HttpFailure.CERTIFICATE, printable(str(error.verify_message)))
        case TooManyBytes():
            return HttpError(HttpFailure.TOO_LARGE, f"headers of more than {_size(HEAD_LIMIT)}")
        case TimeoutError():
            return HttpError(HttpFailure.TIMEOUT, f"within {seconds:g} s")
        case ConnectionRefusedError():
            return HttpError(HttpFailure.REFUSED, _text(error))
        case OSError():
            return HttpError(HttpFailure.UNREACHABLE, _text(error))
        case HTTPException():
            return HttpError(HttpFailure.MALFORMED)
        case UnicodeError() | ValueError():
            return HttpError(HttpFailure.UNREACHABLE, "the request cannot be sent")
    raise error


def _text(error: OSError) -> str:
    return printable(error.strerror or type(error).__name__).lower()


def _size(number: int) -> str:
    return f"{number >> 20} MiB" if number >> 20 else f"{number >> 10} KiB"
