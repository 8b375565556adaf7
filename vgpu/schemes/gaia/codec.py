"""The ``gaia`` scheme: what Tencent's gpu-manager and gpu-admission write on pods and nodes.

A container asks for cores (100 are one GPU) and memory (blocks of 256 MiB): below 100 cores for a
part of one GPU, from 100 on for whole GPUs. gpu-admission answers with ``predicate-*``
annotations, gpu-manager with ``gpu-assigned``. A GPU is known by the N of its ``/dev/nvidia<N>``,
NVML's minor number: that is the number in the annotations, and :attr:`Device.minor` here. It is not
NVML's index.

Names and rules: gpu-manager ``pkg/types`` and ``pkg/utils``, gpu-admission ``pkg/util``; the number
in ``allocateOne`` of ``pkg/services/allocator/nvidia``, which looks up ``/dev/nvidia<number>``, and
in ``pkg/device/nvidia/tree.go``, which names its nodes by ``nvmlDeviceGetMinorNumber``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import Phase, PodRef, Scheme, device_node
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import (
    GAIA_MEMORY_BLOCK,
    MILLI_PER_PERCENT,
    WHOLE_DEVICE_MILLI,
    WHOLE_DEVICE_PERCENT,
)
from vgpu.schemes.codec import BaseCodec, ClaimError, ContainerEdits, Slot, remark
from vgpu.schemes.gaia import grant as gaia_grant
from vgpu.schemes.gaia import node as gaia_node
from vgpu.schemes.gaia.node import MOST_BLOCKS, NAMES
from vgpu.schemes.gaia.vcuda_config import MOST_CORES
from vgpu.schemes.resource_names import ResourceNames
from vgpu.schemes.text import amount, nanoseconds, object_name_of, positions, seconds

PREDICATE_TIME: Final = "tencent.com/predicate-time"
PREDICATE_NODE: Final = "tencent.com/predicate-node"
PREDICATE_INDEX: Final = "tencent.com/predicate-gpu-idx-"
"""The number of an app container in the pod's spec follows."""

ASSIGNED: Final = "tencent.com/gpu-assigned"

CORE_LIMIT: Final = "tencent.com/vcuda-core-limit"
"""Written by users: percent of a GPU up to which the pod's parts of GPUs may grow."""

_PHASES = {"true": Phase.ASSIGNED, "false": Phase.ASSUMED}
_INDICES = re.compile(r"[0-9]{1,3}(?:,[0-9]{1,3}){0,63}")
_PERCENT = re.compile(r"[0-9]{1,9}")


