"""The pods of NVIDIA's own device plugin by node and resource, as the API server has them. Pure.

No object of the API server has the GPU of such a pod, nor a limit of MPS: the kubelet of the node
has the one, and the log of the MPS daemon the other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from vgpu.kube.pod_state import PodState, pod_state
from vgpu.ledger import Holding, Ledger
from vgpu.model.allocation import Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Sharing, Source
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.schemes.nvidia.gke import refusal as gke_refusal
from vgpu.schemes.nvidia.grant import NVIDIA
from vgpu.schemes.nvidia.node import AdvertisedDevices, advertised
from vgpu.schemes.nvidia.resources import GPU, is_nvidia_resource
from vgpu.schemes.other_schedulers import (
    MEMORY_RATIO,
    OtherScheduler,
    asked_fraction,
    other_scheduler,
)
from vgpu.schemes.registry import registry

SCHEME: Final = NVIDIA
"""The scheme of these pods."""


class NvidiaHolder(msgspec.Struct, frozen=True, gc=False):
    """A container that the kubelet has allocated units of a resource, or will.

    ``since`` is when the pod was scheduled, started or created, in unix seconds, the first that is
    known; None if none is.
    """

    pod: PodRef
    container: str
    number: int
    state: PodState
    since: float | None = None


class NvidiaDevices(msgspec.Struct, frozen=True, gc=False):
    """The devices of one resource of NVIDIA's own plugin on one node, and their holders.

    Attributes:
        node: the node; "" of pods that are not bound yet: then nothing is known of the devices.
        devices: the devices.
        holders: the containers that are shown, by namespace and name of the pod.
        held: number of units that all containers have, also those that are not shown.
    """

    node: str
    devices: AdvertisedDevices
    holders: tuple[NvidiaHolder, ...] = ()
    held: int = 0


def nvidia_devices(nodes: Iterable[Node], pods: Sequence[Pod]) -> tuple[NvidiaDevices, ...]:
    """The devices by node and resource, then pods without a node. ``pods`` are the plugin's.

    The units of other GPU schedulers' pods count as held; these pods are not shown as holders: they
    may hold a GPU for others. A node has an entry if one of the pods is on it, or if it has the
    resource and no GPUs of another sharing system: these keep the resource of their nodes, too.
    """
    holders: dict[tuple[str, str], list[NvidiaHolder]] = {}
    units_of_others: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        is_others = other_scheduler(pod) is not None
        for resource, holder in _holders(pod):
            place = pod.node, resource
            units_of_others[place] += holder.number if is_others else 0
            holders.setdefault(place, []).extend(() if is_others else (holder,))
    registered = registry().schemes_of
    found: dict[tuple[str, str], AdvertisedDevices] = {}
    for node in nodes:
        for devices in advertised(node):
            place = node.name, devices.resource
            if place in holders or (devices.capacity and not registered(node)):
                found[place] = devices
    for place in holders:
        found.setdefault(place, AdvertisedDevices(place[1], 0))
    return tuple(
        NvidiaDevices(
            place[0],
            devices,
            tuple(sorted(holders.get(place, ()), key=_order)),
            sum(holder.number for holder in holders.get(place, ())) + units_of_others[place],
        )
        for place, devices in sorted(found.items(), key=lambda item: (not item[0][0], item[0]))
    )


def on_unknown_gpus(pods: Iterable[Pod], ledger: Ledger) -> tuple[Holding, ...]:
    """What the plugin's pods on a node hold of GPUs that another system has registered there.

    A unit is a GPU or a part of one: it comes to no more than the largest GPU of the node. So do
    pods of KAI and Koordinator hold, whose shares are not read: what they ask for, or all.
    """
    sizes = [entry.device.memory_bytes for entry in ledger.devices]
    if not sizes:
        return ()
    largest = None if None in sizes else max(each or 0 for each in sizes)
    return tuple(
        Holding(
            holder.pod,
            holder.container,
            Share("", memory),
            SCHEME,
            Phase.ASSIGNED if holder.state.phase == "Running" else Phase.ASSUMED,
            Source.ANNOTATIONS,
            (Source.ANNOTATIONS,),
            holder.since,
        )
        for pod in pods
        for holder, memory in _on_unknown(pod, sizes, largest)
    )


def is_on_unknown_gpu(pod: Pod) -> bool:
    """Whether the pod holds a share of another system whose shares are not read, on NVIDIA's GPUs.

    A pod that reserves a GPU for such pods is not one of them.
    """
    other = other_scheduler(pod) if pod.node else None
    return (
        other is not None
        and other.scheduler is not OtherScheduler.VENDOR
        and holds_devices(pod)
        and not registry().is_reservation(pod)
    )


def _on_unknown(
    pod: Pod, sizes: Sequence[int | None], largest: int | None
) -> Iterator[tuple[NvidiaHolder, int | None]]:
    """What a pod holds of GPUs of these sizes in bytes; None is not known.

    How many GPUs a share is of is not read: an unknown share may be of all.
    """
    holders = [holder for _, holder in _holders(pod)]
    for holder in holders:
        yield holder, None if largest is None else holder.number * largest
    if holders or not is_on_unknown_gpu(pod):
        return
    fraction = asked_fraction(pod)
    memory = fraction.memory_of(largest) if fraction else None
    if memory is None and largest is not None:
        ratio = sum(container.others.get(MEMORY_RATIO, 0) for container in pod.containers)
        memory = largest * ratio // 100 if ratio else sum(size or 0 for size in sizes)
    since = pod.scheduled_at or pod.started_at or pod.created_at
    container = pod.containers[0].name if pod.containers else ""
    yield NvidiaHolder(pod.ref, container, 1, pod_state(pod, container), since), memory


def is_own_unit(resource: str) -> bool:
    """Whether the resource may be of NVIDIA's own plugin."""
    return is_nvidia_resource(resource)


