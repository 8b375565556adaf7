"""Aliyun gpushare: memory of GPUs in units, the GPU chosen by a scheduler extender.

Names, formats and defaults are those of gpushare-scheduler-extender and gpushare-device-plugin,
with the allocation by container of ACK's scheduler. Only memory is shared; cores are not counted.

The number of a GPU is NVML's index: gpushare-device-plugin (``pkg/gpu/nvidia/allocate.go``) writes
it unchanged into ``NVIDIA_VISIBLE_DEVICES``, where NVIDIA's container runtime counts as NVML does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import structs

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme
from vgpu.model.objects import ContainerState, Node, Pod
from vgpu.model.units import GIB, exact_size
from vgpu.schemes.codec import BaseCodec, ClaimError, ContainerEdits, Slot
from vgpu.schemes.gpushare import node as gpushare_node
from vgpu.schemes.gpushare.annotations import (
    ALLOCATION,
    ANNOTATIONS,
    ASSIGNED,
    CHANGED_AT,
    INDEX,
    POD_TOTAL,
    GpushareAnnotations,
    read,
    write_by_container,
    write_one_gpu,
)
from vgpu.schemes.gpushare.env import environment, limits_from_env
from vgpu.schemes.gpushare.node import MOST_GPUS, MOST_UNITS, NAMES
from vgpu.schemes.resource_names import ResourceNames
from vgpu.schemes.text import amount, number, object_name_of, positions

__all__ = ["ANNOTATIONS", "Gpushare", "limits_from_env"]

COUNT_LABEL: Final = "aliyun.com/gpu-count"
"""ACK's label of a pod: the number of GPUs over which its memory is spread."""

_TOGETHER: Final = frozenset({ContainerKind.APP, ContainerKind.SIDECAR})


