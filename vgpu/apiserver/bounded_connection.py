"""Connections to an API server whose answers end in time, however slowly they come.

urllib3's read timeout holds for each byte. Here it holds for a whole answer, with its head and all
``100 Continue`` before it. Of a stream, which is read as it comes, it holds for the head, and then
again for each silence; a refused stream is an answer. The connect timeout holds for a proxy's whole
answer to CONNECT.
"""

import time
from typing import Any, Final

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError

from vgpu.io.deadline_socket import DeadlineSocket
from vgpu.io.http_client import HEAD_LIMIT

LONGEST_ANSWER: Final = 256 * 2**20
"""Maximum size of a whole answer as it is sent, in bytes; 500 pods of 100 KiB are 50 MB."""

_OK: Final = 200


class BoundedAnswers(HTTPConnection):
    """A connection, by http or as a base of one by https."""

    _is_stream = False

    def connect(self) -> None:
        """As urllib3 does."""
        super().connect()
        self.sock: Any = DeadlineSocket(self.sock)

    def request(self, *args: Any, preload_content: bool = True, **more: Any) -> None:
        """As urllib3 does."""
        self._is_stream = not preload_content
        self._limit(None, None)  # those of the answer before
        super().request(*args, preload_content=preload_content, **more)

    def getresponse(self) -> Any:
        """The answer; without the rest of its content where a stream was asked for."""
        deadline = _deadline(self.timeout)
        sock = self.sock  # urllib3 may close the connection, and the answer is still read
        self._limit(deadline, LONGEST_ANSWER)
        if not self._is_stream:
            return super().getresponse()
        response = super().getresponse()
        if response.status == _OK:
            sock.deadline = sock.allowance = None
        return response

    def _tunnel(self) -> None:
        """Ask the proxy for a connection to the server, as ``http.client`` does."""
        sock = self.sock
        self.sock = DeadlineSocket(sock)
        self._limit(_deadline(self.timeout), HEAD_LIMIT)
        try:
            super()._tunnel()
        except TimeoutError as error:
            self.close()
            raise ConnectTimeoutError(self, "the proxy does not answer") from error
        if self.sock is not None:
            self.sock.settimeout(self.timeout)
            self.sock = sock

    def _limit(self, deadline: float | None, allowance: int | None) -> None:
        if self.sock is not None:
            self.sock.deadline, self.sock.allowance = deadline, allowance


def _deadline(seconds: object) -> float | None:
    return time.monotonic() + seconds if isinstance(seconds, int | float) else None


class BoundedPool(urllib3.HTTPConnectionPool):
    """The pool of such connections by http."""

    ConnectionCls = BoundedAnswers
