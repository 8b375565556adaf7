"""Threads that work on a queue each: writes that wait, and rejected pods that are to be woken.

The writes are those that a pod does not need to run: what is held for a nominated pod, and HAMi's
label of a bound one. Each has a maximum of tries.

A rejected pod is woken when a node that refused it has room for it now. kube-scheduler tries a
rejected pod again after an event that it knows. It does not know ours: a GPU that is healthy again,
a reservation that has ended, also another scheduler's that has expired, a quota that was raised, or
a deletion that it heard of before we did. So the pods that fit now get the annotation
``vgpu.dev/retry``, which is such an event: one patch a pod and rejection.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.filter.pod_filter import MOST_WOKEN
from scheduler.filter.rejected_pods import RejectedPod
from vgpu.apiserver.connection import CONFLICT, NOT_FOUND, ClusterError
from vgpu.apiserver.work_queue import WorkQueue
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.reasons import SourceError
from vgpu.program.written_keys import RETRY

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.02
"""Interval between two patches, in seconds."""

AGAIN_SECONDS: Final = 1.0
"""Time until a node or a namespace is looked at again that may have room for more pods than one
look wakes, in seconds: those that were woken have their places by then."""

TRIES: Final = 5
"""Maximum number of attempts of one write."""

_Item = TypeVar("_Item")


class PodPatchApi(Protocol):
    """The API server for a patch. Both methods raise ClusterError and SourceError."""

    def pod(self, namespace: str, name: str) -> Pod:
        """One pod."""
        ...

    def patch_pod(
        self, pod: PodRef, resource_version: str, annotations: Mapping[str, str | None]
    ) -> Pod:
        """Set annotations of a pod in exactly this state."""
        ...


class QueueWorker(Generic[_Item]):
    """Works on a queue, from :meth:`start` to :meth:`stop`. Any thread may add to it.

    Attributes:
        queue: the items that wait.
        write: writes one item, and returns whether nothing is left to do.
    """

    def __init__(self, name: str, write: Callable[[_Item], bool]) -> None:
        """``name`` is the thread's; ``write`` is the attribute."""
        self._name = name
        self.write = write
        self.queue = WorkQueue[_Item]()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def add(self, item: _Item) -> None:
        """Write this; never waits."""
        self.queue.add(item)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, without waiting for a request that is under way."""
        self.queue.shut_down()

    def _run(self) -> None:
        while (item := self.queue.get()) is not None:
            is_done = False
            try:
                is_done = self.write(item)
            except Exception:
                log.exception("item not written: unexpected error", extra={"queue": self._name})
            if is_done or self.queue.failures(item) >= TRIES:
                self.queue.forget(item)
            else:
                self.queue.add_rate_limited(item)
            self.queue.done(item)


class Waker:
    """Works on nodes that have changed, one after another, on a thread of its own.

    Attributes:
        nodes: the names of the nodes that wait.
        pause: the interval between two patches, in seconds.
        again: as :data:`AGAIN_SECONDS`.
        woken: number of pods that were woken.
    """

    def __init__(
        self,
        api: PodPatchApi,
        cache: SchedulerCache,
        nodes: WorkQueue[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``nodes`` has the names of changed nodes; ``clock`` returns unix seconds."""
        self._api = api
        self._cache = cache
        self.nodes = nodes
        self._clock = clock
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waker", daemon=True)
        self.pause = PAUSE_SECONDS
        self.again = AGAIN_SECONDS
        self.woken = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, without waiting for a request that is under way."""
        self._ending.set()
        self.nodes.shut_down()

    def _run(self) -> None:
        while not self._ending.is_set() and (node := self.nodes.get()) is not None:
            is_done = False
            try:
                is_done = self.wake_fitting(node)
            except Exception:
                log.exception("rejected pods not woken: unexpected error", extra={"node": node})
            if is_done:
                self.nodes.forget(node)
            else:
                self.nodes.add_rate_limited(node)
            self.nodes.done(node)

    def wake_fitting(self, node: str) -> bool:
        """Wake rejected pods that fit on a node now; returns whether no patch has failed.

        One look takes a few of them. Those may all come to other nodes, and then nothing of this
        node changes: it is looked at again.
        """
        pods = self._cache.take_rejected(node)
        woken = [self._wake(pod) for pod in pods]
        if len(pods) >= MOST_WOKEN:
            self.nodes.add_after(node, self.again)
        return all(woken)

    def wake_relieved(self, namespace: str, again: Callable[[str, float], object]) -> bool:
        """Wake pods that the quota of their namespace refused; returns whether no patch has failed.

        ``again`` is called with the namespace if it may admit more, and the seconds until then.
        """
        pods = self._cache.take_relieved(namespace)
        woken = [self._wake(pod) for pod in pods]
        if len(pods) >= MOST_WOKEN:
            again(namespace, self.again)
        return all(woken)

    def _wake(self, rejected: RejectedPod) -> bool:
        """Whether nothing is left to do for the pod."""
        ref = rejected.pod
        self._ending.wait(self.pause)
        pod = self._cache.pod(ref.namespace, ref.name)
        for _ in range(2):
            try:
                if pod is None:
                    pod = self._api.pod(ref.namespace, ref.name)
                if pod.ref.uid == ref.uid and not pod.node:
                    text = f"{self._clock():.3f}"
                    self._api.patch_pod(ref, pod.resource_version, {RETRY: text})
                    self.woken += 1
                    log.info("rejected pod woken: it fits now", extra={"pod": ref.key})
            except ClusterError as error:
                if error.status == NOT_FOUND:
                    return True
                if error.status == CONFLICT:
                    pod = None
                    continue
                log.warning("rejected pod not woken", extra={"pod": ref.key, "err": error})
            except SourceError as error:
                log.warning("rejected pod not woken", extra={"pod": ref.key, "err": error})
            else:
                return True
            break
        self._cache.put_back_rejected(rejected)
        return False
