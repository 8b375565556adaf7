"""Whether the pod that a node lock names can still need it.

The plugin's own watch shows the pods of its node: an owner that may still be asked for is among
them, and one that is served or refused as well. Of the others the API server is asked by name,
after the lock has been seen. The owner may be a pod that is about to be bound, for its scheduler
takes the lock before; or the successor, of the same name, of one that is over. If the API server
knows no such pod, or one that cannot come here any more, then nobody needs the lock as it was seen.

A lock that names nobody, or cannot be read, is none of ours.
"""

from collections.abc import Callable
from typing import Final

from deviceplugin.apiserver.desired_state import DesiredState
from vgpu.kube.client import ApiClient
from vgpu.kube.documents import Keep
from vgpu.kube.objects import Node, Pod, holds_devices
from vgpu.schemes.codec import NodeLock

OWNER_SECONDS: Final = 5.0
"""Maximum time to wait for an unknown owner to be bound, in seconds; then it is asked for."""

AGAIN_SECONDS: Final = 30.0
"""Interval between two questions about one lock, in seconds."""

NEVER: Final = float("inf")


class LockOwners:
    """One thread asks.

    Attributes:
        due: when there may be another answer, in the seconds of ``monotonic``.
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

    def needless(self, look: DesiredState, node: Node) -> str | None:
        """The key of a lock, as it is on ``node``, whose owner is over, gone or elsewhere.

        None if there is none, or that is not known now. Raises ClusterError, SourceError.
        """
        lock, shown = self._in_doubt(look, node)
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

    def _in_doubt(self, look: DesiredState, node: Node) -> tuple[NodeLock | None, bool]:
        """A lock whose owner holds nothing on the node, and whether it is shown, as over."""
        for lock in self._locks(node):
            if lock.owner is None or lock.since is None:
                continue
            named = [one for one in look.pods.values() if _name(one) == lock.owner]
            if not any(map(holds_devices, named)):
                return lock, bool(named)
        return None, False

    def _can_come(self, namespace: str, name: str, node: str) -> bool:
        """Whether there is such a pod that has, or may have, devices of the node.

        One that cannot be read may.
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
