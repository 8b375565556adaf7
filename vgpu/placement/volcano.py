"""The placement of a pod on a node by Volcano's scheduler, and the node's score.

The rules are those of its plugin deviceshare with VGPUEnable (``devices/nvidia/vgpu``). Two rules
follow the intent of Volcano; :data:`UPSTREAM` has them as they are: a GPU that its plugin
calls unhealthy is not chosen, and spread prefers nodes with idle GPUs.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Final

import msgspec
from msgspec import structs

from vgpu.kube.objects import Pod
from vgpu.model import Allocation, Claim, ContainerKind, Device, Phase, Request, Share
from vgpu.placement.volcano_mig import Geometry, choose, slots
from vgpu.schemes.volcano.codec import mig_slot, physical
from vgpu.schemes.volcano.key_set import HAMI_CORE, MIG
from vgpu.schemes.volcano.node import VENDOR
from vgpu.units import MIB, WHOLE_DEVICE_MILLI, WHOLE_DEVICE_PERCENT

MODE: Final = "volcano.sh/vgpu-mode"
USE_TYPE: Final = "nvidia.com/use-gputype"
AVOID_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "volcano.sh/vgpu-use-gpuuuid"
AVOID_UUID: Final = "volcano.sh/vgpu-nouse-gpuuuid"
GROUP_POLICY: Final = "volcano.sh/vgpu-podgroup-policy"
GROUP_NAMES: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")

_BEST: Final = 100.0
"""Maximum score of a GPU."""


class SchedulingPolicy(StrEnum):
    """In which order GPUs are tried, and what makes a node better."""

    BINPACK = "binpack"  # the GPU with most memory in use first
    SPREAD = "spread"  # the GPU with fewest users first
    NONE = ""  # the last GPU first; all nodes are alike


class SpreadScore(Enum):
    """When spread checks whether a GPU is idle."""

    BEFORE = "before"  # as meant, and as in older versions: before the container is counted
    AFTER = "after"  # as it is: after, so that no GPU ever is


class VolcanoRules(msgspec.Struct, frozen=True):
    """Rules that follow the intent of Volcano, or its code.

    Attributes:
        skip_unhealthy: whether unhealthy GPUs are passed over.
        spread_score: when spread checks.
        weight: factor of scores (``ScheduleWeight``).
    """

    skip_unhealthy: bool = True
    spread_score: SpreadScore = SpreadScore.BEFORE
    weight: int = 1


AS_MEANT: Final = VolcanoRules()
UPSTREAM: Final = VolcanoRules(skip_unhealthy=False, spread_score=SpreadScore.AFTER)
"""Exactly the rules of the scheduler."""


class Wishes(msgspec.Struct, frozen=True):
    """The placement wishes in a pod's annotations.

    Attributes:
        mode: hami-core or mig; None is either.
        use_types, avoid_types: parts of GPU types; if some are to be used, none is avoided.
        use_uuids, avoid_uuids: GPUs.
        group: its PodGroup as ``<namespace>/<name>``.
        alone_in_group: whether it shares no GPU with another pod of its group.
    """

    mode: str | None = None
    use_types: tuple[str, ...] = ()
    avoid_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    group: str = ""
    alone_in_group: bool = False


NO_WISHES: Final = Wishes()


class VolcanoGpu(msgspec.Struct, frozen=True):
    """A GPU and what is taken of it.

    Attributes:
        device: the GPU; None for its memory or slots is none of them.
        users: how many shares are taken.
        memory_bytes, cores_milli: how much is taken.
        groups: PodGroups of which a pod is on it.
        geometries: how it may be cut, in MIG mode.
        mig_slots: group and position of the MIG slots in use.
    """

    device: Device
    users: int = 0
    memory_bytes: int = 0
    cores_milli: int = 0
    groups: frozenset[str] = frozenset()
    geometries: tuple[Geometry, ...] = ()
    mig_slots: frozenset[tuple[str, int]] = frozenset()

    @property
    def capacity_bytes(self) -> int:
        """Memory, taken or not."""
        return self.device.memory_bytes or 0


class CandidateNode(msgspec.Struct, frozen=True):
    """A node that may be chosen; its GPUs are in the order of the register."""

    name: str
    gpus: tuple[VolcanoGpu, ...]
    mode: str = HAMI_CORE


class GpuSkip(Enum):
    """Why a GPU is passed over, in the order of the checks."""

    UUID = "the pod's annotations exclude this GPU"
    UNHEALTHY = "its plugin reports it as unhealthy"
    SLOTS = "no share is left"
    GROUP = "another pod of the PodGroup is on it"
    MEMORY = "not enough memory is left"
    CORES = "not enough cores are left"
    EXCLUSIVE = "all its cores are wanted, but it is shared"
    CORES_GONE = "all its cores are taken"
    TYPE = "the pod's annotations exclude this type"
    MIG_SLOT = "no MIG slot is left that is large enough"


class RefusalReason(Enum):
    """Why a node is refused, in the scheduler's own message."""

    MODE = "pod required sharing mode {mode} is not the same as the node mode {node_mode}"
    GPUS = "no enough gpu cards on node {node}"
    UUIDS = (
        f'no GPU matches UUID constraints {USE_UUID}="{{use}}", {AVOID_UUID}="{{avoid}}"'
        " on node {node}"
    )
    FITTING = "not enough gpu fitted on this node"


