"""Sources of pages: an exporter over HTTP, several at the same time, or this node's own sampler.

Every failure of a server to answer is an Unanswered with a message that a person can act on.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from exporter.pages import PROCESSES_PATH
from exporter.processes import process_list
from exporter.sampler import MetricsPage
from vgpu.io.http_client import (
    BadUrl,
    HttpClient,
    HttpError,
    HttpFailure,
    HttpUrl,
    UrlWithUser,
    shown_url,
)
from vgpu.metrics.render import Format
from vgpu.sources.http_access import BadOption, ClientOptions, authorization, tls_context
from vgpucli.this_node import ThisNode
from vgpucli.top.reading import PageProcess, PageReading, PageShare

TIMEOUT_SECONDS: Final = 5.0
"""Default maximum time of a whole exchange, in seconds."""

BODY_LIMIT: Final = 16 * 2**20
"""Maximum size of an answer, in bytes: the sums of 170,000 pods, and twice the page of a node with
thousands of containers. A page of this size is read in 6 s, with 150 MiB."""

UNAUTHORIZED_HINT: Final = "it asks for a password: --username and --password-file"
"""What to do about HTTP status 401."""

_OK: Final = 200


class Unanswered(Exception):  # noqa: N818  # it is no error of ours
    """No answer came; the message has the reason. ``refused``: no server listens there."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class HttpSource:
    """A server by its URL, which ``flag`` has."""

    def __init__(
        self,
        url: str,
        access: ClientOptions,
        timeout: float = TIMEOUT_SECONDS,
        flag: str = "--url",
        limit: int | None = None,
    ) -> None:
        """Read the certificates and the password. Raises BadOption."""
        try:
            parts = HttpUrl.parse(url if "://" in url else f"http://{url}")
        except UrlWithUser as error:
            raise BadOption(f"{flag}: {error}; use --username and --password-file") from None
        except BadUrl as error:
            raise BadOption(f"{flag} {shown_url(url)}".rstrip() + f": {error}") from None
        self.path, self.query, self.name = parts.path, parts.query, parts.origin
        tls = tls_context(access) if parts.scheme == "https" else None
        if tls is None and access.needs_tls:
            raise BadOption(f"--ca-file, --cert and --key need an https {flag}")
        self._authorization = authorization(access)
        self._client = HttpClient(parts, tls, timeout, limit or BODY_LIMIT)

    def get(self, target: str, accept: str, hints: Mapping[int, str], otherwise: str) -> str:
        """The answer to a request for ``target``, a path with its query. Raises Unanswered.

        ``hints`` are what to do about another HTTP status than 200, ``otherwise`` is for the rest.
        """
        try:
            answer = self._client.exchange({"Accept": accept, **self._authorization}, target)
        except HttpError as error:
            refused = error.failure is HttpFailure.REFUSED
            raise Unanswered(_why(error), refused=refused) from error
        if answer.status != _OK:
            hint = hints.get(answer.status, otherwise)
            raise Unanswered(f"HTTP status {answer.status}: {hint}")
        return answer.content.decode("utf-8", "replace")


def _why(error: HttpError) -> str:
    match error.failure:
        case HttpFailure.CERTIFICATE:
            return f"its certificate: {error.detail} (--ca-file)"
        case HttpFailure.TIMEOUT:
            return f"no answer {error.detail}"
        case HttpFailure.REFUSED | HttpFailure.UNREACHABLE:
            return error.detail
    return str(error)


LEAVING_SECONDS = 1.0
"""Maximum time to wait for a running sample at the end, in seconds."""

ACCEPT = "text/plain;version=0.0.4"


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


