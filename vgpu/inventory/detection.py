"""Which schemes share the GPUs of a cluster, which pods use them, and in which units."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from vgpu.inventory.model import NodeView, Objects, Units
from vgpu.kube.objects import Node, Pod
from vgpu.model import Scheme
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.gaia import node as gaia_node
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare import node as gpushare_node
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.kubeshare.node import GPU_INFO
from vgpu.schemes.kubeshare.sharepod import join
from vgpu.schemes.volcano import legacy as volcano_legacy
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano
from vgpu.units import GIB, MIB

_SMALLEST_MIB: Final = 1024
"""A GPU of fewer MiB is in truth counted in another unit: no such GPU is shared."""

_HAMI_MARK: Final = "hami.io/"


class DetectedSchemes(msgspec.Struct, frozen=True):
    """The pods that share GPUs, and the codecs that read them.

    Attributes:
        pods: those that share, joined with their SharePods; SharePods without a pod too.
        codecs: of the schemes that some node or pod uses, in their units.
        nvidia: UIDs of pods with whole GPUs or MIG instances of NVIDIA's own device plugin, which
            shares none.
        notes: what was assumed of the units, in words.
    """

    pods: tuple[Pod, ...]
    codecs: tuple[SchemeCodec, ...]
    nvidia: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def every_codec(volcano_factor: int = 1, gpushare_unit: int = GIB) -> tuple[SchemeCodec, ...]:
    """The codecs of all schemes, in these units (:class:`Units`)."""
    return (
        Volcano(VOLCANO, volcano_factor),
        Volcano(HAMI),
        Gpushare(gpushare_unit),
        Gaia(),
        KubeShare(),
    )


def detect_schemes(objects: Objects, units: Units) -> DetectedSchemes:
    """Find the pods that share GPUs and the codecs that read them. Never raises."""
    joined = join(objects.pods, objects.share_pods)
    registered = {node.name for node in objects.nodes if HAMI.register in node.annotations}
    nvidia = frozenset(pod.ref.uid for pod in joined if _is_nvidias(pod, registered))
    pods = tuple(pod for pod in joined if pod.ref.uid not in nvidia)
    unit, notes = _gpushare_unit(objects.nodes, units)
    codecs = every_codec(units.volcano_factor, unit)
    return DetectedSchemes(pods, _used_codecs(objects.nodes, pods, codecs), nvidia, notes)


_MIG: Final = "nvidia.com/mig-"
"""Prefix of the MIG resources, which only NVIDIA's own plugin offers."""


def _is_nvidias(pod: Pod, hami_nodes: set[str]) -> bool:
    """Whether the pod's GPUs, whole or MIG instances, are of NVIDIA's own plugin and not HAMi's.

    Both use the name ``nvidia.com/gpu``. HAMi writes annotations on its pods and registers its
    nodes.
    """
    requested = {name for container in pod.containers for name in container.limits}
    instances = any(name.startswith(_MIG) for name in requested)
    if requested & {*HAMI.implied_by, VOLCANO.number, *VOLCANO.implied_by}:
        return False
    if any(key.startswith(_HAMI_MARK) for key in pod.annotations):
        return False
    if HAMI.number not in requested:
        return instances
    return pod.node not in hami_nodes if pod.node else not hami_nodes


_KEYS: Final[Mapping[Scheme, tuple[str, ...]]] = {
    Scheme.VOLCANO: ("volcano.sh/",),
    Scheme.GPUSHARE: ("aliyun.com/", "ALIYUN_COM_", "scheduler.framework.gpushare."),
    Scheme.GAIA: ("tencent.com/",),
    Scheme.KUBESHARE: ("kubeshare/", "sharedgpu/"),
}
"""Prefixes of the keys that only a scheme's own nodes and pods have."""

_HAMI_KEYS: Final = (_HAMI_MARK, *HAMI.implied_by)


def _used_codecs(
    nodes: Iterable[Node], pods: Iterable[Pod], codecs: Iterable[SchemeCodec]
) -> tuple[SchemeCodec, ...]:
    """The codecs of which some node or pod has a key; the others would find nothing."""
    keys: set[str] = set()
    for node in nodes:
        keys.update(node.annotations, node.capacity)
    for pod in pods:
        keys.update(pod.annotations, pod.labels)
        for container in pod.containers:
            keys.update(container.limits, container.broken)
    return tuple(
        codec for codec in codecs if any(key.startswith(_key_prefixes(codec)) for key in keys)
    )


def _key_prefixes(codec: SchemeCodec) -> tuple[str, ...]:
    hami = isinstance(codec, Volcano) and codec.key_set is HAMI
    return _HAMI_KEYS if hami else _KEYS[codec.scheme]


def schemes_of_node(node: Node) -> Iterator[Scheme]:
    """The schemes whose GPUs the node registers or offers."""
    has = {
        Scheme.VOLCANO: node.annotations.get(VOLCANO.register)
        or node.annotations.get(HAMI.register)
        or node.capacity.get(volcano_legacy.NUMBER)
        or node.capacity.get(VOLCANO.number),
        Scheme.GPUSHARE: node.capacity.get(gpushare_node.CARDS),
        Scheme.GAIA: node.capacity.get(gaia_node.CORE),
        Scheme.KUBESHARE: node.annotations.get(GPU_INFO),
    }
    return (scheme for scheme, value in has.items() if value)


def _gpushare_unit(nodes: Iterable[Node], units: Units) -> tuple[int, tuple[str, ...]]:
    """Bytes of one unit, and what was assumed.

    The original takes a GPU of more than 100 units to be counted in MiB, so that a GPU of 141
    GiB would have 141 MiB. GPUs of less than a GiB are not shared, nor are there any of a TiB.
    """
    if units.gpushare_unit is not None:
        return units.gpushare_unit, ()
    sizes: dict[str, int] = {}
    for node in nodes:
        count = node.capacity.get(gpushare_node.CARDS, 0)
        if count > 0 and node.capacity.get(gpushare_node.MEMORY, 0) > 0:
            sizes[node.name] = node.capacity[gpushare_node.MEMORY] // count
    if not sizes:
        return GIB, ()
    large, small = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
    unit, name = (MIB, "MiB") if sizes[large] >= _SMALLEST_MIB else (GIB, "GiB")
    note = (
        f"one unit of {gpushare_node.MEMORY} is taken for 1 {name}, since {large} has"
        f" {sizes[large]} of them a GPU; --gpushare.memory-unit settles it"
    )
    if unit == MIB and sizes[small] < _SMALLEST_MIB:
        note += f". Beware: {small} has only {sizes[small]} a GPU, so one of them is wrong"
    return unit, (note,)


def volcano_notes(views: Iterable[NodeView], units: Units) -> Iterator[str]:
    """GPUs so small that the unit must be larger."""
    for view in views:
        for entry in view.ledger.devices if Scheme.VOLCANO in view.schemes else ():
            memory = entry.device.memory_bytes
            if memory and memory < GIB:
                yield (
                    f"{view.node.name} has a GPU of {memory // MIB} MiB: with what"
                    f" gpu-memory-factor does Volcano's plugin run? It was read with"
                    f" --volcano.memory-factor {units.volcano_factor}"
                )
                return