class Gpushare(BaseCodec, frozen=True):
    """The codec of gpushare.

    Attributes:
        memory_unit: bytes of one unit of memory, the plugin's ``-memory-unit``.
        isolation: whether cGPU is to enforce the limits, see :func:`gpushare_node.isolation`.
        names: the names of its resources.
    """

    memory_unit: int = GIB
    isolation: bool = True
    names: ResourceNames = NAMES

    def __post_init__(self) -> None:
        if self.memory_unit <= 0:
            raise ValueError(f"a unit of {self.memory_unit} bytes")

    @property
    def name(self) -> str:
        """The name of its row."""
        return "gpushare"

    @property
    def scheme(self) -> Scheme:
        """Aliyun's gpushare."""
        return Scheme.GPUSHARE

    @property
    def resources(self) -> tuple[str, ...]:
        """Memory alone; GPUs are counted on the node, but not asked for."""
        return (self.names.memory,)

    def answered(self, env: Mapping[str, str]) -> tuple[Share, ...]:
        """One share, by the variables of the plugin; of no device where the plugin found none."""
        limits = limits_from_env(env)
        if limits is None:
            return ()
        device = limits.uuid or ("" if limits.index is None else str(limits.index))
        units = limits.container_units
        return (Share(device, units * self.memory_unit if units else None),)

    @property
    def only_counted(self) -> tuple[str, ...]:
        """The number of GPUs, which the plugin writes into the capacity of its node."""
        return (self.names.count,)

    def requests(self, pod: Pod) -> tuple[Request, ...]:
        """What each container requests: memory of one GPU, or of several with ACK's label.

        The extender places by the sum over the app containers only. Raises ClaimError.
        """
        count = _requested_gpus(pod)
        requests = []
        for container in pod.containers:
            units = amount(pod, container, self.names.memory, MOST_UNITS)
            if units % count:
                asked = f"{units} of {self.names.memory}"
                detail = f"{container.name} asks for {asked}, which it does not divide"
                raise ClaimError(object_name_of(pod), COUNT_LABEL, str(count), detail)
            if units:
                memory = units // count * self.memory_unit
                requests.append(
                    Request(container.name, count, memory_bytes=memory, kind=container.kind)
                )
        return tuple(requests)

    def claim(self, pod: Pod) -> Claim | None:
        """The GPUs that the annotations name, and memory from there or else from the limits.

        Init containers have no share of their own: they use their pod's GPUs before the others
        do. What contradicts the limits, or is unreadable beside a readable GPU, is a remark of
        the claim. Raises ClaimError where the GPU is unknown.
        """
        annotations = read(pod, _requested_together(pod, self.names))
        if annotations is None:
            return None
        return Claim(
            scheme=self.scheme,
            pod=pod.ref,
            node="",
            allocations=tuple(
                Allocation(container, self._shares(units), annotations.phase)
                for container, units in annotations.units.items()
            ),
            assumed_at=annotations.changed_at if annotations.phase is Phase.ASSUMED else None,
            assigned_at=annotations.changed_at if annotations.phase is Phase.ASSIGNED else None,
            remarks=annotations.remarks,
        )

    def claim_keys(self, pod: Pod) -> tuple[str, ...]:
        """The annotations of both forms."""
        return tuple(sorted(pod.annotations.keys() & set(ANNOTATIONS)))

    def sole_gpu(self, pod: Pod, devices: tuple[Device, ...]) -> Claim | None:
        """What a bound pod without annotations gets on a node with exactly one GPU.

        The original plugin grants that GPU and writes nothing on the pod, so no annotation will
        ever have it. The containers that have started are assigned. None if the pod is no such
        case. Raises ClaimError.
        """
        requested = _requested_together(pod, self.names)
        if not pod.node or not requested or len(devices) != 1 or self.claim(pod) is not None:
            return None
        started = {
            status.name
            for status in pod.statuses
            if status.state is not ContainerState.WAITING or status.restarts
        }
        return Claim(
            scheme=self.scheme,
            pod=pod.ref,
            node=pod.node,
            allocations=tuple(
                Allocation(
                    container,
                    (Share(devices[0].name, units * self.memory_unit),),
                    Phase.ASSIGNED if container in started else Phase.ASSUMED,
                )
                for container, units in requested.items()
            ),
        )

    def annotations(
        self, claim: Claim, devices: Mapping[str, Device], containers: Sequence[str] = ()
    ) -> dict[str, str]:
        """The extender's five annotations, or, on several GPUs, those of ACK's scheduler.

        The latter count containers, so they need ``containers``: the names of the pod's app
        containers in the spec's order. The former leave each container's memory to its limits.
        The time when it was assumed is lost with an assigned claim, as with the original plugin;
        the node is where the pod is bound. Raises ClaimError.
        """
        object_name = object_name_of(claim.pod)
        phase, changed_at = _state(claim, object_name)
        units: dict[str, dict[int, int]] = {}
        gpus: dict[int, Device] = {}
        for allocation in claim.allocations:
            slices = self._slices(allocation, devices, object_name)
            gpus |= {index: gpu for index, gpu, _ in slices}
            units[allocation.container] = {index: amount for index, _, amount in slices}
        if len(units) != len(claim.allocations):
            raise ClaimError(object_name, INDEX, ", ".join(units), "a container twice")
        annotations = GpushareAnnotations(units, phase, changed_at)
        if len(gpus) == 1:
            ((index, gpu),) = gpus.items()
            gpu_total = (gpu.memory_bytes or 0) // self.memory_unit
            return write_one_gpu(annotations, index, gpu_total, object_name)
        numbers = positions(containers)
        if not units.keys() <= numbers.keys():
            names = ", ".join(units)
            raise ClaimError(object_name, INDEX, names, "several GPUs, and not the app containers")
        return write_by_container(annotations, numbers, object_name)

    def devices(self, node: Node) -> tuple[Device, ...]:
        """The GPUs by index, all of the average size. Raises ClaimError."""
        return gpushare_node.gpus(node, self.memory_unit, self.names)

    def marks_late(self, node: Node | None) -> bool:
        """True on a node with one GPU: the plugin may allocate it without annotations."""
        return node is not None and node.capacity.get(self.names.count) == 1

    def with_health(
        self, devices: tuple[Device, ...], unhealthy: str, node: str
    ) -> tuple[Device, ...]:
        """The devices, unhealthy those whose index the text has. Raises ClaimError."""
        return gpushare_node.with_health(devices, gpushare_node.unhealthy_gpus(unhealthy, node))

    def slot(self, resource: str, device_id: str) -> Slot:
        """What ``<UUID>-_-<unit>`` stands for. Raises ClaimError."""
        return gpushare_node.slot(resource, device_id, self.names)

    def device_ids(self, resource: str, devices: tuple[Device, ...]) -> Iterator[str]:
        """One ID for each whole unit of each device's own memory. Raises ClaimError."""
        return gpushare_node.device_ids(resource, devices, self.memory_unit, self.names)

    def edits(
        self, pod: PodRef, allocation: Allocation, devices: Mapping[str, Device]
    ) -> ContainerEdits:
        """The environment of Allocate, see :func:`gpushare_env.environment`. Raises ClaimError."""
        slices = self._slices(allocation, devices, object_name_of(pod))
        gpus = [gpu for _, gpu, _ in slices]
        units = sum(amount for _, _, amount in slices)
        return ContainerEdits(environment(gpus, units, self.memory_unit, isolation=self.isolation))

    def rewritten(self, pod: Pod, claim: Claim, devices: Mapping[str, Device]) -> dict[str, str]:
        """The extender's form, ACK's, or both, as the pod has it. Raises ClaimError."""
        ascending = _ascending(claim, devices)
        annotations = self.annotations(ascending, devices, pod.apps)
        if ALLOCATION not in pod.annotations or ALLOCATION in annotations:
            return annotations
        by_container = self._by_container(ascending, devices, pod.apps)
        return annotations | by_container if INDEX in pod.annotations else by_container

    def _by_container(
        self, claim: Claim, devices: Mapping[str, Device], apps: tuple[str, ...]
    ) -> dict[str, str]:
        """ACK's form, for one GPU too; what cannot be shared was refused. Raises ClaimError."""
        units = {
            allocation.container: {
                _index(share, devices): (share.memory_bytes or 0) // self.memory_unit
                for share in allocation.shares
            }
            for allocation in claim.allocations
        }
        numbers = positions(apps)
        object_name = object_name_of(claim.pod)
        if not units.keys() <= numbers.keys():
            raise ClaimError(object_name, ALLOCATION, ", ".join(units), "not the app containers")
        phase = claim.allocations[0].phase
        changed_at = claim.assigned_at if phase is Phase.ASSIGNED else claim.assumed_at
        return write_by_container(
            GpushareAnnotations(units, phase, changed_at), numbers, object_name
        )

    def _shares(self, amounts: Mapping[int, int]) -> tuple[Share, ...]:
        return tuple(
            Share(str(index), units * self.memory_unit) for index, units in amounts.items()
        )

    def _slices(
        self, allocation: Allocation, devices: Mapping[str, Device], object_name: str
    ) -> list[tuple[int, Device, int]]:
        """Index, GPU and units of each share. Raises ClaimError for what gpushare cannot share."""
        slices: list[tuple[int, Device, int]] = []
        for share in allocation.shares:
            gpu = devices.get(share.device)
            if gpu is None or gpu.index is None or gpu.memory_bytes is None:
                raise ClaimError(
                    object_name, INDEX, share.device, "a GPU of unknown index or memory"
                )
            units, rest = divmod(share.memory_bytes or 0, self.memory_unit)
            if rest or not 0 < units <= MOST_UNITS:
                detail = f"not a number of units of {exact_size(self.memory_unit)}"
                raise ClaimError(object_name, POD_TOTAL, str(share.memory_bytes), detail)
            if share.cores_milli is not None:
                raise ClaimError(object_name, INDEX, str(share.cores_milli), "cores are not shared")
            slices.append((gpu.index, gpu, units))
        indices = [index for index, _, _ in slices]
        if not indices or indices != sorted(set(indices)):
            raise ClaimError(object_name, INDEX, str(indices), "not GPUs in ascending order")
        return slices


