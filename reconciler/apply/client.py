"""The requests to the API server that actions make, and what its answers mean. Pure.

``ClusterClient`` is the small part of :class:`vgpu.kube.ApiClient` that changes objects, with the
reads that come just before. :func:`read` and :func:`patch` take pods, SharePods, nodes and
Namespaces. :func:`refused` has the refusal of an error; :func:`send` sends one write once, and
reads the object again where the answer is lost.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from reconciler.model import ObjectKind, ObjectRef
from reconciler.reasons import ActionOutcome
from vgpu.kube.documents import Keep, ObjectPage
from vgpu.kube.errors import ClusterError
from vgpu.kube.events import EventNote
from vgpu.model.names import PodRef
from vgpu.model.objects import Namespace, Node, Pod
from vgpu.model.reasons import SourceError

Annotations = Mapping[str, str | None]
"""Annotations by key; None where there is none, or where none is to be."""


# ---------------------------------------------------------------- requests


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


PDB_WAIT_SECONDS: Final = 10.0
"""Pause before a disruption budget is asked again, in seconds; the server itself uses 10."""

THROTTLE_WAIT_SECONDS: Final = 1.0
"""Pause before a busy API server is asked again, in seconds."""


# ---------------------------------------------------------------- refusals


class ActionRefused(Exception):  # noqa: N818  # an answer, not a fault
    """An action was not done.

    Attributes:
        outcome: the action's outcome.
        detail: the message of the refusal.
        wait: seconds after which another try may succeed; None if none would.
        lost: the action may have been done: the answer did not come, or was no answer.
        unreached: there was no answer at all.
        overtaken: the object changed between its read and the write: it can be read again.
    """

    def __init__(
        self,
        outcome: ActionOutcome,
        detail: str,
        *,
        wait: float | None = None,
        lost: bool = False,
        unreached: bool = False,
    ) -> None:
        super().__init__(f"{outcome}: {detail}")
        self.outcome = outcome
        self.detail = detail
        self.wait = wait
        self.lost = lost
        self.unreached = unreached
        self.overtaken = False


class _Row(msgspec.Struct, frozen=True):
    """An HTTP status, what the message must contain, and what that means."""

    status: int
    phrase: str
    outcome: ActionOutcome
    wait: float | None = None


_ROWS: Final = (
    _Row(404, "", ActionOutcome.GONE),
    _Row(410, "", ActionOutcome.GONE),
    _Row(409, "", ActionOutcome.CHANGED),
    _Row(429, "disruption budget", ActionOutcome.BLOCKED_BY_PDB, PDB_WAIT_SECONDS),
    _Row(403, "poddisruptionbudget", ActionOutcome.BLOCKED_BY_PDB, PDB_WAIT_SECONDS),
    _Row(429, "", ActionOutcome.THROTTLED, THROTTLE_WAIT_SECONDS),
    _Row(500, "more than one PodDisruptionBudget", ActionOutcome.SEVERAL_PDBS),
    _Row(401, "", ActionOutcome.FORBIDDEN),
    _Row(403, " cannot ", ActionOutcome.FORBIDDEN),
)
"""The first row that matches counts; a 403 of an admission webhook or a quota matches none.

Texts: pkg/registry/core/pod/storage/eviction.go and the authorizer's ForbiddenMessage.
"""

_UNSURE: Final = range(500, 600)
"""Statuses of etcd or of a proxy in between: the request may have arrived."""


def refused(error: ClusterError | SourceError) -> ActionRefused:
    """The refusal of a client's error."""
    if isinstance(error, SourceError):  # an answer that is not Kubernetes'
        return ActionRefused(ActionOutcome.FAILED, str(error), lost=True)
    message = "; ".join((*error.causes, error.message)) or error.reason
    for row in _ROWS:
        if row.status == error.status and row.phrase in error.message:
            wait = None if row.wait is None else max(error.retry_after or 0.0, 0.0) or row.wait
            return ActionRefused(row.outcome, message, wait=wait)
    unreached = error.status == 0
    lost = unreached or error.status in _UNSURE
    return ActionRefused(ActionOutcome.FAILED, str(error), lost=lost, unreached=unreached)


# ---------------------------------------------------------------- one write


def send(write: Callable[[], None], arrived: Callable[[], bool], *, dry_run: bool) -> str:
    """Send the write; returns the detail of its result, "" if there is none.

    ``arrived`` reads whether the write was done. Both raise ClusterError, SourceError. Raises
    ActionRefused unless the write is done, or the object shows that it is: UNKNOWN where it may
    have been done, and the object cannot be read.
    """
    try:
        write()
    except (ClusterError, SourceError) as error:
        refusal = refused(error)
    else:
        return ""
    if dry_run or not refusal.lost:
        raise refusal
    try:
        done = arrived()
    except (ClusterError, SourceError) as error:
        unknown = f"{refusal.detail}; whether it was done is not known: {error}"
        raise ActionRefused(
            ActionOutcome.UNKNOWN, unknown, unreached=refused(error).unreached
        ) from error
    if not done:
        raise ActionRefused(
            ActionOutcome.FAILED, f"{refusal.detail}; it can be seen not to be done"
        )
    return f"the answer was lost, but it can be seen to be done: {refusal.detail}"
