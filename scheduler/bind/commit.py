"""How a bind decides: in the cache of the only replica, or in the Lease of the node for several.

With Leases every decision is a write of the node's Lease that names the version that it knows, so
that of two decisions the second sees the first. The version is read, or it is what this replica
wrote last: then a decision is one request. A replica that is wrong about it reads again, and reads
each time for a while: another one decides about the same nodes. Binds of one node that wait for
each other are one write (:mod:`scheduler.bind.group_commit`):

    for each version of a Lease: at most one write that names it succeeds
    for each version: the shares of its claims and of bound pods <= each GPU
    a Binding is sent => a written version has its claim

A claim is removed when its pod is gone for certain; or, of a pod that is not bound, after 90
seconds and a change of the pod, by which a binding that is still on its way fails: it names the
pod's version.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from scheduler.bind.group_commit import Decision, GroupCommit
from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.cluster.reservations import (
    Claims,
    NodeClaim,
    PodPlacement,
    PodReservation,
    lease_name,
    read_claims,
    write_claims,
)
from scheduler.reasons import BindError, BindFailure
from vgpu.apiserver.connection import CONFLICT, NOT_FOUND, ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import SourceError
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.program.written_keys import RETRY

log = logging.getLogger(__name__)

LOST_SECONDS: Final = 90.0
"""Time after which a write whose answer was lost can no longer happen, in seconds. The API server
ends a request after 60."""

CONTESTED_SECONDS: Final = 10.0
"""Time for which every Lease is read after another replica has written one, in seconds."""

MOST_KNOWN: Final = 4096
"""Maximum number of Leases whose state is known after a write."""

_TRIES: Final = 8
"""Maximum number of writes of a Lease for one decision: other replicas write it too."""

REFUSED: Final = range(400, 500)
"""HTTP statuses that show that the server has written nothing."""


class LeaseRefusedError(BindError):
    """The API server has refused a Lease."""


class KeyLocks:
    """A lock for each key that a thread works on: one works on a key at a time, others wait.

    Any thread may call every method. Whoever waits for a key is woken only when that key is free.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Work on a key alone."""
        with self._guard:
            lock, users = self._locks.get(key) or (threading.Lock(), 0)
            self._locks[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[key]
                if users > 1:
                    self._locks[key] = lock, users - 1
                else:
                    del self._locks[key]


class Committer(Protocol):
    """Where reservations are decided."""

    def reserve(
        self, scheme: SchedulerScheme, demand: PodDemand, node: str
    ) -> PodPlacement | PlacementRefusal:
        """Decide on the GPUs of a pod, and reserve them. Raises BindError."""
        ...

    def hold(self, held: PodReservation, node: str) -> bool:
        """Hold what the pod's preemption frees; returns whether nothing is left to do."""
        ...

    def refused(self, pod: PodRef, node: str) -> None:
        """The API server has refused a binding of this replica, which knows of no other."""
        ...

    def may_end(self, pod: Pod, since: float) -> bool:
        """Whether the reservation of a pod that is not bound may end."""
        ...

    def end(self, pod: PodRef, node: str, since: float) -> None:
        """End a reservation that nothing can need any more."""
        ...


class CacheCommitter:
    """Decides in the cache: for the only replica."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache

    def reserve(
        self, scheme: SchedulerScheme, demand: PodDemand, node: str
    ) -> PodPlacement | PlacementRefusal:
        """Decide under the cache's lock."""
        return self._cache.reserve(scheme, demand, node)

    def hold(self, held: PodReservation, node: str) -> bool:  # noqa: ARG002
        """The cache holds it already."""
        return True

    def refused(self, pod: PodRef, node: str) -> None:
        """Nobody else can have written a binding."""
        self._cache.release(pod.uid, node)

    def may_end(self, pod: Pod, since: float) -> bool:  # noqa: ARG002
        """No binding is on its way."""
        return True

    def end(self, pod: PodRef, node: str, since: float) -> None:  # noqa: ARG002
        """End it."""
        self._cache.release(pod.uid, node)


