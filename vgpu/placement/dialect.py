"""The protocol of a scheduler's arithmetic, and the loop that all of its dialects share.

Each container gets its GPUs before the next one is placed. A dialect has the order in which GPUs
are tried, what is wrong with a GPU, and the messages of its original.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from msgspec import structs

from vgpu.model.allocation import Allocation, Request, Share, physical
from vgpu.model.names import ContainerKind, Phase
from vgpu.placement.candidate import (
    NO_WISHES,
    CandidateNode,
    PlacementWishes,
    PodDemand,
    UsedGpu,
    sums,
)
from vgpu.placement.result import (
    UNRESOLVABLE,
    Placement,
    PlacementReason,
    PlacementRefusal,
    PlacementResult,
)

SPREAD: Final = "spread"
BINPACK: Final = "binpack"

Skip = PlacementReason | None


class PlacementDialect(Protocol):
    """A scheduler's arithmetic for one pod and one node. Pure."""

    def filter(self, demand: PodDemand, node: CandidateNode) -> PlacementRefusal | None:
        """Why the node does not take the pod; None if it does."""
        ...

    def score(self, demand: PodDemand, node: CandidateNode) -> float:
        """How well the node suits the pod, from 0 to 1; 0 if it does not take the pod."""
        ...

    def choose(self, demand: PodDemand, node: CandidateNode) -> PlacementResult:
        """The GPUs of each container of the pod, or why the node does not take it."""
        ...

    def rank(self, demand: PodDemand, placement: Placement) -> float:
        """:meth:`score` of a node whose placement is known."""
        ...

    def requests(self, demand: PodDemand) -> Sequence[Request]:
        """What is placed at once: of each container, or of all together."""
        ...

    def exclusion(self, gpu: UsedGpu, wishes: PlacementWishes) -> Skip:
        """Why the pod's own annotations exclude a GPU, whatever is free; None if they do not."""
        ...


