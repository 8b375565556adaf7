"""The two spellings of one scheme: Volcano vGPU's and HAMi's names, side by side.

Both are scheduler and device plugin around the same library, HAMi-core, and say the same things
under other keys. What differs is in the table below and nowhere else. The names are those of
volcano v1.16 and volcano-vgpu-device-plugin v1.12, of HAMi v2.10, and their predecessors.
"""

from functools import cached_property
from typing import Final

import msgspec
from msgspec import structs

from vgpu.schemes.resource_names import ORIGINAL_NAMES, ResourceNames

SPLIT_COUNT: Final = 10
"""Shares that a GPU is cut into where its operator does not say (``device-split-count``)."""

HAMI_CORE: Final = "hami-core"
MIG: Final = "mig"


class ShimPaths(msgspec.Struct, frozen=True):
    """Where the library and its files are, on the host and in the container.

    Attributes:
        library, library_target: ``libvgpu.so``.
        preload: the host's file that is mounted as ``/etc/ld.so.preload``.
        containers: the host's folder with one folder ``<podUID>_<container>`` for each container.
        cache_target: where a container finds its own of these.
    """

    library: str
    library_target: str
    preload: str
    containers: str
    cache_target: str


class KeySet(msgspec.Struct, frozen=True, dict=True):
    """The spellings of one system.

    Attributes:
        name: the system: ``volcano`` or ``hami``.
        resources: the names of the extended resources. ``priority`` is HAMi's, whose webhook copies
            it into the variable CUDA_TASK_PRIORITY: its scheduler and device plugin do not read it.
        implying: roles that request one GPU where no number is requested.
        id_parts: the roles of those that the plugin reports to the kubelet, with what its device
            IDs have between the GPU's UUID and the ordinal.
        percentage_wins: whether percentage counts where a container requests memory too.
        no_percentage: the percentage that stands for none requested.
        percentages: all percentages that a container may request.
        counts_units: whether annotations count memory in ``memory_factor`` MiB, as requests do,
            or in MiB.
        most_cores: percent of a GPU's cores that a container gets at most; None is as requested.
        devices: the pod annotation with the devices by container.
        for_all: whether ``devices`` has a segment for every container, or only if it requests some.
        to_allocate: the pod annotation with what Allocate has still to allocate.
        node, time, bind_time, bind_phase: further pod annotations.
        time_ends: whether ``time`` is overwritten when Allocate is done.
        register, handshake: the node's annotations, the newest key first.
        stamp: how a scheduler writes the time of a handshake.
        json: whether the newest form of ``register`` is JSON.
        columns: of a GPU in a ``register`` that is not JSON; the last ones came later.
        least_columns: that the oldest form had.
        locks: the node's annotations that are locks.
        paths: where the files are.
    """

    name: str
    resources: ResourceNames
    implying: tuple[str, ...]
    id_parts: tuple[tuple[str, str], ...]
    percentage_wins: bool
    no_percentage: int
    percentages: range
    counts_units: bool
    most_cores: int | None
    devices: str
    for_all: bool
    to_allocate: str
    node: str
    time: str
    bind_time: str
    bind_phase: str
    time_ends: bool
    register: str
    handshake: tuple[str, ...]
    stamp: str
    json: bool
    columns: tuple[str, ...]
    least_columns: int
    locks: tuple[str, ...]
    paths: ShimPaths

    @property
    def number(self) -> str:
        """The extended resource of GPUs."""
        return self.resources.count

    @property
    def memory(self) -> str:
        """That of an amount of memory."""
        return self.resources.memory

    @property
    def percentage(self) -> str:
        """That of a percentage of memory."""
        return self.resources.percentage

    @property
    def cores(self) -> str:
        """That of cores."""
        return self.resources.cores

    @cached_property
    def implied_by(self) -> tuple[str, ...]:
        """Those that request one GPU where no number is requested."""
        return tuple([getattr(self.resources, role) for role in self.implying])

    @cached_property
    def advertised(self) -> tuple[tuple[str, str], ...]:
        """Those that the plugin reports to the kubelet, each with the part of its device IDs."""
        return tuple([(getattr(self.resources, role), part) for role, part in self.id_parts])

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """All extended resources that a request is made of."""
        return (self.number, self.memory, self.percentage, self.cores)

    def named(self, resources: ResourceNames) -> "KeySet":
        """The same spellings with these names of the extended resources."""
        return self if resources == self.resources else structs.replace(self, resources=resources)

    @cached_property
    def plugin_resources(self) -> tuple[str, ...]:
        """The extended resources that the plugin reports to the kubelet."""
        return tuple([name for name, _ in self.advertised])

    @property
    def claim(self) -> tuple[str, ...]:
        """All pod annotations that a claim is made of."""
        stages = (self.node, self.time, self.bind_time, self.bind_phase)
        return (self.devices, self.to_allocate, *stages)


