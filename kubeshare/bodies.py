"""What the controllers write: the bodies of objects, as JSON values, and events. Pure.

Names and values of bodies: KubeShare branch release-1.0, ``pkg/devicemanager``; a holder pod
differs from upstream's as its function describes. Events report conditions that change, and pods
that are ended.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from kubeshare.labelled_pods import POD_SCHEDULED, status_conditions
from kubeshare.model import (
    FALSE,
    TRUE,
    ConditionType,
    SharePod,
    SharePodCondition,
    VirtualGpuName,
)
from kubeshare.reasons import SharePodReason
from kubeshare.steps import (
    BindPod,
    CreateHolder,
    CreateSharePodPod,
    DeletePod,
    EvictPod,
    PatchSharePod,
)
from vgpu.apiserver.bodies import LABELS, Body, node_name_patch
from vgpu.kube.events import EventNote, NoteType, event_note
from vgpu.kube.kinds import NODES, PODS, SHARE_PODS
from vgpu.kube.merge_patches import is_stored, merge_patch
from vgpu.model.allocation import Allocation, Device, Share
from vgpu.model.names import Phase
from vgpu.model.objects import NODE_KIND, MalformedObject
from vgpu.schemes.kubeshare.codec import GPU_RESOURCE, KubeShare, manager_env
from vgpu.schemes.kubeshare.labels import GPU_UUID, MANAGER_PORT, PREFIX, VIRTUAL_GPU
from vgpu.schemes.kubeshare.node import HOLDER_NAMESPACE, KEEP_IDLE, holder_labels, holder_name
from vgpu.schemes.kubeshare.sharepod import GPUID, OWNER
from vgpu.schemes.kubeshare.text import MEMORY

LIBRARY_VOLUME: Final = "kubeshare-lib"

HIDDEN: Final = ("kubectl.kubernetes.io/last-applied-configuration",)
"""Annotations of a SharePod that its pod does not get: they are about the SharePod."""


# ---------------------------------------------------------------- bodies


class HolderOptions(msgspec.Struct, frozen=True):
    """What holder pods run as.

    Attributes:
        image: the image of the program ``vgpu``.
        priority_class: the PriorityClass; "" for none.
        pull_secrets: names of Secrets with which the kubelet pulls the image.
        may_stay: whether some are kept although nobody uses them; the reconciler then leaves this
            to the controllers.
    """

    image: str
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    may_stay: bool = False


def share_pod_patch(step: PatchSharePod, now: float) -> Body:
    """The merge patch from one state of a SharePod to another; a conflict if it has changed."""
    before, after = step.before, step.after
    metadata: Body = {"uid": before.ref.uid, "resourceVersion": before.pod.resource_version}
    if after.gpuid != before.gpuid:
        metadata["annotations"] = {GPUID: after.gpuid or None}
    body: Body = {"metadata": metadata}
    if after.node != before.node:
        body |= node_name_patch(after.node or None)
    status = _status_patch(before, after, now)
    return body | ({"status": status} if status else {})


def _status_patch(before: SharePod, after: SharePod, now: float) -> Body:
    status: Body = {}
    if after.bound != before.bound:
        status["BoundDeviceID"] = after.bound
    if after.port != before.port:
        status["PodManagerPort"] = after.port
    if after.pod_uid != before.pod_uid:
        ref = {"name": after.ref.name, "namespace": after.ref.namespace, "uid": after.pod_uid}
        status["PodObjectMeta"] = ref if after.pod_uid else None
    if not is_stored(after.copied, before.copied):
        is_nested = isinstance(before.copied, dict) and isinstance(after.copied, dict)
        status["PodStatus"] = (
            merge_patch(before.copied, after.copied) if is_nested else after.copied
        )
    if after.conditions != before.conditions:
        status["conditions"] = [_condition(each, now) for each in after.conditions]
    return status


def _condition(condition: SharePodCondition, now: float) -> Body:
    time = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": str(condition.type),
        "status": condition.status,
        "reason": str(condition.reason),
        "message": condition.message,
        "lastTransitionTime": condition.since or time,
    }


def labelled_patch(step: PatchSharePod, now: float) -> Body:
    """The merge patch of a pod with labels, for its status: place, and why it is not bound yet.

    The API server takes annotations of a pod with its status, which needs no right on its spec.
    """
    before, after = step.before, step.after
    metadata: Body = {"uid": before.ref.uid, "resourceVersion": before.pod.resource_version}
    place = f"{after.node}/{after.gpuid}" if after.gpuid else None
    if (after.node, after.gpuid) != (before.node, before.gpuid):
        metadata["annotations"] = {VIRTUAL_GPU: place}
    scheduled = after.condition(ConditionType.SCHEDULED)
    if scheduled is None or scheduled.status == TRUE:  # it is placed, and is not bound yet
        reason = SharePodReason.HOLDER_PENDING
        scheduled = SharePodCondition(POD_SCHEDULED, FALSE, reason, reason.explanation)
    condition = _condition(msgspec.structs.replace(scheduled, type=POD_SCHEDULED), now)
    listed = status_conditions(before.copied)
    others = [each for each in listed if each.get("type") != POD_SCHEDULED]
    return {"metadata": metadata, "status": {"conditions": [*others, condition]}}


def binding_annotations(share_pod: SharePod) -> dict[str, str]:
    """What a pod with labels learns with its binding, as KubeShare 2 writes it."""
    memory = 0 if share_pod.request is None else share_pod.request.memory_bytes
    return {
        GPU_UUID: share_pod.bound,
        MANAGER_PORT: str(share_pod.port),
        PREFIX + MEMORY: str(memory),
    }


def share_pod_pod(share_pod: SharePod) -> Body:
    """The pod of a SharePod: its spec as it is, with its node and its GPU.

    The pod manager is reached at the address of the node.
    """
    content = msgspec.json.decode(bytes(share_pod.content))
    metadata, spec = content.get("metadata") or {}, dict(content.get("spec") or {})
    annotations = dict(metadata.get("annotations") or {})
    for key in HIDDEN:
        annotations.pop(key, None)
    owner = {
        "apiVersion": content.get("apiVersion") or "kubeshare.nthu/v1",
        "kind": OWNER,
        "name": share_pod.ref.name,
        "uid": share_pod.ref.uid,
        "controller": True,
    }
    spec["nodeName"] = share_pod.node
    if share_pod.request is not None:
        spec |= _with_gpu(share_pod, spec)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": share_pod.ref.name,
            "namespace": share_pod.ref.namespace,
            "labels": dict(metadata.get("labels") or {}),
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _with_gpu(share_pod: SharePod, spec: Mapping[str, Any]) -> Body:
    """Containers and volumes of a pod's spec with its GPU and Gemini's library."""
    uuid = share_pod.bound
    shares = Allocation("", (Share(uuid),), Phase.ASSIGNED)
    edits = KubeShare().edits(share_pod.ref, shares, {uuid: Device(uuid)})
    env: list[Body] = [
        {"name": name, "value": value}
        for name, value in {**edits.env, **manager_env(share_pod.port)}.items()
    ]
    host = {"fieldRef": {"fieldPath": "status.hostIP"}}
    env.append({"name": "POD_MANAGER_IP", "valueFrom": host})
    mounts = [
        {"name": LIBRARY_VOLUME, "mountPath": mount.container, "readOnly": mount.read_only}
        for mount in edits.mounts
    ]
    volumes = [{"name": LIBRARY_VOLUME, "hostPath": {"path": mount.host}} for mount in edits.mounts]
    containers = [
        {
            **container,
            "env": [*(container.get("env") or ()), *env],
            "volumeMounts": [*(container.get("volumeMounts") or ()), *mounts],
        }
        for container in (each or {} for each in spec.get("containers") or ())
    ]
    return {"containers": containers, "volumes": [*(spec.get("volumes") or ()), *volumes]}


def holder_pod(name: VirtualGpuName, options: HolderOptions) -> Body:
    """The pod that holds a GPU of a node under a GPUID.

    Upstream's holder names its node and passes by kube-scheduler. Ours is bound by kube-scheduler,
    the only one that counts nvidia.com/gpu, to the node that its affinity names: a plain pod and a
    holder never get the same GPU. It prints its GPU's UUID as upstream's does, has the small
    requests that keep it from eviction under pressure, and tolerates every taint.
    """
    node = {"key": "metadata.name", "operator": "In", "values": [name.node]}
    limits = {"memory": "64Mi", GPU_RESOURCE: "1"}
    requests = {"cpu": "10m", **limits}  # a limit of 10m would make its start last half a minute
    spec: Body = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [node]}]
                }
            }
        },
        "containers": [
            {
                "name": "holder",
                "image": options.image,
                "args": ["kubeshare", "holder"],
                "resources": {"requests": requests, "limits": limits},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "runAsNonRoot": True,
                    "runAsUser": 65534,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ],
    }
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in options.pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": holder_name(*name),
            "namespace": HOLDER_NAMESPACE,
            "labels": {**LABELS, **holder_labels(*name)},
            "annotations": {KEEP_IDLE: "true"} if options.may_stay else {},
        },
        "spec": spec,
    }


COMPONENT: Final = "vgpu-kubeshare"

GOOD: Final = {
    SharePodReason.PLACED: "Scheduled",
    SharePodReason.BOUND: "Bound",
    SharePodReason.FINISHED: "Finished",
}
"""Reasons of conditions that are reported as normal events, and the events' own reasons."""

