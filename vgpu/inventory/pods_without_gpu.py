"""The bound pods of which not all GPUs are known, by the ledger and what counts of their claims.

The views of placements (:mod:`vgpu.placement.cluster_views`) have the same pods, on the nodes that
they have: those of one system that our scheduler places for, whose register can be read. They are
no source here. The ledger also has what a node itself reports, which may show the GPU of a pod
without an annotation; and quotas and the reconciler judge pods on all nodes, also of several
systems, of systems with schedulers of their own, and with registers that cannot be read. For a node
with a view, and the ledger of the API server's objects alone (a property compares both):

    {pods without GPU of the view's system}  =  {pods in the way of its view that reserve nothing}
"""

from collections.abc import Iterable, Iterator

from vgpu.ledger import DeviceEntry, Ledger
from vgpu.model.allocation import Device
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.placement.pods_without_gpu import PodWithoutGpu, pod_without_gpu
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.counted_claims import counted_claim
from vgpu.schemes.registry import registry


def pods_without_gpu(
    node: Node, ledger: Ledger, pods: Iterable[Pod], codecs: Iterable[SchemeCodec]
) -> Iterator[tuple[SchemeCodec, tuple[DeviceEntry, ...], list[PodWithoutGpu]]]:
    """The bound pods of which not all GPUs are known, with the GPUs of their sharing system.

    ``pods`` are those that are bound to the node. Where the register of a system cannot be read, no
    GPU of it is known.
    """
    placed = _placed(ledger)
    doubtful = [pod for pod in pods if holds_devices(pod) and pod.kubelet_uid not in placed]
    if not doubtful:
        return
    entries = {name: entry for entry in ledger.devices for name in entry.device.names}
    for codec in codecs:
        devices = _registered(codec, node) if codec.advertised else ()
        own = tuple(entries[each.name] for each in devices if each.name in entries)
        by_name = {name: device for device in devices for name in device.names}
        lacking = [
            without_gpu
            for pod in (doubtful if registry().row(codec).has_devices(node) else ())
            if (
                without_gpu := pod_without_gpu(
                    pod, counted_claim(pod, codec, by_name, node.advertised), by_name
                )
            )
        ]
        if lacking:
            yield codec, own, lacking


def _registered(codec: SchemeCodec, node: Node) -> tuple[Device, ...]:
    """The GPUs of one sharing system, in the order of the register, as the scheduler has them."""
    try:
        return codec.devices(node)
    except ClaimError:
        return ()


def _placed(ledger: Ledger) -> frozenset[str]:
    """UIDs of the pods that the ledger has on GPUs of the node, with nothing of them in doubt."""
    return frozenset(
        holding.pod.uid for entry in ledger.devices for holding in entry.holdings
    ).difference(
        (wanted.pod.uid for wanted in ledger.waiting),
        (holding.pod.uid for holding in ledger.unplaced),
        (wrong.pod.uid for wrong in ledger.malformed if wrong.pod is not None),
    )
