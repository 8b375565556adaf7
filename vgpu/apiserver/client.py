"""Writes to the API server. Each write is sent once, and none without its guard.

A guard is a resource version, a UID or a ``test`` operation. If the object has changed since it was
read, nothing is written and ClusterError is raised: Conflict (409), or Invalid (422) if the guard
was the UID alone or the operation.

Annotations and labels of pods and nodes are written through ``status``. The API server takes them
there and ignores a changed spec (podStatusStrategy and nodeStatusStrategy in
pkg/registry/core/{pod,node}/strategy.go), so that no account needs a right to change an image, a
command or a taint.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from vgpu.apiserver import bodies
from vgpu.apiserver.connection import CONFLICT, ClusterError
from vgpu.apiserver.paths import path_of
from vgpu.apiserver.reader import Reader
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.events import EventNote
from vgpu.kube.kinds import (
    CONFIG_MAPS,
    EVENTS,
    LEASE_ANNOTATIONS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SHARE_PODS,
)
from vgpu.kube.verbs import (
    BIND,
    CREATE,
    DELETE,
    EVICT,
    MERGE_STATUS,
    PATCH,
    PATCH_STATUS,
    REPLACE,
    ApiVerb,
)
from vgpu.model.names import PodRef
from vgpu.model.objects import Lease, Namespace, Node, Pod

CLAIMS: Final = "vgpu.dev/claims"
"""The annotation of a node's Lease with what schedulers have decided for the node."""

_Object = TypeVar("_Object")


