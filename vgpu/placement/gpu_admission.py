"""gpu-admission's predicate: which GPUs of a node a pod of gpu-manager gets, before it is bound.

A part of a GPU goes to the GPU with the least free that is enough, whole GPUs to idle ones. The
original is gpu-admission's ``pkg/predicate`` and ``pkg/algorithm``. It takes the fullest node that
can serve all containers (see ``score``), writes the reservation before the pod is bound, and
refuses a pod that already has one, so a pod whose binding failed waits for ever. Here nothing is
written before the binding, and the GPUs are chosen again each time.
"""

from collections.abc import Mapping
from typing import Final

from vgpu.model.allocation import Request
from vgpu.model.units import GAIA_MEMORY_BLOCK, WHOLE_DEVICE_MILLI
from vgpu.placement.candidate import CandidateNode, PodDemand, UsedGpu
from vgpu.placement.dialect import SequentialDialect
from vgpu.placement.result import PlacementReason

NO_GPU_DEVICE: Final = "no GPU device"
DOES_NOT_FIT: Final = "pod {uid} does not match with this node"

_MESSAGES: Final[Mapping[PlacementReason, str]] = {
    PlacementReason.NO_GPUS: NO_GPU_DEVICE,
    PlacementReason.TOO_FEW_GPUS: DOES_NOT_FIT,
    PlacementReason.NO_FITTING_GPU: DOES_NOT_FIT,
}


class GpuAdmissionDialect(SequentialDialect, frozen=True):
    """The predicate for one node."""

    def turn(self, gpu: UsedGpu, request: Request, demand: PodDemand) -> tuple[float, ...]:  # noqa: ARG002
        """The GPUs by free cores, free memory in whole blocks, and index."""
        return gpu.free_milli, gpu.free_bytes // GAIA_MEMORY_BLOCK, gpu.device.index or 0

    def fit(
        self,
        gpu: UsedGpu,
        request: Request,
        memory: int | None,
        demand: PodDemand,  # noqa: ARG002
        node: CandidateNode,  # noqa: ARG002
    ) -> str | PlacementReason:
        """The GPU's index in decimal. A whole GPU has all memory, whatever is requested."""
        if not gpu.device.healthy:
            return PlacementReason.UNHEALTHY
        if gpu.cordoned:
            return PlacementReason.CORDONED
        if request.cores_milli >= WHOLE_DEVICE_MILLI:
            return gpu.device.name if gpu.is_idle else PlacementReason.EXCLUSIVE
        if gpu.device.memory_bytes is None:
            return PlacementReason.UNKNOWN_SIZE
        if gpu.free_milli < request.cores_milli:
            return PlacementReason.CORES
        return PlacementReason.MEMORY if gpu.free_bytes < (memory or 0) else gpu.device.name

    def message(self, reason: PlacementReason, demand: PodDemand, node: CandidateNode) -> str:  # noqa: ARG002
        """gpu-admission's message."""
        return _MESSAGES.get(reason, reason.explanation).format(uid=demand.pod.uid)
