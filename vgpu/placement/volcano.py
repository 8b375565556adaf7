"""The placement of a pod on a node by Volcano's scheduler, and the node's score.

The rules are those of its plugin deviceshare with VGPUEnable (``devices/nvidia/vgpu``). Three rules
follow the intent of Volcano; :data:`UPSTREAM` has them as they are: a GPU that its plugin
calls unhealthy is not chosen, spread prefers nodes with idle GPUs, and types to avoid are avoided
also where others are to be used. Init containers are ignored.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from typing import Final

import msgspec

from vgpu.model.allocation import Request
from vgpu.model.objects import Pod
from vgpu.model.units import MIB, WHOLE_DEVICE_MILLI, WHOLE_DEVICE_PERCENT
from vgpu.placement.candidate import (
    NO_WISHES,
    CandidateNode,
    PlacementWishes,
    PodDemand,
    UsedGpu,
)
from vgpu.placement.dialect import SequentialDialect, Skip
from vgpu.placement.result import PlacementReason
from vgpu.placement.volcano_mig import choose
from vgpu.schemes.volcano.key_set import MIG
from vgpu.schemes.volcano.node import VENDOR

MODE: Final = "volcano.sh/vgpu-mode"
USE_TYPE: Final = "nvidia.com/use-gputype"
AVOID_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "volcano.sh/vgpu-use-gpuuuid"
AVOID_UUID: Final = "volcano.sh/vgpu-nouse-gpuuuid"
GROUP_POLICY: Final = "volcano.sh/vgpu-podgroup-policy"
GROUP_NAMES: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")

_WISHES: Final = frozenset(
    {MODE, USE_TYPE, AVOID_TYPE, USE_UUID, AVOID_UUID, GROUP_POLICY, *GROUP_NAMES}
)
"""The annotations with wishes; most pods have none of them."""

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
        avoids_always: whether GPUs of a type to avoid are passed over where types to use are named.
        weight: factor of scores (``ScheduleWeight``).
    """

    skip_unhealthy: bool = True
    spread_score: SpreadScore = SpreadScore.BEFORE
    avoids_always: bool = True
    weight: int = 1


AS_MEANT: Final = VolcanoRules()
UPSTREAM: Final = VolcanoRules(
    skip_unhealthy=False, spread_score=SpreadScore.AFTER, avoids_always=False
)
"""Exactly the rules of the scheduler."""


_MESSAGES: Final[Mapping[PlacementReason, str]] = {
    PlacementReason.SHARING_MODE: (
        "pod required sharing mode {mode} is not the same as the node mode {node_mode}"
    ),
    PlacementReason.NO_GPUS: "no enough gpu cards on node {node}",
    PlacementReason.TOO_FEW_GPUS: "no enough gpu cards on node {node}",
    PlacementReason.UUID: (
        f'no GPU matches UUID constraints {USE_UUID}="{{use}}", {AVOID_UUID}="{{avoid}}"'
        " on node {node}"
    ),
    PlacementReason.NO_FITTING_GPU: "not enough gpu fitted on this node",
}
"""Why a node is refused, in the scheduler's own message."""


def volcano_wishes(pod: Pod) -> PlacementWishes:
    """The wishes in the pod's annotations; words are joined by commas, empty ones are ignored."""
    annotations = pod.annotations
    if _WISHES.isdisjoint(annotations):
        return NO_WISHES
    name = next(filter(None, map(annotations.get, GROUP_NAMES)), "")
    groups = (f"{pod.ref.namespace}/{name}",) if name else ()
    return PlacementWishes(
        mode=annotations.get(MODE),
        use_types=words(annotations, USE_TYPE),
        avoid_types=words(annotations, AVOID_TYPE),
        use_uuids=words(annotations, USE_UUID),
        avoid_uuids=words(annotations, AVOID_UUID),
        groups=groups,
        apart=groups if annotations.get(GROUP_POLICY) == "spread" else (),
    )


