"""What is written to the API server. Each write is sent once, and none without its guard.

A guard is a resource version, a UID or a ``test`` operation. Of what has changed since it was read,
nothing is written: that is a ClusterError Conflict (409), or Invalid (422) where the UID alone or
the operation did not hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from vgpu.kube import bodies
from vgpu.kube.connection import CONFLICT, ClusterError, Verb
from vgpu.kube.documents import (
    decode_config_map,
    decode_event_count,
    decode_lease,
    decode_node,
    decode_pod,
    decode_share_pod,
)
from vgpu.kube.objects import EventNote, Lease, Node, Pod
from vgpu.kube.paths import ApiKind
from vgpu.kube.reader import Reader
from vgpu.model import PodRef

_JSON_PATCH: Final = "application/json-patch+json"
_MERGE_PATCH: Final = "application/merge-patch+json"


class ApiClient(Reader):
    """One API server, as one user. A context manager: it closes its connections at the end.

    All writes raise ClusterError, and SourceError for an answer that is not Kubernetes'. With
    ``dry_run`` the server does all but keep the change.
    """

    def evict(self, pod: PodRef, resource_version: str, *, dry_run: bool = False) -> None:
        """Evict a pod if it is still just that one in that state.

        NotFound if it is gone; Conflict if it is another or has changed; TooManyRequests (429) if a
        disruption budget refuses.
        """
        path = ApiKind.PODS.one(pod.namespace, pod.name, "eviction")
        self._ask(Verb.CREATE, path, _dry(dry_run), bodies.eviction(pod, resource_version))

    def patch_pod(
        self,
        pod: PodRef,
        resource_version: str,
        annotations: Mapping[str, str | None],
        *,
        dry_run: bool = False,
    ) -> Pod:
        """Set annotations of a pod, None to remove one; the pod as it then is."""
        path = ApiKind.PODS.one(pod.namespace, pod.name)
        body = bodies.marks_patch(annotations, resource_version, pod.uid)
        return decode_pod(self._merge(path, body, dry_run=dry_run), self.server + path)

    def patch_sharepod(
        self,
        sharepod: PodRef,
        resource_version: str,
        annotations: Mapping[str, str | None],
        *,
        node: str | msgspec.UnsetType | None = msgspec.UNSET,
        dry_run: bool = False,
    ) -> Pod:
        """Set annotations of a SharePod, None to remove one; the SharePod as it then is.

        ``node`` is where it is to be bound, None for nowhere; without it that stays.
        """
        path = ApiKind.SHARE_PODS.one(sharepod.namespace, sharepod.name)
        body = bodies.marks_patch(annotations, resource_version, sharepod.uid)
        body |= bodies.node_name_patch(node)
        return decode_share_pod(self._merge(path, body, dry_run=dry_run), self.server + path)

    def patch_node(
        self,
        name: str,
        resource_version: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
        dry_run: bool = False,
    ) -> Node:
        """Set annotations and labels of a node, None to remove one; the node as it then is."""
        path = ApiKind.NODES.one("", name)
        body = bodies.marks_patch(annotations, resource_version, labels=labels)
        return decode_node(self._merge(path, body, dry_run=dry_run), self.server + path)

    def patch_node_status(
        self, name: str, operations: Sequence[Mapping[str, Any]], *, dry_run: bool = False
    ) -> Node:
        """Apply a JSON patch (RFC 6902) to a node's status subresource; the node as it then is.

        A ``test`` operation that does not hold is an Invalid.
        """
        path = ApiKind.NODES.one("", name, "status")
        answer = self._ask(Verb.PATCH, path, _dry(dry_run), operations, _JSON_PATCH)
        return decode_node(answer, self.server + path)

    def write_config_map(
        self, namespace: str, name: str, data: Mapping[str, str], resource_version: str
    ) -> str:
        """Make a ConfigMap's data be this; the new resource version.

        It is created if ``resource_version`` is "", and AlreadyExists (409) if there is one.
        """
        body = bodies.config_map(namespace, name, data, resource_version)
        answer, subject = self._put(ApiKind.CONFIG_MAPS, namespace, name, resource_version, body)
        return decode_config_map(answer, subject)[1]

    def write_lease(self, lease: Lease) -> Lease:
        """Make a Lease be this; the Lease as it then is, with its new resource version.

        It is created if it has no resource version, and AlreadyExists (409) if there is one.
        """
        version = lease.resource_version
        body = bodies.lease(lease)
        answer, subject = self._put(ApiKind.LEASES, lease.namespace, lease.name, version, body)
        return decode_lease(answer, subject)

    def write_event(self, note: EventNote) -> None:
        """Say something of an object; said again, the same event is counted up.

        Nothing guards the count: two who say the same at the same moment may count as one.
        """
        event = bodies.event(note)
        namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
        try:
            self._ask(Verb.CREATE, ApiKind.EVENTS.all(namespace), None, event)
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
            count = self._get(ApiKind.EVENTS, namespace, name, decode_event_count)
            self._merge(ApiKind.EVENTS.one(namespace, name), bodies.event_again(note, count))

    # ------------------------------------------------------------ how

    def _merge(self, path: str, body: bodies.Body, *, dry_run: bool = False) -> bytes:
        return self._ask(Verb.PATCH, path, _dry(dry_run), body, _MERGE_PATCH)

    def _put(
        self, kind: ApiKind, namespace: str, name: str, resource_version: str, body: bodies.Body
    ) -> tuple[bytes, str]:
        """Create or replace; the answer, and what it is an answer of."""
        verb = Verb.UPDATE if resource_version else Verb.CREATE
        path = kind.one(namespace, name) if resource_version else kind.all(namespace)
        return self._ask(verb, path, None, body), self.server + path


def _dry(dry_run: bool) -> Mapping[str, str]:
    return {"dryRun": "All"} if dry_run else {}
