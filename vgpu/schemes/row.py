"""The values that a row of the registry is made of. A row stands for one sharing system.

A row is for what the product asks of a system before it reads anything of it: which keys to keep,
how its use is detected, what a unit means, where its evidence lies, what may be repaired. The
meaning of its texts is in its codec.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

import msgspec
from msgspec import structs

from vgpu.model.allocation import Claim, Device, Request, Share
from vgpu.model.facts import LimitFile
from vgpu.model.names import Scheme, Sharing
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import Explained
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.limit_ways import UNREAD, LimitWay
from vgpu.schemes.resource_names import ResourceNames, SystemNames


class KubeletGrant(msgspec.Struct, frozen=True):
    """What the kubelet allocated of one resource to one container.

    Attributes:
        resource: the extended resource.
        device_ids: the kubelet's IDs.
        env: the environment of the plugin's answer.
        answered: whether the answer was read; pod-resources has none.
        registered: the schemes whose plugins have registered GPUs on the Node object; None if the
            object was not read.
    """

    resource: str
    device_ids: tuple[str, ...]
    env: Mapping[str, str] = {}
    answered: bool = False
    registered: frozenset[Scheme] | None = None


class NamedDevices(msgspec.Struct, frozen=True):
    """The devices of a grant, one share for each ID, and how they are shared."""

    scheme: Scheme
    shares: tuple[Share, ...]
    sharing: Sharing


class KeyPrefixes(msgspec.Struct, frozen=True):
    """The prefixes of a system's keys.

    Attributes:
        resources: extended resources that are kept; asking for one is sharing GPUs.
        marks: annotations and labels that are kept; a pod that has one shares GPUs.
        kept: annotations and labels that are kept of objects that are kept in any case.
        evidence: annotations, labels and resources that show that the system is in use.
        passing: annotations of nodes that change all the time and name no GPU.
        share_pods: annotations and labels that show that its SharePods are in use.
    """

    resources: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()
    share_pods: tuple[str, ...] = ()


class WrittenKeys(msgspec.Struct, frozen=True):
    """The keys of a system that our programs write, see :mod:`vgpu.program.written_keys`.

    Attributes:
        pods: annotations that a claim is made of.
        pod_labels: labels of bound pods, which the scheduler writes.
        nodes: annotations of nodes that the device plugin writes, beside the following.
        handshakes, locks: heartbeats and locks, which reconciler and scheduler write, too.
        node_labels: labels of nodes.
        resources: names in capacity and allocatable that are written without the kubelet.
    """

    pods: tuple[str, ...] = ()
    pod_labels: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    handshakes: tuple[str, ...] = ()
    locks: tuple[str, ...] = ()
    node_labels: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class UnitDoubt(msgspec.Struct, frozen=True):
    """What contradicts a unit of memory, and the units that would fit, in MiB.

    ``problem`` is the beginning of a sentence that ends with the unit in force.
    """

    problem: str
    least: int = 1
    most: int | None = None


class UnitSetting(msgspec.Struct, frozen=True):
    """What one unit of the system's memory means: its operator's choice.

    Attributes:
        flag: the flag of every program that sets it.
        default: bytes, where the flag is not set.
        assumed: the nodes -> bytes, and a sentence for each assumption; None where the default
            holds.
        doubt: a node and the unit in bytes -> what contradicts the unit. None where nothing can.
        most: a node -> the largest unit with which its GPUs can exist, in MiB; None if unknown.
    """

    flag: str
    default: int
    assumed: Callable[[Iterable[Node]], tuple[int, tuple[str, ...]]] | None = None
    doubt: Callable[[Node, int], Iterable[UnitDoubt]] | None = None
    most: Callable[[Node], int | None] | None = None


class LimitLayout(StrEnum):
    """How a folder of limit files is laid out."""

    CONTAINER = "container"  # <podUID>/<container or its ID>/<file>
    GPU = "gpu"  # <GPU UUID>


class LimitFiles(msgspec.Struct, frozen=True):
    """Limit files that the system leaves on a node.

    Attributes:
        flag: the flag of every program that sets their folder.
        folder: its default.
        layout: how the folder is laid out.
        file: the name of the file in a container's folder; "" where each GPU has one.
        most_bytes: of one file.
        read: a file's content, its path, and the path as messages have it -> its limits. Raises
            SourceError.
    """

    flag: str
    folder: str
    layout: LimitLayout
    file: str
    most_bytes: int
    read: Callable[[bytes, str, str], tuple[LimitFile, ...]]


class NodeEvidence(msgspec.Struct, frozen=True):
    """What a system leaves on a node beside the kubelet's files.

    Attributes:
        resource_claim_roots: folders with a folder ``<UID>`` for each ResourceClaim, with the same
            regions.
        region_roots: folders with a folder ``<podUID>_<container>`` for each container, in which
            the library's shared-memory region is.
        limits: its limit files.
    """

    region_roots: tuple[str, ...] = ()
    resource_claim_roots: tuple[str, ...] = ()
    limits: LimitFiles | None = None


class AnnotationRepair(msgspec.Struct, frozen=True):
    """How the reconciler may repair the annotations of a pod that runs.

    Attributes:
        reservation: a reservation has one of these annotations.
        allocated: that of an allocated reservation has one of these, key and value, too.
        read_only: resources whose annotations are read only.
        sized_as_enforced: whether memory that was left to the scheduler is written as enforced.
    """

    reservation: tuple[str, ...]
    allocated: tuple[tuple[str, str], ...]
    read_only: tuple[str, ...] = ()
    sized_as_enforced: bool = False


class DefectCause(Explained):
    """The known defects of schedulers, as reason codes with their text for people."""

    FREE_BELOW_ZERO = (
        "free_below_zero",
        (
            "the gpushare extender treats negative free memory as a very large amount: restart the"
            " extender"
        ),
    )
    INIT_CONTAINERS_MISCOUNTED = (
        "init_containers_miscounted",
        "HAMi 2.10 treats app containers as init containers and counts too little for them",
    )
    SAME_GPU_TWICE = (
        "same_gpu_twice",
        "Volcano counts only one of a pod's containers on the same GPU",
    )
    CACHE_BEHIND = (
        "cache_behind",
        "gpu-admission places pods before it has seen the pods that it placed earlier",
    )


class DefectSign(StrEnum):
    """The sign by which a scheduler's defect is the cause of too many reservations."""

    ALWAYS = "always"
    INIT_CONTAINERS = "init_containers"  # a holder of the GPU has more than app containers
    SAME_POD = "same_pod"  # several containers of one pod hold the GPU


