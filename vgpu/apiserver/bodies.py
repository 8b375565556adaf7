"""The bodies of the writes, as JSON values; pure. Formats: the Kubernetes API."""

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

import msgspec

from vgpu.kube.api_kind import ApiKind
from vgpu.kube.events import EventNote
from vgpu.kube.kinds import CONFIG_MAPS, EVENTS, LEASES
from vgpu.model.names import PodRef
from vgpu.model.objects import Lease, Node

LABELS: Final[Mapping[str, str]] = {"app.kubernetes.io/name": "vgpu"}
"""Labels of every object that is ours alone."""

HOME_OF_EVENTS: Final = "default"
"""Namespace of events about objects without one (ValidateEvent in pkg/apis/core/validation)."""

LONGEST_MESSAGE: Final = 1024
"""Maximum length of an event's message, in bytes: the limit of events.k8s.io."""

_LONGEST_PREFIX: Final = 200
"""Maximum length of a name in front of a digest, in characters; the whole may have 253."""

_DIGEST: Final = 16
"""Number of hexadecimal digits: 64 bits, for some thousands of events an hour."""

Body = dict[str, Any]


def eviction(pod: PodRef, resource_version: str) -> Body:
    """The eviction of exactly this pod in this state (policy/v1)."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": {"preconditions": {"uid": pod.uid, "resourceVersion": resource_version}},
    }


def deletion(pod: PodRef) -> Body:
    """The options for the deletion of exactly this pod."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}


def binding(pod: PodRef, resource_version: str, node: str, annotations: Mapping[str, str]) -> Body:
    """The binding of exactly this pod in this state to a node.

    The API server writes the annotations into the pod together with the node's name.
    """
    preconditions = {"uid": pod.uid, "resourceVersion": resource_version}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "namespace": pod.namespace,
            "name": pod.name,
            "annotations": dict(annotations),
            **preconditions,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def annotations_patch(
    annotations: Mapping[str, str | None],
    resource_version: str,
    uid: str = "",
    labels: Mapping[str, str | None] | None = None,
) -> Body:
    """A merge patch that is a conflict if anything of the object has changed; None removes."""
    metadata: Body = {"resourceVersion": resource_version, "annotations": dict(annotations)}
    metadata |= {"uid": uid} if uid else {}
    metadata |= {"labels": dict(labels)} if labels else {}
    return {"metadata": metadata}


def labels_patch(labels: Mapping[str, str | None], uid: str) -> Body:
    """A merge patch of labels that is invalid if the object is another one; None removes."""
    return {"metadata": {"uid": uid, "labels": dict(labels)}}


def node_name_patch(node: str | msgspec.UnsetType | None) -> Body:
    """A merge patch of the node that a pod is bound to; None clears it, UNSET leaves it."""
    return {} if node is msgspec.UNSET else {"spec": {"nodeName": node}}


def config_map(namespace: str, name: str, data: Mapping[str, str], resource_version: str) -> Body:
    """A whole ConfigMap; with a resource version it replaces exactly that state."""
    return {
        **_type(CONFIG_MAPS),
        "metadata": _metadata(namespace, name, resource_version) | {"labels": dict(LABELS)},
        "data": dict(data),
    }


def lease(lease: Lease) -> Body:
    """A whole Lease, without unset fields, since the server refuses "" and 0."""
    spec = {
        "holderIdentity": lease.holder,
        "leaseDurationSeconds": lease.duration_seconds,
        "acquireTime": _time(lease.acquired_at, "microseconds"),
        "renewTime": _time(lease.renewed_at, "microseconds"),
        "leaseTransitions": lease.transitions,
    }
    return {
        **_type(LEASES),
        "metadata": _metadata(lease.namespace, lease.name, lease.resource_version),
        "spec": {key: value for key, value in spec.items() if value},
    }


def annotated_lease(
    namespace: str, name: str, annotations: Mapping[str, str], resource_version: str, node: Node
) -> Body:
    """A Lease without a holder; with a resource version it replaces exactly that state.

    The node owns it: Kubernetes deletes it with the node.
    """
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    metadata = {
        **_metadata(namespace, name, resource_version),
        "labels": dict(LABELS),
        "annotations": dict(annotations),
        "ownerReferences": [owner],
    }
    return {**_type(LEASES), "metadata": metadata, "spec": {}}


def event(note: EventNote) -> Body:
    """A core Event, reported for the first time.

    The name is the same when the same component reports the same about the same object again.
    """
    message = clipped(note.message, LONGEST_MESSAGE)
    involved = {
        "kind": note.kind,
        "apiVersion": note.api_version,
        "namespace": note.namespace,
        "name": note.name,
        "uid": note.uid,
    }
    identity = [*involved.values(), note.component, note.type, note.reason, message]
    digest = sha256(msgspec.json.encode(identity)).hexdigest()[:_DIGEST]
    prefix = note.name[:_LONGEST_PREFIX].rstrip("-.")
    return {
        **_type(EVENTS),
        "metadata": _metadata(note.namespace or HOME_OF_EVENTS, f"{prefix}.{digest}"),
        "involvedObject": {key: text for key, text in involved.items() if text},
        "reason": note.reason,
        "message": message,
        "type": note.type.value,
        "source": {"component": note.component},
        "firstTimestamp": _time(note.happened_at),
        "lastTimestamp": _time(note.happened_at),
        "count": 1,
    }


def event_again(note: EventNote, count: int) -> Body:
    """A merge patch of an event that has been reported ``count`` times before."""
    return {"count": count + 1, "lastTimestamp": _time(note.happened_at)}


def clipped(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, with an ellipsis at the end if the text was longer."""
    whole = text.encode(errors="replace")
    if len(whole) <= limit:
        return whole.decode()
    ellipsis = "…"
    kept = whole[: limit - len(ellipsis.encode())].decode(errors="ignore")
    return kept + ellipsis


def _type(kind: ApiKind[Any]) -> Body:
    return {"apiVersion": kind.api_version, "kind": kind.name}


def _metadata(namespace: str, name: str, resource_version: str = "") -> Body:
    metadata = {"namespace": namespace, "name": name}
    return metadata | ({"resourceVersion": resource_version} if resource_version else {})


def _time(seconds: float | None, precision: str = "seconds") -> str | None:
    """RFC 3339; metav1.Time is exact to a second, metav1.MicroTime to a microsecond."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision)[:-6] + "Z"
