"""SharePods, pods and nodes from the API server's JSON, as the controllers decide about them. Pure.

A SharePod's spec has no schema, so each of its bytes may be anything: what cannot be decoded makes
the one object unreadable, and what can be decoded and not be used is its ``problem``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from kubeshare.labelled_pods import SCHEDULER_NAME, labelled_share_pod, status_conditions
from kubeshare.model import (
    TRUE,
    ClusterNode,
    ClusterPod,
    GpuRequest,
    NodeAmounts,
    NodeNeeds,
    NodeRequirement,
    SharePod,
    SharePodCondition,
)
from vgpu.kube import wire
from vgpu.kube.api_kind import Decoders
from vgpu.kube.decode import decode, decode_part, is_too_deep
from vgpu.kube.kinds import NODES, PODS, SHARE_PODS
from vgpu.kube.pod_projection import project_pod, project_share_pod
from vgpu.kube.quantities import rounded_up
from vgpu.model.allocation import effective
from vgpu.model.go_json import decode_go
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.taints import parsed_tolerations
from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.schemes.codec import VISIBLE_DEVICES, ClaimError
from vgpu.schemes.kubeshare import sharepod as kubeshare_sharepod
from vgpu.schemes.kubeshare.codec import GPU_RESOURCE, PORT_VARIABLE
from vgpu.schemes.kubeshare.labels import VIRTUAL_GPU
from vgpu.schemes.kubeshare.node import GPU_INFO, HOLDER_UUID, holder_name, parse_gpu_info
from vgpu.schemes.kubeshare.text import is_uuid

_POD_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
"""Names of pods (RFC 1123 subdomains)."""


class NodeTermFields(wire.Wire, frozen=True):
    """One of ``nodeSelectorTerms``."""

    match_expressions: list[wire.RequirementFields] | None = None
    match_fields: list[wire.RequirementFields] | None = None


class NodeSelectorFields(wire.Wire, frozen=True):
    """A required node affinity."""

    node_selector_terms: list[NodeTermFields] | None = None


class NodeAffinityFields(wire.Wire, frozen=True):
    """``nodeAffinity``, without preferences."""

    required: NodeSelectorFields | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class AffinityFields(wire.Wire, frozen=True):
    """``affinity`` of a pod, without that to other pods."""

    node_affinity: NodeAffinityFields | None = None


class PlacedPodSpec(wire.PodSpec, frozen=True):
    """``spec`` of a pod with what a placement needs."""

    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: AffinityFields | None = None
    overhead: wire.Quantities = None


class ClusterPodFields(wire.PodFields, frozen=True):
    """A pod."""

    spec: PlacedPodSpec = PlacedPodSpec()


class ConditionFields(wire.Wire, frozen=True):
    """A condition, with its time as it is written."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class CopiedContainer(wire.ContainerFields, frozen=True):
    """A container of a SharePod, with the lists that its pod's container has more items of."""

    volume_mounts: list[msgspec.Raw] | None = None


class SharePodSpec(PlacedPodSpec, frozen=True):
    """``spec`` of a SharePod, with the lists that its pod has more items of."""

    containers: list[CopiedContainer] | None = None  # type: ignore[assignment]
    volumes: list[msgspec.Raw] | None = None


class SharePodContent(wire.ObjectFields, frozen=True):
    """A SharePod, whose status is decoded later."""

    metadata: wire.PodMeta
    spec: SharePodSpec = SharePodSpec()
    status: msgspec.Raw = msgspec.Raw(b"{}")


class _OwnStatus(msgspec.Struct, frozen=True):
    """The parts of a SharePod's status that are kept as they are."""

    conditions: list[ConditionFields] | None = None
    copied: Any = msgspec.field(name="PodStatus", default=None)


_SHARE_POD: Final = msgspec.json.Decoder(SharePodContent)
_STATUS: Final = msgspec.json.Decoder(wire.SharePodStatus | None)
_OWN: Final = msgspec.json.Decoder(_OwnStatus | None)
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)
_ENV: Final = msgspec.json.Decoder(list[wire.EnvFields] | None)
_ANY: Final = msgspec.json.Decoder()


# ---------------------------------------------------------------- SharePods


