"""The way to one API server, as one user: requests, and refusals.

What the server refuses, and what does not reach it, is a :class:`ClusterError`. Reads are
tried again when the server is busy or a connection breaks; writes never are, since they may have
arrived. Every request is counted. Safe to use from several threads.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from enum import Enum
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlencode

import msgspec
import urllib3

from vgpu.kube.access import Access, NoAccess
from vgpu.kube.configured import find
from vgpu.reasons import Reason, SourceError

READ_TIMEOUT: Final = urllib3.Timeout(connect=10, read=60)
"""Seconds. An eviction may be answered after 10, when the server tries again for us."""

STREAM_GRACE_SECONDS: Final = 15
"""So much longer than the server was to keep a stream open is waited for its end."""

GATHER_SECONDS: Final = 0.5
"""So long a stream's reader that has caught up lets further lines gather, unless told otherwise."""

AT_ONCE_SECONDS: Final = 0.005
"""A read that takes longer had to wait for its line."""

MOST_WAIT_SECONDS: Final = 30
"""What is waited at most before a read is tried again, whatever the server asks for."""

LONGEST_LINE: Final = 32 * 1024 * 1024
"""Bytes of one line of a stream; etcd keeps no object of more than 1.5 MiB."""

NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
NO_CONFIGURATION: Final = "NoConfiguration"
_SUCCESSES: Final = range(200, 300)
_QUOTED: Final = 200
"""Bytes of an answer that are quoted where it is not a Status, such as a proxy's page."""


class Verb(Enum):
    """What a request does, in Kubernetes' words; the value is the HTTP method."""

    GET = ("get", "GET")
    LIST = ("list", "GET")
    WATCH = ("watch", "GET")
    CREATE = ("create", "POST")
    UPDATE = ("update", "PUT")
    PATCH = ("patch", "PATCH")

    def __init__(self, word: str, method: str) -> None:
        self.word = word
        self.method = method


class ClusterError(Exception):
    """The API server cannot be found or reached, or has refused a request.

    Attributes:
        status: the HTTP status; 0 where there was no answer.
        reason: the server's word (``Forbidden``, ``NotFound``, ``Conflict`` …), or
            ``NoConfiguration``, ``Unreachable``, ``WrongClock``.
        message: what it or the network said; of a Forbidden it names the missing right.
        retry_after: seconds that the server asks us to wait, None if it does not.
        causes: what the server says lies behind it, such as a disruption budget with its numbers.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        complete = reason == NO_CONFIGURATION or not message  # the message says it all by itself
        super().__init__((message or reason) if complete else f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes


class ExpiredError(ClusterError):
    """A 410: ``token`` goes on with a list from the same place at a later time, "" if it cannot."""

    def __init__(self, message: str, token: str) -> None:
        super().__init__(GONE, "Expired", message)
        self.token = token


class _Retry(urllib3.Retry):
    """How reads are tried again."""

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        """What the server asks us to wait, within reason."""
        asked = super().get_retry_after(response)
        return None if asked is None else min(asked, MOST_WAIT_SECONDS)


_AGAIN: Final = _Retry(
    total=4,
    connect=1,  # an address where nobody listens rarely changes its mind
    status_forcelist=(429, 502, 503, 504),
    allowed_methods=frozenset({"GET"}),
    backoff_factor=0.3,
    backoff_jitter=0.3,
    backoff_max=10,
    raise_on_status=False,
)
_ONCE: Final = urllib3.Retry(0, raise_on_status=False)


class _ListMeta(msgspec.Struct, frozen=True):
    continue_token: str = msgspec.field(name="continue", default="")


class _Cause(msgspec.Struct, frozen=True):
    message: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: tuple[_Cause, ...] | None = None


class _Status(msgspec.Struct, frozen=True):
    """A Kubernetes Status, as a refusal's body."""

    reason: str = ""
    message: str = ""
    metadata: _ListMeta = _ListMeta()
    details: _Details | None = None


