"""What must still be so that the subject itself does not tell, asked of the API server just then.

A node lock goes only while no pod may still be served under it. Whoever asks has read the node
before and writes with that version, so that a lock that is taken meanwhile is a conflict. A holder
pod goes only while nobody uses its card: it does not change when a SharePod is placed on it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from reconciler.apply.hands import Hands
from reconciler.apply.refusals import Refused
from reconciler.model import (
    Guard,
    NobodyWaitsGuard,
    OwnerGuard,
    OwnerState,
    PolicyGuard,
    Snapshot,
    UnusedGuard,
)
from reconciler.owner_reading import read_owner
from reconciler.owners import owner_id, reaction
from reconciler.reasons import Outcome
from reconciler.rules.kubeshare import survey
from reconciler.scene import PENDING, Scene
from vgpu.cluster import ClusterError
from vgpu.kube import MalformedObject, Pod
from vgpu.kube_json import PodPage
from vgpu.schemes.language import Language

AS_SAFE: Final[Mapping[OwnerState, frozenset[OwnerState]]] = {
    OwnerState.SERVED: frozenset({OwnerState.SERVED, OwnerState.ENDED, OwnerState.GONE}),
    OwnerState.ENDED: frozenset({OwnerState.ENDED, OwnerState.GONE}),
    OwnerState.GONE: frozenset({OwnerState.GONE}),
}
"""What the owner may have become since it was planned: the same, or later in the same life.

A pod that appeared where there was none, or runs where one had ended, is another pod of that name:
that is for the next plan to judge. One that waits or terminates keeps its lock.
"""


def check(
    guard: Guard, hands: Hands, languages: Sequence[Language], pod: Pod | None = None
) -> None:
    """Raises Refused CHANGED if it does not hold; ClusterError, SourceError if nobody can tell.

    ``pod`` is the one that is to be evicted, as it was just read.
    """
    if isinstance(guard, OwnerGuard):
        _check_owner(guard, hands, languages)
    elif isinstance(guard, NobodyWaitsGuard):
        _check_nobody_waits(guard, hands, languages)
    elif isinstance(guard, PolicyGuard):
        _check_policy(guard, hands, pod)
    else:
        _check_unused(guard, hands)


def _check_owner(guard: OwnerGuard, hands: Hands, languages: Sequence[Language]) -> None:
    if not guard.namespace or not guard.name:
        raise Refused(Outcome.FAILED, "the lock's owner has no name that could be asked for")
    owner = _find(hands, guard)
    known = () if owner is None else (owner,)
    state = Scene(Snapshot(now=0.0, pods=known), languages).owner_state(owner)
    if state not in AS_SAFE.get(guard.state, ()):
        owned = f"{guard.namespace}/{guard.name}"
        raise Refused(Outcome.CHANGED, f"the lock's owner {owned} is {state}, was {guard.state}")


def _find(hands: Hands, guard: OwnerGuard) -> Pod | None:
    try:
        return hands.pod(guard.namespace, guard.name)
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise


def _check_nobody_waits(
    guard: NobodyWaitsGuard, hands: Hands, languages: Sequence[Language]
) -> None:
    near = tuple(_near(hands, guard.node, f"status.phase={PENDING}"))
    pods = {pod.ref.uid: pod for page in near for pod in page.pods}
    scene = Scene(_seen(pods.values(), (), near), languages)
    waiting: list[Pod | MalformedObject] = [*scene.waiting_on_node.get(guard.node, ())]
    waiting += scene.hidden_pods(guard.node)
    if waiting:
        first = min(f"{pod.ref.namespace}/{pod.ref.name}" for pod in waiting)
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        raise Refused(Outcome.CHANGED, f"{first}{more} may still be served on {guard.node}")


def _check_policy(guard: PolicyGuard, hands: Hands, pod: Pod | None) -> None:
    asked = None if pod is None else owner_id(pod)
    if pod is None or asked is None:
        raise Refused(Outcome.CHANGED, f"{guard.owner} is not its owner any more")
    touches = reaction(pod, read_owner(hands.object_text, asked)).touches
    if touches:
        raise Refused(Outcome.CHANGED, f"its owner {guard.owner}: {touches}")


def _check_unused(guard: UnusedGuard, hands: Hands) -> None:
    """The pods first: a SharePod comes before its pod."""
    near = tuple(_near(hands, guard.node))
    waiting = tuple(_share_pods(hands))
    pods, share_pods = ([pod for page in of for pod in page.pods] for of in (near, waiting))
    scene = Scene(_seen(pods, share_pods, (*near, *waiting)), ())
    users = survey(scene).users_of(guard.gpuid, guard.node)
    if users:
        first = min(f"{pod.ref.namespace}/{pod.ref.name}" for pod in users)
        raise Refused(Outcome.CHANGED, f"{first} uses its virtual GPU {guard.gpuid!r}")


def _seen(pods: Iterable[Pod], share_pods: Iterable[Pod], pages: Iterable[PodPage]) -> Snapshot:
    malformed = tuple(each for page in pages for each in page.malformed)
    return Snapshot(0.0, pods=tuple(pods), share_pods=tuple(share_pods), malformed=malformed)


def _share_pods(hands: Hands) -> Iterator[PodPage]:
    """All of them; none where KubeShare is not installed."""
    try:
        yield from hands.sharepod_pages()
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


def _near(hands: Hands, node: str, *more: str) -> Iterator[PodPage]:
    """Pods that are not bound yet, which may be promised to the node, and those bound to it.

    In this order, so that one that is bound meanwhile is in the second list at the latest.
    ``more`` are selectors that they must fit, too.
    """
    for where in ("", node):
        selector = ",".join((f"spec.nodeName={where}", *more))
        yield from hands.pods(field_selector=selector)