def decode_share_pod(content: msgspec.Raw, object_name: str) -> SharePod:
    """A SharePod. Raises SourceError MALFORMED."""
    if is_too_deep(content):
        raise SourceError(Reason.MALFORMED, object_name, "nested too deeply to be copied")
    fields = decode(content, _SHARE_POD, object_name)
    for number, container in enumerate(fields.spec.containers or ()):
        decode_part(container.env, _ITEMS, object_name, f"spec.containers[{number}].env")
    status = decode_part(fields.status, _STATUS, object_name, "status") or wire.SharePodStatus()
    own = decode_part(fields.status, _OWN, object_name, "status") or _OwnStatus()
    whole = wire.SharePodFields(metadata=fields.metadata, spec=fields.spec, status=status)
    pod = project_share_pod(whole, object_name)
    gpuid = pod.annotations.get(kubeshare_sharepod.GPUID, "")
    needs, problem = _needs(fields.spec)
    request = None
    try:
        request = _request(pod)
        locality = kubeshare_sharepod.locality(pod)
    except ClaimError as error:
        problem, locality = f"{error.key}: {error.detail}", kubeshare_sharepod.Locality()
    if gpuid and not _POD_NAME.fullmatch(holder_name(pod.node or "node", gpuid)):
        problem = f"{kubeshare_sharepod.GPUID}: cannot be a part of a pod's name"
    return SharePod(
        pod,
        status.bound_device_id,
        status.pod_manager_port,
        status.pod_object_meta.uid if status.pod_object_meta else "",
        request,
        problem,
        locality,
        needs,
        tuple(
            SharePodCondition(
                each.type, each.status, each.reason, each.message, each.last_transition_time
            )
            for each in own.conditions or ()
        ),
        gpuid if request is not None or problem else "",
        own.copied,
        msgspec.Raw(bytes(content)),
    )


def _request(pod: Pod) -> GpuRequest | None:
    """The share in a pod's annotations; None if there is none. Raises ClaimError."""
    for request in kubeshare_sharepod.requests(pod):
        limit = request.cores_milli if request.limit_milli is None else request.limit_milli
        return GpuRequest(request.cores_milli, limit, request.memory_bytes or 0)
    return None


def _needs(spec: PlacedPodSpec) -> tuple[NodeNeeds, str]:
    """What a pod needs of its node, and why an amount cannot be read."""
    amounts, broken = _amounts(spec)
    required = None
    if spec.affinity is not None and spec.affinity.node_affinity is not None:
        required = spec.affinity.node_affinity.required
    terms = None
    if required is not None:
        terms = tuple(_term(term) for term in required.node_selector_terms or ())
    tolerations = parsed_tolerations(bytes(spec.tolerations))
    return NodeNeeds(amounts, spec.node_selector or {}, terms, tolerations), broken


def _term(term: NodeTermFields) -> tuple[NodeRequirement, ...]:
    return tuple(
        NodeRequirement(each.key, each.operator, tuple(each.values or ()), is_field)
        for is_field, listed in ((False, term.match_expressions), (True, term.match_fields))
        for each in listed or ()
    )


_SCALES: Final = {"cpu": 1000, "memory": 1, GPU_RESOURCE: 1}


def _amounts(spec: PlacedPodSpec) -> tuple[NodeAmounts, str]:
    """What a pod requests at its peak, and why an amount cannot be read ("" if all can)."""
    kinds = [ContainerKind.APP] * len(spec.containers or ())
    kinds += [
        ContainerKind.SIDECAR if each.restart_policy == "Always" else ContainerKind.INIT
        for each in spec.init_containers or ()
    ]
    containers = [*(spec.containers or ()), *(spec.init_containers or ())]
    ordered = sorted(
        zip(kinds, containers, strict=True), key=lambda pair: pair[0] is ContainerKind.APP
    )
    sums, broken = {}, ""
    for name, scale in _SCALES.items():
        amounts = []
        for kind, container in ordered:
            resources = container.resources
            requested = {**(resources.limits or {}), **(resources.requests or {})}.get(name, 0)
            amount = rounded_up(str(requested), scale)
            if amount is None:
                broken = f"{name}: not a quantity: {str(requested)[:64]!r}"
            amounts.append((kind, amount or 0))
        overhead = rounded_up(str((spec.overhead or {}).get(name, 0)), scale) or 0
        sums[name] = effective(amounts) + overhead
    return NodeAmounts(sums["cpu"], sums["memory"], sums[GPU_RESOURCE], 1), broken


# ---------------------------------------------------------------- pods and nodes