class VolcanoRefusal(msgspec.Struct, frozen=True):
    """Why the pod does not fit: for which container, and what was wrong with each GPU."""

    reason: RefusalReason
    message: str
    container: str = ""
    skipped: tuple[tuple[str, GpuSkip], ...] = ()


class NodeChoice(msgspec.Struct, frozen=True):
    """The placement of a pod: its containers' shares, the GPUs with them, the node's score."""

    allocations: tuple[Allocation, ...]
    gpus: tuple[VolcanoGpu, ...]
    score: float


# ---------------------------------------------------------------- what is there


def wishes(pod: Pod) -> Wishes:
    """The wishes in the pod's annotations; words are joined by commas, empty ones are ignored."""
    annotations = pod.annotations
    group = next(filter(None, map(annotations.get, GROUP_NAMES)), "")
    return Wishes(
        mode=annotations.get(MODE),
        use_types=_words(annotations, USE_TYPE),
        avoid_types=_words(annotations, AVOID_TYPE),
        use_uuids=_words(annotations, USE_UUID),
        avoid_uuids=_words(annotations, AVOID_UUID),
        group=f"{pod.ref.namespace}/{group}" if group else "",
        alone_in_group=annotations.get(GROUP_POLICY) == "spread",
    )


def reserve(
    gpus: tuple[VolcanoGpu, ...], held: Iterable[tuple[Claim, str]]
) -> tuple[VolcanoGpu, ...]:
    """The GPUs with the claims' shares taken, each with the PodGroup of its pod.

    Every share counts. (The scheduler counts a pod once for each GPU when it rebuilds its
    allocation records, so that it overcommits: that is a defect of its own.) Shares of other GPUs
    are left out.
    """
    books = {gpu.device.uuid: gpu for gpu in gpus}
    for claim, group in held:
        for share in (share for each in claim.allocations for share in each.shares):
            gpu = books.get(physical(share.device))
            if gpu is not None:
                books[gpu.device.uuid] = _take(gpu, share, group)
    return tuple(books.values())


def _take(gpu: VolcanoGpu, share: Share, group: str = "") -> VolcanoGpu:
    """The GPU with one more share; a MIG slot is taken with all its memory."""
    slot = mig_slot(share.device)
    memory = _slot_memory(gpu, slot) if slot else share.memory_bytes
    if memory is None:
        memory = gpu.capacity_bytes if share.memory_bytes is None else share.memory_bytes
    return structs.replace(
        gpu,
        users=gpu.users + 1,
        memory_bytes=gpu.memory_bytes + memory,
        cores_milli=gpu.cores_milli + (share.cores_milli or 0),
        groups=gpu.groups | {group} if group else gpu.groups,
        mig_slots=gpu.mig_slots | {slot} if slot else gpu.mig_slots,
    )


def _slot_memory(gpu: VolcanoGpu, named: tuple[str, int]) -> int | None:
    """A MIG slot's memory in bytes; None if no geometry has it."""
    known = (slot for geometry in gpu.geometries for slot in slots(geometry))
    return next((each.memory_bytes for each in known if (each.group, each.position) == named), None)


def _words(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, annotations.get(key, "").split(","))))


# ---------------------------------------------------------------- the choice


def place(
    requests: Iterable[Request],
    node: CandidateNode,
    wanted: Wishes = NO_WISHES,
    *,
    policy: SchedulingPolicy = SchedulingPolicy.NONE,
    rules: VolcanoRules = AS_MEANT,
    unit_bytes: int = MIB,
) -> NodeChoice | VolcanoRefusal:
    """Where the scheduler would put the containers on the node.

    Each container gets its GPUs before the next one is placed. Init containers are ignored.
    ``unit_bytes`` is the size of one unit of memory: percentages are rounded down to units.
    """
    if wanted.mode is not None and wanted.mode != node.mode:
        return _refusal(RefusalReason.MODE, node, wanted)
    gpus = list(node.gpus)
    touched: set[int] = set()
    allocations = []
    score = 0.0
    for request in (each for each in requests if each.kind is ContainerKind.APP):
        if request.count > len(gpus):
            return _refusal(RefusalReason.GPUS, node, wanted, request.container)
        shares: list[Share] = []
        skipped: list[tuple[str, GpuSkip]] = []
        for index in _order(gpus, policy):
            if len(shares) == request.count:
                break
            gpu = gpus[index]
            memory = _memory(request, gpu, unit_bytes)
            fitting = _fit(gpu, request, memory, mode=node.mode, wanted=wanted, rules=rules)
            if isinstance(fitting, GpuSkip):
                skipped.append((gpu.device.name, fitting))
                continue
            shares.append(Share(fitting, memory, request.cores_milli))
            gpus[index] = _take(gpu, shares[-1])
            touched.add(index)
            score += _score(gpu, gpus[index], policy, rules)
        if len(shares) < request.count:
            excluded = not shares and all(skip is GpuSkip.UUID for _, skip in skipped)
            reason = RefusalReason.UUIDS if excluded else RefusalReason.FITTING
            return _refusal(reason, node, wanted, request.container, skipped)
        allocations.append(Allocation(request.container, tuple(shares), Phase.ASSUMED))
    group = frozenset({wanted.group} - {""})
    for index in touched:
        gpus[index] = structs.replace(gpus[index], groups=gpus[index].groups | group)
    return NodeChoice(tuple(allocations), tuple(gpus), score * rules.weight)


