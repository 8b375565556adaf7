"""Volcano's PodGroups and Queues, of which `vgpu explain` reads those of one pod; pure.

Fields: ``pkg/apis/scheduling/v1beta1/types.go`` of volcano-sh/apis. The kinds are apart from
:mod:`vgpu.kube.kinds`, since no other program reads them.
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
    """

    namespace: str
    name: str
    queue: str = ""
    least: int = 0
    phase: str = ""
    running: int = 0
    message: str = ""


class Queue(msgspec.Struct, frozen=True):
    """A Queue; ``capability`` and ``allocated`` are quantities of resources as they are written."""

    name: str
    state: str = ""
    capability: Mapping[str, str] = {}
    allocated: Mapping[str, str] = {}


class _PodGroupSpec(wire.Wire, frozen=True):
    min_member: wire.Count = 0
    queue: str = ""


class _PodGroupStatus(wire.Wire, frozen=True):
    phase: str = ""
    running: wire.Count = 0
    conditions: list[wire.Condition] | None = None


class _PodGroupFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    spec: _PodGroupSpec = _PodGroupSpec()
    status: _PodGroupStatus = _PodGroupStatus()


class _QueueSpec(wire.Wire, frozen=True):
    capability: wire.Quantities = None


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
    )


def _queue(fields: _QueueFields, _: str) -> Queue:
    return Queue(
        fields.metadata.name,
        fields.status.state,
        _texts(fields.spec.capability),
        _texts(fields.status.allocated),
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