class SequentialDialect(msgspec.Struct, frozen=True):
    """A dialect that places the containers one after another.

    Attributes:
        node_policy: whether full nodes (``binpack``) or empty ones (``spread``) score more, unless
            the pod's annotations request it otherwise.
    """

    node_policy: str = BINPACK

    def filter(self, demand: PodDemand, node: CandidateNode) -> PlacementRefusal | None:
        """Why the node does not take the pod; None if it does."""
        result = self.choose(demand, node)
        return result if isinstance(result, PlacementRefusal) else None

    def score(self, demand: PodDemand, node: CandidateNode) -> float:
        """:meth:`rank`, or 0 if the node does not take the pod."""
        result = self.choose(demand, node)
        return 0.0 if isinstance(result, PlacementRefusal) else self.rank(demand, result)

    def rank(self, demand: PodDemand, placement: Placement) -> float:
        """By the part of the node's GPU memory and cores that is in use with the pod."""
        return self.rank_of(demand, fullness(placement.gpus))

    def rank_of(self, demand: PodDemand, full: float) -> float:
        """The score of a node of this :func:`fullness` with the pod."""
        policy = demand.wishes.node_policy or self.node_policy
        return 1.0 - full if policy == SPREAD else full

    def choose(self, demand: PodDemand, node: CandidateNode) -> PlacementResult:
        """The GPUs of each container, in the pod's order."""
        reason = self.node_reason(demand, node)
        if reason is not None:
            return self.refusal(reason, demand, node)
        gpus = list(node.gpus)
        allocations = []
        preference = 0.0
        for request in self.requests(demand):
            shares = self.place(request, gpus, demand, node)
            if isinstance(shares, PlacementRefusal):
                return shares
            preference += sum(added for _, added in shares)
            allocations.append(
                Allocation(
                    request.container,
                    tuple(share for share, _ in shares),
                    Phase.ASSUMED,
                    request.kind,
                )
            )
        return Placement(
            node.name,
            self.allocations(demand, allocations),
            _with_groups(gpus, allocations, demand.wishes.groups),
            preference,
        )

    def place(
        self, request: Request, gpus: list[UsedGpu], demand: PodDemand, node: CandidateNode
    ) -> list[tuple[Share, float]] | PlacementRefusal:
        """The shares of one container, each with its :meth:`preference`; ``gpus`` get them."""
        if request.count > len(gpus):
            return self.refusal(PlacementReason.TOO_FEW_GPUS, demand, node, request.container)
        shares: list[tuple[Share, float]] = []
        skipped: list[tuple[str, PlacementReason]] = []
        for position in self.order(gpus, request, demand):
            if len(shares) == request.count:
                break
            gpu = gpus[position]
            memory = self.memory(request, gpu)
            fitting = self.fit(gpu, request, memory, demand, node)
            if isinstance(fitting, PlacementReason):
                skipped.append((gpu.device.name, fitting))
                continue
            share = Share(fitting, memory, self.cores(request))
            gpus[position] = gpu.with_share(share)
            shares.append((share, self.preference(gpu, gpus[position], demand)))
        if len(shares) < request.count:
            reason = self.shortage(bool(shares), skipped)
            refusal = self.refusal(reason, demand, node, request.container, skipped)
            lasting = sum(why in UNRESOLVABLE for _, why in skipped)
            return structs.replace(refusal, is_lasting=len(gpus) - lasting < request.count)
        return shares

    # ------------------------------------------------------------ what dialects differ in

    def requests(self, demand: PodDemand) -> Sequence[Request]:
        """The requests that are placed, in order: those of app containers."""
        return [request for request in demand.requests if request.kind is ContainerKind.APP]

    def allocations(
        self,
        demand: PodDemand,  # noqa: ARG002  # for a dialect that places whole pods
        placed: list[Allocation],
    ) -> tuple[Allocation, ...]:
        """The containers' allocations from those of :meth:`requests`."""
        return tuple(placed)

    def node_reason(self, demand: PodDemand, node: CandidateNode) -> Skip:
        """What is wrong with the pod, or with the whole node."""
        if not node.gpus:
            return PlacementReason.NO_GPUS
        return None if self.requests(demand) else PlacementReason.NOTHING_REQUESTED

    def order(self, gpus: Sequence[UsedGpu], request: Request, demand: PodDemand) -> Sequence[int]:
        """The GPUs' positions as they are tried: by :meth:`turn`."""
        turns = [self.turn(gpu, request, demand) for gpu in gpus]
        positions = range(len(gpus))
        return sorted(reversed(positions) if self.last_first else positions, key=turns.__getitem__)

    @property
    def last_first(self) -> bool:
        """Whether of GPUs with the same :meth:`turn` the last one is tried first."""
        return False

    def turn(self, gpu: UsedGpu, request: Request, demand: PodDemand) -> tuple[float, ...]:
        """When a GPU is tried: the one with the least first. It depends on this GPU alone."""
        raise NotImplementedError

    def fit(
        self,
        gpu: UsedGpu,
        request: Request,
        memory: int | None,
        demand: PodDemand,
        node: CandidateNode,
    ) -> str | PlacementReason:
        """The name of the device that the container gets of this GPU, or why it gets none."""
        raise NotImplementedError

    def exclusion(self, gpu: UsedGpu, wishes: PlacementWishes) -> Skip:  # noqa: ARG002
        """Why the pod's own annotations exclude a GPU: most dialects read none such."""
        return None

    def memory(self, request: Request, gpu: UsedGpu) -> int | None:  # noqa: ARG002
        """Bytes of this GPU that the container gets; None is all."""
        return request.memory_bytes

    def cores(self, request: Request) -> int | None:
        """Thousandths of a GPU's cores that the container gets; None where none are shared."""
        return request.cores_milli

    def preference(self, before: UsedGpu, after: UsedGpu, demand: PodDemand) -> float:  # noqa: ARG002
        """What one chosen GPU adds to :attr:`Placement.preference`."""
        return 0.0

    def shortage(
        self,
        has_some: bool,  # noqa: ARG002
        skipped: Sequence[tuple[str, PlacementReason]],  # noqa: ARG002
    ) -> PlacementReason:
        """The reason when too few GPUs fit."""
        return PlacementReason.NO_FITTING_GPU

    def message(self, reason: PlacementReason, demand: PodDemand, node: CandidateNode) -> str:  # noqa: ARG002
        """The original's message."""
        return reason.explanation

    def refusal(
        self,
        reason: PlacementReason,
        demand: PodDemand,
        node: CandidateNode,
        container: str = "",
        skipped: Sequence[tuple[str, PlacementReason]] = (),
    ) -> PlacementRefusal:
        """The refusal with its message."""
        wishes = demand.wishes
        return PlacementRefusal(
            reason,
            self.message(reason, demand, node),
            container,
            tuple(skipped),
            max(
                (
                    gpu.free_bytes
                    for gpu in node.gpus
                    if gpu.is_usable
                    and (wishes is NO_WISHES or self.exclusion(gpu, wishes) is None)
                ),
                default=None,
            ),
        )


def _with_groups(
    gpus: Sequence[UsedGpu], allocations: Sequence[Allocation], groups: tuple[str, ...]
) -> tuple[UsedGpu, ...]:
    """The GPUs, those of the allocations with the pod's groups."""
    if not groups:
        return tuple(gpus)
    devices = {physical(share.device) for each in allocations for share in each.shares}
    return tuple(
        structs.replace(gpu, groups=gpu.groups.union(groups)) if gpu.device.name in devices else gpu
        for gpu in gpus
    )


def fullness(gpus: Sequence[UsedGpu]) -> float:
    """The part of the GPUs' memory or cores that is in use, whichever is more: 0 to 1."""
    memory, used_memory, cores, used_cores = sums(gpus)
    in_use = (
        used_memory / memory if memory else 0.0,
        used_cores / cores if cores else 0.0,
    )
    return min(1.0, max(in_use))
