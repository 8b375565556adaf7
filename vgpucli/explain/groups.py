"""The answers of nodes to one pod, grouped by their reasons. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from vgpu.kube.closed_nodes import ClosedNode, ClosedReason
from vgpu.placement.result import PlacementReason
from vgpucli.explain.known_objects import NodeAnswer
from vgpucli.explain.model import GpuGroup, NodeGroup

_ORDER = {reason: number for number, reason in enumerate((*ClosedReason, *PlacementReason))}


def node_groups(
    answers: Iterable[NodeAnswer], closed: Mapping[str, ClosedNode]
) -> tuple[NodeGroup, ...]:
    """The nodes that take the pod, then the others, the largest group first.

    A node that has no room is in the group of this reason, also if it is ``closed``.
    """
    by_reason: dict[PlacementReason | ClosedReason | None, list[NodeAnswer]] = {}
    for answer in answers:
        name, _, refusal = answer
        if refusal is not None:
            by_reason.setdefault(refusal.cause, []).append(answer)
        else:
            why = closed.get(name)
            by_reason.setdefault(None if why is None else why.reason, []).append(answer)
    groups = []
    for reason, members in by_reason.items():
        gpus: Counter[PlacementReason | None] = Counter()
        details: list[str] = []
        free = []
        for name, view, refusal in members:
            if refusal is None:
                details += filter(None, [closed[name].detail] if name in closed else ())
                continue
            if view is not None and view.detail and view.reason is reason:
                details.append(view.detail)
            elif not refusal.skipped and refusal.message not in ("", refusal.reason.explanation):
                details.append(refusal.message)
            gpus.update(why for _, why in refusal.skipped)
            if refusal.free_bytes is not None:
                free.append(refusal.free_bytes)
        groups.append(
            NodeGroup(
                reason,
                tuple(name for name, _, _ in members),
                tuple(GpuGroup(why, number) for why, number in gpus.most_common()),
                max(free, default=None),
                details[0] if details else "",
            )
        )
    return tuple(
        sorted(
            groups,
            key=lambda group: (
                group.reason is not None,
                -len(group.names),
                0 if group.reason is None else _ORDER[group.reason],
            ),
        )
    )
