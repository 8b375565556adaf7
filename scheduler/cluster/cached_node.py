"""One node of the scheduler's cache: its objects, its view, and placements on it.

A view is computed when it is asked for after a change.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
from msgspec import structs

from scheduler.cluster.reservations import PodReservation
from vgpu.model.objects import Node, Pod
from vgpu.placement.candidate import CandidateNode, PodDemand, UsedGpu
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import (
    NEVER_SEEN,
    CandidateView,
    ForeignReservation,
    StandingPod,
    ViewParts,
    node_view,
)
from vgpu.placement.pod_count import count_pods
from vgpu.placement.result import (
    Placement,
    PlacementReason,
    PlacementRefusal,
    PlacementResult,
)
from vgpu.schemes.codec import NodeLock, SchemeCodec

HIGHEST_PRIORITY: Final = 2**31 - 1
"""The highest priority that a pod can have (int32)."""


def pod_key(namespace: str, name: str) -> str:
    """The key of a pod: one of a name is there at a time."""
    return f"{namespace}/{name}"


class InspectedNode(msgspec.Struct, frozen=True):
    """A node of a sharing system: its GPUs in use, its pods, and the bytes of a unit.

    ``is_readable`` is False if its GPUs or what its pods hold cannot be read; ``gpus`` have then
    what can be.
    """

    node: Node
    gpus: tuple[UsedGpu, ...]
    pods: tuple[Pod, ...]
    codec: SchemeCodec
    unit_bytes: int
    is_readable: bool = True


class CachedNode:
    """A node with its pods. Not for several threads: its cache locks."""

    def __init__(
        self,
        name: str,
        changed: Callable[[str], object] = lambda _: None,
        seen: Mapping[str, float] = NEVER_SEEN,
    ) -> None:
        """``changed`` is called with the name whenever something of the node has changed.

        ``seen`` is that of :func:`node_view`.
        """
        self.seen = seen
        self.name = name
        self.node: Node | None = None
        self.scheme: SchedulerScheme | PlacementReason = PlacementReason.UNKNOWN_NODE
        self.pods: dict[str, Pod] = {}
        self.foreign_reservations: dict[str, ForeignReservation] = {}
        self.reservations: dict[str, PodReservation] = {}
        self.unreadable: dict[str, str] = {}
        self.unhealthy = ""
        self.locks: tuple[NodeLock, ...] = ()
        """The node's locks, readable or not."""
        self.lacks_lock = False
        """Whether its plugin serves the pod of the node's lock, and we take no locks."""
        self._view: CandidateView | None = None
        self._is_asked_for = False
        self._parts = ViewParts()
        self._on_change = changed
        self._has_ended = False
        self._held: tuple[PodReservation, ...] | None = None
        self._least_priority: int | None = None

    def is_empty(self) -> bool:
        """Whether nothing is known of it."""
        return self.node is None and not (
            self.pods or self.foreign_reservations or self.reservations or self.unreadable
        )

    def add_pod(self, key: str, pod: Pod) -> None:
        """A bound pod as it is now; what it claims in another system is read before filter asks."""
        self.pods[key] = pod
        if not isinstance(self.scheme, PlacementReason):
            self._parts.elsewhere(self.scheme, pod)

    def change(self) -> None:
        """Forget what was computed: something of the node has changed."""
        self._view = None
        self._held = None
        self._least_priority = None
        self._on_change(self.name)

    def is_of(self, scheme: SchedulerScheme) -> bool:
        """Whether its GPUs are those of this sharing system."""
        own = self.scheme
        return not isinstance(own, PlacementReason) and own.row.name == scheme.row.name

    def is_alike_for(self, demand: PodDemand) -> bool:
        """Whether all pods find it as this one does, and always.

        Nothing is kept on it for a single pod, and nothing for a time.
        """
        return self._keeps_nothing and self.as_found_by(demand) is self

    @property
    def _keeps_nothing(self) -> bool:
        return not (
            self.foreign_reservations
            or self.held
            or (self._view is not None and self._view.until is not None)
        )

    def take_ended(self, now: float) -> bool:
        """Whether the time of something that is kept free has ended since this was last asked."""
        ended = self._has_ended or self._is_over(now)
        self._has_ended = False
        return ended

    def _is_over(self, now: float) -> bool:
        """Whether the view has something kept free whose time is over."""
        return self._view is not None and self._view.until is not None and self._view.until <= now

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
        if (
            not gone
            and ended.isdisjoint(self.reservations)
            and key not in self.foreign_reservations
        ):
            return self
        other = CachedNode(self.name, seen=self.seen)
        other.node, other.scheme, other.unhealthy = self.node, self.scheme, self.unhealthy
        other.lacks_lock = self.lacks_lock
        other.unreadable, other._parts = self.unreadable, self._parts
        other.pods = (
            {name: each for name, each in self.pods.items() if each.ref.uid not in gone}
            if gone
            else self.pods
        )
        other.foreign_reservations = {
            name: each for name, each in self.foreign_reservations.items() if name != key
        }
        other.reservations = {
            uid: each for uid, each in self.reservations.items() if uid not in ended
        }
        return other

    def view(self, now: float) -> CandidateView | None:
        """The view; None of a node that has no scheme."""
        if self.node is None or isinstance(self.scheme, PlacementReason):
            return None
        view = self._view
        if self._is_over(now):
            self.change()
            self._has_ended = True
            view = None
        if view is None:
            self._is_asked_for = True
            view = self._view = node_view(
                self.node,
                self.scheme,
                tuple(self.pods.values()),
                tuple(self.foreign_reservations.values()),
                self._unbound(),
                now=now,
                unhealthy=self.unhealthy,
                seen=self.seen,
                parts=self._parts,
            ).with_unreadable(self.unreadable.values())
        return view

    def standing(self, now: float) -> tuple[StandingPod, ...]:
        """The pods that stand in the way of others; none of a node that no pod has asked for."""
        view = self.view(now) if self._is_asked_for else None
        return () if view is None else view.standing

    def inspected(self, system: str, now: float) -> InspectedNode | None:
        """The node with its pods by their names; None if it is not of this sharing system."""
        node, scheme = self.node, self.scheme
        if node is None or isinstance(scheme, PlacementReason) or scheme.row.name != system:
            return None
        view = self.view(now)
        return InspectedNode(
            node,
            view.held_gpus if view is not None else (),
            tuple(sorted(self.pods.values(), key=lambda pod: pod.ref)),
            scheme.codec,
            scheme.unit_bytes,
            is_readable=view is not None and view.is_readable,
        )

    def _unbound(self) -> list[PodReservation]:
        """The reservations of pods that are not among the bound ones."""
        counted = {pod.ref.uid for pod in self.pods.values()}
        return [each for uid, each in self.reservations.items() if uid not in counted]

    def place(
        self,
        scheme: SchedulerScheme,
        demand: PodDemand,
        now: float,
        before: Iterable[PodDemand] = (),
    ) -> PlacementResult:
        """The placement of a demand of the scheme, after those of ``before``, which fit as well.

        Where the node took the demand without pods that stand in the way, these are the reason.
        """
        candidate = self.candidate(scheme, now)
        if isinstance(candidate, PlacementRefusal):
            return candidate
        for earlier in before:
            result = scheme.dialect.choose(earlier, candidate)
            if isinstance(result, Placement):
                candidate = structs.replace(candidate, gpus=result.gpus)
        result = scheme.dialect.choose(demand, candidate)
        view = self.view(now)
        if isinstance(result, Placement) or view is None or not view.standing:
            return result
        return view.blamed(scheme, demand, result)

    def count(self, scheme: SchedulerScheme, demand: PodDemand, now: float, most: int) -> int:
        """Number of pods of a demand that the node takes one after another, at most ``most``."""
        candidate = self.candidate(scheme, now)
        if isinstance(candidate, PlacementRefusal):
            return 0
        return count_pods(scheme.dialect, demand, candidate, most).pods

    def plain_candidate(self, now: float) -> CandidateNode | None:
        """The node's GPUs in use, if all pods but those that it has reserved for find them so, and
        always; None if a pod has to ask.
        """
        view = self.view(now)
        if view is None or view.reason is not None or view.standing:
            return None
        if self.lacks_lock or not self._keeps_nothing:
            return None
        return view.candidate

    def candidate(self, scheme: SchedulerScheme, now: float) -> CandidateNode | PlacementRefusal:
        """The node's GPUs in use, or why it takes no pod of the scheme at all."""
        own = self.scheme
        if isinstance(own, PlacementReason):
            return PlacementRefusal.of(own)
        # Before the view: it would read every pod of a node of another system.
        view = self.view(now) if self.is_of(scheme) else None
        if view is None:
            return PlacementRefusal.of(PlacementReason.NO_GPUS)
        if view.reason is not None:
            return PlacementRefusal.of(view.reason)
        if self.lacks_lock:
            return PlacementRefusal.of(PlacementReason.NEEDS_LOCK)
        return view.candidate
