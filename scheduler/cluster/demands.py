"""What pods request, and demands without their pods; pure.

Equal demands fit alike, so that one placement serves them all: they have one shape. What a pod
requests is remembered while the pod does not change.
"""

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec

from vgpu.model.allocation import Request
from vgpu.model.objects import Pod
from vgpu.placement.candidate import NO_WISHES, PlacementWishes, PodDemand
from vgpu.placement.dialects import SchedulerScheme, demand_of
from vgpu.placement.result import PlacementRefusal

MOST_SHAPES: Final = 256
"""Maximum number of shapes that are remembered, and of placements of one node."""

MOST_REMEMBERED: Final = 20_000
"""Maximum number of pods whose demands are remembered; then all are forgotten."""


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


Demanded = tuple[SchedulerScheme, PodDemand] | PlacementRefusal
"""The sharing system of a pod and what the pod requests, or why that is not known."""


class PodDemands:
    """The demands of pods. kube-scheduler offers the same pod at every try.

    Any thread may call every method: at worst a demand is computed twice.
    """

    def __init__(self, schemes: Sequence[SchedulerScheme]) -> None:
        self._schemes = schemes
        self._known: dict[str, tuple[Pod, Demanded]] = {}

    def of(self, pod: Pod) -> Demanded:
        """What the pod requests; known of this object, not of an equal one."""
        known = self._known.get(pod.ref.uid)
        if known is not None and known[0] is pod:
            return known[1]
        demanded = demand_of(pod, self._schemes)
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[pod.ref.uid] = pod, demanded
        return demanded

    def forget(self, uid: str) -> None:
        """The pod is bound or gone."""
        self._known.pop(uid, None)
