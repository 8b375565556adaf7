"""The messages between Gemini's hook and its pod manager. Pure.

A request has 80 bytes, a response 40, both padded with zeros, little endian and unaligned. There is
no handshake and no version. Source: Gemini tag v1.0 ``src/comm.cpp``; branch v1.1-kubeshare has the
same layout. The answers are those of its pod manager.

    request    u64 L, L bytes of name, 0, i32 id, i32 type; then by type
               QUOTA f64 overuse ms, f64 burst ms;  MEM_UPDATE u64 bytes, i32 1 allocate, 0 free
    response   i32 id; then QUOTA f64 ms;  MEM_UPDATE i32 verdict;  MEM_LIMIT u64 used, u64 limit
"""

import struct
from enum import IntEnum
from typing import Final

import msgspec

from vgpu.model.reasons import Explained

REQUEST_BYTES: Final = 80
RESPONSE_BYTES: Final = 40

MAX_NAME_BYTES: Final = 63
"""Maximum length of a name: after a longer one, id and type are not within the message."""

NO_BURST_MS: Final = 1e-9
"""Bursts below this, in milliseconds, are none."""

_LENGTH: Final = struct.Struct("<Q")
_HEAD: Final = struct.Struct("<ii")
_TIMES: Final = struct.Struct("<dd")
_UPDATE: Final = struct.Struct("<Qi")
_QUOTA_ANSWER: Final = struct.Struct("<id28x")
_UPDATE_ANSWER: Final = struct.Struct("<ii32x")
_LIMIT_ANSWER: Final = struct.Struct("<iQQ20x")


class MessageType(IntEnum):
    """The third field of a request."""

    QUOTA = 0
    MEM_LIMIT = 1
    MEM_UPDATE = 2


class MalformedMessage(Explained):
    """What is wrong with a message; the value is a label of metrics."""

    LENGTH = "length", "the length of the name does not fit the message"
    TYPE = "type", "the type of the message is unknown"
    CUT = "cut", "the name is so long that the payload is cut off"
    NUMBER = "number", "a time is not a number from 0 to the window"
    SWAPPED = "swapped", "the burst is in the place of the overuse, as Gemini 1.1 sends it"
    FLAG = "flag", "a memory message neither allocates nor frees"


class FrameError(Exception):
    """A message that has no answer; ``kind`` is the reason."""

    def __init__(self, kind: MalformedMessage) -> None:
        super().__init__(kind.explanation)
        self.kind = kind


class QuotaRequest(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A process asks for the token; times in milliseconds as it claims them, nan if cut off."""

    name: bytes
    id: int
    overuse_ms: float
    burst_ms: float


class LimitRequest(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A process asks for its pod's memory limit."""

    name: bytes
    id: int


class UpdateRequest(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A process allocates memory, or has freed some."""

    name: bytes
    id: int
    bytes: int
    allocates: bool


Request = QuotaRequest | LimitRequest | UpdateRequest


def decode(message: bytes) -> Request:
    """One request of exactly 80 bytes. Raises FrameError."""
    (length,) = _LENGTH.unpack_from(message)
    if length > MAX_NAME_BYTES:
        raise FrameError(MalformedMessage.LENGTH)
    name = message[8 : 8 + length]
    id_, type_ = _HEAD.unpack_from(message, 9 + length)
    payload = 17 + length
    if type_ == MessageType.QUOTA:
        padded = message[payload:] + b"\xff" * 16  # what is cut off becomes nan
        return QuotaRequest(name, id_, *_TIMES.unpack_from(padded))
    if type_ == MessageType.MEM_LIMIT:
        return LimitRequest(name, id_)
    if type_ != MessageType.MEM_UPDATE:
        raise FrameError(MalformedMessage.TYPE)
    if payload + _UPDATE.size > REQUEST_BYTES:
        raise FrameError(MalformedMessage.CUT)
    size, flag = _UPDATE.unpack_from(message, payload)
    if flag not in {0, 1}:
        raise FrameError(MalformedMessage.FLAG)
    return UpdateRequest(name, id_, size, flag == 1)


def times(
    request: QuotaRequest, window: int, *, several_connections: bool
) -> tuple[int, int, MalformedMessage | None]:
    """Overuse and burst in microseconds, and what was wrong with them.

    A time that is no number from 0 to ``window`` (microseconds) counts as 0. Gemini 1.1 passes an
    array where a number belongs, so that its burst arrives as overuse. It opens a connection for
    each message, by which it is known.
    """
    overuse, burst = request.overuse_ms, request.burst_ms
    is_overuse, is_burst = _is_time(overuse, window), _is_time(burst, window)
    if several_connections and is_overuse and overuse > 0 and burst < NO_BURST_MS:
        return 0, round(overuse * 1000), MalformedMessage.SWAPPED
    return (
        round(overuse * 1000) if is_overuse else 0,
        round(burst * 1000) if is_burst else 0,
        None if is_overuse and is_burst else MalformedMessage.NUMBER,
    )


def _is_time(milliseconds: float, window: int) -> bool:
    return 0 <= milliseconds * 1000 <= window  # not a number is not


def quota_response(id_: int, microseconds: int) -> bytes:
    """The token for a time."""
    return _QUOTA_ANSWER.pack(id_, microseconds / 1000)


def limit_response(id_: int, used: int, limit: int) -> bytes:
    """What the pod uses of its memory, and its limit, in bytes.

    Gemini's pod manager answers so (v1.0 ``src/pod-manager.cpp:401``); its scheduler's answer to
    the pod manager has 0. The hook compares an allocation with ``limit - used`` before it allocates
    (``src/hook.cpp:533``), without a sign (``:304``), so ``used`` is never above ``limit`` here.
    What is refused after the allocation stays allocated until the process ends (``:544``).
    """
    return _LIMIT_ANSWER.pack(id_, min(used, limit), limit)


def update_response(id_: int, *, accepted: bool) -> bytes:
    """The verdict on a memory message."""
    return _UPDATE_ANSWER.pack(id_, accepted)
