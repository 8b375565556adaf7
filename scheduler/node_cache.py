"""One node of the scheduler's cache: its view, and the placements computed from it.

A view is computed when it is asked for after a change. A placement is computed once for each shape
of a demand (its requests and wishes, without the pod's name) and stays until the view changes.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
from msgspec import structs

from scheduler.shapes import MOST_SHAPES, DemandShape
from vgpu.kube.objects import Node, Pod
from vgpu.model import Allocation, Device, PodRef
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import CandidateView, ForeignPromise, Reservation, node_view
from vgpu.placement.result import (
    Placement,
    PlacementReason,
    PlacementRefusal,
    PlacementResult,
)

NEVER: Final = -1.0
FOR_EVER: Final = float("inf")

HIGHEST_PRIORITY: Final = 2**31 - 1
"""The highest priority that a pod can have (int32)."""


def pod_key(namespace: str, name: str) -> str:
    """The key of a pod: one of a name is there at a time."""
    return f"{namespace}/{name}"


ShapeKey = tuple[int, ...]
"""Numbers of shapes: those of pods that are placed before, and that of the pod."""


class PodReservation(Reservation, frozen=True, kw_only=True):
    """A reservation with its pod.

    Attributes:
        pod: the pod.
        shape: its demand; None of another replica's.
        since: when it was decided or confirmed, in unix seconds.
        is_held: whether the pod was not decided on yet: the GPUs that its preemption frees are held
            for it against pods that are not more important.
        priority: the pod's, if ``is_held``.
        units: the pod's extended resources, as in :class:`PodDemand`.
    """

    pod: PodRef
    shape: DemandShape | None = None
    since: float
    is_held: bool = False
    priority: int = 0
    units: tuple[tuple[str, int], ...] = ()

    def is_for(self, shape: DemandShape) -> bool:
        """Whether it is a decision on what the pod still requests."""
        return not self.is_held and (self.shape is None or self.shape.content == shape.content)


class PodPlacement(msgspec.Struct, frozen=True):
    """What bind has decided.

    Attributes:
        scheme: the pod's sharing system.
        node: the node.
        allocations: the containers' shares.
        devices: the node's devices under every name that a share may use.
    """

    scheme: SchedulerScheme
    node: str
    allocations: tuple[Allocation, ...]
    devices: Mapping[str, Device]


class ScoredPlacement(msgspec.Struct, frozen=True):
    """A placement, and the score of its node."""

    result: PlacementResult
    score: int = 0


class CachedNode:
    """A node with its pods. Not for several threads: its cache locks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Node | None = None
        self.scheme: SchedulerScheme | PlacementReason = PlacementReason.UNKNOWN_NODE
        self.pods: dict[str, Pod] = {}
        self.promises: dict[str, ForeignPromise] = {}
        self.reservations: dict[str, PodReservation] = {}
        self.unreadable: dict[str, str] = {}
        self.unhealthy = ""
        self._view: CandidateView | None = None
        self._placements: dict[ShapeKey, ScoredPlacement] = {}
        self._valid_until = NEVER
        self._held: tuple[PodReservation, ...] | None = None
        self._least_priority: int | None = None

    def is_empty(self) -> bool:
        """Whether nothing is known of it."""
        return self.node is None and not (
            self.pods or self.promises or self.reservations or self.unreadable
        )

    def change(self) -> None:
        """Forget what was computed: something of the node has changed."""
        self._view = None
        self._valid_until = NEVER
        self._held = None
        self._least_priority = None
        self._placements.clear()

    @property
    def held(self) -> tuple[PodReservation, ...]:
        """The reservations that hold what a preemption frees."""
        if self._held is None:
            self._held = tuple(each for each in self.reservations.values() if each.is_held)
        return self._held

    @property
    def least_priority(self) -> int:
        """The lowest priority of a pod on it; higher than any if there is none."""
        if self._least_priority is None:
            priorities = (pod.priority for pod in self.pods.values())
            self._least_priority = min(priorities, default=HIGHEST_PRIORITY)
        return self._least_priority

    def as_found_by(self, demand: PodDemand, gone: AbstractSet[str] = frozenset()) -> "CachedNode":
        """The node without what is reserved for this pod, whoever did it.

        GPUs that are held for a less important pod are free for it. ``gone`` are UIDs of pods whose
        end is assumed.
        """
        pod = demand.pod
        key = pod_key(pod.namespace, pod.name)
        ended = {each.pod.uid for each in self.held if each.priority < demand.priority}
        ended |= {pod.uid, *gone}
        if not gone and ended.isdisjoint(self.reservations) and key not in self.promises:
            return self
        other = CachedNode(self.name)
        other.node, other.scheme, other.unhealthy = self.node, self.scheme, self.unhealthy
        other.unreadable = self.unreadable
        other.pods = (
            {name: each for name, each in self.pods.items() if each.ref.uid not in gone}
            if gone
            else self.pods
        )
        other.promises = {name: each for name, each in self.promises.items() if name != key}
        other.reservations = {
            uid: each for uid, each in self.reservations.items() if uid not in ended
        }
        return other

    def view(self, now: float) -> CandidateView | None:
        """The view; None of a node that has no scheme."""
        if self.node is None or isinstance(self.scheme, PlacementReason):
            return None
        view = self._view
        if view is not None and view.until is not None and view.until <= now:
            self.change()
            view = None
        if view is None:
            counted = {pod.ref.uid for pod in self.pods.values()}
            reservations = (
                reservation for uid, reservation in self.reservations.items() if uid not in counted
            )
            view = self._view = node_view(
                self.node,
                self.scheme,
                tuple(self.pods.values()),
                tuple(self.promises.values()),
                reservations,
                now=now,
                unhealthy=self.unhealthy,
            )
            for detail in self.unreadable.values():
                reason = PlacementReason.UNREADABLE
                view = self._view = CandidateView(view.candidate, reason, detail)
        return view

    def known(self, key: ShapeKey, now: float) -> ScoredPlacement | None:
        """The placement of a shape if it has been computed and still holds."""
        return self._placements.get(key) if now < self._valid_until else None

    def place(
        self,
        shape: DemandShape,
        demand: PodDemand,
        now: float,
        *before: tuple[DemandShape, PodDemand],
    ) -> ScoredPlacement:
        """The placement of a demand, after those of ``before``, which fit as well."""
        view = self.view(now)
        key = (*(earlier.number for earlier, _ in before), shape.number)
        placement = self._placements.get(key)
        if placement is None:
            if len(self._placements) >= MOST_SHAPES:
                self._placements.clear()
            placement = self._placements[key] = self._computed(view, shape, demand, before)
            until = None if view is None else view.until
            self._valid_until = FOR_EVER if until is None else until
        return placement

    def _computed(
        self,
        view: CandidateView | None,
        shape: DemandShape,
        demand: PodDemand,
        before: Iterable[tuple[DemandShape, PodDemand]],
    ) -> ScoredPlacement:
        scheme = self.scheme
        if view is None or isinstance(scheme, PlacementReason):
            reason = scheme if isinstance(scheme, PlacementReason) else PlacementReason.NO_GPUS
            return ScoredPlacement(PlacementRefusal.of(reason))
        if scheme.row.name != shape.scheme:
            reason = PlacementReason.NO_GPUS
            return ScoredPlacement(PlacementRefusal.of(reason))
        if view.reason is not None:
            return ScoredPlacement(PlacementRefusal.of(view.reason))
        candidate = view.candidate
        for _, earlier in before:
            result = scheme.dialect.choose(earlier, candidate)
            if isinstance(result, Placement):
                candidate = structs.replace(candidate, gpus=result.gpus)
        result = scheme.dialect.choose(demand, candidate)
        if isinstance(result, PlacementRefusal):
            return ScoredPlacement(result)
        return ScoredPlacement(result, scheme.dialect.score(demand, candidate))
