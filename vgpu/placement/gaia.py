"""gpu-manager's choice of GPUs: its three evaluators on the topology tree, and what it refuses.

- **link**, several GPUs: those that are nearest to one another;
- **fragment**, one GPU: from the corner of the tree with the fewest free GPUs, so that whole
  corners stay free for link;
- **share**, a part of a GPU: the GPU with the least free that is enough.

The originals are gpu-manager's ``pkg/algorithm/nvidia`` and ``allocateOne`` of
``pkg/services/allocator/nvidia``. Its ties between inner nodes fall by chance; here the lower
GPU wins.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from vgpu.model.allocation import Request, Share
from vgpu.model.names import device_node
from vgpu.model.topology import LinkLevel, TopologyGpu, TopologyNode, TopologyTree
from vgpu.model.units import GAIA_MEMORY_BLOCK, WHOLE_DEVICE_MILLI
from vgpu.placement.result import PlacementReason, PlacementRefusal

_MESSAGES: Final[Mapping[PlacementReason, str]] = {
    PlacementReason.NO_FITTING_GPU: "no free node",
    PlacementReason.MEMORY: "request memory {asked} is larger than {most}",
    PlacementReason.SHARING_OFF: "share mode is not enabled",
    PlacementReason.MALFORMED_REQUEST: (
        "that cores or memory is zero is not permitted in share mode"
    ),
    PlacementReason.RESERVATION_ILLEGAL: (
        "the predicate {told} is not free, or not what is asked for"
    ),
    PlacementReason.RESERVATION_DIFFERS: (
        "Nvidia node mismatch, pick up:{chosen}  predicate: {told}"
    ),
}
"""Why there are no GPUs for a container, in gpu-manager's message where it has any."""


Choice = tuple[TopologyGpu, ...] | PlacementRefusal


class GaiaRules(msgspec.Struct, frozen=True, kw_only=True):
    """How gpu-manager was set up, and whether its weakness is kept.

    Attributes:
        share_mode: ``--share-mode``: whether parts of GPUs are allocated at all.
        derive_again: choose a part's GPU again and refuse the pod where gpu-admission chose
            another one, as the original does; else the choice of gpu-admission is used if it is
            legal, also for whole GPUs, for which the original ignores it.
    """

    share_mode: bool = False
    derive_again: bool = False


def allocate(
    tree: TopologyTree,
    held: Mapping[tuple[str, str], Sequence[Share]],
    container: tuple[str, str],
    request: Request,
    *,
    rules: GaiaRules,
    predicate: Sequence[int] | None = None,
) -> tuple[Share, ...] | PlacementRefusal:
    """The shares of a container, (pod UID, name): those that it has already, or new ones.

    ``tree`` has nothing taken yet, and all its minor numbers are known; ``held`` has the shares of
    every container. ``predicate`` are the minor numbers that gpu-admission chose.
    """
    if container in held:
        return tuple(held[container])
    taken = tree.holding(share for shares in held.values() for share in shares)
    gpus = choose(taken, request, rules, predicate)
    if isinstance(gpus, PlacementRefusal):
        return gpus
    return tuple(Share(gpu.node, request.memory_bytes, request.cores_milli) for gpu in gpus)


def choose(
    tree: TopologyTree, request: Request, rules: GaiaRules, predicate: Sequence[int] | None = None
) -> Choice:
    """The GPUs for a request, by the rules of :func:`allocate`."""
    part = request.cores_milli < WHOLE_DEVICE_MILLI
    if part and not rules.share_mode:
        return _refused(PlacementReason.SHARING_OFF)
    if part and not (request.cores_milli and request.memory_bytes):
        return _refused(PlacementReason.MALFORMED_REQUEST)
    if predicate is not None and not rules.derive_again:
        return _predicated(tree, request, predicate)
    if part:
        return _part(tree, request, predicate)
    evaluate = fragment if request.count == 1 else link
    return evaluate(tree, request.count) or _refused(PlacementReason.NO_FITTING_GPU)


