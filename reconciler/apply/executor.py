"""Executes one action: reads its object again, checks its guards, writes once, and finds out the
outcome.

An object that has changed since the plan was made is judged again, and skipped unless the result is
the same; so is an object on a node that has opted out since. After a write whose answer is lost,
the object is read again: the action is done only if the object shows it.

A guard checks what the object itself does not show. A node lock is removed only while no pod may
still be served under it. The node was read before and is written with that version, so that a lock
that is taken meanwhile is a conflict. A holder pod is evicted only while no pod uses its GPU: it
does not change when a SharePod is placed on it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from reconciler.apply.client import (
    ActionRefused,
    ClusterClient,
    Editable,
    differing,
    patch,
    read,
    refused,
    send,
    uid,
)
from reconciler.apply.removal import Remover
from reconciler.cluster_index import PENDING, ClusterIndex
from reconciler.judge import Judge
from reconciler.model import (
    OPT_OUT,
    Edit,
    Entry,
    Evict,
    Guard,
    NobodyWaitsGuard,
    OwnerGuard,
    OwnerState,
    PolicyGuard,
    RemoveFolder,
    Snapshot,
    UnusedGuard,
    opted_out,
)
from reconciler.owners.eviction import owner_id, reaction, read_owner
from reconciler.reasons import ActionOutcome
from reconciler.rules.kubeshare import survey
from vgpu.kube.documents import Keep, ObjectPage
from vgpu.kube.errors import ClusterError
from vgpu.model.objects import MIRROR, MalformedObject, Namespace, Node, Pod
from vgpu.model.reasons import SourceError
from vgpu.schemes.codec import SchemeCodec

log = logging.getLogger(__name__)

TRIES: Final = 3
"""Maximum tries of an action whose object changes between read and write; nodes often do."""


class Answer(msgspec.Struct, frozen=True):
    """The outcome of an action.

    ``seen`` is its pod as it was just before, None if no pod was read. ``wait`` and ``unreached``
    are as of :class:`~reconciler.apply.client.ActionRefused`.
    """

    outcome: ActionOutcome
    detail: str = ""
    seen: Pod | None = None
    wait: float | None = None
    unreached: bool = False


class Executor:
    """Executes one action at a time."""

    def __init__(
        self,
        client: ClusterClient,
        judge: Judge,
        remover: Remover | None = None,
        *,
        dry_run: bool = False,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """``judge`` has the snapshot that the plan was made from.

        ``remover`` is set on a node only. With ``dry_run``, all requests are sent and the API
        server keeps nothing. ``leads`` reports whether we may still act: it is asked last.
        """
        self._client = client
        self._judge = judge
        self._remover = remover
        self._dry_run = dry_run
        self._leads = leads
        self._seen: Pod | None = None
        self._begun = False  # whether something may have been done

    def act(self, entry: Entry) -> Answer:
        """Execute the entry's action; never raises."""
        self._seen, self._begun = None, False
        try:
            detail = self._act(entry)
        except (ClusterError, SourceError) as error:
            return self._answer(refused(error))
        except ActionRefused as refusal:
            return self._answer(refusal)
        except Exception:
            log.exception("unexpected error in an action", extra={"object": entry.finding.key})
            outcome = (
                ActionOutcome.UNKNOWN if self._begun and not self._dry_run else ActionOutcome.FAILED
            )
            return Answer(outcome, "unexpected error; the log has the details", self._seen)
        return Answer(
            ActionOutcome.DRY_RUN if self._dry_run else ActionOutcome.DONE, detail, self._seen
        )

    def _answer(self, refusal: ActionRefused) -> Answer:
        return Answer(refusal.outcome, refusal.detail, self._seen, refusal.wait, refusal.unreached)

    def _act(self, entry: Entry) -> str:
        """The detail of the result of an action that is done."""
        action = entry.finding.action
        if isinstance(action, RemoveFolder):
            return self._remove(action, entry.finding.object_ref.node)
        if action is None:
            raise ActionRefused(ActionOutcome.FAILED, "there is nothing to be done")
        tries = TRIES
        while True:
            try:
                return self._evict(entry) if isinstance(action, Evict) else self._edit(entry)
            except ActionRefused as refusal:
                tries -= 1
                if not refusal.overtaken or not tries:
                    raise

    def _current(self, entry: Entry, current: Editable) -> Evict | Edit:
        """The action for the object as it is now. Raises ActionRefused if it is wrong now."""
        finding = entry.finding
        action = finding.action
        if not isinstance(action, Evict | Edit):
            raise ActionRefused(ActionOutcome.FAILED, "there is nothing to be done")
        if isinstance(current, Namespace):
            _expect_welcome(current)
            return action
        node = current if isinstance(current, Node) else self._node(current.node)
        _expect_welcome(node)
        if isinstance(current, Node) or current.resource_version == action.resource_version:
            return action
        if current.deleted_at is not None:
            raise ActionRefused(ActionOutcome.CHANGED, "it is being deleted")
        action_now = self._judge.current_action(entry, current, node)
        if isinstance(action_now, Evict | Edit):
            return action_now
        versions = f"{current.resource_version} now, {action.resource_version} when it was planned"
        raise ActionRefused(
            ActionOutcome.CHANGED, f"version {versions}; it is not judged the same any more"
        )

    def _node(self, name: str) -> Node | None:
        """The node, None if there is none: it may have opted out since the plan was made."""
        try:
            return self._client.node(name) if name else None
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    # ------------------------------------------------------------ evictions

    def _evict(self, entry: Entry) -> str:
        object_ref = entry.finding.object_ref
        pod = self._seen = self._client.pod(object_ref.namespace, object_ref.name)
        _expect_same(pod, object_ref.uid)
        action = self._current(entry, pod)
        for guard in action.guards:
            check(guard, self._client, self._judge.codecs, pod)

        def write() -> None:
            self._client.evict(pod.ref, pod.resource_version, dry_run=self._dry_run)

        def arrived() -> bool:
            try:
                left = self._client.pod(object_ref.namespace, object_ref.name)
            except ClusterError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return True
                raise
            return left.ref.uid != pod.ref.uid or left.deleted_at is not None

        return self._write(write, arrived)

    # ------------------------------------------------------------ edits

    def _edit(self, entry: Entry) -> str:
        planned = entry.finding.action
        if not isinstance(planned, Edit):
            raise ActionRefused(ActionOutcome.FAILED, "there is nothing to be done")
        current = read(self._client, planned.target)
        self._seen = current if isinstance(current, Pod) else None
        _expect_same(current, planned.target.uid)
        if changed := differing(current, planned.before):
            raise ActionRefused(ActionOutcome.CHANGED, f"changed since: {', '.join(changed)}")
        if planned.unbind and (not isinstance(current, Pod) or current.node != planned.unbind):
            raise ActionRefused(
                ActionOutcome.CHANGED, f"it is not bound to {planned.unbind} any more"
            )
        action = self._current(entry, current)
        for guard in action.guards:
            check(guard, self._client, self._judge.codecs)

        def write() -> None:
            patch(
                self._client,
                planned.target,
                current.resource_version,
                planned.after,
                node=None if planned.unbind else msgspec.UNSET,
                dry_run=self._dry_run,
            )

        def arrived() -> bool:
            left = read(self._client, planned.target)
            unbound = not planned.unbind or (isinstance(left, Pod) and not left.node)
            return uid(left) == uid(current) and unbound and not differing(left, planned.after)

        return self._write(write, arrived)

    # ------------------------------------------------------------ folders

    def _remove(self, action: RemoveFolder, node: str) -> str:
        if self._remover is None or not node:
            raise ActionRefused(
                ActionOutcome.FAILED, "folders are removed on their node only: --scope node"
            )
        _expect_welcome(self._node(node))
        for page in self._client.pods(keep=Keep.ALL, field_selector=f"spec.nodeName={node}"):
            for unread in page.malformed:
                if _may_be(unread, action.pod_uid):
                    raise ActionRefused(
                        ActionOutcome.CHANGED, f"its pod may be there: {unread.title}"
                    )
            for pod in page.objects:
                # The annotation of a static pod is trusted here, since it can only protect.
                if action.pod_uid in (pod.ref.uid, pod.annotations.get(MIRROR)):
                    named = f"{pod.ref.namespace}/{pod.ref.name}"
                    raise ActionRefused(ActionOutcome.CHANGED, f"its pod is there: {named}")
        self._expect_to_lead()
        self._begun = True
        return self._remover.remove(action, dry_run=self._dry_run)

    # ------------------------------------------------------------ writes

    def _write(self, write: Callable[[], None], arrived: Callable[[], bool]) -> str:
        """As :func:`~reconciler.apply.client.send`, if we still lead."""
        self._expect_to_lead()
        self._begun = True
        try:
            return send(write, arrived, dry_run=self._dry_run)
        except ActionRefused as refusal:
            self._begun = False  # the outcome is known, or is UNKNOWN
            refusal.overtaken = refusal.outcome is ActionOutcome.CHANGED
            raise

    def _expect_to_lead(self) -> None:
        if not self._leads():
            raise ActionRefused(ActionOutcome.NOT_LEADER, "")


