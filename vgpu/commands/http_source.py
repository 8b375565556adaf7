"""A server that answers GET over HTTP: an exporter, or a Prometheus.

Every failure of a server to answer is an Unanswered with a message that a person can act on.
Requests are direct: without the environment's proxy, without redirects, each on its own connection.
"""

import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

import msgspec

from vgpu.reasons import SourceError
from vgpu.sources.files import read_file

TIMEOUT_SECONDS = 5.0
BODY_LIMIT = 64 * 2**20
"""Maximum size of an answer, in bytes; a node with thousands of containers has a tenth."""

CHUNK = 64 * 1024
PASSWORD_LIMIT = 4096
UNAUTHORIZED_HINT = "it asks for a password: --username and --password-file"
"""What to do about HTTP status 401."""


class Unanswered(Exception):  # noqa: N818  # it is no error of ours
    """No answer came; the message has the reason. ``refused``: no server listens there."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class BadOption(Exception):  # noqa: N818  # as click calls its own
    """A flag's value cannot be used; the message names the flag."""


class ClientOptions(msgspec.Struct, frozen=True):
    """Credentials that the server may require; all but ``username`` are paths."""

    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None
    username: str | None = None
    password_file: str | None = None


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
        self._tls = _tls(access) if parts.scheme == "https" else None
        if self._tls is None and (access.ca_file or access.cert or access.key):
            raise BadOption(f"--ca-file, --cert and --key need an https {flag}")
        self._authorization = _authorization(access)
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


def _tls(access: ClientOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
    except (OSError, ValueError) as error:
        raise BadOption(f"--ca-file {access.ca_file}: {_error_text(error)}") from error
    if access.cert is None:
        if access.key is not None:
            raise BadOption("--key needs --cert")
        return context
    try:
        context.load_cert_chain(access.cert, access.key, password=_no_password)
    except (OSError, ValueError) as error:
        flags = f"--cert {access.cert}" + (f" --key {access.key}" if access.key else "")
        raise BadOption(f"{flags}: {_error_text(error)}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _error_text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or "no certificate in it"


def _authorization(access: ClientOptions) -> Mapping[str, str]:
    if access.username is None and access.password_file is None:
        return {}
    if access.username is None or access.password_file is None:
        raise BadOption("--username and --password-file belong together")
    try:
        password = read_file(access.password_file, PASSWORD_LIMIT, follow=True).rstrip(b"\r\n")
    except SourceError as error:
        raise BadOption(f"--password-file: {error}") from error
    pair = access.username.encode() + b":" + password
    return {"Authorization": f"Basic {b64encode(pair).decode()}"}
