"""The connection to one API server, as one user: requests and refusals.

A request that the server refuses or that does not reach it raises :class:`ClusterError`. Reads are
tried again when the server is busy or a connection breaks; writes never are, since they may have
arrived. Every request is counted. Safe to use from several threads.
"""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlencode

import urllib3

from vgpu.apiserver.access import CONNECTIONS, Access, NoAccess, as_pod
from vgpu.apiserver.answers import ENCODING, content, pieces, refusal, unreachable
from vgpu.apiserver.retries import AGAIN, ONCE, READ_TIMEOUT
from vgpu.kube.errors import GONE, NO_CONFIGURATION, ClusterError, ExpiredError
from vgpu.kube.verbs import WATCH, ApiVerb
from vgpu.model.documentation import USER_AGENT
from vgpu.model.reasons import Reason, SourceError

__all__ = ["CONFLICT", "GONE", "NOT_FOUND", "ApiConnection", "ClusterError", "ExpiredError"]

STREAM_GRACE_SECONDS: Final = 15
"""Maximum time to wait for a stream's end after the server should have ended it, in seconds."""

GATHER_SECONDS: Final = 0.5
"""Default time for which a stream's reader without waiting lines lets lines gather, in seconds."""

AT_ONCE_SECONDS: Final = 0.005
"""Maximum duration of a read whose line had already arrived, in seconds, for the default time; a
tenth of a shorter time."""

LONGEST_LINE: Final = 32 * 1024 * 1024
"""Maximum length of a stream's line, in bytes; etcd keeps no object of more than 1.5 MiB."""

NOT_FOUND: Final = 404
CONFLICT: Final = 409
_SUCCESSES: Final = range(200, 300)


