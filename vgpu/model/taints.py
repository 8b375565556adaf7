"""Taints of nodes, and which of them a pod tolerates: as kube-scheduler decides it. Pure."""

import re
from functools import lru_cache
from typing import Final

import msgspec

from vgpu.model.go_json import decode_go

KEEPS_OFF: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep a pod off a node."""

_EQUAL: Final = "Equal"

_WRITTEN: Final = re.compile(
    r"(?P<key>[^=:\s]+)(?:=(?P<value>[^=:\s]*))?(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A taint of a node, as the API writes it."""

    key: str = ""
    value: str = ""
    effect: str = ""

    @property
    def text(self) -> str:
        """The taint as ``kubectl taint`` takes it."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


CORDON: Final = Taint("node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What a pod must tolerate to be placed on a node that is cordoned."""


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """A toleration of a pod, as the API writes it.

    An empty key with Exists tolerates every taint; no operator is Equal.
    """

    key: str = ""
    operator: str = _EQUAL
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether the toleration is about the taint."""
        exists = self.operator == "Exists"
        equals = self.operator in ("", _EQUAL) and self.value == taint.value
        return (
            self.effect in ("", taint.effect)
            and (self.key == taint.key or (exists and not self.key))
            and (exists or equals)
        )


def toleration_of(text: str) -> Toleration:
    """The toleration ``KEY``, ``KEY=VALUE``, ``KEY:EFFECT`` or ``KEY=VALUE:EFFECT``.

    Raises ValueError.
    """
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not KEY[=VALUE][:EFFECT] such as nvidia.com/gpu:NoSchedule")
    key, value, effect = match["key"], match["value"], match["effect"] or ""
    if value is None:
        return Toleration(key, "Exists", effect=effect)
    return Toleration(key, _EQUAL, value, effect)


def untolerated(tolerations: tuple[Toleration, ...], taints: tuple[Taint, ...]) -> Taint | None:
    """The first taint that keeps the pod off its node; None if there is none."""
    for taint in taints:
        if taint.effect in KEEPS_OFF and not any(each.covers(taint) for each in tolerations):
            return taint
    return None


_TOLERATIONS: Final = msgspec.json.Decoder(tuple[Toleration, ...] | None)


MOST_BYTES: Final = 1 << 14
"""Maximum length of tolerations that are read: whoever creates a pod writes them."""


@lru_cache(maxsize=256)
def parsed_tolerations(text: bytes) -> tuple[Toleration, ...]:
    """The tolerations of a pod's spec, which most pods have in common; () if they are unreadable.

    The API server keeps no unreadable ones; a dump may.
    """
    if len(text) > MOST_BYTES:
        return ()
    try:
        return decode_go(text, _TOLERATIONS) or ()
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ()
