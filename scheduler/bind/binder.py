"""Binds pods: one write to the API server, and a success only for a binding that exists.

kube-scheduler never takes back what a bind has answered, so a success without a binding would leave
the pod waiting for ever. A write whose answer is lost may have happened: the pod is read again, and
if it is not bound, its reservation stays for a while, since the write may still come.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from scheduler.bind.commit import LOST_SECONDS, REFUSED, CacheCommitter, Committer, KeyLocks
from scheduler.bind.lock_queue import Patience
from scheduler.bind.locks_and_labels import NodeLabel, NodeLocker, missing_label
from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.cluster.reservations import PodReservation, reservation_annotations
from scheduler.reasons import BindError, BindFailure
from vgpu.apiserver.connection import CONFLICT, NOT_FOUND, ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.reasons import SourceError
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import OF_QUOTA, PlacementReason, PlacementRefusal

log = logging.getLogger(__name__)

TRIES: Final = 4
"""Maximum number of writes of one bind: the pod may change between read and write."""

SETTLE_SECONDS: Final = 10.0
"""Age at which a reservation that no event has ended is checked, in seconds."""


LogFields = Mapping[str, str]
"""What the log has of a Binding: pod, node, GPUs and sharing system."""


class BindingApi(Protocol):
    """The API server for a bind. Both methods raise ClusterError and SourceError."""

    def pod(self, namespace: str, name: str) -> Pod:
        """One pod."""
        ...

    def bind(
        self, pod: PodRef, resource_version: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """Bind a pod in exactly this state."""
        ...


class PodBinder:
    """Binds pods to nodes. Any thread may call every method."""

    def __init__(
        self,
        api: BindingApi,
        cache: SchedulerCache,
        clock: Callable[[], float] = time.time,
        *,
        committer: Committer | None = None,
        locker: NodeLocker | None = None,
        label: Callable[[NodeLabel], object] = lambda _: None,
    ) -> None:
        """``clock`` returns unix seconds; ``committer`` None decides in the cache.

        ``locker`` locks nodes for an original device plugin; ``label`` is called with the label of
        a pod that has been bound.
        """
        self._api = api
        self._cache = cache
        self._clock = clock
        self._committer = committer or CacheCommitter(cache)
        self._locker = locker
        self._label = label
        self._pods = KeyLocks()
        self._lost: dict[tuple[str, str], float] = {}

    def bind(self, ref: PodRef, node: str, client_left: Callable[[], bool] = lambda: False) -> None:
        """Bind the pod to the node, or return if it is bound there. Raises BindError.

        Of two calls for one pod the second waits for the first. ``client_left`` ends the wait for
        the lock of a node.
        """
        self._cache.note_bind(ref.uid, node)
        try:
            patience = self._locker.queue.patience(client_left) if self._locker else None
            self._bind_alone(ref, node, patience)
        except BindError:
            self._cache.note_unbound(ref.uid)
            raise

    def _bind_alone(self, ref: PodRef, node: str, patience: Patience | None) -> None:
        with self._pods.alone(ref.uid):
            pod = self._cache.pod(ref.namespace, ref.name)
            for _ in range(TRIES):
                if pod is None or pod.ref.uid != ref.uid or pod.node:
                    pod = self._read(ref)  # an event may be old: a success needs the newest state
                if pod.node:
                    self._bound(pod, node)
                    label = missing_label(pod, self._cache.schemes)
                    if label is not None:  # whoever bound the pod ended before the label
                        self._label(label)
                    return
                if pod.deleted_at is not None:
                    self._end_unless_lost(ref, node)
                    raise BindError(BindFailure.GONE, f"{_name(ref)} is being deleted")
                if self._write(pod, node, patience):
                    return
                pod = None
            self._end_unless_lost(ref, node)
            raise BindError(BindFailure.CONFLICT, f"{_name(ref)} changes all the time")

    def settle(self) -> None:
        """Read every pod whose reservation no event has ended, and end those that are over."""
        for node, reservation in self._cache.reservations(self._clock() - SETTLE_SECONDS):
            ref = reservation.pod
            with self._pods.alone(ref.uid):
                if self._is_over(reservation, node):
                    self._lost.pop((ref.uid, node), None)
                    self._committer.end(ref, node, reservation.since)
        oldest = self._clock() - LOST_SECONDS
        for key, lost_at in list(self._lost.items()):
            if lost_at < oldest:
                self._lost.pop(key, None)

    def _is_over(self, reservation: PodReservation, node: str) -> bool:
        ref = reservation.pod
        try:
            pod = self._api.pod(ref.namespace, ref.name)
        except ClusterError as error:
            return error.status == NOT_FOUND
        except SourceError:
            return False
        if pod.ref.uid != ref.uid or pod.terminal or pod.node not in ("", node):
            return True
        if reservation.is_held:  # no binding is written by it
            return not pod.node and pod.nominated_node != node
        lost_at = self._lost.get((ref.uid, node))
        if pod.node or (lost_at is not None and self._clock() <= lost_at + LOST_SECONDS):
            return False
        return self._committer.may_end(pod, reservation.since)

    # ------------------------------------------------------------ one bind

    def _read(self, ref: PodRef) -> Pod:
        name = _name(ref)
        try:
            pod = self._api.pod(ref.namespace, ref.name)
        except ClusterError as error:
            if error.status == NOT_FOUND:
                self._cache.bury(ref.uid)
                raise BindError(BindFailure.GONE, f"{name} does not exist any more") from error
            raise BindError(BindFailure.UNREACHABLE, f"{name} cannot be read: {error}") from error
        except SourceError as error:
            text = f"{BindFailure.POD_UNREADABLE.explanation}: {error}"
            raise BindError(BindFailure.POD_UNREADABLE, text) from error
        if pod.ref.uid != ref.uid:
            self._cache.bury(ref.uid)
            raise BindError(BindFailure.GONE, f"{name} is another pod of the same name now")
        return pod

    def _bound(self, pod: Pod, node: str) -> None:
        """The pod is bound already. Raises BindError if it is bound to another node."""
        self._cache.hold(pod)
        if pod.node != node:
            raise BindError(BindFailure.BOUND_ELSEWHERE, f"already assigned to node {pod.node}")

    def _write(self, pod: Pod, node: str, patience: Patience | None) -> bool:
        """Decide and write; returns whether the pod is bound, False if it has changed meanwhile.

        Raises BindError.
        """
        demand = self._cache.demand_of(pod)
        if not isinstance(demand, PlacementRefusal):
            scheme, request = demand
            text = ""
            if self._locker is not None and patience is not None:
                text = self._locker.take(scheme, pod.ref, node, patience)
            is_bound = False
            try:
                annotations, fields = self._decide(scheme, request, pod, node)
                is_bound = self._bind(pod, node, annotations, fields)
            finally:  # the lock of a bound pod is its plugin's
                if self._locker and not is_bound and (pod.ref.uid, node) not in self._lost:
                    self._locker.release(scheme, node, text)
            if is_bound and scheme.dialect_row.label:
                self._label(NodeLabel(pod.ref, scheme.dialect_row.label, node))
            return is_bound
        if demand.reason is PlacementReason.NOTHING_REQUESTED:
            refusal, refused = self._cache.unserved(pod, (node,))
            if refusal is not None and refused:
                raise BindError(refusal.reason, refusal.text)
            if refusal is not None and self._cache.node(node) is None:
                reason = PlacementReason.UNKNOWN_NODE  # it may be one of HAMi's
                raise BindError(reason, reason.explanation)
            return self._bind(pod, node, {}, {"pod": pod.ref.key, "node": node})
        raise BindError(demand.reason, demand.text)

    def _bind(self, pod: Pod, node: str, annotations: Mapping[str, str], fields: LogFields) -> bool:
        """Write the binding; returns whether the pod is bound, False if it has changed meanwhile.

        ``fields`` are what the log has of the binding. Raises BindError.
        """
        ref = pod.ref
        try:
            self._api.bind(ref, pod.resource_version, node, annotations)
        except ClusterError as error:
            if error.status == CONFLICT:
                return False
            if error.status in REFUSED:
                self._end_unless_lost(ref, node)
                text = f"{BindFailure.REFUSED.explanation}: {error}"
                raise BindError(BindFailure.REFUSED, text) from error
            self._lost_answer(pod, node, error, fields)
        except SourceError as error:
            self._lost_answer(pod, node, error, fields)
        else:
            self._lost.pop((ref.uid, node), None)
        log.info("pod bound", extra=fields)
        return True

    def _decide(
        self, scheme: SchedulerScheme, request: PodDemand, pod: Pod, node: str
    ) -> tuple[dict[str, str], LogFields]:
        """Reserve GPUs; returns the annotations, and what the log has. Raises BindError."""
        placement = self._committer.reserve(scheme, request, node)
        if isinstance(placement, PlacementRefusal):
            is_of_quota = placement.reason in OF_QUOTA
            text = placement.text if is_of_quota else placement.cause.explanation
            raise BindError(placement.cause, text)
        annotations = reservation_annotations(pod, placement, self._clock())
        if isinstance(annotations, PlacementRefusal):
            self._end_unless_lost(pod.ref, node)
            raise BindError(annotations.reason, annotations.text)
        gpus = ",".join(placement.gpu_names)
        return annotations, {
            "pod": pod.ref.key,
            "node": node,
            "gpu": gpus,
            "scheme": scheme.row.name,
        }

    def _lost_answer(self, pod: Pod, node: str, error: Exception, fields: LogFields) -> None:
        """Return if the write has happened although no answer came. Raises BindError if not."""
        self._lost[pod.ref.uid, node] = self._clock()
        log.warning("Binding not answered", extra={**fields, "err": error})
        newest = self._read(pod.ref)
        if not newest.node:
            text = f"the binding was not answered: {error}"
            raise BindError(BindFailure.UNREACHABLE, text) from error
        self._bound(newest, node)

    def _end_unless_lost(self, ref: PodRef, node: str) -> None:
        """Release the reservation, unless an earlier Binding may still arrive."""
        if (ref.uid, node) not in self._lost:
            self._committer.refused(ref, node)


def _name(ref: PodRef) -> str:
    return f"pod {ref.key}"
