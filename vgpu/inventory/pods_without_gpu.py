"""What is kept free of GPUs for bound pods of which no GPU is known, as the scheduler does it.

The scheduler, ``vgpu fit`` and the inventory have one rule
(:mod:`vgpu.placement.pods_without_gpu`):

    free(g) = capacity(g) - held(g) - kept(g)      for each GPU g
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from vgpu.ledger import DeviceEntry, Ledger
from vgpu.ledger.entries import HoldingSum
from vgpu.model.allocation import Device
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.placement.candidate import UsedGpu
from vgpu.placement.pods_without_gpu import PodWithoutGpu, kept_free, pod_without_gpu
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.counted_claims import counted_claim

NOTHING_KEPT: Final[Mapping[str, HoldingSum]] = {}

_NEVER_SEEN: Final[Mapping[str, float]] = {}


def kept_on_node(
    node: Node, ledger: Ledger, pods: Iterable[Pod], codecs: Iterable[SchemeCodec], now: float
) -> Mapping[str, HoldingSum]:
    """What is kept free of each GPU of the node, by the GPU's name in the ledger.

    ``pods`` are those that are bound to the node, ``now`` is in unix seconds.
    """
    kept: dict[str, HoldingSum] = {}
    for codec, own, lacking in pods_without_gpu(node, ledger, pods, codecs):
        kept |= _kept_of(codec, own, lacking, now)
    return kept or NOTHING_KEPT


def pods_without_gpu(
    node: Node, ledger: Ledger, pods: Iterable[Pod], codecs: Iterable[SchemeCodec]
) -> Iterator[tuple[SchemeCodec, tuple[DeviceEntry, ...], list[PodWithoutGpu]]]:
    """The bound pods of which not all GPUs are known, with the GPUs of their sharing system.

    ``pods`` are those that are bound to the node.
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
            for pod in (doubtful if own else ())
            if (
                without_gpu := pod_without_gpu(
                    pod, counted_claim(pod, codec, by_name, node.advertised)
                )
            )
        ]
        if lacking:
            yield codec, own, lacking


def _kept_of(
    codec: SchemeCodec, own: Sequence[DeviceEntry], lacking: Iterable[PodWithoutGpu], now: float
) -> Mapping[str, HoldingSum]:
    """What is kept free of the GPUs of one sharing system."""
    before = [
        UsedGpu(entry.device, entry.held.slots, entry.held.memory_bytes, entry.held.cores_milli)
        for entry in own
    ]
    after, _ = kept_free(before, lacking, now, _NEVER_SEEN, codec.unit_bytes)
    return {
        gpu.device.name: HoldingSum(
            gpu.memory_bytes - held.memory_bytes,
            gpu.cores_milli - held.cores_milli,
            gpu.users - held.users,
        )
        for held, gpu in zip(before, after, strict=True)
        if gpu != held
    }


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
