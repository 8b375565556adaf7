"""Whether the pod that a node lock names can still need it.

The plugin's own watch shows the pods of its node, among them each owner that the kubelet may still
ask for, or that is served or refused. The plugin asks the API server for any other owner by name,
after it has seen the lock. That owner may be a pod that is about to be bound, since its scheduler
takes the lock first; or the successor, of the same name, of a pod that is over. If the API server
knows no such pod, or one that can no longer come here, then no pod needs the lock as it was seen.

The plugin ignores a lock that names no owner or cannot be read.
"""

from collections.abc import Callable
from typing import Final

from deviceplugin.apiserver.desired_state import DesiredState
from vgpu.apiserver.client import ApiClient
from vgpu.kube.documents import Keep
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.schemes.codec import NodeLock

OWNER_SECONDS: Final = 5.0
"""Maximum time to wait for an unknown owner to be bound, in seconds; then the API server is asked
for it."""

AGAIN_SECONDS: Final = 30.0
"""Interval between two questions about one lock, in seconds."""

NEVER: Final = float("inf")


class LockOwners:
    """Finds locks that no pod needs. Used by one thread.

    Attributes:
        due: when the answer may change, in the seconds of ``monotonic``.
    """

    def __init__(
        self,
        cluster: ApiClient,
        locks: Callable[[Node], tuple[NodeLock, ...]],
        monotonic: Callable[[], float],
    ) -> None:
        """``monotonic`` returns seconds that never go back."""
        self._cluster = cluster
        self._locks = locks
        self._monotonic = monotonic
        self._asking = ""  # the text of the lock that is in doubt
        self.due = NEVER

    def needless(self, desired: DesiredState, node: Node) -> str | None:
        """The key of a lock, as it is on ``node``, whose owner is over, gone or elsewhere.

        None if there is no such lock, or it is not known now. Raises ClusterError, SourceError.
        """
        lock, shown = self._in_doubt(desired, node)
        if lock is None or lock.owner is None:
            self._asking, self.due = "", NEVER
            return None
        now = self._monotonic()
        if lock.text != self._asking:
            self._asking, self.due = lock.text, now + (0.0 if shown else OWNER_SECONDS)
        if now < self.due:
            return None
        if not self._can_come(*lock.owner, node.name):
            return lock.key
        self.due = now + AGAIN_SECONDS
        return None

    def _in_doubt(self, desired: DesiredState, node: Node) -> tuple[NodeLock | None, bool]:
        """A lock whose owner holds nothing on the node, and whether the watch shows it as over."""
        for lock in self._locks(node):
            if lock.owner is None or lock.since is None:
                continue
            named = [pod for pod in desired.pods.values() if _name(pod) == lock.owner]
            if not any(map(holds_devices, named)):
                return lock, bool(named)
        return None, False

    def _can_come(self, namespace: str, name: str, node: str) -> bool:
        """Whether there is such a pod that has, or may have, devices of the node.

        An unreadable pod may have.
        """
        pages = self._cluster.pods(
            keep=Keep.ALL, namespace=namespace, field_selector=f"metadata.name={name}"
        )
        return any(
            any(pod.node in ("", node) and holds_devices(pod) for pod in page.objects)
            or any(unread.may_be_on(node) for unread in page.malformed)
            for page in pages
        )


def _name(pod: Pod) -> tuple[str, str]:
    return pod.ref.namespace, pod.ref.name