def advertised_units(node: Node) -> dict[str, int]:
    """The units of each resource that may be of NVIDIA's own plugin, on the node."""
    return {devices.resource: devices.allocatable for devices in advertised(node)}


def labelled_sharing(node: Node) -> dict[str, Sharing]:
    """How the devices of each such resource are shared, by the labels of the node."""
    return {devices.resource: devices.sharing for devices in advertised(node)}


def plugin_refusal(pod: Pod, node: Node) -> str:
    """Why the node's device plugin would refuse the pod, though units are free; "" if it may not.

    Only GKE's refuses so by what a node's labels show.
    """
    refused = (gke_refusal(node, container.limits.get(GPU, 0)) for container in pod.containers)
    return next(filter(None, refused), "")


def requested_units(pod: Pod) -> dict[str, int]:
    """The units of each resource of NVIDIA's own plugin that the pod's containers request."""
    units: dict[str, int] = {}
    for resource, holder in _holders(pod):
        units[resource] = units.get(resource, 0) + holder.number
    return units


def _holders(pod: Pod) -> Iterator[tuple[str, NvidiaHolder]]:
    """The containers of a pod that has not ended; a holder pod's GPU is its system's.

    A reservation pod's GPU is the plugin's, which gives it to nobody else.

    App containers take over the devices of init containers, which count only where no other does.
    """
    if not holds_devices(pod):
        return
    if registry().keeps_for_others(pod) and not registry().is_reservation(pod):
        return
    others = {
        resource
        for container in pod.containers
        if container.kind is not ContainerKind.INIT
        for resource, number in container.limits.items()
        if number
    }
    for container in pod.containers:
        for resource, number in sorted(container.limits.items()):
            taken_over = container.kind is ContainerKind.INIT and resource in others
            if number and is_nvidia_resource(resource) and not taken_over:
                state = pod_state(pod, container.name)
                since = pod.scheduled_at or pod.started_at or pod.created_at
                yield resource, NvidiaHolder(pod.ref, container.name, number, state, since)


def _order(holder: NvidiaHolder) -> tuple[str, str, str]:
    return holder.pod.namespace, holder.pod.name, holder.container
