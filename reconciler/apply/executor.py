"""Executes one action: reads its object again, checks its guards, writes once, and finds out the
outcome.

An object that has changed since the plan was made is judged again, and skipped unless the result is
the same; so is an object on a node that has opted out since. After a write whose answer is lost,
the object is read again: the action is done only if the object shows it.
"""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from reconciler.apply.client import ClusterClient, Editable, differing, patch, read, uid
from reconciler.apply.guards import check
from reconciler.apply.refusals import ActionRefused, refused
from reconciler.apply.removal import Remover
from reconciler.apply.writes import send
from reconciler.judge import Judge
from reconciler.model import OPT_OUT, Edit, Entry, Evict, RemoveFolder, opted_out
from reconciler.reasons import ActionOutcome
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.documents import Keep
from vgpu.model.objects import MIRROR, MalformedObject, Namespace, Node, Pod
from vgpu.model.reasons import SourceError

log = logging.getLogger(__name__)

TRIES: Final = 3
"""Maximum tries of an action whose object changes between read and write; nodes often do."""


class Answer(msgspec.Struct, frozen=True):
    """The outcome of an action.

    ``seen`` is its pod as it was just before, None if no pod was read. ``wait`` and ``unreached``
    are as of :class:`~reconciler.apply.refusals.ActionRefused`.
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
            log.exception("an action failed on a defect: %s", entry.finding.key)
            outcome = (
                ActionOutcome.UNKNOWN if self._begun and not self._dry_run else ActionOutcome.FAILED
            )
            return Answer(outcome, "a defect in this program; the log has it", self._seen)
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
        again = self._judge.again(entry, current, node)
        if isinstance(again, Evict | Edit):
            return again
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
        """As :func:`~reconciler.apply.writes.send`, if we still lead."""
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
