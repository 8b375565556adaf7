"""Which of several GPUs are connected best, by scores of their pairs. Pure.

This is the rule of HAMi's policy ``topology-aware``: several GPUs are those whose pairs have the
highest sum; a single one is the GPU that the others miss least.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

from msgspec import structs

from vgpu.model.allocation import Allocation, Request, Share, effective_shares
from vgpu.model.names import ContainerKind, Phase
from vgpu.model.objects import Pod
from vgpu.placement.candidate import (
    NO_WISHES,
    SOFTWARE,
    CandidateNode,
    GpuLinks,
    PlacementWishes,
    PodDemand,
    UsedGpu,
    with_shares,
)
from vgpu.placement.dialect import BINPACK, SPREAD, Skip
from vgpu.placement.result import Placement, PlacementReason, PlacementRefusal, PlacementResult
from vgpu.placement.volcano import AVOID_TYPE, USE_TYPE, VolcanoDialect, words
from vgpu.schemes.text import number
from vgpu.schemes.volcano.text import BOOLEANS

MOST_COMBINATIONS: Final = 2000
"""Maximum number of combinations that are compared: all of eight GPUs of 15 are more."""


MOST_GPUS: Final = 64
"""Maximum number of GPUs that are compared: a node that registers more is hardly one."""


def best_connected(gpus: Sequence[str], count: int, links: GpuLinks) -> tuple[int, ...]:
    """The positions of ``count`` of these GPUs, of equal ones the first; ``gpus`` are UUIDs.

    Where there are too many combinations, the GPUs are taken one after another: first the best
    pair, then each time the one that adds most. Of too many GPUs the first ones are compared.
    """
    if count > MOST_GPUS:
        return tuple(range(min(count, len(gpus))))
    gpus = gpus[:MOST_GPUS]
    scores = [[links.get(one, {}).get(other, 0) for other in gpus] for one in gpus]
    positions = range(len(gpus))
    if count >= len(gpus):
        return tuple(positions)
    if count == 1:
        alone = min(positions, key=lambda one: sum(scores[one]) - scores[one][one])
        return (alone,)

    def total(chosen: tuple[int, ...]) -> int:
        return sum(scores[one][other] for one, other in combinations(chosen, 2))

    if comb(len(gpus), count) <= MOST_COMBINATIONS:
        return max(combinations(positions, count), key=total)
    chosen: tuple[int, ...] = max(combinations(positions, 2), key=total)
    while len(chosen) < count:
        left = (position for position in positions if position not in chosen)
        chosen += (max(left, key=lambda one: sum(scores[one][other] for other in chosen)),)
    return tuple(sorted(chosen))


MODE: Final = "nvidia.com/vgpu-mode"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
AVOID_UUID: Final = "nvidia.com/nouse-gpuuuid"
GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
NUMA_BIND: Final = "nvidia.com/numa-bind"
WEIGHTS: Final = "hami.io/device-scoring-weights"

MOST_WEIGHT: Final = 1_000_000
"""Maximum weight of a part of a GPU's use."""

MUTEX: Final = "mutex"
TOPOLOGY: Final = "topology-aware"
NUMA: Final = "numa"

_NODE_POLICIES: Final = frozenset({BINPACK, SPREAD})

_WISHES: Final = frozenset(
    {
        MODE,
        USE_TYPE,
        AVOID_TYPE,
        USE_UUID,
        AVOID_UUID,
        GPU_POLICY,
        NODE_POLICY,
        NUMA_BIND,
        WEIGHTS,
    }
)
"""The annotations with wishes; most pods have none of them."""

_REASONS: Final[Mapping[PlacementReason, str]] = {
    PlacementReason.NO_GPUS: "node unregistered",
    PlacementReason.TOO_FEW_GPUS: "NodeInsufficientDevice",
    PlacementReason.UNHEALTHY: "CardNotHealth",
    PlacementReason.CORDONED: "CardCordoned",
    PlacementReason.TYPE: "CardTypeMismatch",
    PlacementReason.SHARING_MODE: "CardTypeMismatch",
    PlacementReason.UUID: "CardUuidMismatch",
    PlacementReason.SLOTS: "CardTimeSlicingExhausted",
    PlacementReason.MEMORY: "CardInsufficientMemory",
    PlacementReason.CORES: "CardInsufficientCore",
    PlacementReason.EXCLUSIVE: "ExclusiveDeviceAllocateConflict",
    PlacementReason.EXCLUSIVELY_USED: "CardComputeUnitsExhausted",
    PlacementReason.MIG_SLOT: "CardMigTopologyInfeasible",
    PlacementReason.MIG_GEOMETRY: "CardMigTopologyInfeasible",
    PlacementReason.NUMA: "NumaNotFit",
}
"""The reason codes of HAMi."""


