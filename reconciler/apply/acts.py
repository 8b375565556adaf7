"""One action: its subject re-read, its guards asked, one write, and the truth about what came.

What has moved on since the plan was made is left alone. A write whose answer is lost is looked at
again, and is done only if it can be seen to be done.
"""

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from reconciler.apply.guards import check
from reconciler.apply.hands import Hands, differing, patch, read, uid
from reconciler.apply.refusals import Refused, refused
from reconciler.apply.removal import Remover
from reconciler.model import Edit, Entry, Evict, RemoveFolder
from reconciler.reasons import Outcome
from vgpu.cluster import ClusterError
from vgpu.kube import MIRROR, Node, Pod
from vgpu.kube_json import Keep
from vgpu.reasons import SourceError
from vgpu.schemes.language import Language

log = logging.getLogger(__name__)

TRIES: Final = 3
"""Of an edit that names no version: a node's changes with every heartbeat."""


class Answer(msgspec.Struct, frozen=True):
    """What came of an action.

    ``seen`` is its pod as it was read just before, None if it was not. ``wait`` and ``unreached``
    are as of :class:`~reconciler.apply.refusals.Refused`.
    """

    outcome: Outcome
    detail: str = ""
    seen: Pod | None = None
    wait: float | None = None
    unreached: bool = False


class Actor:
    """Does one action at a time."""

    def __init__(
        self,
        hands: Hands,
        languages: Sequence[Language] = (),
        remover: Remover | None = None,
        *,
        dry_run: bool = False,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """``languages`` are those in which pods' claims are read.

        ``remover`` is there on a node only. With ``dry_run`` everything is asked and nothing kept.
        ``leads`` says whether we may still act: it is asked last of all.
        """
        self._hands = hands
        self._languages = tuple(languages)
        self._remover = remover
        self._dry_run = dry_run
        self._leads = leads
        self._seen: Pod | None = None

    def act(self, entry: Entry) -> Answer:
        """Do it; never raises."""
        self._seen = None
        try:
            detail = self._act(entry)
        except (ClusterError, SourceError) as error:
            return self._answer(refused(error))
        except Refused as refusal:
            return self._answer(refusal)
        except Exception:
            log.exception("an action failed on a defect: %s", entry.finding.key)
            return Answer(Outcome.FAILED, "a defect in this program; the log has it", self._seen)
        return Answer(Outcome.DRY_RUN if self._dry_run else Outcome.DONE, detail, self._seen)

    def _answer(self, refusal: Refused) -> Answer:
        return Answer(refusal.outcome, refusal.detail, self._seen, refusal.wait, refusal.unreached)

    def _act(self, entry: Entry) -> str:
        """What is to be said of it when it is done."""
        action = entry.finding.action
        if isinstance(action, Evict):
            return self._evict(action)
        if isinstance(action, Edit):
            return self._edit(action)
        if isinstance(action, RemoveFolder):
            return self._remove(action, entry.finding.subject.node)
        raise Refused(Outcome.FAILED, "there is nothing to be done")

    # ------------------------------------------------------------ evictions

    def _evict(self, action: Evict) -> str:
        wanted = action.pod
        pod = self._seen = self._hands.pod(wanted.namespace, wanted.name)
        _expect_same(pod, wanted.uid, action.resource_version)
        for guard in action.guards:
            check(guard, self._hands, self._languages, pod)

        def write() -> None:
            self._hands.evict(wanted, action.resource_version, dry_run=self._dry_run)

        def arrived() -> bool:
            try:
                left = self._hands.pod(wanted.namespace, wanted.name)
            except ClusterError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return True
                raise
            return left.ref.uid != wanted.uid or left.deleted_at is not None

        return self._write(write, arrived)

    # ------------------------------------------------------------ edits

    def _edit(self, action: Edit) -> str:
        tries = 1 if action.resource_version else TRIES
        while True:
            found = self._checked(action)
            try:
                return self._write_edit(action, found)
            except Refused as refusal:
                tries -= 1
                if refusal.outcome is not Outcome.CHANGED or not tries:
                    raise

    def _checked(self, action: Edit) -> Pod | Node:
        """The object as it is now. Raises Refused unless all is as it was planned with."""
        found = read(self._hands, action.target)
        self._seen = found if isinstance(found, Pod) else None
        _expect_same(found, action.target.uid, action.resource_version)
        if changed := differing(found, action.before):
            raise Refused(Outcome.CHANGED, f"changed since: {', '.join(changed)}")
        if action.unbind and (not isinstance(found, Pod) or found.node != action.unbind):
            raise Refused(Outcome.CHANGED, f"it is not bound to {action.unbind} any more")
        for guard in action.guards:
            check(guard, self._hands, self._languages)
        return found

    def _write_edit(self, action: Edit, found: Pod | Node) -> str:
        target = action.target

        def write() -> None:
            patch(
                self._hands,
                target,
                found.resource_version,
                action.after,
                node=None if action.unbind else msgspec.UNSET,
                dry_run=self._dry_run,
            )

        def arrived() -> bool:
            left = read(self._hands, target)
            unbound = not action.unbind or (isinstance(left, Pod) and not left.node)
            return uid(left) == uid(found) and unbound and not differing(left, action.after)

        return self._write(write, arrived)

    # ------------------------------------------------------------ folders

    def _remove(self, action: RemoveFolder, node: str) -> str:
        if self._remover is None or not node:
            raise Refused(Outcome.FAILED, "folders are removed on their node only: --scope node")
        for page in self._hands.pods(keep=Keep.ALL, field_selector=f"spec.nodeName={node}"):
            for pod in page.pods:
                # Where it only protects, a static pod's annotation is believed whatever it says.
                if action.pod_uid in (pod.ref.uid, pod.annotations.get(MIRROR)):
                    named = f"{pod.ref.namespace}/{pod.ref.name}"
                    raise Refused(Outcome.CHANGED, f"its pod is there: {named}")
        self._expect_to_lead()
        return self._remover.remove(action, dry_run=self._dry_run)

    # ------------------------------------------------------------ writes

    def _write(self, write: Callable[[], None], arrived: Callable[[], bool]) -> str:
        """Send it once. Raises Refused unless it is done, or can be seen to be done."""
        self._expect_to_lead()
        try:
            write()
        except (ClusterError, SourceError) as error:
            refusal = refused(error)
        else:
            return ""
        if self._dry_run or not refusal.lost:
            raise refusal
        try:
            done = arrived()
        except (ClusterError, SourceError) as error:
            unknown = f"{refusal.detail}; whether it was done is not known: {error}"
            unreached = refused(error).unreached
            raise Refused(Outcome.FAILED, unknown, unreached=unreached) from error
        if not done:
            raise Refused(Outcome.FAILED, f"{refusal.detail}; it can be seen not to be done")
        return f"the answer was lost, but it can be seen to be done: {refusal.detail}"

    def _expect_to_lead(self) -> None:
        if not self._leads():
            raise Refused(Outcome.NOT_LEADER, "")


def _expect_same(found: Pod | Node, wanted_uid: str, resource_version: str) -> None:
    """Raises Refused if it is another object, or of another version where one is named."""
    if wanted_uid and uid(found) != wanted_uid:
        raise Refused(Outcome.GONE, "another of its name is in its place")
    if resource_version and found.resource_version != resource_version:
        versions = f"version {found.resource_version} now, {resource_version} when it was planned"
        deleted = isinstance(found, Pod) and found.deleted_at is not None
        raise Refused(Outcome.CHANGED, "it is being deleted" if deleted else versions)
