"""The names of the nodes that kube-scheduler offers, decoded only if one of them is needed; pure.

A pod that fits on no node of a large cluster is rejected again and again. For that the number of
the names suffices, and one text for all of them: both are found in the JSON as it was sent.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Self, overload

import msgspec

_ENCODER: Final = msgspec.json.Encoder()
_NAMES: Final = msgspec.json.Decoder(tuple[str, ...])
_NOT_PLAIN: Final = (b" ", b"\t", b"\n", b"\r", b"\\")
"""What may be in a list of names in JSON, and is in none that kube-scheduler sends."""


class ListedNames(Sequence[str]):
    """The names in the order in which they were sent, at least one."""

    def __init__(self, inner: bytes, count: int) -> None:
        """``inner`` is the list without its brackets; :meth:`of` has made sure of its form."""
        self._inner = inner
        self._count = count
        self._names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, listed: bytes) -> Self | None:
        """From a list in JSON; None if it has not the form that kube-scheduler's lists have.

        In that form a comma is between two names, so that commas count them.
        """
        inner, commas = listed[1:-1], listed.count(b",")
        is_plain = (
            listed.isascii()  # so that all of it can be decoded
            and listed.startswith(b'["')
            and listed.endswith(b'"]')
            and inner.count(b'","') == commas
            and not any(each in inner for each in _NOT_PLAIN)
        )
        return cls(inner, commas + 1) if is_plain else None

    def each(self, text: str) -> msgspec.Raw:
        """An object in JSON that has the text for each name.

        That takes a third of the time in which a mapping is made and encoded.
        """
        value = b":" + _ENCODER.encode(text)
        return msgspec.Raw(b"{" + self._inner.replace(b",", value + b",") + value + b"}")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self._decoded()[index]

    def _decoded(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = _NAMES.decode(b"[" + self._inner + b"]")
        return self._names