VOLCANO: Final = KeySet(
    name="volcano",
    resources=ORIGINAL_NAMES["volcano"],
    implying=("memory",),
    id_parts=(("count", ""), ("memory", "-memory"), ("cores", "-core")),
    percentage_wins=True,
    no_percentage=101,
    percentages=range(1, 102),  # Volcano reserves nothing for 0, and its plugin sets no limit
    counts_units=True,
    most_cores=None,
    devices="volcano.sh/vgpu-ids-new",
    for_all=False,
    to_allocate="volcano.sh/devices-to-allocate",
    node="volcano.sh/vgpu-node",
    time="volcano.sh/vgpu-time",
    bind_time="volcano.sh/bind-time",
    bind_phase="volcano.sh/bind-phase",
    time_ends=True,
    register="volcano.sh/node-vgpu-register",
    handshake=("volcano.sh/node-vgpu-handshake", "volcano.sh/node-handshake"),
    stamp="%Y.%m.%d %H:%M:%S",
    json=False,
    columns=("uuid", "slots", "memory", "type", "healthy", "mode"),
    least_columns=5,
    locks=("hamivgpu", "vgpu4pd"),  # bare keys; volcano.sh/mutex.lock is never written
    paths=ShimPaths(  # v1.12 and later; before, containers was /tmp/vgpu/containers
        library="/usr/local/vgpu/libvgpu.so",
        library_target="/usr/local/vgpu/libvgpu.so",
        preload="/usr/local/vgpu/ld.so.preload",
        containers="/usr/local/vgpu/vgpu/containers",
        cache_target="/tmp/vgpu",  # noqa: S108  # in the container, a folder of its own
    ),
)

HAMI: Final = KeySet(
    name="hami",
    resources=ORIGINAL_NAMES["hami"],
    implying=("memory", "percentage", "cores"),
    id_parts=(("count", ""),),  # the scheduler alone counts the others
    percentage_wins=False,
    no_percentage=0,
    percentages=range(101),
    counts_units=False,
    most_cores=100,
    devices="hami.io/vgpu-devices-allocated",
    for_all=True,
    to_allocate="hami.io/vgpu-devices-to-allocate",
    node="hami.io/vgpu-node",
    time="hami.io/vgpu-time",
    bind_time="hami.io/bind-time",
    bind_phase="hami.io/bind-phase",
    time_ends=False,
    register="hami.io/node-nvidia-register",
    handshake=("hami.io/node-handshake",),
    stamp="%Y-%m-%d %H:%M:%S",
    json=True,
    columns=("uuid", "slots", "memory", "cores", "type", "numa", "healthy", "index", "mode"),
    least_columns=7,
    locks=("hami.io/mutex.lock",),
    paths=ShimPaths(
        library="/usr/local/vgpu/libvgpu.so",
        library_target="/usr/local/vgpu/libvgpu.so",
        preload="/usr/local/vgpu/ld.so.preload",
        containers="/usr/local/vgpu/containers",
        cache_target="/usr/local/vgpu",
    ),
)
