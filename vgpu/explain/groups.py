"""The answers of nodes to one pod, grouped by their reasons. Pure."""

from collections import Counter
from collections.abc import Iterable

from vgpu.explain.known_objects import NodeAnswer
from vgpu.explain.model import GpuGroup, NodeGroup
from vgpu.placement.result import PlacementReason

_ORDER = {reason: number for number, reason in enumerate(PlacementReason)}


def node_groups(
    answers: Iterable[NodeAnswer],
) -> tuple[NodeGroup, ...]:
    """The nodes that take the pod, then the refusing ones, the largest group first."""
    by_reason: dict[PlacementReason | None, list[NodeAnswer]] = {}
    for answer in answers:
        refusal = answer[2]
        by_reason.setdefault(None if refusal is None else refusal.cause, []).append(answer)
    groups = []
    for reason, members in by_reason.items():
        gpus: Counter[PlacementReason | None] = Counter()
        details = []
        free = []
        for _, view, refusal in members:
            if refusal is None:
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
