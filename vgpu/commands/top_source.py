"""Sources of pages for `vgpu top`: an exporter over HTTP, or this node's own sampler.

Every failure of an exporter to answer is an Unanswered with a message that a person can act on.
Requests are direct: without the environment's proxy, without redirects, each on its own connection.
"""

import os
import ssl
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from exporter.pages import PROCESSES_PATH
from exporter.processes import process_list
from exporter.sampler import MetricsPage
from vgpu.commands.this_node import ThisNode
from vgpu.metrics.render import Format
from vgpu.reasons import SourceError
from vgpu.sources.files import read_file

TIMEOUT_SECONDS = 5.0
PAGE_LIMIT = 64 * 2**20
"""Maximum size of a page, in bytes; a node with thousands of containers has a tenth."""

LEAVING_SECONDS = 1.0
"""Maximum time to wait for a running sample at the end, in seconds."""

CHUNK = 64 * 1024
PASSWORD_LIMIT = 4096
HINTS = {
    401: "it asks for a password: --username and --password-file",
    404: "the path of its metrics belongs into --url",
}


class Unanswered(Exception):  # noqa: N818  # it is no error of ours
    """No page came; the message has the reason. ``refused``: no server listens there."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class BadOption(Exception):  # noqa: N818  # as click calls its own
    """A flag's value cannot be used; the message names the flag."""


class PageSource(Protocol):
    """A source of metrics pages."""

    name: str

    def page(self) -> str:
        """The newest page. Raises Unanswered."""
        ...

    def processes(self) -> str:
        """The processes on the GPUs, as the exporter's JSON. Raises Unanswered."""
        ...

    def leave(self, status: int) -> int:
        """Release everything before the end; returns the exit status."""
        ...


class ClientOptions(msgspec.Struct, frozen=True):
    """Credentials that the exporter's web config may require; all but ``username`` are paths."""

    ca_file: str | None = None
    cert: str | None = None
    key: str | None = None
    username: str | None = None
    password_file: str | None = None


class Exporter:
    """An exporter by its URL."""

    def __init__(self, url: str, access: ClientOptions, timeout: float = TIMEOUT_SECONDS) -> None:
        """Read the certificates and the password. Raises BadOption."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise BadOption(f"--url {url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not host or not parts.netloc.isprintable():
            raise BadOption(f"--url {url!r}: give http://HOST:PORT or https://HOST:PORT")
        if parts.username is not None:
            raise BadOption("--url: a password in it would be seen; use --password-file")
        self._host = host
        path = parts.path if parts.path.strip("/") else "/metrics"
        self._target = f"{path}?{parts.query}" if parts.query else path
        if not (self._target.isascii() and self._target.isprintable()) or " " in self._target:
            raise BadOption(f"--url {url!r}: its path has characters that need %-encoding")
        self.name = f"{parts.scheme}://{parts.netloc}"
        self._tls = _tls(access) if parts.scheme == "https" else None
        if self._tls is None and (access.ca_file or access.cert or access.key):
            raise BadOption("--ca-file, --cert and --key need an https --url")
        self._headers = {"Accept": "text/plain;version=0.0.4", **_authorization(access)}
        self._timeout = timeout

    def page(self) -> str:
        """Request the newest page. Raises Unanswered."""
        return self._get(self._target, HINTS)

    def processes(self) -> str:
        """Request the processes, beside the page. Raises Unanswered."""
        folder, _, _ = self._target.partition("?")[0].rstrip("/").rpartition("/")
        return self._get(f"{folder}{PROCESSES_PATH}", {**HINTS, 404: "the exporter is older"})

    def _get(self, target: str, hints: Mapping[int, str]) -> str:
        connection = (
            HTTPConnection(self._host, self._port, timeout=self._timeout)
            if self._tls is None
            else HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)
        )
        try:
            connection.request("GET", target, headers=self._headers)
            response = connection.getresponse()
            if response.status != 200:
                hint = hints.get(response.status, "is this a vgpu exporter?")
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

    def leave(self, status: int) -> int:
        """Nothing is kept between two requests."""
        return status

    def _body(self, response: HTTPResponse) -> bytes:
        """The whole body, unless it is too large or takes too long."""
        deadline = time.monotonic() + self._timeout
        body = bytearray()
        while chunk := response.read1(CHUNK):
            body += chunk
            if len(body) > PAGE_LIMIT:
                raise Unanswered(f"the page is larger than {PAGE_LIMIT >> 20} MiB")
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


class Sampled:
    """This node, sampled with every page."""

    def __init__(self, node: ThisNode) -> None:
        self.name = f"{node.name}, sampled directly"
        self._node = node
        self._sampling = threading.Lock()
        self._sampled: MetricsPage | None = None

    def page(self) -> str:
        """Sample now."""
        with self._sampling:
            self._sampled = self._node.sample().page
            return self._sampled.exposition.body(Format.TEXT).decode()

    def processes(self) -> str:
        """The processes of the newest sample."""
        page = self._sampled
        return msgspec.json.encode(process_list(page.view)).decode() if page else "{}"

    def leave(self, status: int) -> int:
        """Ends the process if the driver does not answer, since it must not be closed then."""
        if not self._sampling.acquire(timeout=LEAVING_SECONDS):
            sys.stdout.flush()
            os._exit(status)
        return self._node.leave(status)
