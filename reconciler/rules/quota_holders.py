"""The pods that hold or have reserved shares, and what each counts for its quota; pure."""

from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from vgpu.model.allocation import Device
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.quota.resources import Amounts
from vgpu.quota.usage import NamespaceUsage, PodUsage, counted_usage, node_model
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.counted_claims import counted_claim


class QuotaHolder(msgspec.Struct, frozen=True):
    """A pod that holds or has reserved shares, and what it counts for its quota."""

    pod: Pod
    usage: PodUsage


def quota_holders(
    cluster_index: ClusterIndex, namespaces: Collection[str]
) -> dict[str, list[QuotaHolder]]:
    """The pods of these namespaces that hold shares, by namespace."""
    holders: dict[str, list[QuotaHolder]] = {}
    if not namespaces:
        return holders
    for name, pods in cluster_index.at_home.items():
        limited = [pod for pod in pods if pod.ref.namespace in namespaces and holds_devices(pod)]
        if not name or not limited:
            continue
        node = cluster_index.nodes.get(name)
        devices = _devices(cluster_index, node)
        for pod in limited:
            usage = _usage(cluster_index, pod, node, devices)
            if usage is not None:
                holders.setdefault(pod.ref.namespace, []).append(QuotaHolder(pod, usage))
    return holders


def used_by(holders: Iterable[QuotaHolder]) -> Mapping[str, Amounts]:
    """What these pods count together, by the model of the GPUs."""
    used = NamespaceUsage()
    for holder in holders:
        used.set(holder.pod.ref.uid, holder.usage)
    return used.by_model


def _usage(
    cluster_index: ClusterIndex,
    pod: Pod,
    node: Node | None,
    devices: Mapping[str, tuple[Device, ...]],
) -> PodUsage | None:
    """What the pod counts; None if nothing shows that it holds a share.

    A bound pod counts what it requests also of GPUs that are not known, on a node of the system.
    """
    by_name = {
        name: device for each in devices.values() for device in each for name in device.names
    }
    advertised = None if node is None else node.advertised or None
    for codec in cluster_index.codecs:
        own = devices[codec.name]
        names = {name: device for device in own for name in device.names}
        counted = counted_claim(pod, codec, names, advertised, resolves_defaults=False)
        if not own:
            counted = structs.replace(counted, missing=())
        if counted.claim is not None or counted.missing:
            return counted_usage(pod, codec, counted, names or by_name, node_model(node))
    return None


def _devices(cluster_index: ClusterIndex, node: Node | None) -> dict[str, tuple[Device, ...]]:
    """The node's GPUs by the name of the codec; none where they cannot be read."""
    devices: dict[str, tuple[Device, ...]] = {}
    for codec in cluster_index.codecs:
        try:
            devices[codec.name] = codec.devices(node) if node is not None else ()
        except ClaimError:
            devices[codec.name] = ()
    return devices