def _index(share: Share, devices: Mapping[str, Device]) -> int:
    device = devices.get(share.device)
    return -1 if device is None or device.index is None else device.index


def _ascending(claim: Claim, devices: Mapping[str, Device]) -> Claim:
    """The claim with each container's GPUs in gpushare's order."""
    allocations = tuple(
        structs.replace(
            allocation,
            shares=tuple(sorted(allocation.shares, key=lambda share: _index(share, devices))),
        )
        for allocation in claim.allocations
    )
    return structs.replace(claim, allocations=allocations)


def _requested_together(pod: Pod, names: ResourceNames) -> dict[str, int]:
    """Requested units by container, of those that run at the same time. Raises ClaimError.

    A pod of whose containers one requests a resource of an unknown name may request memory by it:
    then the units are those that the extender has written for the pod.
    """
    requested = _requested(pod, names)
    total = number(pod.annotations.get(POD_TOTAL, ""), MOST_UNITS)
    others = [each.name for each in pod.containers if each.others and each.kind in _TOGETHER]
    if requested or not total or len(others) != 1 or pod.node == "":
        return requested
    return {others[0]: total}


def _requested(pod: Pod, names: ResourceNames) -> dict[str, int]:
    """Raises ClaimError."""
    return {
        container.name: units
        for container in pod.containers
        if container.kind in _TOGETHER
        and (units := amount(pod, container, names.memory, MOST_UNITS))
    }


def _requested_gpus(pod: Pod) -> int:
    """ACK's pod label; 1 where there is none. Raises ClaimError."""
    text = pod.labels.get(COUNT_LABEL, "1")
    count = number(text, MOST_GPUS)
    if count is None:
        raise ClaimError(object_name_of(pod), COUNT_LABEL, text, "not a number of GPUs")
    return count or 1


def _state(claim: Claim, object_name: str) -> tuple[Phase, float | None]:
    """Phase and time of a claim, if annotations can express it. Raises ClaimError."""
    phases = {allocation.phase for allocation in claim.allocations}
    if claim.scheme is not Scheme.GPUSHARE or claim.failed or claim.unserved:
        raise ClaimError(
            object_name, ASSIGNED, claim.scheme, "gpushare's annotations cannot express this"
        )
    if len(phases) != 1 or Phase.RELEASED in phases:
        raise ClaimError(object_name, ASSIGNED, ", ".join(sorted(phases)), "not one phase for all")
    phase = phases.pop()
    changed_at = claim.assigned_at if phase is Phase.ASSIGNED else claim.assumed_at
    if changed_at is None and phase is Phase.ASSUMED:
        raise ClaimError(object_name, CHANGED_AT, "", "missing, and the plugin needs it")
    return phase, changed_at