class Gaia(BaseCodec, frozen=True):
    """The codec of ``gaia``.

    Attributes:
        limits_path: ``--virtual-manager-path``: a folder for each pod, where its limits lie.
        driver_path: where gpu-manager keeps the driver's libraries for containers: those that
            enforce limits in ``nvidia``, the others in ``origin``.
        extra_devices: device nodes for every container (``--extra-config``, ``default``).
        compat32: whether the container's own environment has ``compat32=true``.
        names: the names of its resources.
    """

    limits_path: str = "/etc/gpu-manager/vm"
    driver_path: str = "/etc/gpu-manager/vdriver"
    extra_devices: tuple[str, ...] = ()
    compat32: bool = False
    names: ResourceNames = NAMES

    @property
    def name(self) -> str:
        """The name of its row."""
        return "gaia"

    @property
    def scheme(self) -> Scheme:
        """``gaia``."""
        return Scheme.GAIA

    @property
    def resources(self) -> tuple[str, ...]:
        """Cores and memory."""
        return (self.names.cores, self.names.memory)

    def requests(self, pod: Pod) -> tuple[Request, ...]:
        """What each container requests: a part of one GPU, or whole GPUs with all their memory.

        Raises ClaimError for cores above 100 that are no multiple of it, and for a part of a GPU
        without cores or without memory: gpu-manager does not find such a pod when it is to serve
        it.
        """
        return _requests(pod, _core_limit(pod), self.names)

    def claim(self, pod: Pod) -> Claim | None:
        """The devices in the pod's annotations; None if there are none.

        A container has as many shares as the annotation has GPUs: a GPU in an annotation is not
        free, whatever was requested. Where the GPUs, the flag or the time cannot be right, the
        claim has a remark. Raises ClaimError where a GPU is unknown.
        """
        if not any(_is_claim(key) for key in pod.annotations):
            return None
        requests = {request.container: request for request in _requests(pod, None, self.names)}
        apps = pod.apps
        phase, flag_remarks = _phase(pod)
        assumed_at, time_remarks = _predicate_time(pod)
        shares = {
            name: _shares(pod, number, requests[name])
            for number, name in enumerate(apps)
            if name in requests and f"{PREDICATE_INDEX}{number}" in pod.annotations
        }
        return Claim(
            scheme=self.scheme,
            pod=pod.ref,
            node=pod.annotations.get(PREDICATE_NODE, ""),
            allocations=tuple(Allocation(name, held, phase) for name, held in shares.items()),
            assumed_at=assumed_at,
            remarks=(*_index_remarks(pod, apps, requests, shares), *flag_remarks, *time_remarks),
        )

    def claim_keys(self, pod: Pod) -> tuple[str, ...]:
        """The annotations of gpu-admission and gpu-manager."""
        return tuple(sorted(filter(_is_claim, pod.annotations)))

    def annotations(
        self, claim: Claim, devices: Mapping[str, Device], containers: Sequence[str] = ()
    ) -> dict[str, str]:
        """The annotations of gpu-admission and gpu-manager for exactly this claim.

        They count containers, so they need ``containers``: the names of the pod's app containers
        in the spec's order. Raises ClaimError for phases that differ, a GPU of unknown minor
        number, and a container that is not there.
        """
        object_name = object_name_of(claim.pod)
        flag = _flag(claim)
        numbers = positions(containers)
        annotations = {}
        for allocation in claim.allocations:
            if allocation.container not in numbers:
                detail = "not one of the pod's app containers"
                raise ClaimError(object_name, PREDICATE_INDEX, allocation.container, detail)
            annotations[f"{PREDICATE_INDEX}{numbers[allocation.container]}"] = ",".join(
                str(gaia_grant.minor_of(object_name, share, devices))
                for share in gaia_grant.checked(object_name, allocation)
            )
        if len(annotations) < len(claim.allocations):
            raise ClaimError(
                object_name, PREDICATE_INDEX, str(len(annotations)), "a container twice"
            )
        if claim.node:
            annotations[PREDICATE_NODE] = claim.node
        if claim.assumed_at is not None:
            annotations[PREDICATE_TIME] = nanoseconds(claim.assumed_at, object_name, PREDICATE_TIME)
        return annotations | {ASSIGNED: flag}

    def devices(self, node: Node) -> tuple[Device, ...]:
        """The GPUs by minor number, all of the average size. Raises ClaimError."""
        return gaia_node.gpus(node, self.names)

    def marks_late(self, node: Node | None) -> bool:  # noqa: ARG002  # on every node
        """True: gpu-manager marks a pod when its container starts.

        That is after images, volumes and init containers.
        """
        return True

    def slot(self, resource: str, device_id: str) -> Slot:
        """What ``<resource>-<unit>`` stands for: no GPU in particular. Raises ClaimError."""
        return gaia_node.slot(resource, device_id, self.names)

    def device_ids(self, resource: str, devices: tuple[Device, ...]) -> Iterator[str]:
        """The IDs of all percents of cores, or of all blocks of memory. Raises ClaimError."""
        return gaia_node.device_ids(resource, devices, self.names)

    def edits(
        self, pod: PodRef, allocation: Allocation, devices: Mapping[str, Device]
    ) -> ContainerEdits:
        """gpu-manager's answer to Allocate, see :func:`gaia_grant.edits`. Raises ClaimError."""
        return gaia_grant.edits(
            object_name_of(pod),
            allocation,
            devices,
            driver_folder=self.driver_path,
            limits_folder=f"{self.limits_path}/{pod.uid}",
            extra_devices=self.extra_devices,
            compat32=self.compat32,
            names=self.names,
        )


# ---------------------------------------------------------------- what is asked for


def _requests(pod: Pod, limit: int | None, names: ResourceNames) -> tuple[Request, ...]:
    """Raises ClaimError."""
    amounts = [
        (
            container,
            amount(pod, container, names.cores, MOST_CORES),
            amount(pod, container, names.memory, MOST_BLOCKS),
        )
        for container in pod.containers
    ]
    return tuple(
        _request(pod, container, (cores, blocks), limit, names)
        for container, cores, blocks in amounts
        if cores or blocks
    )


