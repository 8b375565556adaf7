"""Deficit round robin: how much of the daemon's time each port gets. Pure.

Every port that has something to do is served once in a round, up to a quantum. What a message costs
shows when it is handled, so a port may spend more than it has; it pays in the next rounds. This is
Deficit Round Robin (Shreedhar and Varghese, 1995) with debts in the place of credits.

    spent(port, any rounds i..j) <= (j - i + 1) * QUANTUM + MOST

where MOST is the cost of the most expensive message. So a message that comes to a port without
debts waits for one round of all others at most, ``(ports - 1) * (QUANTUM + MOST)``, and for those
before it in its own port.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

QUANTUM: Final = 4
"""What a port may spend in a round. A message about memory costs 1."""


class Served(Protocol):
    """One that is served; ``debt`` is what it has spent beyond what it had."""

    debt: int


Source = TypeVar("Source", bound=Served)


def serve_round(sources: Iterable[Source], serve: Callable[[Source, int], int]) -> None:
    """Serve each once. ``serve`` gets what a source may spend, and returns what it has spent."""
    for source in sources:
        allowance = QUANTUM - source.debt
        if allowance > 0:
            source.debt = max(0, serve(source, allowance) - allowance)
        else:
            source.debt -= QUANTUM