class ClaimsApi(Protocol):
    """The API server. All methods raise ClusterError and SourceError."""

    def node_claims(self, namespace: str, name: str) -> tuple[str, str] | None:
        """The resource version and the claims of a Lease; None if there is none."""
        ...

    def write_node_claims(
        self, namespace: str, name: str, claims: str, resource_version: str, node: Node
    ) -> str:
        """Replace the version that it names, or create it; the node owns it.

        Returns the new resource version.
        """
        ...

    def patch_pod(
        self, pod: PodRef, resource_version: str, annotations: Mapping[str, str | None]
    ) -> Pod:
        """Set annotations of a pod in exactly this state."""
        ...


class LeaseCommitter:
    """Decides in the Lease of the node: for any number of replicas."""

    def __init__(
        self, api: ClaimsApi, cache: SchedulerCache, namespace: str, clock: Callable[[], float]
    ) -> None:
        """``namespace`` has the Leases; ``clock`` returns unix seconds."""
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self._clock = clock
        self._known: OrderedDict[str, tuple[str, Claims]] = OrderedDict()
        self._contested_until = float("-inf")
        self._nodes = KeyLocks()  # one writer of a Lease at a time: it does not race itself
        self.group = GroupCommit(self._nodes.alone, self._commit)

    def reserve(
        self, scheme: SchedulerScheme, demand: PodDemand, node: str
    ) -> PodPlacement | PlacementRefusal:
        """Decide by the newest claims, and write the decision. A claim is kept, and confirmed."""
        return self.group.decide(node, Decision(scheme, demand))

    def _commit(self, node: str, batch: Sequence[Decision]) -> None:
        """Set the outcomes of a batch. Only for a thread that is alone with the node."""
        reserved: set[str] = set()
        try:
            outcomes = self._decide(node, batch, reserved)
        except Exception as error:  # noqa: BLE001  # each bind raises it
            for uid in reserved:
                self._cache.release(uid, node)
            is_answer = isinstance(error, BindError) and not isinstance(error, LeaseRefusedError)
            if len(batch) > 1 and not is_answer:
                for each in batch:  # one pod may be the cause
                    self._commit(node, [each])
                return
            for each in batch:
                each.outcome.set_exception(
                    BindError(error.reason, str(error)) if isinstance(error, BindError) else error
                )
            return
        for each, outcome in zip(batch, outcomes, strict=True):
            each.outcome.set_result(outcome)

    def _decide(
        self, node: str, batch: Sequence[Decision], reserved: set[str]
    ) -> list[PodPlacement | PlacementRefusal]:
        """Decide one after another, and write all claims at once. Raises BindError.

        ``reserved`` gets the UIDs of the pods that the cache has reserved GPUs for.
        """
        for _ in range(_TRIES):
            known = self._take_known(node)
            version, claims = known or self._read(node)
            reserved.clear()
            outcomes = []
            added = {}
            for each in batch:
                outcome = self._cache.reserve(each.scheme, each.demand, node)
                outcomes.append(outcome)
                if isinstance(outcome, PodPlacement):
                    reserved.add(each.uid)
                    added[each.uid] = _claim(each.demand, outcome, self._clock())
            if len(added) < len(batch) and known is not None:
                continue  # another replica may have ended a claim
            if not added or self._write(node, version, {**claims, **added}):
                return outcomes
            if known is not None:
                self._contested_until = self._clock() + CONTESTED_SECONDS
        raise BindError(BindFailure.CONFLICT, f"the Lease of node {node} changes all the time")

    def hold(self, held: PodReservation, node: str) -> bool:
        """Write a claim that is held, unless the pod has been decided on."""
        ref = held.pod
        try:
            with self._nodes.alone(node):
                for _ in range(_TRIES):
                    version, claims = self._read(node)
                    known = claims.get(ref.uid)
                    if known is not None and not known.is_held:
                        return True
                    claim = NodeClaim(
                        ref,
                        held.allocations,
                        held.groups,
                        self._clock(),
                        is_held=True,
                        priority=held.priority,
                    )
                    written = {**claims, ref.uid: claim}
                    if self._write(node, version, written):
                        self._cache.set_claims(node, written)
                        return True
        except BindError as error:
            log.warning("freed GPUs not held", extra={"pod": ref.key, "node": node, "err": error})
        return False

    def refused(self, pod: PodRef, node: str) -> None:
        """Nothing: another replica may have written a binding that is still on its way."""

    def may_end(self, pod: Pod, since: float) -> bool:
        """Whether the claim is old, and the pod was changed so that an old binding fails."""
        now = self._clock()
        if now - since <= LOST_SECONDS:
            return False
        try:
            self._api.patch_pod(pod.ref, pod.resource_version, {RETRY: f"{now:.3f}"})
        except (ClusterError, SourceError) as error:
            log.info("claim not ended yet", extra={"pod": pod.ref.key, "err": error})
            return False
        return True

    def end(self, pod: PodRef, node: str, since: float) -> None:
        """Remove the claim, unless a replica has confirmed it meanwhile."""
        try:
            with self._nodes.alone(node):
                for _ in range(_TRIES):
                    version, claims = self._read(node)
                    claim = claims.get(pod.uid)
                    if claim is None:
                        self._cache.release(pod.uid, node)
                        return
                    if claim.confirmed_at > since:
                        return
                    left = {uid: other for uid, other in claims.items() if uid != pod.uid}
                    if self._write(node, version, left):
                        self._cache.release(pod.uid, node)
                        return
        except BindError as error:
            log.info("claim not removed yet", extra={"pod": pod.key, "node": node, "err": error})

    def _read(self, node: str) -> tuple[str, Claims]:
        """The Lease's version, and its claims of pods that are not gone. Raises BindError."""
        name = lease_name(node)
        try:
            stored = self._api.node_claims(self._namespace, name)
            version, text = stored if stored is not None else ("", "")
            claims = read_claims(text, f"{self._namespace}/{name}")
        except ClusterError as error:
            text = f"the Lease of node {node} cannot be read: {error}"
            raise BindError(BindFailure.UNREACHABLE, text) from error
        except SourceError as error:
            text = f"{BindFailure.LEASE_UNREADABLE.explanation}: {error}"
            raise BindError(BindFailure.LEASE_UNREADABLE, text) from error
        return version, self._cache.set_claims(node, claims)

    def _take_known(self, node: str) -> tuple[str, Claims] | None:
        """What this replica wrote last, while no other one decides; a write makes it known again.

        Only for a thread that is alone with the node.
        """
        known = self._known.pop(node, None)
        if known is None or self._clock() < self._contested_until:
            return None
        version, claims = known
        return version, self._cache.set_claims(node, claims)

    def _write(self, node: str, version: str, claims: Claims) -> bool:
        """Whether the claims were written; False if the Lease has changed. Raises BindError."""
        owner = self._cache.node(node)
        if owner is None:
            raise BindError(PlacementReason.UNKNOWN_NODE, PlacementReason.UNKNOWN_NODE.explanation)
        try:
            written = self._api.write_node_claims(
                self._namespace, lease_name(node), write_claims(claims), version, owner
            )
        except ClusterError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                return False
            kind = LeaseRefusedError if error.status in REFUSED else BindError
            text = f"the Lease of node {node} was not written: {error}"
            raise kind(BindFailure.UNREACHABLE, text) from error
        except SourceError as error:
            text = f"the Lease of node {node} was not written: {error}"
            raise BindError(BindFailure.UNREACHABLE, text) from error
        self._known[node] = written, claims
        if len(self._known) > MOST_KNOWN:
            with suppress(KeyError):  # another thread was faster
                self._known.popitem(last=False)
        return True


def _claim(demand: PodDemand, placement: PodPlacement, now: float) -> NodeClaim:
    """The claim of a decision; ``now`` is in unix seconds."""
    return NodeClaim(
        demand.pod, placement.allocations, demand.wishes.groups, now, units=demand.units
    )