class Exporter(HttpSource):
    """An exporter by its URL."""

    def __init__(
        self, url: str, access: ClientOptions, timeout: float = TIMEOUT_SECONDS, flag: str = "--url"
    ) -> None:
        """Read the certificates and the password. Raises BadOption."""
        super().__init__(url, access, timeout, flag)
        self._flag = flag
        path = self.path if self.path.strip("/") else "/metrics"
        self._target = f"{path}?{self.query}" if self.query else path

    def page(self) -> str:
        """Request the newest page. Raises Unanswered."""
        return self._get(self._target, f"the path of its metrics belongs into {self._flag}")

    def processes(self) -> str:
        """Request the processes, beside the page. Raises Unanswered."""
        folder, _, _ = self._target.partition("?")[0].rstrip("/").rpartition("/")
        return self._get(f"{folder}{PROCESSES_PATH}", "the exporter is older")

    def _get(self, target: str, missing: str) -> str:
        hints = {401: UNAUTHORIZED_HINT, 404: missing}
        return self.get(target, ACCEPT, hints, "is this a vgpu exporter?")

    def leave(self, status: int) -> int:
        """Nothing is kept between two requests."""
        return status


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


Answer = PageReading | str
"""A page as values, or the reason why there is none."""


class SeveralExporters:
    """Exporters that are asked at the same time; one without an answer is named, not waited for."""

    def __init__(self, urls: Sequence[str], make: Callable[[str], Exporter]) -> None:
        """``make`` raises BadOption for a URL that cannot be used."""
        self.name = f"{len(urls)} exporters"
        made = [(url, make(url)) for url in urls]  # which refuses what _node cannot read
        self._exporters = {_node(url): exporter for url, exporter in made}
        self._pool = ThreadPoolExecutor(len(self._exporters), "top")

    def page(self) -> str:
        """The pages one after another, which is no page: :meth:`read` keeps them apart."""
        return "\n".join(exporter.page() for exporter in self._exporters.values())

    def processes(self) -> str:
        """Nothing: :meth:`read` asks each exporter."""
        return ""

    def read(self, ask: Callable[[Exporter], Answer]) -> Answer:
        """The pages of all that answer, as one; the reasons if none does."""
        answers = dict(
            zip(self._exporters, self._pool.map(ask, self._exporters.values()), strict=True)
        )
        return merged(answers)

    def leave(self, status: int) -> int:
        """The status; nothing is waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return status


def merged(answers: dict[str, Answer]) -> Answer:
    """The pages by node as one page: GPUs have their node, and silent exporters are problems."""
    readings = {name: page for name, page in answers.items() if isinstance(page, PageReading)}
    silent = [f"{name}: {reason}" for name, reason in answers.items() if isinstance(reason, str)]
    if not readings:
        return "; ".join(silent)

    def failing() -> Iterator[str]:
        yield from silent
        for name, page in readings.items():
            yield from (f"{collector} on {name}" for collector in page.failing)

    pages = readings.values()

    def shares(kind: Callable[[PageReading], Iterable[PageShare]]) -> tuple[PageShare, ...]:
        return tuple(
            replace(share, node=name) for name, page in readings.items() for share in kind(page)
        )

    return PageReading(
        timestamp=max(page.timestamp for page in pages),
        interval=max(page.interval for page in pages),
        devices=tuple(
            replace(device, node=name) for name, page in readings.items() for device in page.devices
        ),
        shares=shares(lambda page: page.shares),
        idle=shares(lambda page: page.idle),
        failing=tuple(failing()),
        stuck_seconds=max(page.stuck_seconds for page in pages),
        units=tuple(chain.from_iterable(page.units for page in pages)),
        processes=_all_processes(readings),
        tokens=tuple(
            replace(token, node=name) for name, page in readings.items() for token in page.tokens
        ),
    )


def _all_processes(readings: Mapping[str, PageReading]) -> tuple[PageProcess, ...] | None:
    """The processes of all pages that have them; None if none has."""
    if all(page.processes is None for page in readings.values()):
        return None
    return tuple(
        replace(row, node=name) for name, page in readings.items() for row in page.processes or ()
    )


def _node(url: str) -> str:
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.netloc.rpartition("@")[2] or url