BAD: Final = {
    SharePodReason.UNSCHEDULABLE: "FailedScheduling",
    SharePodReason.INVALID_REQUEST: "InvalidRequest",
    SharePodReason.GPUID_WITHOUT_NODE: "GpuidWithoutNode",
    SharePodReason.GPU_CHANGED: "GpuChanged",
    SharePodReason.GPU_TAKEN: "GpuTaken",
    SharePodReason.RESOURCE_EXCEEDED: "ResourceExceeded",
    SharePodReason.NO_PORT: "NoPort",
    SharePodReason.NODE_LOST: "NodeLost",
    SharePodReason.POD_EXISTS: "PodExists",
}
"""Reasons of conditions that are reported as warnings, and the events' own reasons."""


# ---------------------------------------------------------------- events


def condition_events(step: PatchSharePod, now: float) -> Iterator[EventNote]:
    """An event for each condition whose reason or message is another one than before."""
    known = {(each.type, each.reason, each.message) for each in step.before.conditions}
    for each in step.after.conditions:
        if (each.type, each.reason, each.message) in known:
            continue
        name = BAD.get(each.reason) or GOOD.get(each.reason)  # type: ignore[call-overload]
        if name:
            type_ = NoteType.WARNING if each.reason in BAD else NoteType.NORMAL
            yield _of_share_pod(step.after, name, each.message, now, type_)


