"""Conflicts of each kind, longer than any page can show: names, statements and shares."""

from vgpu.ledger import Conflict, ConflictKind, Statement
from vgpu.model.allocation import Share
from vgpu.model.names import PodRef, Source
from vgpu.model.units import GIB

LONGEST_TEXT = 1500
"""Characters that a phone of 390 by 844 pixels shows on one screen of the status page."""

POD = PodRef("e66e04d7-b4cf-5eac-a628-fc23781b2ae8", "n" * 63, "p" * 100)
CONTAINER = "c" * 63


def long_conflicts() -> list[Conflict]:
    """Two of each kind: of one pod, and of several."""
    shares = tuple(
        Share(f"GPU-{place}-90d4-4f26-8e1b-7c2f6d9a4b05", GIB, 250) for place in range(16)
    )
    where = ", ".join(f"GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05_{place}" for place in range(80))
    statements = tuple(Statement(source, POD, CONTAINER, shares, where=where) for source in Source)
    return [
        Conflict(kind, pod=pod, container=CONTAINER, statements=statements, detail=where)
        for kind in ConflictKind
        for pod in (None, POD)
    ]