def _request(
    pod: Pod,
    container: Container,
    amounts: tuple[int, int],
    limit: int | None,
    names: ResourceNames,
) -> Request:
    """The request of cores and blocks. Raises ClaimError for what gpu-manager does not allow."""
    cores, blocks = amounts
    count, rest = divmod(cores, WHOLE_DEVICE_PERCENT)
    if count and rest:
        detail = f"container {container.name}: cores are greater than 100, must be multiple of 100"
        raise ClaimError(object_name_of(pod), names.cores, str(cores), detail)
    if count:
        return Request(container.name, count, cores_milli=WHOLE_DEVICE_MILLI, kind=container.kind)
    if not cores or not blocks:
        key = names.memory if cores else names.cores
        detail = f"container {container.name}: a part of a GPU needs cores and memory"
        raise ClaimError(object_name_of(pod), key, "0", detail)
    return Request(
        container.name,
        count=1,
        memory_bytes=blocks * GAIA_MEMORY_BLOCK,
        cores_milli=cores * MILLI_PER_PERCENT,
        limit_milli=limit,
        kind=container.kind,
    )


def _core_limit(pod: Pod) -> int | None:
    """Thousandths of a GPU; more than one GPU is one GPU. Raises ClaimError."""
    text = pod.annotations.get(CORE_LIMIT)
    if text is None:
        return None
    if not _PERCENT.fullmatch(text):
        raise ClaimError(object_name_of(pod), CORE_LIMIT, text, "not a percentage")
    return min(int(text), WHOLE_DEVICE_PERCENT) * MILLI_PER_PERCENT


# ---------------------------------------------------------------- annotations, read


def _is_claim(key: str) -> bool:
    """Whether gpu-admission or gpu-manager wrote the annotation."""
    return key in (PREDICATE_TIME, PREDICATE_NODE, ASSIGNED) or key.startswith(PREDICATE_INDEX)


def _shares(pod: Pod, number: int, request: Request) -> tuple[Share, ...]:
    """The shares of the app container of this number. Raises ClaimError."""
    key = f"{PREDICATE_INDEX}{number}"
    text = pod.annotations[key]
    if not _INDICES.fullmatch(text):
        raise ClaimError(object_name_of(pod), key, text, "not indices of GPUs")
    nodes = [device_node(int(minor)) for minor in text.split(",")]
    if len(set(nodes)) < len(nodes):
        raise ClaimError(object_name_of(pod), key, text, "a GPU twice")
    return tuple(Share(node, request.memory_bytes, request.cores_milli) for node in nodes)


def _index_remarks(
    pod: Pod,
    apps: Sequence[str],
    requests: Mapping[str, Request],
    shares: Mapping[str, Sequence[Share]],
) -> Iterator[str]:
    """Where GPUs and requests do not belong together."""
    for number, name in enumerate(apps):
        key = f"{PREDICATE_INDEX}{number}"
        if name in requests and name not in shares:
            yield _remark(pod, key, f"missing: container {name} asks for GPUs")
        elif name in shares and len(shares[name]) != requests[name].count:
            yield _remark(pod, key, f"container {name} asks for {requests[name].count}")
    meant = {f"{PREDICATE_INDEX}{number}" for number, name in enumerate(apps) if name in shares}
    for key in sorted(pod.annotations):
        if key.startswith(PREDICATE_INDEX) and key not in meant:
            yield _remark(pod, key, "of no container that asks for GPUs")


def _phase(pod: Pod) -> tuple[Phase, tuple[str, ...]]:
    """The phase in the flag; without a flag the pod is not yet assigned, as for gpu-manager."""
    flag = pod.annotations.get(ASSIGNED, "false")
    if flag in _PHASES:
        return _PHASES[flag], ()
    return Phase.ASSUMED, (_remark(pod, ASSIGNED, "neither true nor false"),)


def _predicate_time(pod: Pod) -> tuple[float | None, tuple[str, ...]]:
    """Unix seconds."""
    text = pod.annotations.get(PREDICATE_TIME)
    if text is None:
        return None, ()
    assumed_at = seconds(text)
    if assumed_at is None:
        return None, (_remark(pod, PREDICATE_TIME, "not a time in nanoseconds"),)
    return assumed_at, ()


def _remark(pod: Pod, key: str, detail: str) -> str:
    return remark(key, detail, pod.annotations.get(key, ""))


# ---------------------------------------------------------------- annotations, written


def _flag(claim: Claim) -> str:
    """``gpu-assigned`` of the whole pod. Raises ClaimError for what gpu-manager cannot express."""
    phases = {allocation.phase for allocation in claim.allocations}
    flags = [flag for flag, phase in _PHASES.items() if phases == {phase}]
    if claim.scheme is not Scheme.GAIA or claim.failed or claim.unserved or not flags:
        text = ", ".join(sorted(phases))
        raise ClaimError(
            object_name_of(claim.pod), ASSIGNED, text, "not one phase of a gpu-manager pod"
        )
    return flags[0]