def decode_pod(fields: ClusterPodFields, object_name: str) -> ClusterPod:
    """A pod. Raises SourceError MALFORMED."""
    pod = project_pod(fields, object_name)
    amounts, _ = _amounts(fields.spec)
    is_of_share_pod = pod.owner is not None and pod.owner.kind == kubeshare_sharepod.OWNER
    if fields.spec.scheduler_name == SCHEDULER_NAME and not is_of_share_pod:
        return _labelled(fields, pod, amounts, object_name)
    if not is_of_share_pod:
        uuid = pod.annotations.get(HOLDER_UUID, "")
        return ClusterPod(
            pod,
            amounts,
            uuid=uuid if is_uuid(uuid) else "",
            unschedulable_since=pod.scheduled_at if pod.unschedulable else None,
        )
    status = decode(fields.status, _ANY, object_name)
    try:
        request = _request(pod)
    except ClaimError:  # somebody has changed it since: it may use the whole GPU
        request = GpuRequest(WHOLE_DEVICE_MILLI, WHOLE_DEVICE_MILLI, 0)
    env = _environment(fields.spec.containers or ())
    port, uuid = env.get(PORT_VARIABLE, ""), env.get(VISIBLE_DEVICES, "")
    return ClusterPod(
        pod,
        amounts,
        request,
        kubeshare_sharepod.locality(pod),
        int(port) if port.isdecimal() and len(port) <= 5 else 0,
        uuid if is_uuid(uuid) else "",
        is_ready=_is_ready(status),
        status=status,
    )


def _labelled(
    fields: ClusterPodFields, pod: Pod, amounts: NodeAmounts, object_name: str
) -> ClusterPod:
    """A pod that names KubeShare 2's scheduler. Raises SourceError MALFORMED."""
    status = decode(fields.status, _ANY, object_name)
    needs, problem = _needs(fields.spec)
    labelled = labelled_share_pod(pod, fields.spec.containers or (), needs, problem, status)
    is_known = _POD_NAME.fullmatch(holder_name(labelled.node or "node", labelled.gpuid or "gpuid"))
    if not is_known and not labelled.problem:
        detail = f"{VIRTUAL_GPU}: cannot be a part of a pod's name"
        labelled = msgspec.structs.replace(labelled, problem=detail)
    return ClusterPod(pod, amounts, is_ready=_is_ready(status), labelled=labelled)


def _environment(containers: Iterable[wire.ContainerFields]) -> Mapping[str, str]:
    """The variables of the first container, whose last value counts."""
    for container in containers:
        try:
            variables = decode_go(container.env, _ENV) or ()
        except (msgspec.DecodeError, ValueError, RecursionError):
            return {}
        return {variable.name: variable.value for variable in variables}
    return {}


def _is_ready(status: Any) -> bool:
    return any(
        (each.get("type"), each.get("status")) == ("Ready", TRUE)
        for each in status_conditions(status)
    )


def decode_node(fields: wire.NodeFields, object_name: str) -> ClusterNode:
    """A node; GPUs that cannot be read are as if none were reported."""
    meta, status = fields.metadata, fields.status
    try:
        text = (meta.annotations or {}).get(GPU_INFO, "")
        gpus = parse_gpu_info(text, object_name)
    except ClaimError:
        gpus = ()

    def allocatable(name: str, scale: int = 1) -> int:
        return rounded_up(str((status.allocatable or {}).get(name, 0)), scale) or 0

    return ClusterNode(
        meta.name,
        any(each.type == "Ready" and each.status == TRUE for each in status.conditions or ()),
        bool(fields.spec.unschedulable),
        meta.labels or {},
        fields.spec.taints or (),
        NodeAmounts(
            allocatable("cpu", 1000),
            allocatable("memory"),
            allocatable(GPU_RESOURCE),
            allocatable("pods"),
        ),
        {gpu.uuid: gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None},
    )


SHARE_POD_OBJECTS: Final = msgspec.structs.replace(
    SHARE_PODS.read_as(SHARE_PODS.raw().decoders, decode_share_pod), optional=False
)
"""SharePods as the controllers read them; a cluster without their CRD is a failure."""

CLUSTER_PODS: Final = PODS.read_as(Decoders.of(ClusterPodFields), decode_pod)
"""All pods as the controllers read them."""

CLUSTER_NODES: Final = NODES.read_as(NODES.decoders, decode_node)
"""All nodes as the controllers read them."""