class ApiConnection:
    """One API server, as one user. A context manager: it closes its connections at the end."""

    def __init__(
        self,
        access: Access,
        *,
        gather: float = GATHER_SECONDS,
        patience: float = 0.0,
        retries: urllib3.Retry | None = None,
    ) -> None:
        """Use this server.

        ``gather``: seconds for which a stream's reader without waiting lines lets lines gather;
        0 reads each line as soon as it arrives. ``patience``: seconds after which a request
        without its whole answer fails and is not tried again; 0 means READ_TIMEOUT, and reads are
        tried again.
        ``retries`` replaces these rules for reads.
        """
        self._access = access
        self._timeout = urllib3.Timeout(patience, patience) if patience else READ_TIMEOUT
        self._again = retries or (ONCE if patience else AGAIN)
        self._gather = gather
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self.server = access.server
        self.clock_ahead = 0.0
        """Minimum seconds that this machine's clock is ahead of the server's, by the newest answer;
        negative if it is behind. 0 if they may agree, or if it is unknown."""

    @classmethod
    def connect(
        cls,
        kubeconfig: str = "",
        context: str = "",
        *,
        gather: float = GATHER_SECONDS,
        patience: float = 0.0,
        retries: urllib3.Retry | None = None,
        connections: int = CONNECTIONS,
    ) -> Self:
        """The cluster of a kubeconfig, or of the pod that this runs in.

        The order is: ``kubeconfig``; ``$KUBECONFIG``; ``~/.kube/config`` if there is one; the pod's
        ServiceAccount. A kubeconfig that is named and cannot be used is never skipped.
        ``gather``, ``patience`` and ``retries`` are as in ``__init__``; ``connections`` are kept
        open for the next requests.

        Raises:
            ClusterError: NoConfiguration.
        """
        try:
            access = find_access(kubeconfig, context, connections)
        except NoAccess as error:
            raise ClusterError(0, NO_CONFIGURATION, str(error)) from error
        return cls(access, gather=gather, patience=patience, retries=retries)

    def close(self) -> None:
        """Close all connections."""
        self._access.pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def requests(self) -> Mapping[tuple[str, str], int]:
        """Number of requests, by verb and HTTP status; "0" where no answer came.

        Each try of a request counts, if the last try was answered.
        """
        with self._lock:
            return dict(self._requests)

    # ------------------------------------------------------------ for subclasses

    def _ask(
        self,
        verb: ApiVerb,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> bytes:
        """The answer's body. Raises ClusterError."""
        text = None if body is None else json.dumps(body).encode()
        response = self._open(verb, path, query or {}, text)
        try:
            return content(response)
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(self.server, error, self._timeout) from error

    def _stream(
        self,
        path: str,
        query: Mapping[str, str],
        seconds: float,
        opened: Callable[[], object] = lambda: None,
    ) -> Iterator[bytes]:
        """The lines of a watch, which the server was asked to keep open for ``seconds``.

        ``opened`` is called when the server has accepted it, before the first line.

        Lines that come closer together than ``gather`` come a moment later and together, since a
        wake-up for each costs thirty times the reading. Others come at once, and so do the first
        two after a silence. Bytes without a newline at the end are dropped.
        Raises ClusterError, also if the stream breaks off; SourceError for a line without end.
        """
        silence = urllib3.Timeout(connect=10, read=seconds + STREAM_GRACE_SECONDS)
        response = self._open(WATCH, path, query, timeout=silence, preload=False)
        try:
            opened()
            rest = bytearray()
            at_once = min(AT_ONCE_SECONDS, self._gather / 10)
            asked_at = time.monotonic()
            for piece in pieces(response):
                waited = time.monotonic() - asked_at
                first, newline, more = piece.partition(b"\n")
                rest += first
                if newline:
                    *lines, last = more.split(b"\n")
                    yield from filter(None, (bytes(rest), *lines))
                    rest = bytearray(last)
                if len(rest) > LONGEST_LINE:
                    detail = f"a line of more than {LONGEST_LINE} bytes"
                    raise SourceError(Reason.MALFORMED, self.server + path, detail)
                if at_once < waited < self._gather:
                    time.sleep(self._gather)
                asked_at = time.monotonic()
            if response.length_remaining:
                missing = f"{response.length_remaining} bytes are missing"
                raise ClusterError(0, "Unreachable", f"{self.server}: {missing}")
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(self.server, error, silence) from error
        finally:
            response.close()

    # ------------------------------------------------------------ requests

    def _open(
        self,
        verb: ApiVerb,
        path: str,
        query: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: urllib3.Timeout | None = None,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": ENCODING,
            "User-Agent": USER_AGENT,
            **self._credentials(),
        }
        if body is not None:
            headers["Content-Type"] = verb.content_type
        patience = timeout or self._timeout
        sent_at = time.time()
        try:
            response = self._access.pool.request(
                verb.method,
                f"{self.server}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=body,
                headers=headers,
                retries=self._again if verb.method == "GET" else ONCE,
                redirect=False,  # an API server does not send us elsewhere; a login page would
                timeout=patience,
                preload_content=preload,
                decode_content=False,  # unpacked within limits by vgpu.apiserver.answers
            )
        except urllib3.exceptions.HTTPError as error:
            self._count(verb, 0)
            raise unreachable(self.server, error, patience) from error
        self.clock_ahead = clock_ahead(response.headers.get("Date", ""), sent_at, time.time())
        tries = response.retries.history if response.retries else ()
        self._count(verb, response.status, *(tried.status or 0 for tried in tries))
        if response.status in _SUCCESSES and not _is_page(response):
            return response
        try:
            raise refusal(self.server, response)
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(self.server, error, patience) from error

    def _credentials(self) -> Mapping[str, str]:
        try:
            return self._access.credentials()
        except NoAccess as error:
            raise ClusterError(0, NO_CONFIGURATION, str(error)) from None

    def _count(self, verb: ApiVerb, *codes: int) -> None:
        with self._lock:
            self._requests.update((verb.word, str(code)) for code in codes)


def find_access(kubeconfig: str = "", context: str = "", connections: int = CONNECTIONS) -> Access:
    """The access, as ``ApiConnection.connect`` describes it. Raises NoAccess."""
    path = kubeconfig or os.environ.get("KUBECONFIG", "")
    home = Path.home() / ".kube" / "config"
    if not path and (context or home.exists()):
        path = str(home)
    if path:
        from vgpu.apiserver.kubeconfig import access  # noqa: PLC0415  # it is large

        return access(path, context, connections)
    try:
        return as_pod(os.environ, connections=connections)
    except (KeyError, OSError, ValueError) as error:
        why = f"{error.args[0]} is not set" if isinstance(error, KeyError) else str(error)
        raise NoAccess(
            "no cluster is configured: pass --kubeconfig FILE or set KUBECONFIG"
            f" ({home} does not exist, and this is not a pod: {why})"
        ) from error


def _is_page(response: urllib3.BaseHTTPResponse) -> bool:
    """Whether it is a page for people, as a proxy's login is; no API server answers with one."""
    return response.headers.get("Content-Type", "").lower().startswith("text/html")


def clock_ahead(date: str, sent_at: float, received_at: float) -> float:
    """The value of :attr:`ApiConnection.clock_ahead`, by an answer's Date and our times around it.

    A Date has whole seconds, rounded down (RFC 9110).
    """
    try:
        server_time = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    if server_time + 1 < sent_at:
        return sent_at - server_time - 1
    return min(0.0, received_at - server_time)