def words(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    """The words of an annotation, which commas join."""
    return tuple(filter(None, map(str.strip, annotations.get(key, "").split(","))))


class VolcanoDialect(SequentialDialect, frozen=True):
    """Volcano's rules for one node.

    Attributes:
        policy: in which order GPUs are tried.
        rules: its intent, or its code.
        unit_bytes: the size of one unit of memory: percentages are rounded down to units.
    """

    policy: SchedulingPolicy = SchedulingPolicy.NONE
    rules: VolcanoRules = AS_MEANT
    unit_bytes: int = MIB

    def node_reason(self, demand: PodDemand, node: CandidateNode) -> Skip:
        """The mode of the node must be the one that the pod requests."""
        if demand.wishes.mode not in (None, node.mode):
            return PlacementReason.SHARING_MODE
        return super().node_reason(demand, node)

    @property
    def last_first(self) -> bool:
        """Whether the last GPU comes first: without a policy."""
        return self.policy is SchedulingPolicy.NONE

    def turn(self, gpu: UsedGpu, request: Request, demand: PodDemand) -> tuple[float, ...]:  # noqa: ARG002
        """By the policy."""
        if self.policy is SchedulingPolicy.BINPACK:
            return (-gpu.memory_bytes,)
        return (gpu.users,) if self.policy is SchedulingPolicy.SPREAD else ()

    def memory(self, request: Request, gpu: UsedGpu) -> int | None:
        """Bytes of this GPU: as many as requested, or that percentage of it in whole units."""
        if request.memory_bytes is not None:
            return request.memory_bytes
        percentage = (
            WHOLE_DEVICE_PERCENT if request.memory_percent is None else request.memory_percent
        )
        units = gpu.capacity_bytes // self.unit_bytes
        return units * percentage // WHOLE_DEVICE_PERCENT * self.unit_bytes

    def fit(
        self,
        gpu: UsedGpu,
        request: Request,
        memory: int | None,
        demand: PodDemand,
        node: CandidateNode,
    ) -> str | PlacementReason:
        """The GPU's UUID, or the name of one of its MIG slots."""
        is_mig = (gpu.mode or node.mode) == MIG
        if is_mig and not gpu.geometries:
            return PlacementReason.MIG_GEOMETRY
        flaw = self._flaw(gpu, request, memory or 0, demand.wishes)
        if flaw is not None:
            return flaw
        if not is_mig:
            return gpu.device.uuid
        slot = choose(gpu.geometries, gpu.mig_slots, memory or 0)
        if slot is None:
            return PlacementReason.MIG_SLOT
        return f"{gpu.device.uuid}[{slot.group}-{slot.position}]"

    def preference(self, before: UsedGpu, after: UsedGpu, demand: PodDemand) -> float:  # noqa: ARG002
        """Binpack counts the memory in use, this pod's included; spread GPUs that were idle."""
        if self.policy is SchedulingPolicy.BINPACK and after.capacity_bytes:
            return _BEST * after.memory_bytes / after.capacity_bytes * self.rules.weight
        if self.policy is SchedulingPolicy.SPREAD:
            counted = before if self.rules.spread_score is SpreadScore.BEFORE else after
            return _BEST * self.rules.weight if counted.users == 0 else 0.0
        return 0.0

    def shortage(
        self, has_some: bool, skipped: Sequence[tuple[str, PlacementReason]]
    ) -> PlacementReason:
        """Another message where the pod's annotations exclude every GPU."""
        excluded = not has_some and all(reason is PlacementReason.UUID for _, reason in skipped)
        return PlacementReason.UUID if excluded else PlacementReason.NO_FITTING_GPU

    def message(self, reason: PlacementReason, demand: PodDemand, node: CandidateNode) -> str:
        """The scheduler's message."""
        return _MESSAGES.get(reason, reason.explanation).format(
            node=node.name,
            node_mode=node.mode,
            mode=demand.wishes.mode,
            use=",".join(demand.wishes.use_uuids),
            avoid=",".join(demand.wishes.avoid_uuids),
        )

    def _flaw(  # noqa: PLR0911  # one for each check
        self, gpu: UsedGpu, request: Request, memory: int, wishes: PlacementWishes
    ) -> Skip:
        """What is wrong with a GPU: whether the pod's annotations exclude it, then what is free.

        HAMi checks in this order (``device.go:730`` to ``811``), but health before the type.
        Volcano checks the type last, and names no reason of a GPU. What a person has to correct
        comes before what other pods may free.

        A request of 100 percent is exclusive on a GPU of 100, and not where HAMi has scaled the
        cores. Cores of which a GPU has 0 are not counted (HAMi: ``device.go:800`` and ``806``).
        """
        device, cores = gpu.device, request.cores_milli
        if wishes is not NO_WISHES and (excluded := self.exclusion(gpu, wishes)) is not None:
            return excluded
        if self.rules.skip_unhealthy and not device.healthy:
            return PlacementReason.UNHEALTHY
        if gpu.cordoned:
            return PlacementReason.CORDONED
        if device.slots is not None and device.slots <= gpu.users:
            return PlacementReason.SLOTS
        if wishes.idle_gpus and gpu.users > 0:
            return PlacementReason.EXCLUSIVE
        if not gpu.groups.isdisjoint(wishes.apart):
            return PlacementReason.POD_GROUP
        if gpu.capacity_bytes - gpu.memory_bytes < memory:
            return PlacementReason.MEMORY
        if gpu.cores_milli + cores > device.cores_milli:
            return PlacementReason.CORES
        if cores == WHOLE_DEVICE_MILLI == device.cores_milli and gpu.users > 0:
            return PlacementReason.EXCLUSIVE
        if cores == 0 and 0 < device.cores_milli <= gpu.cores_milli:
            return PlacementReason.EXCLUSIVELY_USED
        return None

    def exclusion(self, gpu: UsedGpu, wishes: PlacementWishes) -> Skip:
        """The UUIDs and types that the pod takes or avoids."""
        uuid = gpu.device.uuid
        if (wishes.use_uuids and uuid not in wishes.use_uuids) or uuid in wishes.avoid_uuids:
            return PlacementReason.UUID
        return None if self._is_of_type(gpu, wishes) else PlacementReason.TYPE

    def _is_of_type(self, gpu: UsedGpu, wishes: PlacementWishes) -> bool:
        """Whether the pod takes GPUs of this type (HAMi: ``pkg/device/devices.go:719``)."""
        use, avoid = wishes.use_types, wishes.avoid_types
        if not (use or avoid):
            return True
        type_ = (VENDOR + gpu.device.model).upper()
        if use and not any(word.upper() in type_ for word in use):
            return False
        is_avoiding = not use or self.rules.avoids_always
        return not (is_avoiding and any(word.upper() in type_ for word in avoid))
