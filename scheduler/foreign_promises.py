"""What other schedulers have reserved for pods that are not bound, until it expires; pure."""

from collections.abc import Sequence

from vgpu.kube.objects import Pod
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import ForeignPromise, foreign_promise


class ForeignPromises:
    """The reservations that count, by ``<namespace>/<name>``. Not for several threads."""

    def __init__(self, schemes: Sequence[SchedulerScheme]) -> None:
        self._schemes = schemes
        self._promises: dict[str, ForeignPromise] = {}
        self._first_read: dict[str, float] = {}

    def read(self, key: str, pod: Pod, now: float) -> ForeignPromise | None:
        """The reservation in the annotations of a pod; None if there is none that counts.

        A pod's later reservations do not prolong its first one. ``now`` is unix seconds.
        """
        first_read = self._first_read.get(pod.ref.uid, now)
        promise = foreign_promise(pod, self._schemes, first_read)
        if promise is None:
            return None
        self._first_read[pod.ref.uid] = first_read
        if promise.until <= now:
            return None
        self._promises[key] = promise
        return promise

    def take(self, key: str) -> ForeignPromise | None:
        """Forget and return a pod's reservation, if one counts."""
        return self._promises.pop(key, None)

    def expired(self, now: float) -> list[str]:
        """The keys of those that have expired."""
        return [key for key, promise in self._promises.items() if promise.until <= now]

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._first_read.pop(uid, None)
