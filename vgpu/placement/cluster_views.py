"""The GPUs of all nodes as the scheduler finds them, from the API server's objects alone. Pure.

The scheduler's cache keeps the same by events; a property compares both. Reservations that only a
scheduler process knows are not here.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from vgpu.model.objects import POD_KIND, MalformedObject, Node, Pod, holds_devices
from vgpu.placement.candidate import UsedGpu
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import (
    CandidateView,
    ForeignReservation,
    foreign_reservation,
    node_view,
    scheme_of,
)
from vgpu.placement.result import PlacementReason


class ViewedNode(msgspec.Struct, frozen=True, gc=False):
    """A node as placements find it: the sharing system of its GPUs, or why it has none, its view.

    The view is None where there is no system.
    """

    scheme: SchedulerScheme | PlacementReason
    view: CandidateView | None = None

    @property
    def system(self) -> str:
        """The name of the sharing system; "" if the node has none, or several."""
        return "" if isinstance(self.scheme, PlacementReason) else self.scheme.row.name

    @property
    def closed(self) -> PlacementReason | None:
        """Why no pod is placed on its GPUs at all; None if pods are, or if it has none."""
        if self.view is not None:
            return self.view.reason
        return PlacementReason.MIXED_NODE if self.scheme is PlacementReason.MIXED_NODE else None

    @property
    def in_use(self) -> Mapping[str, UsedGpu]:
        """The GPUs with what placements find in use, by each of their names."""
        gpus = () if self.view is None else self.view.candidate.gpus
        return {name: gpu for gpu in gpus for name in gpu.device.names}


def cluster_views(
    schemes: Sequence[SchedulerScheme],
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    *,
    now: float,
    malformed: Iterable[MalformedObject] = (),
    unhealthy: Mapping[str, str] | None = None,
) -> dict[str, ViewedNode]:
    """Every node by its name.

    ``malformed`` are unreadable objects of any kind, ``unhealthy`` are the texts of the lists of
    unhealthy GPUs by node, and ``now`` is in unix seconds.
    """
    bound: dict[str, list[Pod]] = {}
    foreign: dict[str, list[ForeignReservation]] = {}
    for pod in pods:
        if not holds_devices(pod):
            continue
        if pod.node:
            bound.setdefault(pod.node, []).append(pod)
            continue
        reservation = foreign_reservation(pod, schemes)
        if reservation is not None:
            foreign.setdefault(reservation.node, []).append(reservation)
    unreadable: dict[str, list[str]] = {}
    for broken in malformed:
        if broken.kind == POD_KIND and broken.node:
            unreadable.setdefault(broken.node, []).append(str(broken))
    viewed = {}
    for node in nodes:
        scheme = scheme_of(node, schemes)
        if isinstance(scheme, PlacementReason):
            viewed[node.name] = ViewedNode(scheme)
            continue
        texts = (unhealthy or {}) if scheme.row.unhealthy_map else {}
        view = node_view(
            node,
            scheme,
            bound.get(node.name, ()),
            foreign.get(node.name, ()),
            (),
            now=now,
            unhealthy=texts.get(node.name, ""),
        )
        viewed[node.name] = ViewedNode(scheme, view.with_unreadable(unreadable.get(node.name, ())))
    return viewed