def pod_event(
    step: CreateSharePodPod | CreateHolder | DeletePod | EvictPod | BindPod,
    failure: str,
    now: float,
) -> EventNote | None:
    """An event of a pod that was bound, deleted or evicted, or could not be created; or None."""
    match step:
        case BindPod():
            reason = SharePodReason.BOUND
            return _of_share_pod(step.after, reason, reason.explanation, now, NoteType.NORMAL)
        case CreateSharePodPod():
            return _of_share_pod(step.share_pod, "FailedCreate", failure, now, NoteType.WARNING)
        case CreateHolder():
            text = f"holder of virtual GPU {step.name.gpuid}: {failure}"
            node = step.name.node
            return EventNote(
                NODE_KIND,
                "v1",
                "",
                node,
                node,
                "FailedCreate",
                text,
                now,
                COMPONENT,
                NoteType.WARNING,
            )
        case DeletePod() | EvictPod():
            if step.reason is SharePodReason.IDLE:
                return None
            return event_note(
                step.ref,
                step.reason,
                step.reason.explanation,
                now,
                component=COMPONENT,
                type_=NoteType.WARNING,
            )


def malformed_event(found: MalformedObject, now: float) -> EventNote:
    """An event of an object that cannot be read."""
    kind = _KINDS[found.kind]
    uid = found.name if kind is NODES else found.ref.uid  # as the kubelet's own events of nodes
    reason = SharePodReason.MALFORMED
    return EventNote(
        kind.name,
        kind.api_version,
        found.ref.namespace,
        found.name,
        uid,
        reason,
        f"{reason.explanation}: {found.detail}",
        now,
        COMPONENT,
        NoteType.WARNING,
    )


_KINDS: Final = {kind.name: kind for kind in (SHARE_PODS, PODS, NODES)}


def _of_share_pod(
    share_pod: SharePod, reason: str, message: str, now: float, type_: NoteType
) -> EventNote:
    ref = share_pod.ref
    object_kind = PODS if share_pod.is_pod else SHARE_PODS
    kind, version = object_kind.name, object_kind.api_version
    return EventNote(
        kind, version, ref.namespace, ref.name, ref.uid, reason, message, now, COMPONENT, type_
    )
