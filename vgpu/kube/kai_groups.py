"""KAI Scheduler's PodGroups and Queues, and what it writes on pods, for `vgpu explain`; pure.

Fields: ``pkg/apis/scheduling/v2alpha2/podgroup_types.go`` and ``v2/queue_types.go`` of
kai-scheduler/KAI-Scheduler (v0.17). Volcano has a PodGroup and a Queue, too: they differ by their
API group.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from vgpu.kube import wire
from vgpu.kube.api_kind import ApiKind, Decoders
from vgpu.kube.kai_kinds import BIND_REQUESTS, GROUP
from vgpu.kube.kinds import PODS
from vgpu.model.objects import TERMINAL_PHASES

QUEUE_LABELS: Final = ("kai.scheduler/queue", "runai/queue")
"""Labels of pods with the name of their queue: the second one before v0.6."""

DEVICES: Final = "gpu-fraction-num-devices"

REQUESTS: Final = ("gpu-fraction", "gpu-memory", DEVICES, "gpu-fraction-container-name")
"""Annotations by which a pod asks for a part of GPUs."""

_GROUP_OF_POD: Final = "pod-group-name"

UNLIMITED: Final = -1.0
"""The number of a Queue's resource that has no quota or no limit; 0 and none are zero."""


class Unschedulable(msgspec.Struct, frozen=True):
    """Why KAI's scheduler does not place a PodGroup: a code such as ``OverLimit``, and a text."""

    code: str
    message: str = ""


class KaiGroup(msgspec.Struct, frozen=True):
    """A PodGroup.

    Attributes:
        least: the number of its pods that must run together, 0 if none must.
        reasons: why it is not placed.
        requested, allocated: what its pods request and have been allocated, as it is written. Of
            a share on several GPUs the first one has each, and the second one has one.
    """

    namespace: str
    name: str
    queue: str = ""
    least: int = 0
    reasons: tuple[Unschedulable, ...] = ()
    requested: Mapping[str, str] = {}
    allocated: Mapping[str, str] = {}

    @property
    def waits(self) -> bool:
        """Whether it requests something and has nothing."""
        return bool(self.requested) and not self.allocated


class KaiQuota(msgspec.Struct, frozen=True):
    """What a Queue may have of GPUs, thousandths of a CPU, or 10^6 bytes of memory."""

    quota: float = 0
    limit: float = 0
    weight: float = 0


class KaiQueue(msgspec.Struct, frozen=True):
    """A Queue with its numbers of GPUs; ``allocated_gpus`` is text, as its status has it.

    ``quotas`` are those of ``gpu``, ``cpu`` and ``memory``; ``allocated`` and ``requested`` are
    quantities of resources as the status has them, with those of the queues below it.
    """

    name: str
    parent: str = ""
    quota_gpus: float = 0
    limit_gpus: float = 0
    allocated_gpus: str = ""
    quotas: Mapping[str, KaiQuota] = {}
    allocated: Mapping[str, str] = {}
    requested: Mapping[str, str] = {}


class KaiPod(msgspec.Struct, frozen=True):
    """What a pod has of KAI.

    Attributes:
        namespace, name, uid: its identity.
        group: the name of its PodGroup; "" before the pod grouper has made one.
        refusal: the binder's message on the condition ``PodBound``; "" if it has refused nothing.
        is_called_bound: whether this condition is true. That is no proof of a binding: the second
            failure of a BindRequest makes it true, too (``UpdateStatus`` in
            ``pkg/binder/controllers/bindrequest_controller.go`` returns no error if the phase
            stays).
        queues: the labels that name its queue, old and new.
        request: the annotations by which it asks for a part of GPUs.
        has_ended: whether it has ended.
    """

    namespace: str
    name: str
    uid: str = ""
    group: str = ""
    refusal: str = ""
    is_called_bound: bool = False
    queues: Mapping[str, str] = {}
    request: Mapping[str, str] = {}
    has_ended: bool = False

    def is_in(self, group: KaiGroup) -> bool:
        """Whether it is a pod of the group that has not ended."""
        own = (self.namespace, self.group) == (group.namespace, group.name)
        return own and not self.has_ended


# ---------------------------------------------------------------- fields


class _Explanation(wire.Wire, frozen=True):
    reason: str = ""
    message: str = ""


class _SchedulingCondition(wire.Wire, frozen=True):
    status: str = ""
    reason: str = ""
    message: str = ""
    reasons: list[_Explanation] | None = None


class _KaiGroupSpec(wire.Wire, frozen=True):
    min_member: wire.Count | None = None
    queue: str = ""


