"""Volcano's PodGroups and Queues; pure.

Fields: ``pkg/apis/scheduling/v1beta1/types.go`` of volcano-sh/apis. The kinds are apart from
:mod:`vgpu.kube.kinds`, since only commands about queues read them.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from vgpu.kube import wire
from vgpu.kube.api_kind import ApiKind, Decoders

VERSION: Final = "scheduling.volcano.sh/v1beta1"


class PodGroup(msgspec.Struct, frozen=True):
    """A PodGroup.

    Attributes:
        namespace, name: its name.
        queue: the name of its queue; "" is ``default``.
        least: the number of its pods that must run together.
        phase: such as ``Pending``, before its queue has admitted it.
        running: number of its pods that run.
        message: why it cannot be placed, by Volcano's scheduler; "" if that reports nothing.
        requests: what its least number of pods requests together (``minResources``), as it is
            written.
    """

    namespace: str
    name: str
    queue: str = ""
    least: int = 0
    phase: str = ""
    running: int = 0
    message: str = ""
    requests: Mapping[str, str] = {}

    @property
    def queue_name(self) -> str:
        """The name of its queue."""
        return self.queue or DEFAULT_QUEUE

    @property
    def waits(self) -> bool:
        """Whether its pods are not placed yet."""
        return self.phase in WAITING_PHASES


DEFAULT_QUEUE: Final = "default"
"""The queue of a PodGroup that names none."""

ROOT_QUEUE: Final = "root"
"""The queue above all others, also above those that name no parent."""

PENDING: Final = "Pending"
"""The phase of a PodGroup that its queue has not admitted."""

INQUEUE: Final = "Inqueue"
"""The phase of a PodGroup that its queue has admitted, and whose pods are not placed."""

WAITING_PHASES: Final = (PENDING, INQUEUE)
"""Phases before the pods of a group are placed."""


class Queue(msgspec.Struct, frozen=True):
    """A Queue; amounts are quantities of resources as they are written.

    Attributes:
        state: such as ``Open``; "" before Volcano's controllers have seen it.
        capability: its limit.
        allocated: what Volcano counts for it and for all queues below it.
        parent: the name of the queue above it; "" is the root.
        deserved: what it may take back from others.
        guarantee: what nobody else may take.
        weight: its part beside other queues, where the plugin ``proportion`` divides.
    """

    name: str
    state: str = ""
    capability: Mapping[str, str] = {}
    allocated: Mapping[str, str] = {}
    parent: str = ""
    deserved: Mapping[str, str] = {}
    guarantee: Mapping[str, str] = {}
    weight: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it admits PodGroups."""
        return self.state in ("", "Open")


class _PodGroupSpec(wire.Wire, frozen=True):
    min_member: wire.Count = 0
    queue: str = ""
    min_resources: wire.Quantities = None


class _PodGroupStatus(wire.Wire, frozen=True):
    phase: str = ""
    running: wire.Count = 0
    conditions: list[wire.Condition] | None = None


class _PodGroupFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    spec: _PodGroupSpec = _PodGroupSpec()
    status: _PodGroupStatus = _PodGroupStatus()


class _Guarantee(wire.Wire, frozen=True):
    resource: wire.Quantities = None


class _QueueSpec(wire.Wire, frozen=True):
    capability: wire.Quantities = None
    deserved: wire.Quantities = None
    guarantee: _Guarantee | None = None
    parent: str = ""
    weight: wire.Count | None = None


class _QueueStatus(wire.Wire, frozen=True):
    state: str = ""
    allocated: wire.Quantities = None


class _QueueFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    spec: _QueueSpec = _QueueSpec()
    status: _QueueStatus = _QueueStatus()


def _pod_group(fields: _PodGroupFields, _: str) -> PodGroup:
    meta, spec, status = fields.metadata, fields.spec, fields.status
    refused = (
        each.message
        for each in status.conditions or ()
        if each.type == "Unschedulable" and each.status == "True"
    )
    return PodGroup(
        meta.namespace,
        meta.name,
        spec.queue,
        spec.min_member,
        status.phase,
        status.running,
        next(refused, ""),
        _texts(spec.min_resources),
    )


def _queue(fields: _QueueFields, _: str) -> Queue:
    spec, status = fields.spec, fields.status
    return Queue(
        fields.metadata.name,
        status.state,
        _texts(spec.capability),
        _texts(status.allocated),
        spec.parent,
        _texts(spec.deserved),
        _texts(spec.guarantee.resource if spec.guarantee else None),
        spec.weight or 0,
    )


def _texts(quantities: wire.Quantities) -> dict[str, str]:
    return {name: str(quantity) for name, quantity in (quantities or {}).items()}


POD_GROUPS: Final = ApiKind(
    "PodGroup", VERSION, "podgroups", Decoders.of(_PodGroupFields), _pod_group, optional=True
)
QUEUES: Final = ApiKind(
    "Queue",
    VERSION,
    "queues",
    Decoders.of(_QueueFields),
    _queue,
    namespaced=False,
    optional=True,
)

VOLCANO_KINDS: Final[tuple[ApiKind[Any], ...]] = (POD_GROUPS, QUEUES)
