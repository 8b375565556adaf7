"""What a Node object has about the GPUs of NVIDIA's own device plugin. Pure.

GPU feature discovery (in k8s-device-plugin from 0.15 on) writes labels once a minute, in the form
``nvidia.com/<what>.<fact>``. <what> is ``gpu``, or with the MIG strategy ``mixed`` a profile such
as ``mig-1g.10gb`` (k8s-device-plugin ``internal/lm/resource.go``, ``internal/lm/mig-strategy.go``).
They describe a node by one model of GPU, show what is configured, and may be late.

On GKE the labels are others (:mod:`.gke`), and all GPUs of a node are partitioned and shared alike.
Where both are, as with the GPU Operator on GKE, GKE's labels decide how GPUs are shared, since its
own plugin advertises them; the memory is GPU feature discovery's.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from vgpu.model.names import Sharing
from vgpu.model.objects import Node
from vgpu.model.units import MIB
from vgpu.schemes.nvidia.gke import NodeLabels, node_labels
from vgpu.schemes.nvidia.resources import GPU, INSTANCES, RENAMED, is_nvidia_resource
from vgpu.schemes.text import number

_SHARED: Final = "-SHARED"
_MIG: Final = "-MIG-"
_MOST: Final = 10**9

_STRATEGIES: Final = {
    "none": Sharing.EXCLUSIVE,
    "time-slicing": Sharing.TIME_SLICING,
    "mps": Sharing.MPS,
}


class AdvertisedDevices(msgspec.Struct, frozen=True):
    """The devices of one resource of a node; None and "" are what no label has.

    Attributes:
        resource: the extended resource.
        allocatable: number of units that the kubelet can allocate.
        capacity: number of units that the node has; more than are allocatable while GPUs are
            unhealthy or the plugin does not run.
        sharing: how the devices are shared.
        model: the GPU's, with the MIG profile.
        devices: number of GPUs, or of MIG instances of this profile.
        memory_bytes: memory of one of them, in bytes.
        replicas: number of replicas of one of them.
        unit_bytes: memory of one unit, where each container has its own part of a GPU (MPS on
            GKE), in bytes.
    """

    resource: str
    allocatable: int
    sharing: Sharing = Sharing.UNKNOWN
    model: str = ""
    devices: int | None = None
    memory_bytes: int | None = None
    replicas: int | None = None
    capacity: int = 0
    unit_bytes: int | None = None


def advertised(node: Node) -> Iterator[AdvertisedDevices]:
    """The devices of each resource of NVIDIA's own plugin on the node, by name."""
    units = {**dict.fromkeys(node.capacity, 0), **node.allocatable}
    for resource, allocatable in sorted(units.items()):
        if is_nvidia_resource(resource):
            yield _described(node, resource, allocatable)


def _described(node: Node, resource: str, units: int) -> AdvertisedDevices:
    what = resource.removesuffix(RENAMED)

    def fact(name: str) -> str:
        return node.labels.get(f"{what}.{name}", "")

    gkes = node_labels(node.labels)
    if gkes is not None and resource == GPU and not fact("sharing-strategy"):
        return _of_gke(node, gkes, units)
    model = fact("product").removesuffix(_SHARED)
    memory, replicas = number(fact("memory"), _MOST), number(fact("replicas"), _MOST)
    is_instance = resource.startswith(INSTANCES) or _MIG in model
    return AdvertisedDevices(
        resource,
        units,
        _sharing(fact("sharing-strategy"), replicas, is_instance=is_instance),
        model or node.labels.get(f"{GPU}.product", "").removesuffix(_SHARED),
        number(fact("count"), _MOST),
        memory * MIB if memory else None,
        replicas or None,
        max(units, node.capacity.get(resource, 0)),
    )


def _of_gke(node: Node, labels: NodeLabels, units: int) -> AdvertisedDevices:
    """The devices by GKE's labels. The memory of a MIG instance is in no label."""
    capacity = max(units, node.capacity.get(GPU, 0))
    memory = number(node.labels.get(f"{GPU}.memory", ""), _MOST)
    is_mps = labels.sharing is Sharing.MPS
    is_shared = labels.sharing not in (Sharing.EXCLUSIVE, Sharing.MIG)
    replicas = labels.clients if is_shared else None
    devices = None if is_shared and not replicas else capacity // (replicas or 1)
    memory_bytes = memory * MIB if memory and not labels.profile else None
    return AdvertisedDevices(
        GPU,
        units,
        labels.sharing,
        f"{labels.model}{_MIG}{labels.profile}" if labels.profile else labels.model,
        devices,
        memory_bytes,
        replicas,
        capacity,
        memory_bytes // replicas if is_mps and memory_bytes and replicas else None,
    )


def _sharing(strategy: str, replicas: int | None, *, is_instance: bool) -> Sharing:
    """By the label; releases without it (before 0.15) share by time-slicing only."""
    if not strategy and replicas:
        strategy = "time-slicing" if replicas > 1 else "none"
    shared = _STRATEGIES.get(strategy, Sharing.UNKNOWN)
    if not is_instance:
        return shared
    instances = {Sharing.EXCLUSIVE: Sharing.MIG, Sharing.TIME_SLICING: Sharing.MIG_TIME_SLICING}
    return instances.get(shared, Sharing.MIG if not strategy else Sharing.UNKNOWN)
