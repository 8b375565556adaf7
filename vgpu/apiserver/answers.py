"""An API server's answers: their content, unpacked within limits, and refusals with their text.

A thousand bytes unpack from one. For what is sent of an answer, and for its content alike:

    size <= LONGEST_ANSWER

A stream is unpacked part by part; its reader bounds its lines. The API server packs answers of
more than 128 KiB with gzip, in one member, and packs no stream (staging/src/k8s.io/apiserver/pkg/
endpoints/handlers/responsewriters/writers.go). A failed request is a
:class:`~vgpu.kube.errors.ClusterError` with one line of text.
"""

import ssl
import zlib
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    DecodeError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)

from vgpu.apiserver.bounded_connection import LONGEST_ANSWER
from vgpu.kube.errors import GONE, ClusterError, ExpiredError, one_line
from vgpu.model.go_json import decode_go

ENCODING: Final = "gzip"
"""The encoding that we ask for; no other one is read."""

_READ_BYTES: Final = 64 * 1024
"""Maximum number of bytes of a stream that are read, or unpacked, at a time."""

_GZIP: Final = 16 + zlib.MAX_WBITS
"""zlib's number for data with gzip's header and trailer."""


def content(response: urllib3.BaseHTTPResponse) -> bytes:
    """The whole content. Raises HTTPError."""
    data = response.data
    if not data or not _is_packed(response):
        return data
    unpacker = zlib.decompressobj(_GZIP)
    text = _unpacked(unpacker, data, LONGEST_ANSWER + 1)
    if len(text) > LONGEST_ANSWER:
        raise DecodeError(
            f"the answer has more than {LONGEST_ANSWER >> 20} MiB when it is unpacked"
        )
    if not unpacker.eof:
        raise DecodeError("the answer was cut short")
    _expect_no_more(unpacker)
    return text


def pieces(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """The content of a stream as it arrives, each part of bounded size. Raises HTTPError."""
    if not _is_packed(response):
        yield from _sent_pieces(response)
        return
    unpacker = zlib.decompressobj(_GZIP)
    for sent in _sent_pieces(response):
        rest, piece = sent, b""
        while rest or len(piece) == _READ_BYTES:  # zlib may hold some of it without any rest
            piece = _unpacked(unpacker, rest, _READ_BYTES)
            if piece:
                yield piece
            rest = unpacker.unconsumed_tail
        _expect_no_more(unpacker)


def _sent_pieces(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """As they were sent: in chunks, as an API server sends a stream, or without any.

    ``read_chunked`` costs less than half of what ``read1`` costs for each event.
    """
    if response.chunked:
        yield from response.read_chunked(_READ_BYTES, decode_content=False)
        return
    while data := response.read1(_READ_BYTES, decode_content=False):
        yield data


def _is_packed(response: urllib3.BaseHTTPResponse) -> bool:
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", ENCODING):
        raise DecodeError("the answer has an encoding that was not asked for")
    return encoding == ENCODING


def _unpacked(unpacker: "zlib._Decompress", data: bytes, limit: int) -> bytes:
    try:
        return unpacker.decompress(data, limit)
    except zlib.error:
        raise DecodeError("the answer is not gzip, in spite of its header") from None


def _expect_no_more(unpacker: "zlib._Decompress") -> None:
    if unpacker.unused_data:
        raise DecodeError("the answer goes on after its packed content")


_QUOTED: Final = 200
"""Maximum number of quoted bytes of an answer that is not a Status, such as a proxy's page."""

_REDIRECTIONS: Final = range(300, 400)


class _ListMeta(msgspec.Struct, frozen=True):
    continue_token: str = msgspec.field(name="continue", default="")


class _Cause(msgspec.Struct, frozen=True):
    message: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: tuple[_Cause, ...] | None = None


class _Status(msgspec.Struct, frozen=True):
    """A Kubernetes Status, which is the body of a refusal."""

    reason: str = ""
    message: str = ""
    metadata: _ListMeta = _ListMeta()
    details: _Details | None = None


_STATUS: Final = msgspec.json.Decoder(_Status)


def refusal(server: str, response: urllib3.BaseHTTPResponse) -> ClusterError:
    """The error in an answer. Raises HTTPError if the rest of the answer does not come."""
    status = _status(server, response)
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


def _status(server: str, response: urllib3.BaseHTTPResponse) -> _Status:
    """The Status of an answer; for another body, such as a proxy's page, one that quotes it."""
    body = content(response)
    try:
        status = decode_go(body, _STATUS)
    except (msgspec.DecodeError, ValueError, RecursionError):
        status = _Status()
    if status.reason or status.message:
        return status
    if response.status in _REDIRECTIONS:
        place = _place(response.headers.get("Location", ""))
        return _Status(message=f"{server} redirects to {place}, as no API server does")
    quoted = one_line(body[:_QUOTED].decode("utf-8", "replace"))
    text = f": {quoted}" if quoted else ", it is empty"
    return _Status(message=f"{server}: the answer is not from Kubernetes{text}")


def _place(location: str) -> str:
    """Where a redirection leads, without a password and a query."""
    try:
        target = urlsplit(location)
    except ValueError:
        return "no URL"
    host = target.netloc.rpartition("@")[2]
    shown = target._replace(netloc=host, query="", fragment="")
    return one_line(urlunsplit(shown)) or "nowhere"


def unreachable(server: str, error: HTTPError, timeout: urllib3.Timeout) -> ClusterError:
    """The error of a request without an answer."""
    cause = getattr(error, "reason", None) or error  # the cause of the last try's failure
    return ClusterError(0, "Unreachable", f"{server}: {_cause_text(cause, timeout)}")


def _cause_text(cause: BaseException, timeout: urllib3.Timeout) -> str:
    text = str(cause)
    match cause:
        case NameResolutionError():
            text = "the host is unknown"
        case NewConnectionError():
            origin = cause.__cause__
            text = str(getattr(origin, "strerror", None) or origin or cause).lower()
        case ProxyError():
            text = f"the proxy: {_cause_text(cause.original_error, timeout)}"
        case ConnectTimeoutError():
            text = f"no connection within {timeout.connect_timeout:g} s"
        case ReadTimeoutError():
            text = f"no answer within {timeout.total or timeout.read_timeout:g} s"
        case SSLError():
            text = f"TLS: {_tls_text(cause)}"
        case ProtocolError() if len(cause.args) > 1:
            text = f"{str(cause.args[0]).rstrip('.')}: {cause.args[1]}"
    return one_line(text)


def _tls_text(error: SSLError) -> str:
    origin = error.args[0] if error.args else error
    if isinstance(origin, ssl.SSLCertVerificationError):
        return f"the server's certificate is not valid: {origin.verify_message}"
    return one_line(str(getattr(origin, "reason", None) or origin)).replace("_", " ").lower()