def hami_wishes(pod: Pod) -> PlacementWishes:
    """The wishes in the pod's annotations; an unknown policy is none."""
    annotations = pod.annotations
    if _WISHES.isdisjoint(annotations):
        return NO_WISHES
    gpu_policies = words(annotations, GPU_POLICY)
    node_policies = words(annotations, NODE_POLICY)
    return PlacementWishes(
        mode=annotations.get(MODE),
        use_types=words(annotations, USE_TYPE),
        avoid_types=words(annotations, AVOID_TYPE),
        use_uuids=words(annotations, USE_UUID),
        avoid_uuids=words(annotations, AVOID_UUID),
        gpu_order=tuple(dict.fromkeys(word for word in gpu_policies if word in _SORT_KEYS)),
        use_weights=_weights(annotations.get(WEIGHTS, "")),
        node_policy=next((word for word in node_policies if word in _NODE_POLICIES), ""),
        idle_gpus=MUTEX in gpu_policies,
        one_numa_node=BOOLEANS.get(annotations.get(NUMA_BIND, ""), False),
        best_connected=TOPOLOGY in gpu_policies,
    )


def _weights(text: str) -> tuple[int, int, int]:
    """The weights in ``slot=1,core=1,memory=3``; equal ones where the text is not that."""
    named = dict(part.strip().partition("=")[::2] for part in text.split(","))
    values = [number(named.get(name, ""), MOST_WEIGHT) for name in ("slot", "core", "memory")]
    slot, core, memory = (value if value is not None else -1 for value in values)
    is_whole = len(named) == 3 and min(slot, core, memory) >= 0 and max(slot, core, memory) > 0
    return (slot, core, memory) if is_whole else (1, 1, 1)


