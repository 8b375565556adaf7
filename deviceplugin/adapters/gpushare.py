"""Aliyun gpushare's plugin: the extender's annotation chooses the GPU, the environment names it.

What is new against the original: GPUs have their own sizes, each container is served for itself,
and a pod that the extender has not seen is refused with the likely cause, except where the node has
only one GPU to choose from.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Self

import msgspec
from msgspec.structs import replace

from deviceplugin.capacity import NodeCapacity
from deviceplugin.model import AdmittedPod
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.scheme_adapter import AnnotationPatch, Folder, NodePatch, gpu_devices, lagging
from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.facts import Gpu
from vgpu.model.names import Phase, PodRef, Scheme
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import ClaimError, ContainerEdits
from vgpu.schemes.gpushare import annotations as gpushare_annotations
from vgpu.schemes.gpushare import env as gpushare_env
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.gpushare.node import isolation, unhealthy_data

_NOT_EXTENDED = (
    f"{gpushare_annotations.INDEX} is missing: kube-scheduler does not ask the gpushare extender"
    " about {memory}, or another scheduler has bound the pod"
)


class GpushareAdapter(msgspec.Struct, frozen=True):
    """gpushare's :class:`deviceplugin.scheme_adapter.SchemeAdapter`."""

    codec: Gpushare = Gpushare()

    def on(self, node: Node) -> Self:
        """The adapter for this node: a node label may keep cGPU from enforcing the limits."""
        return replace(self, codec=replace(self.codec, isolation=isolation(node)))

    @property
    def scheme(self) -> Scheme:
        """Aliyun gpushare's."""
        return Scheme.GPUSHARE

    @property
    def resources(self) -> tuple[str, ...]:
        """Memory alone; GPUs are counted on the Node object."""
        return (self.codec.names.memory,)

    # ------------------------------------------------------------ devices

    def devices(self, gpus: Iterable[Gpu]) -> tuple[Device, ...]:
        """The GPUs, each in whole units of its own memory, numbered as the extender does."""
        unit = self.codec.memory_unit
        return tuple(
            replace(gpu, index=index, memory_bytes=(gpu.memory_bytes or 0) // unit * unit)
            for index, gpu in enumerate(gpu_devices(gpus))
        )

    # ------------------------------------------------------------ pods

    def claim(
        self,
        pod: Pod,
        node: str,  # noqa: ARG002  # the annotations do not name it
        devices: tuple[Device, ...],
        capacity: NodeCapacity,  # noqa: ARG002  # the extender has chosen
    ) -> tuple[Allocation, ...]:
        """What the annotations reserve; without them the GPU of a node that has only one.

        Raises BindRefused.
        """
        try:
            claim = self.codec.claim(pod) or self.codec.sole_gpu(pod, devices)
            asked = {request.container: request for request in self.codec.requests(pod)}
        except ClaimError as error:
            raise BindRefused(BindRefusal.MALFORMED, error.detail, pod.ref) from error
        if claim is None:
            detail = _NOT_EXTENDED.format(memory=self.codec.names.memory)
            raise BindRefused(BindRefusal.NO_CLAIM, detail, pod.ref)
        uuids = {name: gpu.uuid for gpu in devices for name in gpu.names}
        for allocation in claim.allocations:
            request = asked.get(allocation.container)
            units = (request.memory_bytes or 0) * request.count if request else 0
            reserved = sum(share.memory_bytes or 0 for share in allocation.shares)
            if reserved != units:
                detail = f"{reserved} bytes are reserved, and {units} are what it asks for"
                raise BindRefused(BindRefusal.OTHER_COUNT, detail, pod.ref, allocation.container)
        return tuple(_by_uuid(allocation, uuids, pod) for allocation in claim.allocations)

    def edits(
        self,
        pod: Pod,
        allocation: Allocation,
        name: str,  # noqa: ARG002  # gpushare uses no random names
        devices: Mapping[str, Device],
    ) -> ContainerEdits:
        """The environment of the original's Allocate, with GPUs by UUID."""
        try:
            return self.codec.edits(pod.ref, allocation, devices)
        except ClaimError as error:
            raise BindRefused(
                BindRefusal.MALFORMED, error.detail, pod.ref, allocation.container
            ) from error

    def late_env(self, env: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002  # no file
        """Nothing in a container reads a file."""
        return {}

    def folders(self, pod: PodRef, container: str) -> tuple[Folder, ...]:  # noqa: ARG002  # none
        """None."""
        return ()

    def refusal(self, units: int, devices: tuple[Device, ...]) -> Mapping[str, str]:
        """The environment with which the original answers where it has no GPU for the container.

        The container then cannot start; the kubelet and the pod's phase do not say why.
        """
        gpu = (devices[0].memory_bytes or 0) if devices else 0
        unit = self.codec.memory_unit
        return gpushare_env.legacy_refusal(units, units, gpu // unit, unit)

    # ------------------------------------------------------------ annotations, labels and locks

    def pod_annotations(
        self, pod: Pod, admitted_pod: AdmittedPod, devices: Mapping[str, Device], now: float
    ) -> AnnotationPatch:
        """Assigned, with the time, once all containers of the pod are bound.

        For a pod that the extender has not seen, this writes the extender's annotations as well:
        ``inspect`` then shows the GPU.
        """
        allocations = admitted_pod.allocations
        if admitted_pod.foreign or not all(
            admitted_pod.binding(allocation.container) for allocation in allocations
        ):
            return {}
        if not self.codec.claim_keys(pod):
            assigned = tuple(
                replace(allocation, phase=Phase.ASSIGNED) for allocation in allocations
            )
            claim = Claim(self.scheme, pod.ref, "", assigned, assigned_at=now)
            try:
                return self.codec.annotations(claim, devices, pod.apps)
            except ClaimError:  # a GPU that is lost
                return {}
        return gpushare_annotations.assigned(pod, now)

    def failure_annotations(self, pod: Pod) -> AnnotationPatch:
        """Without its flag the original passes over the pod; the annotation of the GPU stays."""
        return lagging(pod.annotations, dict.fromkeys(gpushare_annotations.FLAGS))

    def node_annotations(
        self,
        node: Node,
        devices: tuple[Device, ...],
        now: float,  # noqa: ARG002  # the annotations have no time
    ) -> NodePatch:
        """How many GPUs, and which of them are unhealthy."""
        count = len(devices)
        resource = self.codec.names.count
        published = (node.capacity.get(resource, 0), node.allocatable.get(resource, 0))
        ill = (gpu.index for gpu in devices if not gpu.healthy and gpu.index is not None)
        return NodePatch(
            capacity={} if published == (count, count) else {resource: count},
            unhealthy=unhealthy_data(ill),
        )

    def lock_to_release(
        self,
        node: Node,  # noqa: ARG002  # there is none
        pods: Collection[Pod],  # noqa: ARG002
        served: Collection[str],  # noqa: ARG002
    ) -> str | None:
        """Nodes are not locked."""
        return None


def _by_uuid(allocation: Allocation, uuids: Mapping[str, str], pod: Pod) -> Allocation:
    """The allocation with GPUs by UUID. Raises BindRefused."""
    shares: list[Share] = []
    for share in allocation.shares:
        uuid = uuids.get(share.device)
        if not uuid:
            known = ", ".join(name for name in uuids if name.isdecimal()) or "none"
            detail = f"this node has no GPU with index {share.device}; it has {known}"
            raise BindRefused(BindRefusal.UNKNOWN_DEVICE, detail, pod.ref, allocation.container)
        shares.append(replace(share, device=uuid))
    return Allocation(allocation.container, tuple(shares), Phase.ASSIGNED)
