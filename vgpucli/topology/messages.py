"""The answers of gpu-manager's display, from a node's state.

They are those of PrintGraph, PrintUsages and Version. A message here has the fields of its namesake
in ``vgpu/rpc/display.proto``, by name and in order, and leaves out what is empty: encoded as JSON
it is what the original's gRPC gateway answers (its default: jsonpb with the names of the .proto
file). Everything here is pure.

For a terminal: :func:`graph_text` and :func:`usages_text`.
"""

from collections.abc import Mapping

import msgspec

from vgpu.model.document_text import json_text
from vgpu.model.names import PodRef
from vgpu.model.topology import LinkLevel, TopologyGpu, TopologyNode, TopologyTree, draw
from vgpu.model.units import MIB, WHOLE_DEVICE_MILLI

# ---------------------------------------------------------------- the state of a node


class GpuUse(msgspec.Struct, frozen=True):
    """A container's use of a GPU.

    Attributes:
        ``gpu``: the GPU.
        sm_percent: use of the GPU's cores by all processes of the container.
        used_bytes: use of the GPU's memory by the same processes.
        pids: the container's processes on the GPU.
    """

    gpu: TopologyGpu
    sm_percent: int = 0
    used_bytes: int = 0
    pids: tuple[int, ...] = ()


class ContainerUse(msgspec.Struct, frozen=True):
    """A container that the pod's spec names.

    Attributes:
        name: its name.
        cores_milli: requested cores, of all its GPUs together.
        memory_bytes: requested memory, likewise; None is all memory of its GPUs.
        ``gpus``: its use of each of its GPUs.
    """

    name: str
    cores_milli: int = 0
    memory_bytes: int | None = None
    gpus: tuple[GpuUse, ...] = ()


class PodUse(msgspec.Struct, frozen=True):
    """A pod; ``cluster`` is its annotation ``clusterName``, ``user`` its variable SUBMITTER."""

    ref: PodRef
    containers: tuple[ContainerUse, ...]
    cluster: str = ""
    user: str = ""


class DisplayState(msgspec.Struct, frozen=True):
    """All that is displayed of a node.

    Attributes:
        tree: the GPUs by their PCIe links, as gpu-manager draws them.
        pods: the pods that use them.
        version: ours.
        nearest: the GPUs by their nearest links, NVLink included; None where nobody asks for it.
    """

    tree: TopologyTree
    pods: tuple[PodUse, ...]
    version: str
    nearest: TopologyTree | None = None


# ---------------------------------------------------------------- the messages


class GraphResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The drawing."""

    graph: str = ""


class DeviceInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU: PCI bus ID, index, percent of cores, MiB used, pids, MiB in all."""

    id: str = ""
    card_idx: str = ""
    gpu: int = 0
    mem: int = 0
    pids: tuple[int, ...] = ()
    device_mem: int = 0


class Devices(msgspec.Struct, frozen=True, omit_defaults=True):
    """The GPUs of a container."""

    dev: tuple[DeviceInfo, ...] = ()


class Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request of a container: GPUs, and MiB."""

    gpu: float = 0
    mem: int = 0


class ContainerStat(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod: its containers' GPUs and requests by name, namespace, user and cluster."""

    stat: Mapping[str, Devices] = {}
    project: str = ""
    user: str = ""
    cluster: str = ""
    spec: Mapping[str, Spec] = {}


class UsageResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pods that have GPUs, by UID."""

    usage: Mapping[str, ContainerStat] = {}


class VersionResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The version of the server."""

    version: str = ""


Message = GraphResponse | UsageResponse | VersionResponse


def graph(state: DisplayState) -> GraphResponse:
    """PrintGraph."""
    return GraphResponse(draw(state.tree))


def usages(state: DisplayState) -> UsageResponse:
    """PrintUsages, in the order of UIDs and names."""
    stats = {pod.ref.uid: _stat(pod) for pod in state.pods}
    return UsageResponse({uid: stats[uid] for uid in sorted(stats) if stats[uid].stat})


def version(state: DisplayState) -> VersionResponse:
    """The message of Version."""
    return VersionResponse(state.version)


def _stat(pod: PodUse) -> ContainerStat:
    containers = sorted(pod.containers, key=lambda container: container.name)
    return ContainerStat(
        stat={
            container.name: Devices(tuple(map(_device, container.gpus)))
            for container in containers
            if container.gpus
        },
        project=pod.ref.namespace,
        user=pod.user,
        cluster=pod.cluster,
        spec={container.name: _spec(container) for container in containers},
    )


def _device(use: GpuUse) -> DeviceInfo:
    return DeviceInfo(
        id=use.gpu.bus_id,
        card_idx=str(use.gpu.index),
        gpu=use.sm_percent,
        mem=use.used_bytes // MIB,
        pids=use.pids,
        device_mem=use.gpu.memory_bytes // MIB,
    )


def _spec(container: ContainerUse) -> Spec:
    gpus, part = divmod(container.cores_milli, WHOLE_DEVICE_MILLI)
    whole = sum(use.gpu.memory_bytes // MIB for use in container.gpus)
    memory = container.memory_bytes
    return Spec(
        gpu=container.cores_milli / WHOLE_DEVICE_MILLI if part else gpus,  # Go writes 1, not 1.0
        mem=whole if memory is None else memory // MIB,
    )


# ---------------------------------------------------------------- text


def graph_text(state: DisplayState) -> str:
    """The drawing of the GPUs, lines that end in a newline."""
    return draw(state.tree)


class LinkGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """GPUs, by index, that reach one another over links of this level or nearer ones."""

    level: str
    gpus: tuple[int, ...]
    groups: tuple["LinkGroup", ...] = ()


class UsageDocument(msgspec.Struct, frozen=True):
    """The JSON of ``vgpu topology --usage``: PrintUsages, and the groups of GPUs."""

    usage: Mapping[str, ContainerStat]
    topology: tuple[LinkGroup, ...]


def usages_text(state: DisplayState) -> str:
    """The JSON of ``--usage``, indented, with a newline at the end."""
    tree = state.nearest or state.tree
    document = UsageDocument(usages(state).usage, _groups(tree, tree.root))
    return json_text(document) + "\n"


def _groups(tree: TopologyTree, node: TopologyNode) -> tuple[LinkGroup, ...]:
    """The groups in this one; a GPU alone is none."""
    return tuple(
        LinkGroup(
            child.level.name,
            tuple(tree.gpus[number].index for number in child.gpus),
            _groups(tree, child),
        )
        for child in node.children
        if child.level is not LinkLevel.GPU
    )
