"""The content of an API server's answers, unpacked within limits.

A thousand bytes unpack from one. For what is sent of an answer, and for its content alike:

    size <= LONGEST_ANSWER

A stream is unpacked part by part; its reader bounds its lines. The API server packs answers of
more than 128 KiB with gzip, in one member, and packs no stream (staging/src/k8s.io/apiserver/pkg/
endpoints/handlers/responsewriters/writers.go).
"""

import zlib
from collections.abc import Iterator
from typing import Final

import urllib3
from urllib3.exceptions import DecodeError

from vgpu.apiserver.bounded_connection import LONGEST_ANSWER

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
