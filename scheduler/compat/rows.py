"""What pods hold of the GPUs, as rows of the compatibility sets."""

from collections.abc import Iterable, Mapping

import msgspec

from scheduler.cluster.cached_node import InspectedNode
from vgpu.model.allocation import Device, Share
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Node, Pod
from vgpu.placement.candidate import UsedGpu
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import peak_shares
from vgpu.schemes.counted_claims import counted_claim


class ContainerShare(msgspec.Struct, frozen=True):
    """A share of a container; ``number`` is the container's position in the pod's annotation."""

    pod: PodRef
    number: int
    share: Share


class PodHolding(msgspec.Struct, frozen=True):
    """What a bound pod holds: each container's shares, and the pod's at its peak."""

    containers: tuple[ContainerShare, ...]
    peak: tuple[Share, ...]


class NodeHoldings(msgspec.Struct, frozen=True):
    """A node of a sharing system: its GPUs, and what its pods hold.

    ``unit_bytes`` is a unit of memory. ``gpus`` are none if their use cannot be read as a whole.
    """

    node: Node
    unit_bytes: int
    gpus: tuple[UsedGpu, ...]
    pods: tuple[tuple[PodRef, PodHolding], ...]


class SchemeHoldings(msgspec.Struct, frozen=True):
    """The nodes of the sharing systems that have a set."""

    volcano: tuple[NodeHoldings, ...] = ()
    hami: tuple[NodeHoldings, ...] = ()


class PodHoldings:
    """What pods hold, computed once for each state of a pod."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Pod, PodHolding | None]] = {}

    def of(
        self, scheme: SchedulerScheme, nodes: Iterable[InspectedNode]
    ) -> tuple[NodeHoldings, ...]:
        """The nodes of a sharing system with what their pods hold."""
        name = scheme.row.name
        known: dict[tuple[str, str], tuple[Pod, PodHolding | None]] = {}
        held = []
        for node in nodes:
            pods = []
            devices = {name: gpu.device for gpu in node.gpus for name in gpu.device.names}
            for pod in node.pods:
                key = (name, pod.ref.uid)
                before = self._known.get(key)
                known[key] = entry = (
                    before
                    if before and before[0] is pod
                    else (pod, _holding(scheme, pod, node.node, devices))
                )
                if entry[1] is not None:
                    pods.append((pod.ref, entry[1]))
            gpus = node.gpus if node.is_readable else ()
            held.append(NodeHoldings(node.node, node.unit_bytes, gpus, tuple(pods)))
        others = {key: entry for key, entry in self._known.items() if key[0] != name}
        self._known = {**others, **known}
        return tuple(held)


def _holding(
    scheme: SchedulerScheme, pod: Pod, node: Node, devices: Mapping[str, Device]
) -> PodHolding | None:
    """None of a pod without GPUs, or whose annotations cannot be read."""
    counted = counted_claim(pod, scheme.codec, devices, node.advertised, resolves_defaults=False)
    claim = counted.claim
    if claim is None:
        return None
    peak = peak_shares(pod, claim)
    numbers = _numbers(pod, {allocation.container for allocation in claim.allocations})
    shares = tuple(
        ContainerShare(pod.ref, numbers[allocation.container], share)
        for allocation in claim.allocations
        for share in allocation.shares
        if allocation.container in numbers
    )
    return PodHolding(shares, peak)


def _numbers(pod: Pod, asking: set[str]) -> dict[str, int]:
    """Positions of containers: init containers come first if one of them has a share."""
    apps = [each.name for each in pod.containers if each.kind is ContainerKind.APP]
    others = [each.name for each in pod.containers if each.kind is not ContainerKind.APP]
    ordered = [*others, *apps] if asking & set(others) else apps
    return {name: number for number, name in enumerate(ordered)}