def _order(gpus: list[VolcanoGpu], policy: SchedulingPolicy) -> list[int]:
    """The GPUs' positions as they are tried; among equals the first comes first."""
    positions = range(len(gpus))
    if policy is SchedulingPolicy.BINPACK:
        return sorted(positions, key=lambda position: -gpus[position].memory_bytes)
    if policy is SchedulingPolicy.SPREAD:
        return sorted(positions, key=lambda position: gpus[position].users)
    return list(reversed(positions))


def _memory(request: Request, gpu: VolcanoGpu, unit_bytes: int) -> int:
    """Bytes of this GPU: as many as asked, or that percentage of it in whole units."""
    if request.memory_bytes is not None:
        return request.memory_bytes
    percentage = WHOLE_DEVICE_PERCENT if request.memory_percent is None else request.memory_percent
    units = gpu.capacity_bytes // unit_bytes
    return units * percentage // WHOLE_DEVICE_PERCENT * unit_bytes


def _fit(
    gpu: VolcanoGpu,
    request: Request,
    memory: int,
    *,
    mode: str,
    wanted: Wishes,
    rules: VolcanoRules,
) -> str | GpuSkip:
    """The device that the container would get of this GPU, or why it gets none."""
    for skip, applies in _checks(gpu, request, memory, wanted, rules):
        if applies:
            return skip
    if mode != MIG:
        return gpu.device.uuid
    slot = choose(gpu.geometries, gpu.mig_slots, memory)
    return f"{gpu.device.uuid}[{slot.group}-{slot.position}]" if slot else GpuSkip.MIG_SLOT


def _checks(
    gpu: VolcanoGpu, request: Request, memory: int, wanted: Wishes, rules: VolcanoRules
) -> tuple[tuple[GpuSkip, bool], ...]:
    """Everything that can be wrong with a GPU, in the scheduler's order."""
    device, cores = gpu.device, request.cores_milli
    type_ = (VENDOR + device.model).upper()
    uses = any(word.upper() in type_ for word in wanted.use_types)
    avoids = any(word.upper() in type_ for word in wanted.avoid_types)
    excluded = bool(wanted.use_uuids) and device.uuid not in wanted.use_uuids
    return (
        (GpuSkip.UUID, excluded or device.uuid in wanted.avoid_uuids),
        (GpuSkip.UNHEALTHY, rules.skip_unhealthy and not device.healthy),
        (GpuSkip.SLOTS, device.slots is not None and device.slots <= gpu.users),
        (GpuSkip.GROUP, wanted.alone_in_group and wanted.group in gpu.groups),
        (GpuSkip.MEMORY, gpu.capacity_bytes - gpu.memory_bytes < memory),
        (GpuSkip.CORES, gpu.cores_milli + cores > WHOLE_DEVICE_MILLI),
        (GpuSkip.EXCLUSIVE, cores == WHOLE_DEVICE_MILLI and gpu.users > 0),
        (GpuSkip.CORES_GONE, gpu.cores_milli == WHOLE_DEVICE_MILLI and cores == 0),
        (GpuSkip.TYPE, not uses if wanted.use_types else avoids),
    )


def _score(
    before: VolcanoGpu, after: VolcanoGpu, policy: SchedulingPolicy, rules: VolcanoRules
) -> float:
    """What one chosen GPU adds to the node's score."""
    if policy is SchedulingPolicy.BINPACK and after.capacity_bytes:
        return _BEST * after.memory_bytes / after.capacity_bytes
    if policy is SchedulingPolicy.SPREAD:
        seen = before if rules.spread_score is SpreadScore.BEFORE else after
        return _BEST if seen.users == 0 else 0.0
    return 0.0


def _refusal(
    reason: RefusalReason,
    node: CandidateNode,
    wanted: Wishes,
    container: str = "",
    skipped: Iterable[tuple[str, GpuSkip]] = (),
) -> VolcanoRefusal:
    message = reason.value.format(
        node=node.name,
        node_mode=node.mode,
        mode=wanted.mode,
        use=",".join(wanted.use_uuids),
        avoid=",".join(wanted.avoid_uuids),
    )
    return VolcanoRefusal(reason, message, container, tuple(skipped))
