"""One action: its object re-read, its guards asked, one write, and the truth about what came.

What has moved on since the plan was made is judged once more, and skipped unless the verdict is
the same; so is all on a node that has opted out since. A write whose answer is lost is looked at
again, and is done only if it can be seen to be done.
"""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from reconciler.apply.client import ClusterClient, differing, patch, read, uid
from reconciler.apply.guards import check
from reconciler.apply.refusals import ActionRefused, refused
from reconciler.apply.removal import Remover
from reconciler.apply.writes import send
from reconciler.judge import Judge
from reconciler.model import Edit, Entry, Evict, RemoveFolder
from reconciler.plan import OPT_OUT, opted_out
from reconciler.reasons import ActionOutcome
from vgpu.kube.connection import ClusterError
from vgpu.kube.documents import Keep
from vgpu.kube.objects import MIRROR, MalformedObject, Node, Pod
from vgpu.reasons import SourceError

log = logging.getLogger(__name__)

TRIES: Final = 3
"""Of an action whose object changes between its read and its write: a node does all the time."""


class Answer(msgspec.Struct, frozen=True):
    """What came of an action.

    ``seen`` is its pod as it was read just before, None if it was not. ``wait`` and ``unreached``
    are as of :class:`~reconciler.apply.refusals.ActionRefused`.
    """

    outcome: ActionOutcome
    detail: str = ""
    seen: Pod | None = None
    wait: float | None = None
    unreached: bool = False


class Executor:
    """Does one action at a time."""

    def __init__(
        self,
        client: ClusterClient,
        judge: Judge,
        remover: Remover | None = None,
        *,
        dry_run: bool = False,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """``judge`` knows the look that the plan was made from.

        ``remover`` is there on a node only. With ``dry_run`` everything is asked and nothing kept.
        ``leads`` reports whether we may still act: it is asked last of all.
        """
        self._client = client
        self._judge = judge
        self._remover = remover
        self._dry_run = dry_run
        self._leads = leads
        self._seen: Pod | None = None
        self._begun = False  # whether something may have been done

    def act(self, entry: Entry) -> Answer:
        """Do it; never raises."""
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
        """What is to be said of it when it is done."""
        action = entry.finding.action
        if isinstance(action, RemoveFolder):
            return self._remove(action, entry.finding.subject.node)
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

    def _current(self, entry: Entry, found: Pod | Node) -> Evict | Edit:
        """The action for the object as it is now. Raises ActionRefused if it is wrong by now."""
        finding = entry.finding
        action = finding.action
        if not isinstance(action, Evict | Edit):
            raise ActionRefused(ActionOutcome.FAILED, "there is nothing to be done")
        node = found if isinstance(found, Node) else self._node(found.node)
        _expect_welcome(node)
        if isinstance(found, Node) or found.resource_version == action.resource_version:
            return action
        if found.deleted_at is not None:
            raise ActionRefused(ActionOutcome.CHANGED, "it is being deleted")
        again = self._judge.again(entry, found, node)
        if isinstance(again, Evict | Edit):
            return again
        versions = f"{found.resource_version} now, {action.resource_version} when it was planned"
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
        subject = entry.finding.subject
        pod = self._seen = self._client.pod(subject.namespace, subject.name)
        _expect_same(pod, subject.uid)
        action = self._current(entry, pod)
        for guard in action.guards:
            check(guard, self._client, self._judge.codecs, pod)

        def write() -> None:
            self._client.evict(pod.ref, pod.resource_version, dry_run=self._dry_run)

        def arrived() -> bool:
            try:
                left = self._client.pod(subject.namespace, subject.name)
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
        found = read(self._client, planned.target)
        self._seen = found if isinstance(found, Pod) else None
        _expect_same(found, planned.target.uid)
        if changed := differing(found, planned.before):
            raise ActionRefused(ActionOutcome.CHANGED, f"changed since: {', '.join(changed)}")
        if planned.unbind and (not isinstance(found, Pod) or found.node != planned.unbind):
            raise ActionRefused(
                ActionOutcome.CHANGED, f"it is not bound to {planned.unbind} any more"
            )
        action = self._current(entry, found)
        for guard in action.guards:
            check(guard, self._client, self._judge.codecs)

        def write() -> None:
            patch(
                self._client,
                planned.target,
                found.resource_version,
                planned.after,
                node=None if planned.unbind else msgspec.UNSET,
                dry_run=self._dry_run,
            )

        def arrived() -> bool:
            left = read(self._client, planned.target)
            unbound = not planned.unbind or (isinstance(left, Pod) and not left.node)
            return uid(left) == uid(found) and unbound and not differing(left, planned.after)

        return self._write(write, arrived)

    # ------------------------------------------------------------ folders

    def _remove(self, action: RemoveFolder, node: str) -> str:
        if self._remover is None or not node:
            raise ActionRefused(
                ActionOutcome.FAILED, "folders are removed on their node only: --scope node"
            )
        _expect_welcome(self._node(node))
        for page in self._client.pods(keep=Keep.ALL, field_selector=f"spec.nodeName={node}"):
            for each in page.malformed:
                if _may_be(each, action.pod_uid):
                    raise ActionRefused(
                        ActionOutcome.CHANGED, f"its pod may be there: {each.title}"
                    )
            for pod in page.objects:
                # Where it only protects, a static pod's annotation is believed whatever it says.
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
            self._begun = False  # what came of it is known, or is said not to be
            refusal.overtaken = refusal.outcome is ActionOutcome.CHANGED
            raise

    def _expect_to_lead(self) -> None:
        if not self._leads():
            raise ActionRefused(ActionOutcome.NOT_LEADER, "")


def _expect_same(found: Pod | Node, wanted_uid: str) -> None:
    """Raises ActionRefused if it is another object of that name."""
    if wanted_uid and uid(found) != wanted_uid:
        raise ActionRefused(ActionOutcome.GONE, "another of its name is in its place")


def _expect_welcome(node: Node | None) -> None:
    """Raises ActionRefused if nothing on the node is to be touched any more."""
    if node is not None and opted_out(node):
        raise ActionRefused(
            ActionOutcome.CHANGED, f'node {node.name} is annotated {OPT_OUT}: "false" now'
        )


def _may_be(unread: MalformedObject, pod_uid: str) -> bool:
    """Whether a pod that cannot be read may be the one of that UID, a static one's too."""
    marks = unread.annotations
    return not unread.ref.uid or marks is None or pod_uid in (unread.ref.uid, marks.get(MIRROR))
