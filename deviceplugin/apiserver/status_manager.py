"""Makes the API server say what is: pods' annotations, the node's marks, locks, events. One thread.

Nothing waits for it but other schedulers: containers are bound without it. What is told is found
out anew from what the API server says, so that nothing is lost with a crash, and told with the
version that was seen, so that nothing of others is written over. A subject that fails is tried
again later, after all that have not.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.apiserver import desired_state
from deviceplugin.apiserver.backoff import ItemBackoff
from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.events import EventDeduplicator, EventReason, note
from deviceplugin.apiserver.lock_owners import LockOwners
from deviceplugin.failpoints import Failpoint, Step, noop
from deviceplugin.model import AdmittedPod
from deviceplugin.scheme_adapter import AnnotationPatch, NodePatch, SchemeAdapter
from vgpu.kube.client import ApiClient
from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import EventNote, Node, Pod
from vgpu.model import Device, PodRef
from vgpu.reasons import SourceError
from vgpu.schemes.gpushare.node import UNHEALTHY_KEY, UNHEALTHY_NAMESPACE, unhealthy_name

log = logging.getLogger(__name__)

NODE_SECONDS: Final = 30.0
"""The node is told no more often, unless its devices change: others may write the same marks."""

FORBIDDEN_SECONDS: Final = 3600.0
"""Until that is tried again to which we need not have the right: it may have been given."""

MOST_EVENTS: Final = 128
"""That wait; the oldest are dropped."""

PATIENCE_SECONDS: Final = 5.0
"""A request under way is waited for so long at the end."""

_MOVED_ON: Final = frozenset({409, 422})
"""Conflict, and Invalid where a UID or a ``test`` operation did not hold."""

_FORBIDDEN: Final = 403
_GONE: Final = 404
_BUSY: Final = frozenset({0, 429, 500, 502, 503, 504})
"""What is no answer to what was asked."""


class WriteTarget(StrEnum):
    """What is told something of."""

    POD = "pod"
    NODE = "node"
    CAPACITY = "node_status"
    UNHEALTHY = "configmap"
    LOCK = "lock"
    EVENT = "event"


class WriteResult(StrEnum):
    """What came of it."""

    TOLD = "told"
    MOVED_ON = "moved_on"  # it was not as we had seen it: it is looked at again
    GONE = "gone"
    FAILED = "failed"


class _DroppedError(Exception):
    """The API server took annotations and has not kept them, as a webhook may have it."""

    def __init__(self, keys: str) -> None:
        super().__init__(f"the API server took these annotations and dropped them: {keys}")


class _Key(msgspec.Struct, frozen=True):
    """A subject, and which of its kind."""

    subject: WriteTarget
    uid: str = ""


class _Task(msgspec.Struct, frozen=True):
    """Something that may have to be told. ``tell`` says whether it had to be.

    ``version`` is of what it was seen as, "" where that does not count.
    """

    key: _Key
    version: str
    tell: Callable[[], bool]


class _Newer(msgspec.Struct, frozen=True):
    """An object as a write has left it, until the watch shows another than those before."""

    before: frozenset[str]
    now: Pod | Node


_Known = tuple[str, AdmittedPod | None, bool]


class StatusManager:
    """See the module. :meth:`wake`, :meth:`say` and :meth:`counts` are for any thread."""

    def __init__(
        self,
        cluster: ApiClient,
        adapter: SchemeAdapter,
        look: Callable[[], DesiredState | None],
        at: Failpoint = noop,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``look`` gives what is so, None while that is not known.

        ``clock`` tells unix seconds, ``monotonic`` seconds that never go back.
        """
        self._cluster = cluster
        self._adapter = adapter
        self._look = look
        self._at = at
        self._clock = clock
        self._monotonic = monotonic
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._lock = threading.Lock()
        # Below is changed under the lock.
        self._counts: Counter[tuple[str, str]] = Counter()
        self._events: deque[EventNote] = deque(maxlen=MOST_EVENTS)
        self._deduplicator = EventDeduplicator()
        # Below is the status manager's thread's own.
        self._backoff = ItemBackoff()
        self._owners = LockOwners(cluster, adapter.codec.locks, monotonic)
        self._newer: dict[_Key, _Newer] = {}
        self._all_told: dict[str, _Known] = {}  # pods that were told all, as they were then
        self._paced: dict[WriteTarget, tuple[tuple[Device, ...], float]] = {}
        self._marks: tuple[tuple[object, ...], NodePatch] | None = None
        self._labelled = ""  # the UID of the node that has these labels from us
        self._labels: AnnotationPatch = {}
        self._unhealthy: tuple[Mapping[str, str], str] | None = None
        self._forbidden_until = 0.0  # the ConfigMap; 0 unless it was since it was told
        self._spent: frozenset[str] = frozenset()
        self._next = 0.0
        self._thread = threading.Thread(target=self._work, name="teller", daemon=True)

    # ------------------------------------------------------------ anybody's side

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def stop(self) -> None:
        """Tell no more; what is not told is told after the next start."""
        self._stopping.set()
        self._awake.set()
        self._thread.join(PATIENCE_SECONDS)

    def wake(self) -> None:
        """Something may have to be told."""
        self._awake.set()

    def say(self, about: Pod | PodRef | Node, word: EventReason, message: str) -> None:
        """Warn people by an event, unless the same was said lately."""
        said = note(about, word, message, self._clock())
        with self._lock:
            if self._deduplicator.is_news(said):
                self._events.append(said)
        self._awake.set()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How often what was told, by :class:`WriteTarget` and :class:`WriteResult`."""
        with self._lock:
            return dict(self._counts)

    # ------------------------------------------------------------ the thread's side

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                seconds = self.round()
            except Exception:
                log.exception("writing to the API server failed on a defect")
                seconds = NODE_SECONDS
            self._awake.wait(seconds)
            self._awake.clear()

    def round(self) -> float:
        """Tell all that is due; the seconds after which something may be due again."""
        self._next = self._monotonic() + NODE_SECONDS
        look = self._seen()
        tasks = self._tasks(look) if look else []
        keys = {task.key for task in tasks}
        self._backoff.prune(keys)
        for task in sorted(tasks, key=lambda task: self._backoff.failures(task.key)):
            if self._stopping.is_set() or not self._tried(task):
                break
        return max(0.0, self._next - self._monotonic())

    def _tasks(self, look: DesiredState) -> list[_Task]:
        """All that may have to be told, what others wait for first."""
        node = look.node
        self._all_told = {uid: as_of for uid, as_of in self._all_told.items() if uid in look.pods}
        pods = [
            _Task(
                _Key(WriteTarget.POD, uid), pod.resource_version, partial(self._tell_pod, look, uid)
            )
            for uid, pod in look.pods.items()
            if (uid in look.tenants or uid in look.refused)
            and self._all_told.get(uid) != _known(look, uid)
        ]
        version = node.resource_version if node else ""
        return [
            *pods,
            _Task(_Key(WriteTarget.LOCK), version, self._release),
            _Task(_Key(WriteTarget.NODE), version, self._tell_node),
            _Task(_Key(WriteTarget.CAPACITY), "", self._tell_capacity),
            _Task(_Key(WriteTarget.UNHEALTHY), "", self._tell_unhealthy),
            _Task(_Key(WriteTarget.EVENT), "", self._say_one),
        ]

    def _tried(self, task: _Task) -> bool:
        """Do what the task is about, if it may be tried now; whether the server can be reached."""
        key, now = task.key, self._monotonic()
        until = self._backoff.until(key, task.version)
        if until > now:
            self._next = min(self._next, until)
            return True
        try:
            if task.tell():
                self._count(key.subject, WriteResult.TOLD)
        except ClusterError as error:
            self._failed(task, error, error.status)
            return error.status != 0
        except (SourceError, _DroppedError) as error:
            self._failed(task, error, None)
        except Exception:
            log.exception("writing to the API server failed on a defect", extra=_about(key))
            self._count(key.subject, WriteResult.FAILED)
            self._backoff.add(key, task.version, now)
        else:
            self._backoff.end(key)
        return True

    def _failed(self, task: _Task, error: Exception, status: int | None) -> None:
        result = WriteResult.FAILED
        if status in _MOVED_ON:
            result = WriteResult.MOVED_ON
        elif status == _GONE:
            result = WriteResult.GONE  # the watch will say so
        moved_on = result is not WriteResult.FAILED
        self._count(task.key.subject, result)
        self._backoff.add(task.key, task.version, self._monotonic(), moved_on=moved_on)
        until = self._backoff.until(task.key, task.version)
        self._next = min(self._next, until)
        level = logging.INFO if moved_on else logging.WARNING
        log.log(
            level, "not written to the API server", extra={**_about(task.key), "reason": str(error)}
        )

    # ------------------------------------------------------------ what is told

    def _tell_pod(self, look: DesiredState, uid: str) -> bool:
        pod = look.pods[uid]
        marks = desired_state.of_pod(self._adapter, look, uid, self._clock())
        if not marks:
            self._all_told[uid] = _known(look, uid)
            return False
        told = self._cluster.patch_pod(pod.ref, pod.resource_version, marks)
        key = _Key(WriteTarget.POD, uid)
        self._wrote(key, pod, told)
        look = replace(look, pods={uid: told})
        if lost := desired_state.of_pod(self._adapter, look, uid, self._clock()):
            raise _DroppedError(", ".join(lost))
        who = {"namespace": pod.ref.namespace, "pod": pod.ref.name, "uid": uid}
        log.info("pod updated", extra={**who, "annotations": _words(marks)})
        if self._backoff.failures(key):
            self._awake.set()  # for its lock, which was looked at before
        self._at(Step.POD_TOLD)
        return True

    def _release(self) -> bool:
        look = self._seen()
        node = look.node if look else None
        if look is None or node is None:
            return False
        self._spent &= look.pods.keys()
        key = desired_state.lock_of(self._adapter, look, self._spent, self._clock())
        if key is None:
            key = self._owners.needless(look, node)
            self._next = min(self._next, max(self._owners.due, self._monotonic()))
        if key is None:
            return False
        told = self._cluster.patch_node(node.name, node.resource_version, {key: None})
        self._spent |= look.served & look.pods.keys()
        self._wrote(_Key(WriteTarget.NODE), node, told)
        log.info("node lock released", extra={"lock": key, "text": node.annotations.get(key)})
        self._at(Step.LOCK_RELEASED)
        return True

    def _tell_node(self) -> bool:
        look = self._seen()
        node = look.node if look else None
        if look is None or node is None:
            return False
        marks = self._node_marks(look)
        # Of a node only such labels are kept as a scheme reads; the operator's may be others.
        known = self._labels if self._labelled == node.uid else {}
        labels = {
            key: text
            for key, text in marks.labels.items()
            if key in node.labels or known.get(key) != text
        }
        if not (marks.annotations or labels) or self._is_early(WriteTarget.NODE, look):
            return False
        told = self._cluster.patch_node(
            node.name, node.resource_version, marks.annotations, labels=labels
        )
        self._labelled, self._labels = node.uid, {**known, **labels}
        self._wrote(_Key(WriteTarget.NODE), node, told)
        self._pace(WriteTarget.NODE, look)
        told_of = {"annotations": _words(marks.annotations), "labels": _words(labels)}
        log.info("node updated", extra=told_of)
        return True

    def _node_marks(self, look: DesiredState) -> NodePatch:
        """What the node is to be told at this moment, for the three who tell it parts of that."""
        made_of = look.node, look.devices, int(self._clock())
        if self._marks is None or self._marks[0] != made_of:
            self._marks = made_of, desired_state.of_node(self._adapter, look, self._clock())
        return self._marks[1]

    def _tell_capacity(self) -> bool:
        look = self._seen()
        node = look.node if look else None
        if look is None or node is None:
            return False
        capacity = self._node_marks(look).capacity
        if not capacity or self._is_early(WriteTarget.CAPACITY, look):
            return False
        patch = desired_state.capacity_patch(node, capacity)
        told = self._cluster.patch_node_status(node.name, patch)
        self._wrote(_Key(WriteTarget.NODE), node, told)
        self._pace(WriteTarget.CAPACITY, look)
        log.info("node updated", extra={"capacity": _words(capacity)})
        return True

    def _tell_unhealthy(self) -> bool:
        look = self._seen()
        if look is None or look.node is None:
            return False
        wanted = self._node_marks(look).unhealthy
        if wanted is None or self._monotonic() < self._forbidden_until:
            return False
        where = UNHEALTHY_NAMESPACE, unhealthy_name(look.node.name)
        try:
            if self._unhealthy is None:
                self._unhealthy = self._cluster.versioned_config_map(*where) or ({}, "")
            data, version = self._unhealthy
            if data.get(UNHEALTHY_KEY) == wanted.get(UNHEALTHY_KEY):
                return False
            others = {key: text for key, text in data.items() if key != UNHEALTHY_KEY}
            data = {**others, **wanted}
            self._unhealthy = data, self._cluster.write_config_map(*where, data, version)
        except (ClusterError, SourceError) as error:
            self._unhealthy = None  # it may be another: it is read again
            if not isinstance(error, ClusterError) or error.status != _FORBIDDEN:
                raise
            self._may_not(error)
            return False
        self._forbidden_until = 0.0
        log.info("unhealthy GPUs written", extra={"unhealthy": wanted.get(UNHEALTHY_KEY, "")})
        return True

    def _may_not(self, error: ClusterError) -> None:
        """The right to the ConfigMap is the operator's to give: no failure, and said once."""
        if not self._forbidden_until:
            log.info("unhealthy GPUs are not written: no permission", extra={"reason": str(error)})
        self._forbidden_until = self._monotonic() + FORBIDDEN_SECONDS

    def _say_one(self) -> bool:
        with self._lock:
            said = self._events.popleft() if self._events else None
            if self._events:
                self._awake.set()  # for the next one
        if said is None:
            return False
        try:
            self._cluster.write_event(said)
        except ClusterError as error:
            if error.status in _BUSY:
                with self._lock:
                    self._events.appendleft(said)
            raise
        return True

    # ------------------------------------------------------------ how

    def _seen(self) -> DesiredState | None:
        """What is so, with what our own writes have made of it where the watch is not so far."""
        look = self._look()
        if look is None:
            return None
        pods = dict(look.pods)
        for key in [key for key in self._newer if key.subject is WriteTarget.POD]:
            newer = self._ahead(key, pods.get(key.uid))
            if isinstance(newer, Pod):
                pods[key.uid] = newer
        node = self._ahead(_Key(WriteTarget.NODE), look.node)
        return replace(look, pods=pods, node=node if isinstance(node, Node) else None)

    def _ahead(self, key: _Key, seen: Pod | Node | None) -> Pod | Node | None:
        newer = self._newer.get(key)
        if newer is None:
            return seen
        if seen is not None and seen.resource_version in newer.before:
            return newer.now
        del self._newer[key]
        return seen

    def _wrote(self, key: _Key, seen: Pod | Node, told: Pod | Node) -> None:
        known = self._newer.get(key)
        before = known.before if known else frozenset()
        if told.resource_version != seen.resource_version:
            self._newer[key] = _Newer(before | {seen.resource_version}, told)

    def _is_early(self, subject: WriteTarget, look: DesiredState) -> bool:
        """Whether it was told just now, and of the same devices."""
        devices, at = self._paced.get(subject, ((), 0.0))
        until = at + NODE_SECONDS
        if devices != look.devices or until <= self._monotonic():
            return False
        self._next = min(self._next, until)
        return True

    def _pace(self, subject: WriteTarget, look: DesiredState) -> None:
        self._paced[subject] = look.devices, self._monotonic()

    def _count(self, subject: WriteTarget, result: WriteResult) -> None:
        with self._lock:
            self._counts[subject.value, result.value] += 1


def _known(look: DesiredState, uid: str) -> _Known:
    """All that what one of the pods is to be told depends on."""
    return look.pods[uid].resource_version, look.tenants.get(uid), uid in look.refused


def _words(marks: Mapping[str, object]) -> str:
    """For people."""
    return ", ".join(f"{key}={text}" for key, text in marks.items())


def _about(key: _Key) -> dict[str, str]:
    return {"subject": key.subject.value} | ({"uid": key.uid} if key.uid else {})
