"""A server that answers GET over HTTP: an exporter, or a Prometheus.

Every failure of a server to answer is an Unanswered with a message that a person can act on.
Requests are direct: without the environment's proxy, without redirects, each on its own connection.
"""

import ssl
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from vgpu.sources.http_access import BadOption, ClientOptions, authorization, tls_context

TIMEOUT_SECONDS = 5.0
BODY_LIMIT = 64 * 2**20
"""Maximum size of an answer, in bytes; a node with thousands of containers has a tenth."""

CHUNK = 64 * 1024
UNAUTHORIZED_HINT = "it asks for a password: --username and --password-file"
"""What to do about HTTP status 401."""


class Unanswered(Exception):  # noqa: N818  # it is no error of ours
    """No answer came; the message has the reason. ``refused``: no server listens there."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class HttpSource:
    """A server by its URL, which ``flag`` has."""

    def __init__(
        self, url: str, access: ClientOptions, timeout: float = TIMEOUT_SECONDS, flag: str = "--url"
    ) -> None:
        """Read the certificates and the password. Raises BadOption."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise BadOption(f"{flag} {url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not host or not parts.netloc.isprintable():
            raise BadOption(f"{flag} {url!r}: give http://HOST:PORT or https://HOST:PORT")
        if parts.username is not None:
            raise BadOption(f"{flag}: a password in it would be seen; use --password-file")
        self._host = host
        self.path, self.query = parts.path, parts.query
        whole = f"{parts.path}?{parts.query}"
        if not (whole.isascii() and whole.isprintable()) or " " in whole:
            raise BadOption(f"{flag} {url!r}: its path has characters that need %-encoding")
        self.name = f"{parts.scheme}://{parts.netloc}"
        self._tls = tls_context(access) if parts.scheme == "https" else None
        if self._tls is None and access.needs_tls:
            raise BadOption(f"--ca-file, --cert and --key need an https {flag}")
        self._authorization = authorization(access)
        self._timeout = timeout

    def get(self, target: str, accept: str, hints: Mapping[int, str], otherwise: str) -> str:
        """The answer to a request for ``target``, a path with its query. Raises Unanswered.

        ``hints`` are what to do about another HTTP status than 200, ``otherwise`` is for the rest.
        """
        connection = (
            HTTPConnection(self._host, self._port, timeout=self._timeout)
            if self._tls is None
            else HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)
        )
        try:
            connection.request("GET", target, headers={"Accept": accept, **self._authorization})
            response = connection.getresponse()
            if response.status != 200:
                hint = hints.get(response.status, otherwise)
                raise Unanswered(f"HTTP status {response.status}: {hint}")
            return self._body(response).decode("utf-8", "replace")
        except ssl.SSLCertVerificationError as error:
            raise Unanswered(f"its certificate: {error.verify_message} (--ca-file)") from error
        except TimeoutError as error:
            raise Unanswered(f"no answer within {self._timeout:.0f} s") from error
        except (OSError, HTTPException, UnicodeError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unanswered(why.lower(), refused=refused) from error
        finally:
            connection.close()

    def _body(self, response: HTTPResponse) -> bytes:
        """The whole body, unless it is too large or takes too long."""
        deadline = time.monotonic() + self._timeout
        body = bytearray()
        while chunk := response.read1(CHUNK):
            body += chunk
            if len(body) > BODY_LIMIT:
                raise Unanswered(f"the page is larger than {BODY_LIMIT >> 20} MiB")
            if time.monotonic() > deadline:
                raise TimeoutError
        if response.length:  # missing bytes, which read1 does not report
            raise Unanswered("the page was cut short")
        return bytes(body)