class HamiDialect(VolcanoDialect, frozen=True):
    """HAMi's rules for one node.

    Attributes:
        gpu_policy: whether GPUs in use (``binpack``) or idle ones (``spread``) come first, unless
            the pod's annotations request it otherwise.
    """

    gpu_policy: str = SPREAD

    def choose(self, demand: PodDemand, node: CandidateNode) -> PlacementResult:
        """Init containers run before the others, so each is placed beside the sidecars alone."""
        result = super().choose(demand, node)
        inits = [request for request in demand.requests if request.kind is ContainerKind.INIT]
        if isinstance(result, PlacementRefusal):
            return result
        if not inits:
            ordered = _in_start_order(demand, result.allocations)
            return structs.replace(result, allocations=ordered)
        sidecars = (each for each in result.allocations if each.kind is ContainerKind.SIDECAR)
        before = with_shares(node.gpus, (share for each in sidecars for share in each.shares))
        allocations = []
        for request in inits:
            shares = self.place(request, list(before), demand, node)
            if isinstance(shares, PlacementRefusal):
                return shares
            allocations.append(
                Allocation(
                    request.container,
                    tuple(share for share, _ in shares),
                    Phase.ASSUMED,
                    request.kind,
                )
            )
        pod = _in_start_order(demand, (*allocations, *result.allocations))
        return Placement(node.name, pod, with_shares(node.gpus, effective_shares(pod)))

    def place(
        self, request: Request, gpus: list[UsedGpu], demand: PodDemand, node: CandidateNode
    ) -> list[tuple[Share, float]] | PlacementRefusal:
        """The shares of one container, where the pod requests it of one NUMA node."""
        everywhere = range(len(gpus))
        if not demand.wishes.one_numa_node:
            return self._place_among(everywhere, request, gpus, demand, node)
        result = self._place_among(everywhere, request, list(gpus), demand, node)
        if isinstance(result, PlacementRefusal):
            return result
        order = self.order(gpus, request, demand)
        for numa in dict.fromkeys(gpus[position].numa for position in order):
            places = [place for place in everywhere if gpus[place].numa == numa]
            result = self._place_among(places, request, gpus, demand, node)
            if not isinstance(result, PlacementRefusal):
                return result
        return self.refusal(PlacementReason.NUMA, demand, node, request.container)

    def _place_among(
        self,
        places: Sequence[int],
        request: Request,
        gpus: list[UsedGpu],
        demand: PodDemand,
        node: CandidateNode,
    ) -> list[tuple[Share, float]] | PlacementRefusal:
        """The shares of one container on the GPUs at these places; ``gpus`` get them."""
        if demand.wishes.best_connected:
            places = self._best_connected(places, request, gpus, demand, node)
        elif len(places) == len(gpus):
            return super().place(request, gpus, demand, node)
        there = [gpus[place] for place in places]
        result = super().place(request, there, demand, node)
        if not isinstance(result, PlacementRefusal):
            for place, gpu in zip(places, there, strict=True):
                gpus[place] = gpu
        return result

    def _best_connected(
        self,
        places: Sequence[int],
        request: Request,
        gpus: Sequence[UsedGpu],
        demand: PodDemand,
        node: CandidateNode,
    ) -> Sequence[int]:
        """Those of the places that the container gets; all, if too few fit."""
        there = [gpus[place] for place in places]

        def fits(gpu: UsedGpu) -> bool:
            fitting = self.fit(gpu, request, self.memory(request, gpu), demand, node)
            return not isinstance(fitting, PlacementReason)

        order = self.order(there, request, demand)
        fitting = [position for position in order if fits(there[position])]
        if len(fitting) <= request.count:
            return places
        names = [there[position].device.uuid for position in fitting]
        chosen = best_connected(names, request.count, node.links)
        return [places[fitting[position]] for position in chosen]

    def node_reason(self, demand: PodDemand, node: CandidateNode) -> Skip:
        """Without Volcano's check of the node's mode: each GPU has its own.

        HAMi places init containers too, and so a pod without other containers that request GPUs.
        """
        if not node.gpus:
            return PlacementReason.NO_GPUS
        return None if demand.requests else PlacementReason.NOTHING_REQUESTED

    def requests(self, demand: PodDemand) -> Sequence[Request]:
        """Those of containers that run at the same time, sidecars first."""
        later = [request for request in demand.requests if request.kind is not ContainerKind.INIT]
        return sorted(later, key=lambda request: request.kind is not ContainerKind.SIDECAR)

    @property
    def last_first(self) -> bool:
        """True: HAMi tries its sorted list from the end."""
        return True

    def turn(self, gpu: UsedGpu, request: Request, demand: PodDemand) -> tuple[float, ...]:  # noqa: ARG002
        """By the pod's policies or the cluster's, then by NUMA node; the highest comes first."""
        wishes = demand.wishes
        use = _use(gpu, wishes.use_weights)
        policies = wishes.gpu_order or (self.gpu_policy,)
        return (*[-_SORT_KEYS[name](gpu, use) for name in policies], -gpu.numa)

    def exclusion(self, gpu: UsedGpu, wishes: PlacementWishes) -> Skip:
        """The mode that the pod requests, since HAMi looks for the GPU's in it; then Volcano's."""
        if wishes.mode is not None and (gpu.mode or SOFTWARE) not in wishes.mode:
            return PlacementReason.SHARING_MODE
        return super().exclusion(gpu, wishes)

    def preference(self, before: UsedGpu, after: UsedGpu, demand: PodDemand) -> float:  # noqa: ARG002
        """0: HAMi's score of a node does not depend on the pod."""
        return 0.0

    def message(self, reason: PlacementReason, demand: PodDemand, node: CandidateNode) -> str:  # noqa: ARG002
        """The reason code of HAMi."""
        return _REASONS.get(reason, reason.explanation)


def _in_start_order(demand: PodDemand, allocations: Sequence[Allocation]) -> tuple[Allocation, ...]:
    """As the containers start: init containers and sidecars as in the spec, then the others."""
    if len(allocations) == 1:
        return tuple(allocations)
    places = {request.container: place for place, request in enumerate(demand.requests)}
    return tuple(
        sorted(
            allocations,
            key=lambda each: (each.kind is ContainerKind.APP, places[each.container]),
        )
    )


def _use(gpu: UsedGpu, weights: tuple[int, int, int]) -> float:
    device, (slot, core, memory) = gpu.device, weights
    use = 0.0
    if device.slots:
        use += slot * gpu.users / device.slots
    if device.cores_milli:
        use += core * gpu.cores_milli / device.cores_milli
    if device.memory_bytes:
        use += memory * gpu.memory_bytes / device.memory_bytes
    return use


_SORT_KEYS: Final[Mapping[str, Callable[[UsedGpu, float], float]]] = {
    BINPACK: lambda _, use: use,
    SPREAD: lambda _, use: -use,
    NUMA: lambda gpu, _: gpu.numa,
}
"""The policies that order GPUs, by a GPU and its use: the highest comes first."""