def _expect_same(current: Editable, wanted_uid: str) -> None:
    """Raises ActionRefused if this is another object of the same name."""
    if wanted_uid and uid(current) != wanted_uid:
        raise ActionRefused(ActionOutcome.GONE, "another of its name is in its place")


def _expect_welcome(target: Node | Namespace | None) -> None:
    """Raises ActionRefused if the node or Namespace has opted out of actions."""
    if target is not None and opted_out(target):
        kind = "node" if isinstance(target, Node) else "namespace"
        raise ActionRefused(
            ActionOutcome.CHANGED, f'{kind} {target.name} is annotated {OPT_OUT}: "false" now'
        )


def _may_be(unread: MalformedObject, pod_uid: str) -> bool:
    """Whether a pod that cannot be read may have that UID, or a static pod's other UID."""
    marks = unread.annotations
    return not unread.ref.uid or marks is None or pod_uid in (unread.ref.uid, marks.get(MIRROR))


AS_SAFE: Final[Mapping[OwnerState, frozenset[OwnerState]]] = {
    OwnerState.SERVED: frozenset({OwnerState.SERVED, OwnerState.ENDED, OwnerState.GONE}),
    OwnerState.ENDED: frozenset({OwnerState.ENDED, OwnerState.GONE}),
    OwnerState.GONE: frozenset({OwnerState.GONE}),
}
"""States that the owner may have now, by its state in the plan: the same, or a later one.

A pod that appeared where there was none, or runs where one had ended, is another pod of that name:
the next plan judges it. A pod that waits or terminates keeps its lock.
"""


# ---------------------------------------------------------------- guards


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
    """Pods that are not bound yet, which may have a reservation on the node, then pods bound to it.

    In this order, a pod that is bound meanwhile is at least in the second list.
    ``more`` are further selectors.
    """
    for where in ("", node):
        selector = ",".join((f"spec.nodeName={where}", *more))
        yield from client.pods(field_selector=selector)
