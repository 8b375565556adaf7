"""KAI Scheduler's BindRequests; pure.

Fields: ``pkg/apis/scheduling/v1alpha2/bindrequest_types.go`` of kai-scheduler/KAI-Scheduler
(v0.17). The kind is apart from :mod:`vgpu.kube.kinds`, since a cluster without KAI has none.
"""

from typing import Final

import msgspec

from vgpu.kube import wire
from vgpu.kube.api_kind import ApiKind, Decoders
from vgpu.kube.kinds import PODS
from vgpu.kube.projection import seconds
from vgpu.model.names import PodRef

GROUP: Final = "scheduling.run.ai"


class BindRequest(msgspec.Struct, frozen=True):
    """A BindRequest: where KAI's scheduler has placed a pod, for KAI's binder.

    Attributes:
        namespace, name, pod: its name and that of its pod.
        pod_uid: the UID of the pod that owns it; "" if none does.
        node: the node.
        groups: the GPU groups of a share, one for each GPU.
        portion: the part of each GPU, as text; "" of whole GPUs.
        count: the number of GPUs.
        phase: ``Pending``, ``Succeeded`` or ``Failed``; "" before the binder has looked at it.
        reason: why it failed.
        created_at: unix seconds; None if unknown.
    """

    namespace: str
    name: str
    pod: str = ""
    pod_uid: str = ""
    node: str = ""
    groups: tuple[str, ...] = ()
    portion: str = ""
    count: int = 0
    phase: str = ""
    reason: str = ""
    created_at: float | None = None

    def is_of(self, ref: PodRef) -> bool:
        """Whether it is of this pod: one that is left of an earlier pod has another owner."""
        named = (self.namespace, self.pod or self.name) == (ref.namespace, ref.name)
        return named and self.pod_uid in ("", ref.uid)


class _OwnedMeta(wire.Meta, frozen=True, kw_only=True):
    creation_timestamp: wire.Time = None
    owner_references: list[wire.OwnerFields] | None = None


class _ReceivedGpu(wire.Wire, frozen=True):
    count: wire.Count = 0
    portion: str = ""


class _BindRequestSpec(wire.Wire, frozen=True):
    pod_name: str = ""
    selected_node: str = ""
    received_gpu: _ReceivedGpu | None = msgspec.field(name="receivedGPU", default=None)
    selected_gpu_groups: list[str] | None = msgspec.field(name="selectedGPUGroups", default=None)


class _BindRequestStatus(wire.Wire, frozen=True):
    phase: str = ""
    reason: str = ""


class _BindRequestFields(wire.ObjectFields, frozen=True):
    metadata: _OwnedMeta
    spec: _BindRequestSpec = _BindRequestSpec()
    status: _BindRequestStatus = _BindRequestStatus()


def _bind_request(fields: _BindRequestFields, _: str) -> BindRequest:
    meta, spec, status = fields.metadata, fields.spec, fields.status
    owners = (each.uid for each in meta.owner_references or () if each.kind == PODS.name)
    received = spec.received_gpu or _ReceivedGpu()
    return BindRequest(
        meta.namespace,
        meta.name,
        spec.pod_name,
        next(owners, ""),
        spec.selected_node,
        tuple(spec.selected_gpu_groups or ()),
        received.portion,
        received.count,
        status.phase,
        status.reason,
        seconds(meta.creation_timestamp),
    )


BIND_REQUESTS: Final = ApiKind(
    "BindRequest",
    f"{GROUP}/v1alpha2",
    "bindrequests",
    Decoders.of(_BindRequestFields),
    _bind_request,
    optional=True,
)
