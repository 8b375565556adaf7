"""What the schemes' texts have in common: numbers, nanoseconds, amounts, names of objects.

Every reader takes any text, however long, and gives None or a :class:`ClaimError` for one that is
something else. Numbers are decimal as Go writes them: no sign, no leading zeros, ASCII digits only.
"""

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import isfinite
from typing import Final

from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.schemes.codec import ClaimError

MOST_NANOSECONDS: Final = 2**63 - 1
"""Go's ``Time.UnixNano`` is an int64: up to the year 2262."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_PER_SECOND: Final = 10**9


def object_name_of(pod: Pod | PodRef) -> str:
    """The pod's name in an error."""
    ref = pod.ref if isinstance(pod, Pod) else pod
    return f"{ref.namespace}/{ref.name}"


def number(text: str, most: int) -> int | None:
    """A whole number of 0 to ``most``; None for any other text."""
    value = int(text) if _NUMBER.fullmatch(text) else None
    return value if value is not None and value <= most else None


def seconds(nanoseconds: str) -> float | None:
    """Unix seconds, the float that is nearest to the nanoseconds; None if they are none."""
    value = number(nanoseconds, MOST_NANOSECONDS)
    return None if value is None else value / _PER_SECOND


def nanoseconds(unix_seconds: float, object_name: str, key: str) -> str:
    """Exact, so that :func:`seconds` gives the same float again. Raises ClaimError."""
    value = round(Fraction(unix_seconds) * _PER_SECOND) if isfinite(unix_seconds) else -1
    if not 0 <= value <= MOST_NANOSECONDS:
        raise ClaimError(object_name, key, str(unix_seconds), "not a time")
    return str(value)


def amount(pod: Pod, container: Container, resource: str, most: int) -> int:
    """Units of a resource in the container's limits, 0 if not asked for. Raises ClaimError."""
    units = container.limits.get(resource, 0)
    if resource in container.broken or not 0 <= units <= most:
        text = container.broken.get(resource, str(units))
        detail = f"container {container.name}: not a number of 0 to {most}"
        raise ClaimError(object_name_of(pod), resource, text, detail)
    return units


def positions(containers: Sequence[str]) -> dict[str, int]:
    """The number of each container, from 0; names that stand there twice have none."""
    times = Counter(containers)
    return {name: position for position, name in enumerate(containers) if times[name] == 1}