class SchedulerDefect(msgspec.Struct, frozen=True):
    """Why the system's own scheduler reserves more than there is.

    Attributes:
        cause: the reason code.
        sign: the sign of the defect; of several systems' defects the first sign counts.
    """

    cause: DefectCause
    sign: DefectSign = DefectSign.ALWAYS


class UnhealthyMap(msgspec.Struct, frozen=True):
    """Where a ConfigMap of each node lists its unhealthy GPUs.

    ``name`` is that of a node's; ``key`` is the one of its data.
    """

    namespace: str
    name: Callable[[str], str]
    key: str


class SchemeRow(msgspec.Struct, frozen=True):
    """One sharing system, in one of its spellings.

    Attributes:
        name: of the row and of its codec.
        scheme: the family: several rows may be of one.
        codec: its codec; the argument is bytes of one unit of memory, None if it is not set:
            then amounts in units are unknown.
        has_devices: whether the node has registered GPUs of the system.
        keys: how its keys begin.
        written: the keys that our programs write.
        unit: what one unit of memory means; None where it needs no setting.
        evidence: what it leaves on a node.
        repair: how annotations of running pods may be repaired; None is not at all.
        defect: why its scheduler reserves too much, as far as a defect is known.
        adapter: the plugin's adapter, by its name in deviceplugin.adapters; "" where none is.
        shares_cores: whether it shares cores too, and not memory alone.
        unhealthy_map: the ConfigMap of each node that lists its unhealthy GPUs; None if none does.
        has_allocate: whether the kubelet's Allocate allocates what was reserved.
        is_foreign: the nodes -> a function: whether a pod uses the system's names and is none of
            its pods, but one of NVIDIA's own plugin.
        is_renamed: whether a node of the system advertises the resource of another plugin under
            the name of the system's: its own has another name there.
        never_serves: why the system's original device plugin can never serve the pod on the node,
            in words; "" if it may.
        join: the pods with what the system's own objects (SharePods) know of them.
        keeps_for_others: whether a pod keeps a GPU for others, and uses nothing of it.
        is_reservation: whether a pod that keeps one has it of another system's device plugin and
            reports which it is: it is in that system's sums, and none of its holders.
        resolve: the pods with what other pods know of their GPUs.
        named_devices: the kubelet's IDs of one resource -> the devices that they name; None for
            IDs that are not of this system, or that only count.
        limit_way: how the system limits its containers.
        names: the names of its extended resources.
        with_names: the names of all systems -> the row with its own; None where nobody can rename
            its resources.
    """

    name: str
    scheme: Scheme
    codec: Callable[[int | None], SchemeCodec]
    has_devices: Callable[[Node], bool]
    keys: KeyPrefixes
    written: WrittenKeys = WrittenKeys()
    unit: UnitSetting | None = None
    evidence: NodeEvidence = NodeEvidence()
    repair: AnnotationRepair | None = None
    defect: SchedulerDefect | None = None
    adapter: str = ""
    shares_cores: bool = True
    unhealthy_map: UnhealthyMap | None = None
    has_allocate: bool = True
    is_foreign: Callable[[Iterable[Node]], Callable[[Pod], bool]] | None = None
    is_renamed: Callable[[Node], bool] | None = None
    never_serves: Callable[[Pod, Node], str] | None = None
    join: Callable[[Iterable[Pod], Iterable[Pod]], tuple[Pod, ...]] | None = None
    keeps_for_others: Callable[[Pod], bool] | None = None
    is_reservation: Callable[[Pod], bool] | None = None
    resolve: Callable[[Iterable[Pod]], tuple[Pod, ...]] | None = None
    named_devices: Callable[[KubeletGrant], NamedDevices | None] | None = None
    limit_way: LimitWay = UNREAD
    names: ResourceNames = ResourceNames()
    with_names: "Callable[[SystemNames], SchemeRow] | None" = None


_Sized = TypeVar("_Sized", Request, Share, Device)


def without_memory(values: tuple[_Sized, ...]) -> tuple[_Sized, ...]:
    """The same values, with unknown memory."""
    return tuple(structs.replace(value, memory_bytes=None) for value in values)


def claim_without_memory(claim: Claim | None) -> Claim | None:
    """The same claim, with unknown memory in all its shares."""
    return claim and structs.replace(
        claim,
        allocations=tuple(
            structs.replace(allocation, shares=without_memory(allocation.shares))
            for allocation in claim.allocations
        ),
    )
