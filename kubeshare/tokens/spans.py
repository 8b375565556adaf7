"""The times for which a tenant had the token, as a value. Pure; times are whole microseconds.

A tenant has hundreds of them within a window, and each token switch makes new values of two
tenants. They are packed into bytes: copies of tuples touch as many objects, which was a quarter of
the daemon's CPU.
"""

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

_SPAN: Final = struct.Struct("=qq")

Span = tuple[int, int]
"""Begin and end."""


class Spans(msgspec.Struct, frozen=True, gc=False):
    """Spans in order, disjoint; the last one may end in the future.

    Attributes:
        packed: begin and end of each, as 64-bit integers.
        total: the time of all together.
    """

    packed: bytes = b""
    total: int = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.packed)

    def __iter__(self) -> Iterator[Span]:
        """Each, the oldest first."""
        return _SPAN.iter_unpack(self.packed)

    def added(self, start: int, end: int) -> "Spans":
        """With one more, after the others."""
        return Spans(self.packed + _SPAN.pack(start, end), self.total + end - start)

    def ended(self, now: int, overuse: int, least: int = 0) -> "Spans":
        """The last one has ended, now or before, by an overuse after its end; not before ``least``.

        ``end' = max(min(now, end + overuse), least)``
        """
        if not self.packed:
            return self
        start, end = _SPAN.unpack_from(self.packed, len(self.packed) - _SPAN.size)
        last = max(min(now, end + overuse), least)
        others = self.packed[: -_SPAN.size]
        return Spans(others + _SPAN.pack(start, last), self.total + last - end)

    def since(self, since: int) -> "Spans":
        """Without those that ended before."""
        number = time = 0
        for start, end in self:
            if end >= since:
                break
            number += 1
            time += end - start
        return Spans(self.packed[number * _SPAN.size :], self.total - time) if number else self

    def time_since(self, since: int) -> int:
        """The time of all from then on, also the part in the future."""
        time = self.total
        for start, end in self:
            if start >= since:
                break
            time -= min(end, since) - start
        return time
