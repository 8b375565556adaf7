"""The messages between Gemini's hook and its pod manager. Pure.

A request has 80 bytes, a response 40, both padded with zeros, little endian and unaligned. There is
no handshake and no version. Source: Gemini tag v1.0 ``src/comm.cpp``; branch v1.1-kubeshare has the
same layout, but other numbers in a QUOTA: see :func:`times`. The answers are those of its pod
manager.

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

MAX_BURST_MS: Final = 3_600_000.0
"""Maximum burst or idle time, in milliseconds; a longer one is not measured but a stray number. The
hook joins bursts with pauses below 2 ms, and doubles them (v1.0 ``src/hook.cpp:350``)."""

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
    NUMBER = "number", "a time is no number, negative or too long"
    SWAPPED = "swapped", "burst and idle time are in the places of overuse and burst (Gemini 1.1)"
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


def opens_a_connection_for_each_message(first_id: int) -> bool:
    """Whether a hook opens one; ``first_id`` is the id of the first message of its connection.

    A process counts its messages of all types from 0 (Gemini ``src/comm.cpp:29``, ``:62``). Gemini
    1.0 sends them all through one connection (v1.0 ``src/hook.cpp:245``), which so begins with 0.
    Gemini 1.1 and later open a connection for each (v1.1-kubeshare ``:366``, master ``:312``), so
    that only the first one of a process begins with 0; with threads it may carry several messages.
    """
    return first_id > 0


class QuotaTimes(msgspec.Struct, frozen=True, gc=False):
    """What a process claims when it asks for the token; times in microseconds.

    Attributes:
        overuse: time for which its kernels ran after its last quota; None if it is not sent.
        burst: its longest burst of kernels within 3 s; 0 if it had none.
        idle: its longest pause between two bursts within 3 s; 0 if it is not sent.
    """

    overuse: int | None
    burst: int
    idle: int = 0


def times(
    request: QuotaRequest, window: int, *, is_swapped: bool
) -> tuple[QuotaTimes, MalformedMessage | None]:
    """What a process claims, and what was wrong with it.

    An overuse that is no number from 0 to ``window`` (microseconds) counts as 0, and so does a
    burst that is none from 0 to an hour. A burst that is longer than the window counts as the
    window: that of a process that is always busy grows without an end.

    With ``is_swapped`` the two numbers are burst and idle time: Gemini 1.1 and later pass an array
    where the overuse belongs (v1.1-kubeshare ``src/hook.cpp:501``, master ``:448``), so that each
    number is from a register of the call before, ``estimate_full_burst(burst, window)`` (``:595``).
    No message has the overuse. The first message of a process has id 0 and follows no token: it has
    no overuse.
    """
    second = _burst(request.burst_ms, window)
    if is_swapped:
        first = _burst(request.overuse_ms, window)
        return QuotaTimes(None, first or 0, second or 0), MalformedMessage.SWAPPED
    milliseconds = request.overuse_ms
    is_time = 0 <= milliseconds * 1000 <= window
    overuse = round(milliseconds * 1000) if is_time and request.id != 0 else 0
    kind = None if is_time and second is not None else MalformedMessage.NUMBER
    return QuotaTimes(overuse, second or 0), kind


def _burst(milliseconds: float, window: int) -> int | None:
    """The microseconds, up to ``window``; None for what is no burst."""
    if not 0 <= milliseconds <= MAX_BURST_MS:  # not a number is not
        return None
    return min(round(milliseconds * 1000), window)


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
