"""Samples are written into a Prometheus, in the protocol by which it writes to another one.

Remote write 1.0: snappy's block format around the protobuf WriteRequest {timeseries = 1:
{labels = 1: {name = 1, value = 2}, samples = 2: {value = 1, timestamp = 2}}}. All of it is sent as
snappy's literals, which need no compression.
"""

import http.client
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

Series = tuple[Mapping[str, str], Sequence[tuple[int, float]]]
"""Labels with ``__name__``, and (milliseconds, value) in the order of time."""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(tag: int, content: bytes) -> bytes:
    return bytes((tag << 3 | 2,)) + _varint(len(content)) + content


@cache
def _moment(milliseconds: int) -> bytes:
    """Of one scrape many samples are written."""
    return b"\x10" + _varint(milliseconds)


@cache
def _double(value: float) -> bytes:
    return struct.pack("<d", value)


def _series(labels: Mapping[str, str], samples: Sequence[tuple[int, float]]) -> bytes:
    parts = [
        _field(1, _field(1, name.encode()) + _field(2, value.encode()))
        for name, value in sorted(labels.items())
    ]
    for moment, value in samples:
        at = _moment(moment)
        parts += (bytes((0x12, 9 + len(at), 0x09)), _double(value), at)
    return _field(1, b"".join(parts))


def _snappy(content: bytes) -> bytes:
    parts = [_varint(len(content))]
    for at in range(0, len(content), 1 << 16):
        chunk = content[at : at + (1 << 16)]
        parts += [b"\xf4", struct.pack("<H", len(chunk) - 1), chunk]
    return b"".join(parts)


def write(port: int, series: Iterable[Series]) -> None:
    """Write the series; those of one call may have any order, those of a later one are later."""
    body = _snappy(b"".join(_series(*each) for each in series))
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/api/v1/write", body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status in (200, 204), f"{response.status} {text}"
    finally:
        connection.close()