class ApiClient(Reader):
    """One API server, as one user. A context manager: it closes its connections at the end.

    All writes raise ClusterError, and SourceError for an answer that is not Kubernetes'. With
    ``dry_run`` the server does everything except store the change.
    """

    def send(
        self,
        verb: ApiVerb,
        kind: ApiKind[Any],
        namespace: str,
        name: str,
        body: object,
        *,
        dry_run: bool = False,
    ) -> bytes:
        """Send a body that contains its guard; returns the answer for :meth:`ApiKind.one`.

        ``namespace`` is "" for a kind that has none, ``name`` for a verb that names no object.
        """
        path = path_of(kind, verb, namespace, name)
        return self._ask(verb, path, {"dryRun": "All"} if dry_run else None, body)

    def evict(self, pod: PodRef, resource_version: str, *, dry_run: bool = False) -> None:
        """Evict a pod if it is still the same pod in the same state.

        Errors: NotFound if it is gone; Conflict if it is another or has changed; TooManyRequests
        (429) if a disruption budget refuses.
        """
        body = bodies.eviction(pod, resource_version)
        self.send(EVICT, PODS, pod.namespace, pod.name, body, dry_run=dry_run)

    def delete_pod(self, pod: PodRef) -> None:
        """Delete a pod if it is still the same pod; only for pods that the program has created.

        Errors: NotFound if it is gone; Conflict if it is another one.
        """
        self.send(DELETE, PODS, pod.namespace, pod.name, bodies.deletion(pod))

    def bind(
        self, pod: PodRef, resource_version: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """Bind a pod to a node and set annotations, in one write, if the pod has not changed.

        Errors: NotFound if there is no pod of this name; Conflict if it is another, has changed, is
        being deleted or is bound.
        """
        body = bodies.binding(pod, resource_version, node, annotations)
        self.send(BIND, PODS, pod.namespace, pod.name, body)

    def patch_pod(
        self,
        pod: PodRef,
        resource_version: str,
        annotations: Mapping[str, str | None],
        *,
        dry_run: bool = False,
    ) -> Pod:
        """Set annotations of a pod, None to remove one; returns the new pod."""
        body = bodies.annotations_patch(annotations, resource_version, pod.uid)
        return self._write(MERGE_STATUS, PODS, pod.namespace, pod.name, body, dry_run=dry_run)

    def label_pod(self, pod: PodRef, labels: Mapping[str, str]) -> None:
        """Set labels of a pod, whatever else of it has changed; Conflict if it is another pod."""
        body = bodies.labels_patch(labels, pod.uid)
        self.send(MERGE_STATUS, PODS, pod.namespace, pod.name, body)

    def patch_sharepod(
        self,
        sharepod: PodRef,
        resource_version: str,
        annotations: Mapping[str, str | None],
        *,
        node: str | msgspec.UnsetType | None = msgspec.UNSET,
        dry_run: bool = False,
    ) -> Pod:
        """Set annotations of a SharePod, None to remove one; returns the new SharePod.

        ``node`` is the node to bind it to, None to unbind it; without it the binding stays.
        """
        body = bodies.annotations_patch(annotations, resource_version, sharepod.uid)
        body |= bodies.node_name_patch(node)
        return self._write(
            PATCH, SHARE_PODS, sharepod.namespace, sharepod.name, body, dry_run=dry_run
        )

    def patch_node(
        self,
        name: str,
        resource_version: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
        dry_run: bool = False,
    ) -> Node:
        """Set annotations and labels of a node, None to remove one; returns the new node."""
        body = bodies.annotations_patch(annotations, resource_version, labels=labels)
        return self._write(MERGE_STATUS, NODES, "", name, body, dry_run=dry_run)

    def patch_namespace(
        self,
        name: str,
        resource_version: str,
        annotations: Mapping[str, str | None],
        *,
        dry_run: bool = False,
    ) -> Namespace:
        """Set annotations of a Namespace, None to remove one; returns the new Namespace."""
        body = bodies.annotations_patch(annotations, resource_version)
        return self._write(PATCH, NAMESPACES, "", name, body, dry_run=dry_run)

    def patch_node_status(
        self, name: str, operations: Sequence[Mapping[str, Any]], *, dry_run: bool = False
    ) -> Node:
        """Apply a JSON patch (RFC 6902) to a node's status subresource; returns the new node.

        A ``test`` operation that fails raises Invalid.
        """
        return self._write(PATCH_STATUS, NODES, "", name, operations, dry_run=dry_run)

    def write_config_map(
        self, namespace: str, name: str, data: Mapping[str, str], resource_version: str
    ) -> str:
        """Replace a ConfigMap's data; returns the new resource version.

        With ``resource_version`` "" it is created; AlreadyExists (409) if there is one.
        """
        body = bodies.config_map(namespace, name, data, resource_version)
        verb = REPLACE if resource_version else CREATE
        return self._write(verb, CONFIG_MAPS, namespace, name, body)[1]

    def write_lease(self, lease: Lease) -> Lease:
        """Replace a Lease; returns it with its new resource version.

        Without a resource version it is created; AlreadyExists (409) if there is one.
        """
        verb = REPLACE if lease.resource_version else CREATE
        return self._write(verb, LEASES, lease.namespace, lease.name, bodies.lease(lease))

    def node_claims(self, namespace: str, name: str) -> tuple[str, str] | None:
        """The resource version and the claims of a Lease; None if there is none of that name."""
        lease = self.find(LEASE_ANNOTATIONS, namespace, name)
        return None if lease is None else (lease[0], lease[1].get(CLAIMS, ""))

    def write_node_claims(
        self, namespace: str, name: str, claims: str, resource_version: str, node: Node
    ) -> str:
        """Replace the claims of a node's Lease in exactly this state; returns the new version.

        With ``resource_version`` "" it is created; AlreadyExists (409) if there is one.
        """
        body = bodies.annotated_lease(namespace, name, {CLAIMS: claims}, resource_version, node)
        verb = REPLACE if resource_version else CREATE
        return self._write(verb, LEASE_ANNOTATIONS, namespace, name, body)[0]

    def write_event(self, note: EventNote) -> None:
        """Report an event of an object; the same event, reported again, is counted up.

        Nothing guards the count: two simultaneous reports of the same may count as one.
        """
        event = bodies.event(note)
        namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
        try:
            self.send(CREATE, EVENTS, namespace, name, event)
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
            count = self.get(EVENTS, namespace, name)
            self.send(PATCH, EVENTS, namespace, name, bodies.event_again(note, count))

    def _write(
        self,
        verb: ApiVerb,
        kind: ApiKind[_Object],
        namespace: str,
        name: str,
        body: object,
        *,
        dry_run: bool = False,
    ) -> _Object:
        """The object after the write."""
        answer = self.send(verb, kind, namespace, name, body, dry_run=dry_run)
        return kind.one(answer, self.server + path_of(kind, verb, namespace, name))