class ApiConnection:
    """One API server, as one user. A context manager: it closes its connections at the end."""

    def __init__(
        self, access: Access, *, gather: float = GATHER_SECONDS, patience: float = 0.0
    ) -> None:
        """Speak to this server.

        ``gather``: so many seconds a stream's reader that has caught up lets further lines gather;
        0 is for who needs each as soon as it is there. ``patience``: after so many seconds of
        silence a request has failed, and is not tried again; 0 is as long as READ_TIMEOUT, and
        reads are.
        """
        self._access = access
        self._timeout = urllib3.Timeout(patience, patience) if patience else READ_TIMEOUT
        self._again = _ONCE if patience else _AGAIN
        self._gather = gather
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self.server = access.server
        self.clock_ahead = 0.0
        """Seconds that this machine's clock is ahead of the server's, behind it if negative: at
        least so many, by the newest answer. 0 if they may agree, or nothing tells."""

    @classmethod
    def connect(
        cls,
        kubeconfig: str = "",
        context: str = "",
        *,
        gather: float = GATHER_SECONDS,
        patience: float = 0.0,
    ) -> Self:
        """The cluster of a kubeconfig, or of the pod that this runs in.

        In order: ``kubeconfig``; ``$KUBECONFIG``; ``~/.kube/config`` if there is one; the pod's
        ServiceAccount. A kubeconfig that is named and cannot be used is never passed over.
        ``gather`` and ``patience`` as in ``__init__``.

        Raises:
            ClusterError: NoConfiguration.
        """
        try:
            return cls(find(kubeconfig, context), gather=gather, patience=patience)
        except NoAccess as error:
            raise ClusterError(0, NO_CONFIGURATION, str(error)) from error

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
        """How many requests there were, by verb and HTTP status; "0" where no answer came.

        Tries of the same request count each, as far as the last of them was answered.
        """
        with self._lock:
            return dict(self._requests)

    # ------------------------------------------------------------ for those who ask

    def _ask(
        self,
        verb: Verb,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> bytes:
        """The answer's body. Raises ClusterError."""
        text = None if body is None else json.dumps(body).encode()
        return self._open(verb, path, query or {}, text, content_type).data

    def _stream(self, path: str, query: Mapping[str, str], seconds: float) -> Iterator[bytes]:
        """The lines of a watch, which the server was asked to keep open for ``seconds``.

        The first after a silence as soon as it is there, others a moment later and together (see
        ``gather``): to wake up for each costs thirty times what reading it does. What follows the
        last is no line.
        Raises ClusterError, also where the stream breaks off; SourceError for a line without end.
        """
        silence = urllib3.Timeout(connect=10, read=seconds + STREAM_GRACE_SECONDS)
        response = self._open(Verb.WATCH, path, query, timeout=silence, preload=False)
        try:
            rest = b""
            asked_at = time.monotonic()
            while chunk := response.read1(decode_content=True):
                caught_up = time.monotonic() - asked_at > AT_ONCE_SECONDS
                *lines, rest = (rest + chunk).split(b"\n")
                yield from filter(None, lines)
                if len(rest) > LONGEST_LINE:
                    detail = f"a line of more than {LONGEST_LINE} bytes"
                    raise SourceError(Reason.MALFORMED, self.server + path, detail)
                if caught_up and self._gather:
                    time.sleep(self._gather)
                asked_at = time.monotonic()
            if response.length_remaining:
                missing = f"{response.length_remaining} bytes are missing"
                raise ClusterError(0, "Unreachable", f"{self.server}: {missing}")
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from error
        finally:
            response.close()

    # ------------------------------------------------------------ requests

    def _open(
        self,
        verb: Verb,
        path: str,
        query: Mapping[str, str],
        body: bytes | None = None,
        content_type: str = "",
        *,
        timeout: urllib3.Timeout | None = None,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
            "User-Agent": "vgpu",
            **self._access.credentials(),
        }
        if body is not None:
            headers["Content-Type"] = content_type
        sent_at = time.time()
        try:
            response = self._access.pool.request(
                verb.method,
                f"{self.server}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=body,
                headers=headers,
                retries=self._again if verb.method == "GET" else _ONCE,
                redirect=False,  # an API server does not send us elsewhere; a login page would
                timeout=timeout or self._timeout,
                preload_content=preload,
            )
        except urllib3.exceptions.HTTPError as error:
            self._count(verb, 0)
            raise self._unreachable(error) from error
        self.clock_ahead = clock_ahead(response.headers.get("Date", ""), sent_at, time.time())
        tries = response.retries.history if response.retries else ()
        self._count(verb, response.status, *(tried.status or 0 for tried in tries))
        if response.status in _SUCCESSES:
            return response
        try:
            raise _refusal(response)
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from error

    def _count(self, verb: Verb, *codes: int) -> None:
        with self._lock:
            self._requests.update((verb.word, str(code)) for code in codes)

    def _unreachable(self, error: urllib3.exceptions.HTTPError) -> ClusterError:
        cause = getattr(error, "reason", None) or error  # what lay behind the last of the tries
        return ClusterError(0, "Unreachable", f"{self.server}: {cause}")


def clock_ahead(date: str, sent_at: float, received_at: float) -> float:
    """As :attr:`ApiConnection.clock_ahead`, by the Date of an answer and our times around it.

    A Date has whole seconds, rounded down (RFC 9110).
    """
    try:
        told = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    if told + 1 < sent_at:
        return sent_at - told - 1
    return min(0.0, received_at - told)


def _refusal(response: urllib3.BaseHTTPResponse) -> ClusterError:
    """The error in an answer; a body that is not a Status (a proxy's page) is quoted in part."""
    body = response.data
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, ValueError, RecursionError):
        status = _Status(message=body[:_QUOTED].decode("utf-8", "replace"))
    if response.status == GONE:
        return ExpiredError(status.message, status.metadata.continue_token)
    retry_after = response.headers.get("Retry-After", "")
    causes = (status.details.causes if status.details else None) or ()
    return ClusterError(
        response.status,
        status.reason or f"HTTP {response.status}",
        status.message,
        float(retry_after) if retry_after.isdecimal() else None,
        tuple(cause.message for cause in causes if cause.message),
    )
