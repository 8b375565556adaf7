"""Sources of pages: an exporter over HTTP, or this node's own sampler."""

import os
import sys
import threading
from typing import Protocol

import msgspec

from exporter.pages import PROCESSES_PATH
from exporter.processes import process_list
from exporter.sampler import MetricsPage
from vgpu.metrics.render import Format
from vgpu.sources.http_access import ClientOptions
from vgpucli.http_source import TIMEOUT_SECONDS, UNAUTHORIZED_HINT, HttpSource
from vgpucli.this_node import ThisNode

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
