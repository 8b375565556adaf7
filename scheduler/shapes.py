"""Demands without their pods: equal ones fit alike, so that one placement serves them all."""

import itertools
from typing import Final

import msgspec

from vgpu.model.allocation import Request
from vgpu.placement.candidate import NO_WISHES, PlacementWishes, PodDemand
from vgpu.placement.dialects import SchedulerScheme

MOST_SHAPES: Final = 256
"""Maximum number of shapes that are remembered, and of placements of one node."""


class DemandShape(msgspec.Struct, frozen=True):
    """A demand without its pod.

    ``number`` is the shape's own in a process: numbers are compared faster than shapes.
    """

    number: int
    scheme: str
    requests: tuple[Request, ...]
    wishes: PlacementWishes = NO_WISHES

    @property
    def content(self) -> tuple[str, tuple[Request, ...], PlacementWishes]:
        """All but the number, which differs once shapes were forgotten."""
        return self.scheme, self.requests, self.wishes


class DemandShapes:
    """The shapes of a process. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, tuple[Request, ...], PlacementWishes], DemandShape] = {}
        self._numbers = itertools.count()

    def of(self, scheme: SchedulerScheme, demand: PodDemand) -> DemandShape:
        """The shape of a demand; equal ones have one number, until all are forgotten."""
        key = scheme.row.name, demand.requests, demand.wishes
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = DemandShape(next(self._numbers), *key)
        return shape
