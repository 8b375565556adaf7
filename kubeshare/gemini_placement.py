"""Gemini's division of a GPU's time among its tenants: quotas, and the next tenant.

Times are whole microseconds. Source: Gemini ``src/scheduler.cpp``.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

import msgspec

from vgpu.model.units import WHOLE_DEVICE_MILLI


class TokenWindow(msgspec.Struct, frozen=True):
    """Gemini's settings in microseconds: ``gem-schd -q 250 -m 100 -w 10000`` (milliseconds)."""

    base: int = 250_000
    least: int = 100_000
    length: int = 10_000_000


class Client(msgspec.Struct, frozen=True):
    """A tenant as Gemini's scheduler sees it; ``used`` is microseconds of the last window.

    Time that several tenants share counts in part, so that it may be a fraction.
    """

    name: str
    request_milli: int
    limit_milli: int
    used: int | Fraction


DEFAULT_WINDOW: Final = TokenWindow()


def quota(burst: int, previous: int, limit_milli: int, window: TokenWindow = DEFAULT_WINDOW) -> int:
    """Microseconds that a client gets next: half its last burst and half its last quota.

    Never below ``least``, never above its limit of the window. Without a burst it is ``base``.
    """
    if burst == 0:
        return window.base
    most = limit_milli * window.length // WHOLE_DEVICE_MILLI
    return min(max((burst + previous) // 2, window.least), most)


def order(clients: Iterable[Client], window: TokenWindow = DEFAULT_WINDOW) -> tuple[Client, ...]:
    """The tenants that may run now, the next first; without those that used up their limit.

    First those below their request, by the part of it that they still miss; then those who have
    used least. Equal ones keep their order.
    """

    def remaining(client: Client) -> int | Fraction:
        return client.limit_milli * window.length - client.used * WHOLE_DEVICE_MILLI

    def rank(client: Client) -> tuple[bool, int | Fraction]:
        missing = client.request_milli * window.length - client.used * WHOLE_DEVICE_MILLI
        if missing > 0:
            return False, -Fraction(missing, client.request_milli)
        return True, client.used

    return tuple(sorted((one for one in clients if remaining(one) > 0), key=rank))
