"""gpushare's extender: whether a node can take a pod, and on which GPU the pod goes.

A pod goes to one GPU, with the sum of what its containers request, or, with the label of ACK's
scheduler, to several with as much on each. Of the healthy GPUs that have enough, the fullest is
chosen; of equals, the first. What matters is the free memory of single GPUs, not their sum.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from vgpu.model.allocation import Allocation, Request, Share
from vgpu.model.names import ContainerKind, Phase
from vgpu.placement.candidate import CandidateNode, PodDemand, UsedGpu
from vgpu.placement.dialect import SequentialDialect, Skip
from vgpu.placement.result import PlacementReason

NOT_SHARED: Final = "The node {node} is not for GPU share, need skip"
NO_ROOM: Final = "Insufficient GPU Memory in one device"
NOT_PLACED: Final = "The node {node} can't place the pod {pod.name} in ns {pod.namespace}"

_MESSAGES: Final[Mapping[PlacementReason, str]] = {
    PlacementReason.NO_GPUS: NOT_SHARED,
    PlacementReason.TOO_FEW_GPUS: NO_ROOM,
    PlacementReason.NO_FITTING_GPU: NO_ROOM,
    PlacementReason.NOTHING_REQUESTED: NOT_PLACED,
}

_TOGETHER: Final = frozenset({ContainerKind.APP, ContainerKind.SIDECAR})


class GpushareDialect(SequentialDialect, frozen=True):
    """The extender's rule for one node."""

    def requests(self, demand: PodDemand) -> Sequence[Request]:
        """One request with the sum over the containers that run at the same time."""
        together = [request for request in demand.requests if request.kind in _TOGETHER]
        if not together:
            return ()
        memory = sum(request.memory_bytes or 0 for request in together)
        return (Request("", together[0].count, memory_bytes=memory),)

    def allocations(self, demand: PodDemand, placed: list[Allocation]) -> tuple[Allocation, ...]:
        """Each container's own memory of the pod's GPUs, which are in ascending order."""
        devices = sorted(
            (share.device for allocation in placed for share in allocation.shares), key=int
        )
        return tuple(
            Allocation(
                request.container,
                tuple(Share(device, request.memory_bytes) for device in devices),
                Phase.ASSUMED,
                request.kind,
            )
            for request in demand.requests
            if request.kind in _TOGETHER
        )

    def node_reason(self, demand: PodDemand, node: CandidateNode) -> Skip:
        """A node without memory to share is none of gpushare's."""
        if not any(gpu.capacity_bytes for gpu in node.gpus):
            return PlacementReason.NO_GPUS
        return super().node_reason(demand, node)

    def turn(self, gpu: UsedGpu, request: Request, demand: PodDemand) -> tuple[float, ...]:  # noqa: ARG002
        """The fullest first, of equals the one with the lowest index."""
        return gpu.free_bytes, gpu.device.index or 0

    def fit(
        self,
        gpu: UsedGpu,
        request: Request,  # noqa: ARG002
        memory: int | None,
        demand: PodDemand,  # noqa: ARG002
        node: CandidateNode,  # noqa: ARG002
    ) -> str | PlacementReason:
        """The GPU's index in decimal."""
        if not gpu.device.healthy:
            return PlacementReason.UNHEALTHY
        if gpu.cordoned:
            return PlacementReason.CORDONED
        return PlacementReason.MEMORY if gpu.free_bytes < (memory or 0) else gpu.device.name

    def cores(self, request: Request) -> int | None:  # noqa: ARG002
        """None: only memory is shared."""
        return None

    def message(self, reason: PlacementReason, demand: PodDemand, node: CandidateNode) -> str:
        """The extender's message."""
        text = _MESSAGES.get(reason, reason.explanation)
        return text.format(node=node.name, pod=demand.pod)