def _part(tree: TopologyTree, request: Request, predicate: Sequence[int] | None) -> Choice:
    """A GPU for a part, chosen here; it must be the reserved GPU, if there is one."""
    memory = request.memory_bytes or 0
    gpus = share(tree.gpus, request.cores_milli, memory)
    most = max((gpu.memory_bytes for gpu in tree.gpus), default=0)
    if not gpus and memory > most:
        return _refused(PlacementReason.MEMORY, asked=memory, most=most)
    if not gpus:
        return _refused(PlacementReason.NO_FITTING_GPU)
    if predicate is not None and [gpu.minor for gpu in gpus] != list(predicate):
        return _refused(
            PlacementReason.RESERVATION_DIFFERS,
            chosen=gpus[0].node,
            told=_nodes(predicate),
        )
    return gpus


def _predicated(tree: TopologyTree, request: Request, predicate: Sequence[int]) -> Choice:
    """The reserved GPUs, if they exist, are free enough, and as many as requested."""
    by_minor = {gpu.minor: gpu for gpu in tree.gpus}
    gpus = tuple(by_minor[minor] for minor in predicate if minor in by_minor)
    legal = len(set(predicate)) == len(predicate) == len(gpus) == request.count
    if not legal or not all(fits(gpu, request) for gpu in gpus):
        return _refused(PlacementReason.RESERVATION_ILLEGAL, told=_nodes(predicate))
    return gpus


def fits(gpu: TopologyGpu, request: Request) -> bool:
    """Whether one GPU is free enough for the request's part of each GPU."""
    if request.cores_milli >= WHOLE_DEVICE_MILLI:
        return gpu.untouched
    return gpu.free_milli >= request.cores_milli and gpu.free_bytes >= (request.memory_bytes or 0)


# ---------------------------------------------------------------- the evaluators


def link(tree: TopologyTree, count: int) -> tuple[TopologyGpu, ...]:
    """``count`` free GPUs that are near to one another; none if there are not as many.

    Below the root, the nearest group that has enough; of equal ones that with the fewest.
    """
    groups = [
        next((group for group in path if len(tree.available(group)) >= count), None)
        for path in tree.paths()
    ]
    candidates = [group for group in groups if group is not None]
    best = min(candidates, key=lambda group: (group.level, *_least(tree, group)), default=tree.root)
    return _first(tree, best, count)


def fragment(tree: TopologyTree, count: int) -> tuple[TopologyGpu, ...]:
    """``count`` free GPUs where the fewest are left; none if there are not as many.

    From the root down, always into the inner node with the fewest free GPUs that are enough.
    """
    group: TopologyNode | None = tree.root
    while group is not None:
        best = group
        group = min(
            (
                child
                for child in best.children
                if child.level is not LinkLevel.GPU and len(tree.available(child)) >= count
            ),
            key=lambda child: _least(tree, child),
            default=None,
        )
    return _first(tree, best, count)


def share(
    gpus: Sequence[TopologyGpu], cores_milli: int, memory_bytes: int
) -> tuple[TopologyGpu, ...]:
    """The GPU with the least free that has this much; none if there is none."""
    enough = (
        gpu
        for gpu in least_free(gpus)
        if gpu.free_milli >= cores_milli and gpu.free_bytes >= memory_bytes
    )
    return tuple(gpu for gpu in [next(enough, None)] if gpu is not None)


def least_free(gpus: Sequence[TopologyGpu]) -> list[TopologyGpu]:
    """The GPUs by free cores, free memory in whole blocks, processes and minor number."""
    return sorted(
        gpus,
        key=lambda gpu: (
            gpu.free_milli,
            gpu.free_bytes // GAIA_MEMORY_BLOCK,
            len(gpu.pids),
            gpu.by_minor,
        ),
    )


def _least(tree: TopologyTree, group: TopologyNode) -> tuple[int, int, int]:
    """Groups by free GPUs, processes and first GPU; memory the original counts for none."""
    pids = sum(len(tree.gpus[index].pids) for index in group.gpus)
    return len(tree.available(group)), pids, group.gpus[0]


def _first(tree: TopologyTree, group: TopologyNode, count: int) -> tuple[TopologyGpu, ...]:
    free = tree.available(group)
    return free[:count] if len(free) >= count else ()


def _refused(reason: PlacementReason, **values: object) -> PlacementRefusal:
    return PlacementRefusal(reason, _MESSAGES[reason].format(**values))


def _nodes(minors: Sequence[int]) -> str:
    return ",".join(map(device_node, minors))
