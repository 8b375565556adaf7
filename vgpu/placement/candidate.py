"""The input of a placement, the same for all dialects: a pod's demand, a node's GPUs in use."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import structs

from vgpu.model.allocation import Device, Request, Share, mig_slot, physical
from vgpu.model.names import PodRef
from vgpu.placement.volcano_mig import Geometry, slots

SOFTWARE: Final = "hami-core"
"""The mode of nodes whose GPUs are shared by a library, in the word of Volcano and HAMi."""


class PlacementWishes(msgspec.Struct, frozen=True):
    """The placement wishes in a pod's annotations.

    Attributes:
        mode: hami-core or mig; None is either.
        use_types, avoid_types: parts of GPU types.
        use_uuids, avoid_uuids: GPUs.
        groups: the groups of pods that it is in: its PodGroup as ``<namespace>/<name>``, and
            exclusive rules.
        apart: those of ``groups`` with whose other pods it shares no GPU.
        gpu_order: which GPUs come first: ``binpack``, ``spread`` and ``numa``, of which the first
            one that makes a difference counts; () is the cluster's.
        use_weights: how much shares, cores and memory in use count in the use of a GPU.
        node_policy: ``binpack`` or ``spread``; "" is the cluster's.
        idle_gpus: whether it takes only GPUs that no share is on.
        one_numa_node: whether the GPUs of a container are all of one NUMA node.
        best_connected: whether a container gets those of the fitting GPUs that are connected best.
    """

    mode: str | None = None
    use_types: tuple[str, ...] = ()
    avoid_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    gpu_order: tuple[str, ...] = ()
    use_weights: tuple[int, int, int] = (1, 1, 1)
    node_policy: str = ""
    idle_gpus: bool = False
    one_numa_node: bool = False
    best_connected: bool = False


NO_WISHES: Final = PlacementWishes()


class PodDemand(msgspec.Struct, frozen=True, gc=False):
    """What a pod requests of a node; ``requests`` are by container, in the pod's order.

    A higher ``priority`` is more important. ``units`` are the pod's extended resources, as
    Kubernetes counts them for a ResourceQuota.
    """

    pod: PodRef
    requests: tuple[Request, ...]
    wishes: PlacementWishes = NO_WISHES
    priority: int = 0
    units: tuple[tuple[str, int], ...] = ()


class UsedGpu(msgspec.Struct, frozen=True, gc=False):
    """A GPU and what is in use of it.

    Attributes:
        device: the GPU; None for its memory or slots is none of them.
        users: number of shares in use.
        memory_bytes, cores_milli: amounts in use.
        groups: groups of which a pod is on it.
        geometries: how it may be cut, in MIG mode.
        mig_slots: group and position of the MIG slots in use.
        cordoned: whether new shares are kept off it on purpose.
        numa: its NUMA node.
        mode: how it is shared; "" is the mode of its node.
    """

    device: Device
    users: int = 0
    memory_bytes: int = 0
    cores_milli: int = 0
    groups: frozenset[str] = frozenset()
    geometries: tuple[Geometry, ...] = ()
    mig_slots: frozenset[tuple[str, int]] = frozenset()
    cordoned: bool = False
    numa: int = 0
    mode: str = ""

    @property
    def capacity_bytes(self) -> int:
        """Memory, in use or not."""
        return self.device.memory_bytes or 0

    @property
    def free_bytes(self) -> int:
        """Memory that is free; 0 where more is in use than there is."""
        return max(0, self.capacity_bytes - self.memory_bytes)

    @property
    def free_milli(self) -> int:
        """Thousandths of the GPU's cores that are free; 0 where more are in use than there are."""
        return max(0, self.device.cores_milli - self.cores_milli)

    @property
    def is_idle(self) -> bool:
        """Whether no share of it is in use."""
        return not (self.users or self.memory_bytes or self.cores_milli)

    @property
    def is_usable(self) -> bool:
        """Whether it takes new shares at all."""
        return self.device.healthy and not self.cordoned

    def with_share(self, share: Share, groups: Iterable[str] = ()) -> "UsedGpu":
        """The GPU with one more share; a MIG slot is in use with all its memory.

        A share without memory has all of it.
        """
        return self.with_each(((share, groups),))

    def with_each(self, shares: Iterable[tuple[Share, Iterable[str]]]) -> "UsedGpu":
        """The GPU with more shares, each with its pod's groups."""
        users, memory_bytes, cores_milli = self.users, self.memory_bytes, self.cores_milli
        groups, slots_in_use = self.groups, self.mig_slots
        for share, own_groups in shares:
            slot = mig_slot(share.device)
            memory = self._slot_memory(slot) if slot else share.memory_bytes
            if memory is None:
                memory = self.capacity_bytes if share.memory_bytes is None else share.memory_bytes
            users += 1
            memory_bytes += memory
            cores_milli += share.cores_milli or 0
            if own_groups:
                groups = groups.union(own_groups)
            if slot:
                slots_in_use |= {slot}
        return structs.replace(
            self,
            users=users,
            memory_bytes=memory_bytes,
            cores_milli=cores_milli,
            groups=groups,
            mig_slots=slots_in_use,
        )

    def _slot_memory(self, named: tuple[str, int]) -> int | None:
        """A MIG slot's memory in bytes; None if no geometry has it."""
        known = (slot for geometry in self.geometries for slot in slots(geometry))
        return next(
            (slot.memory_bytes for slot in known if (slot.group, slot.position) == named), None
        )


def sums(gpus: Sequence[UsedGpu]) -> tuple[int, int, int, int]:
    """Of all GPUs: memory, memory in use, cores, cores in use; in bytes and thousandths."""
    return (
        sum(gpu.capacity_bytes for gpu in gpus),
        sum(gpu.memory_bytes for gpu in gpus),
        sum(gpu.device.cores_milli for gpu in gpus),
        sum(gpu.cores_milli for gpu in gpus),
    )


GpuLinks = Mapping[str, Mapping[str, int]]
"""How well a GPU is connected to each other one, by their UUIDs; a higher score is better."""


class CandidateNode(msgspec.Struct, frozen=True, gc=False):
    """A node that may be chosen; its GPUs are in the order of the register."""

    name: str
    gpus: tuple[UsedGpu, ...]
    mode: str = SOFTWARE
    links: GpuLinks = {}


def with_shares(
    gpus: Iterable[UsedGpu], shares: Iterable[Share], groups: Iterable[str] = ()
) -> tuple[UsedGpu, ...]:
    """The GPUs with these shares in use as well; shares of other GPUs are left out."""
    return with_all_shares(gpus, ((shares, tuple(groups)),))


def places_of(gpus: Iterable[UsedGpu]) -> Mapping[str, int]:
    """The place of each GPU, by every name that it has."""
    return {name: place for place, gpu in enumerate(gpus) for name in gpu.device.names}


def with_all_shares(
    gpus: Iterable[UsedGpu],
    pods: Iterable[tuple[Iterable[Share], tuple[str, ...]]],
    places: Mapping[str, int] | None = None,
) -> tuple[UsedGpu, ...]:
    """The GPUs with the shares of these pods in use as well, each with its pod's groups.

    ``places`` are those of the GPUs, if they are known.
    """
    in_use = list(gpus)
    places = places_of(in_use) if places is None else places
    added: dict[int, list[tuple[Share, tuple[str, ...]]]] = {}
    for shares, groups in pods:
        for share in shares:
            place = places.get(physical(share.device))
            if place is not None:
                added.setdefault(place, []).append((share, groups))
    for place, of_gpu in added.items():
        in_use[place] = in_use[place].with_each(of_gpu)
    return tuple(in_use)
