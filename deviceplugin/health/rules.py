"""What makes a device unhealthy, and for how long; from flags and two variables of the originals.

``DP_DISABLE_HEALTHCHECKS`` holds XIDs to ignore besides those of the flag, ``xids`` for all of
them, or ``all`` for memory errors too. ``DP_ENABLE_HEALTHCHECKS`` holds XIDs that count in any
case; ``xids`` or ``all`` for all of them. A lost GPU and a silent driver always count.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.model.xids import IGNORED

DISABLE: Final = "DP_DISABLE_HEALTHCHECKS"
ENABLE: Final = "DP_ENABLE_HEALTHCHECKS"

ALL: Final = "all"
_ALL_XIDS: Final = frozenset({ALL, "xids"})
_XID: Final = re.compile(r"[1-9]\d{0,4}", re.ASCII)

APPLICATION_XIDS: Final = IGNORED
"""XIDs that a faulty program alone can cause, according to NVIDIA's own plugin."""


class HealthRules(msgspec.Struct, frozen=True):
    """How events and readings are judged.

    Attributes:
        ignored: XIDs that are no fault of the GPU.
        only: if not None, the only XIDs that count.
        memory_errors: whether uncorrected errors, and rows or pages that wait for a reset, count.
        recovery: seconds without a bad event or reading after which a device is healthy again, the
            first time in a day; each further time twice as long, up to an hour.
        patience: number of times in a row that the driver must fail to answer before its devices
            are unhealthy.
    """

    ignored: frozenset[int] = APPLICATION_XIDS
    only: frozenset[int] | None = None
    memory_errors: bool = True
    recovery: float = 300.0
    patience: int = 4

    def counts(self, xid: int) -> bool:
        """Whether this XID makes a GPU unhealthy."""
        return xid not in self.ignored if self.only is None else xid in self.only


def parse_xids(text: str) -> frozenset[int]:
    """The XIDs in a list such as ``13,31``; none in "". Raises ValueError for anything else."""
    return _parse(text, frozenset())[0]


def rules(ignored: frozenset[int], environ: Mapping[str, str], recovery: float) -> HealthRules:
    """The rules from the flags and the environment. Raises ValueError naming the variable."""
    disabled, disabled_words = _variable(environ, DISABLE)
    enabled, enabled_words = _variable(environ, ENABLE)
    memory_errors = ALL not in disabled_words or ALL in enabled_words
    if enabled_words:
        return HealthRules(frozenset(), None, memory_errors, recovery)
    only = enabled if disabled_words else None
    return HealthRules((ignored | disabled) - enabled, only, memory_errors, recovery)


def _variable(environ: Mapping[str, str], name: str) -> tuple[frozenset[int], frozenset[str]]:
    try:
        return _parse(environ.get(name, ""), _ALL_XIDS)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _parse(text: str, words: frozenset[str]) -> tuple[frozenset[int], frozenset[str]]:
    """XIDs, and the ``words`` in the text, in upper or lower case."""
    tokens = [token.strip().lower() for token in text.split(",")] if text.strip() else []
    for token in tokens:
        if token not in words and not _XID.fullmatch(token):
            expected = " or ".join(("a number of 1 to 99999", *sorted(words)))
            raise ValueError(f"{token!r} in {text!r} is not an XID: expected {expected}")
    named = words.intersection(tokens)
    return frozenset(int(token) for token in tokens if token not in named), named