class _ResourcesStatus(wire.Wire, frozen=True):
    allocated: wire.Quantities = None
    requested: wire.Quantities = None


class _KaiGroupStatus(wire.Wire, frozen=True):
    scheduling_conditions: list[_SchedulingCondition] | None = None
    resources_status: _ResourcesStatus | None = None


class _KaiGroupFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    spec: _KaiGroupSpec = _KaiGroupSpec()
    status: _KaiGroupStatus = _KaiGroupStatus()


class _QueueResource(wire.Wire, frozen=True):
    quota: float = 0
    limit: float = 0
    over_quota_weight: float = 0


class _QueueResources(wire.Wire, frozen=True):
    gpu: _QueueResource = _QueueResource()
    cpu: _QueueResource = _QueueResource()
    memory: _QueueResource = _QueueResource()


class _KaiQueueSpec(wire.Wire, frozen=True):
    parent_queue: str = ""
    resources: _QueueResources | None = None


class _KaiQueueStatus(wire.Wire, frozen=True):
    allocated: wire.Quantities = None
    requested: wire.Quantities = None


class _KaiQueueFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    spec: _KaiQueueSpec = _KaiQueueSpec()
    status: _KaiQueueStatus = _KaiQueueStatus()


class _KaiPodStatus(wire.Wire, frozen=True):
    phase: str = ""
    conditions: list[wire.Condition] | None = None


class _KaiPodFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    status: _KaiPodStatus = _KaiPodStatus()


# ---------------------------------------------------------------- values


def _group(fields: _KaiGroupFields, _: str) -> KaiGroup:
    spec = fields.spec
    resources = fields.status.resources_status or _ResourcesStatus()
    return KaiGroup(
        fields.metadata.namespace,
        fields.metadata.name,
        spec.queue,
        spec.min_member or 0,
        tuple(
            Unschedulable(each.reason, each.message)
            for condition in fields.status.scheduling_conditions or ()
            if condition.status == "True"
            for each in condition.reasons or (_Explanation(condition.reason, condition.message),)
        ),
        _texts(resources.requested),
        _texts(resources.allocated),
    )


def _texts(quantities: wire.Quantities) -> dict[str, str]:
    return {name: str(quantity) for name, quantity in (quantities or {}).items()}


def _queue(fields: _KaiQueueFields, _: str) -> KaiQueue:
    spec = fields.spec
    resources = spec.resources or _QueueResources()
    gpu, allocated = resources.gpu, _texts(fields.status.allocated)
    each_one = {"gpu": gpu, "cpu": resources.cpu, "memory": resources.memory}
    return KaiQueue(
        fields.metadata.name,
        spec.parent_queue,
        gpu.quota,
        gpu.limit,
        allocated.get("nvidia.com/gpu", ""),
        {
            name: KaiQuota(each.quota, each.limit, each.over_quota_weight)
            for name, each in each_one.items()
        },
        allocated,
        _texts(fields.status.requested),
    )


def _pod(fields: _KaiPodFields, _: str) -> KaiPod:
    meta = fields.metadata
    labels, annotations = meta.labels or {}, meta.annotations or {}
    own = [each for each in fields.status.conditions or () if each.type == "PodBound"]
    refusals = (each.message or each.reason for each in own if each.status == "False")
    return KaiPod(
        meta.namespace,
        meta.name,
        meta.uid,
        annotations.get(_GROUP_OF_POD, ""),
        next(refusals, ""),
        any(each.status == "True" for each in own),
        {key: labels[key] for key in QUEUE_LABELS if key in labels},
        {key: annotations[key] for key in REQUESTS if key in annotations},
        fields.status.phase in TERMINAL_PHASES,
    )


KAI_GROUPS: Final = ApiKind(
    "PodGroup",
    f"{GROUP}/v2alpha2",
    "podgroups",
    Decoders.of(_KaiGroupFields),
    _group,
    optional=True,
)
KAI_QUEUES: Final = ApiKind(
    "Queue",
    f"{GROUP}/v2",
    "queues",
    Decoders.of(_KaiQueueFields),
    _queue,
    namespaced=False,
    optional=True,
)
KAI_PODS: Final = PODS.read_as(Decoders.of(_KaiPodFields), _pod)
"""All pods, of which KAI's own condition is kept."""

KAI_QUEUE_KINDS: Final[tuple[ApiKind[Any], ...]] = (KAI_GROUPS, KAI_QUEUES)
"""The kinds that the tree of queues is made of."""

KAI_KINDS: Final[tuple[ApiKind[Any], ...]] = (BIND_REQUESTS, *KAI_QUEUE_KINDS)
"""The kinds that only a cluster with KAI has."""
