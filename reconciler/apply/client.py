"""The requests to the API server that actions make.

``ClusterClient`` is the small part of :class:`vgpu.kube.ApiClient` that changes objects, with the
reads that come just before. :func:`read` and :func:`patch` take pods, SharePods, nodes and
Namespaces.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from reconciler.model import ObjectKind, ObjectRef
from vgpu.kube.documents import Keep, ObjectPage
from vgpu.kube.events import EventNote
from vgpu.model.names import PodRef
from vgpu.model.objects import Namespace, Node, Pod

Annotations = Mapping[str, str | None]
"""Annotations by key; None where there is none, or where none is to be."""


class ClusterClient(Protocol):
    """Every method raises ClusterError, and SourceError for an unreadable answer."""

    def pod(self, namespace: str, name: str) -> Pod:
        """One pod; NotFound if there is none of that name."""
        ...

    def sharepod(self, namespace: str, name: str) -> Pod:
        """One SharePod; the same."""
        ...

    def node(self, name: str) -> Node:
        """One node; the same."""
        ...

    def namespace(self, name: str) -> Namespace:
        """One Namespace; the same."""
        ...

    def object_text(
        self, group: str, version: str, plural: str, namespace: str, name: str
    ) -> bytes:
        """An object of any API group as JSON; the same."""
        ...

    def pods(self, *, keep: Keep = ..., field_selector: str = ...) -> Iterator[ObjectPage[Pod]]:
        """Pages of the pods that the selector chooses."""
        ...

    def sharepod_pages(self) -> Iterator[ObjectPage[Pod]]:
        """Pages of all SharePods; a ClusterError of status 404 where there is no such kind."""
        ...

    def evict(self, pod: PodRef, resource_version: str, *, dry_run: bool = ...) -> None:
        """Evict the pod if its UID and version are still these."""
        ...

    def patch_pod(
        self,
        pod: PodRef,
        resource_version: str,
        annotations: Annotations,
        *,
        dry_run: bool = ...,
    ) -> Pod:
        """Set annotations of the pod if its UID and version are still these."""
        ...

    def patch_sharepod(
        self,
        sharepod: PodRef,
        resource_version: str,
        annotations: Annotations,
        *,
        node: str | msgspec.UnsetType | None = ...,
        dry_run: bool = ...,
    ) -> Pod:
        """Set annotations of a SharePod in the same way, and its ``spec.nodeName``."""
        ...

    def patch_node(
        self,
        name: str,
        resource_version: str,
        annotations: Annotations,
        *,
        dry_run: bool = ...,
    ) -> Node:
        """Set annotations of a node in the same way."""
        ...

    def patch_namespace(
        self,
        name: str,
        resource_version: str,
        annotations: Annotations,
        *,
        dry_run: bool = ...,
    ) -> Namespace:
        """Set annotations of a Namespace in the same way."""
        ...

    def write_event(self, note: EventNote) -> None:
        """Write an Event of an object; the same Event again is counted."""
        ...


Editable = Pod | Node | Namespace
"""An object whose annotations an edit changes; a SharePod is read as a pod."""


def read(client: ClusterClient, target: ObjectRef) -> Editable:
    """The object as it is now."""
    if target.kind is ObjectKind.NAMESPACE:
        return client.namespace(target.name)
    if target.kind is ObjectKind.NODE:
        return client.node(target.name)
    if target.kind is ObjectKind.SHARE_POD:
        return client.sharepod(target.namespace, target.name)
    return client.pod(target.namespace, target.name)


def patch(
    client: ClusterClient,
    target: ObjectRef,
    resource_version: str,
    annotations: Annotations,
    *,
    node: str | msgspec.UnsetType | None = msgspec.UNSET,
    dry_run: bool = False,
) -> None:
    """Set the object's annotations, and a SharePod's node, if its version is still this."""
    if target.kind is ObjectKind.NAMESPACE:
        client.patch_namespace(target.name, resource_version, annotations, dry_run=dry_run)
        return
    if target.kind is ObjectKind.NODE:
        client.patch_node(target.name, resource_version, annotations, dry_run=dry_run)
        return
    ref = PodRef(target.uid, target.namespace, target.name)
    if target.kind is ObjectKind.SHARE_POD:
        client.patch_sharepod(ref, resource_version, annotations, node=node, dry_run=dry_run)
    else:
        client.patch_pod(ref, resource_version, annotations, dry_run=dry_run)


def uid(current: Editable) -> str:
    """The object's UID."""
    return current.ref.uid if isinstance(current, Pod) else current.uid


def differing(current: Editable, expected: Annotations) -> tuple[str, ...]:
    """The keys whose values differ from the expected ones."""
    return tuple(key for key, text in expected.items() if current.annotations.get(key) != text)
