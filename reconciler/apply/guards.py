"""Checks at the API server, just before an action, of what the object itself does not show.

A node lock is removed only while no pod may still be served under it. The caller has read the node
before and writes with that version, so that a lock that is taken meanwhile is a conflict. A holder
pod is evicted only while no pod uses its GPU: it does not change when a SharePod is placed on it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from reconciler.apply.client import ClusterClient
from reconciler.apply.refusals import ActionRefused
from reconciler.cluster_index import PENDING, ClusterIndex
from reconciler.model import (
    Guard,
    NobodyWaitsGuard,
    OwnerGuard,
    OwnerState,
    PolicyGuard,
    Snapshot,
    UnusedGuard,
)
from reconciler.owners.eviction import owner_id, reaction
from reconciler.owners.reader import read_owner
from reconciler.reasons import ActionOutcome
from reconciler.rules.kubeshare import survey
from vgpu.kube.documents import ObjectPage
from vgpu.kube.errors import ClusterError
from vgpu.model.objects import MalformedObject, Pod
from vgpu.schemes.codec import SchemeCodec

AS_SAFE: Final[Mapping[OwnerState, frozenset[OwnerState]]] = {
    OwnerState.SERVED: frozenset({OwnerState.SERVED, OwnerState.ENDED, OwnerState.GONE}),
    OwnerState.ENDED: frozenset({OwnerState.ENDED, OwnerState.GONE}),
    OwnerState.GONE: frozenset({OwnerState.GONE}),
}
"""States that the owner may have now, by its state in the plan: the same, or a later one.

A pod that appeared where there was none, or runs where one had ended, is another pod of that name:
the next plan judges it. A pod that waits or terminates keeps its lock.
"""


def check(
    guard: Guard, client: ClusterClient, codecs: Sequence[SchemeCodec], pod: Pod | None = None
) -> None:
    """Raises ActionRefused CHANGED if the guard fails; ClusterError, SourceError if it cannot be
    checked.

    ``pod`` is the pod to be evicted, as it was just read.
    """
    if isinstance(guard, OwnerGuard):
        _check_owner(guard, client, codecs)
    elif isinstance(guard, NobodyWaitsGuard):
        _check_nobody_waits(guard, client, codecs)
    elif isinstance(guard, PolicyGuard):
        _check_policy(guard, client, pod)
    else:
        _check_unused(guard, client)


def _check_owner(guard: OwnerGuard, client: ClusterClient, codecs: Sequence[SchemeCodec]) -> None:
    if not guard.namespace or not guard.name:
        raise ActionRefused(
            ActionOutcome.FAILED, "the lock's owner has no name that could be asked for"
        )
    owner = _find(client, guard)
    known = () if owner is None else (owner,)
    state = ClusterIndex(Snapshot(now=0.0, pods=known), codecs).owner_state(owner)
    if state not in AS_SAFE.get(guard.state, ()):
        owned = f"{guard.namespace}/{guard.name}"
        raise ActionRefused(
            ActionOutcome.CHANGED, f"the lock's owner {owned} is {state}, was {guard.state}"
        )


def _find(client: ClusterClient, guard: OwnerGuard) -> Pod | None:
    try:
        return client.pod(guard.namespace, guard.name)
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise


def _check_nobody_waits(
    guard: NobodyWaitsGuard, client: ClusterClient, codecs: Sequence[SchemeCodec]
) -> None:
    near = tuple(_near(client, guard.node, f"status.phase={PENDING}"))
    pods = {pod.ref.uid: pod for page in near for pod in page.objects}
    cluster_index = ClusterIndex(_seen(pods.values(), (), near), codecs)
    waiting: list[Pod | MalformedObject] = [*cluster_index.waiting_on_node.get(guard.node, ())]
    waiting += cluster_index.hidden_pods(guard.node)
    if waiting:
        first = min(f"{pod.ref.namespace}/{pod.ref.name}" for pod in waiting)
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        raise ActionRefused(
            ActionOutcome.CHANGED, f"{first}{more} may still be served on {guard.node}"
        )


def _check_policy(guard: PolicyGuard, client: ClusterClient, pod: Pod | None) -> None:
    asked = None if pod is None else owner_id(pod)
    if pod is None or asked is None:
        raise ActionRefused(ActionOutcome.CHANGED, f"{guard.owner} is not its owner any more")
    touches = reaction(pod, read_owner(client.object_text, asked)).touches
    if touches:
        raise ActionRefused(ActionOutcome.CHANGED, f"its owner {guard.owner}: {touches}")


def _check_unused(guard: UnusedGuard, client: ClusterClient) -> None:
    """Reads the pods first: a SharePod is created before its pod."""
    near = tuple(_near(client, guard.node))
    waiting = tuple(_share_pods(client))
    pods, share_pods = (
        [pod for page in source for pod in page.objects] for source in (near, waiting)
    )
    cluster_index = ClusterIndex(_seen(pods, share_pods, (*near, *waiting)), ())
    users = survey(cluster_index).users_of(guard.gpuid, guard.node)
    if users:
        first = min(f"{pod.ref.namespace}/{pod.ref.name}" for pod in users)
        raise ActionRefused(ActionOutcome.CHANGED, f"{first} uses its virtual GPU {guard.gpuid!r}")


def _seen(
    pods: Iterable[Pod], share_pods: Iterable[Pod], pages: Iterable[ObjectPage[Pod]]
) -> Snapshot:
    malformed = tuple(unread for page in pages for unread in page.malformed)
    return Snapshot(0.0, pods=tuple(pods), share_pods=tuple(share_pods), malformed=malformed)


def _share_pods(client: ClusterClient) -> Iterator[ObjectPage[Pod]]:
    """Pages of all SharePods; none where KubeShare is not installed."""
    try:
        yield from client.sharepod_pages()
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


def _near(client: ClusterClient, node: str, *more: str) -> Iterator[ObjectPage[Pod]]:
    """Pods that are not bound yet, which may be promised to the node, then pods bound to it.

    In this order, a pod that is bound meanwhile is at least in the second list.
    ``more`` are further selectors.
    """
    for where in ("", node):
        selector = ",".join((f"spec.nodeName={where}", *more))
        yield from client.pods(field_selector=selector)
