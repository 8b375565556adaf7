"""This node's pods: followed by a watch, and asked for at once where one is missing.

The kubelet and this watch learn of a pod at the same moment, in any order. So a pod that the watch
has not shown may exist: the plugin asks the API server before it decides that the pod does not.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final

from vgpu.apiserver import list_watch
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.informer import Informer
from vgpu.kube.documents import Keep
from vgpu.model.objects import Pod
from vgpu.model.reasons import SourceError

ASKING_SECONDS: Final = 3.0
"""Maximum time to wait for an answer of the API server, in seconds: the kubelet waits meanwhile."""

_Known = Mapping[str, Pod]
_NONE: Final[_Known] = {}


class Pods:
    """The pods by the UID that the node knows them by. Any thread may ask."""

    def __init__(
        self,
        cluster: ApiClient,
        asked: ApiClient,
        node: str,
        changed: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        """``changed`` is called after every change, ``clock`` returns monotonic seconds.

        ``asked`` is a client of the same server with a time-out of ASKING_SECONDS.
        """
        self._cluster = asked
        self._selector = f"spec.nodeName={node}"
        self._clock = clock
        api = list_watch.pods_of_node(cluster, node)
        self._informer = Informer(api, cluster.server, key=lambda pod: pod.ref.uid, changed=changed)
        self._asking = threading.Lock()
        self._asked: _Known | None = None
        self._asked_at = float("-inf")  # when the request for that answer began
        self._by_uid: tuple[_Known, _Known] = (
            _NONE,
            _NONE,
        )  # by UID, by the node's UID; both at once

    def start(self) -> None:
        """Begin to follow."""
        self._informer.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the first list has come or failed; returns whether that was in time."""
        return self._informer.wait(seconds)

    def close(self) -> None:
        """Stop following."""
        self._informer.close()

    def known(self) -> Mapping[str, Pod] | None:
        """All of the node's pods; None while the API server does not answer."""
        state = self._informer.state()
        if not state.synced or state.malformed:  # one of those may be the pod that is asked for
            return None
        seen, by_uid = self._by_uid
        if state.objects is not seen:
            by_uid = {pod.kubelet_uid: pod for pod in state.objects.values()}
            self._by_uid = state.objects, by_uid
        return by_uid

    def find(self, uid: str) -> Pod | None:
        """One pod, as far as the watch has shown it."""
        return (self.known() or {}).get(uid)

    def ask(self) -> Mapping[str, Pod] | None:
        """All of the node's pods as the API server has them now; None if it does not answer.

        A thread that waits while another one asks gets the next answer, which began later.
        """
        came_at = self._clock()
        with self._asking:
            if self._asked_at < came_at:
                self._asked_at = self._clock()
                self._asked = self._listed()
            return self._asked

    def _listed(self) -> _Known | None:
        try:
            with list_watch.translate_errors(self._cluster.server):
                pages = tuple(self._cluster.pods(keep=Keep.ALL, field_selector=self._selector))
                if any(page.malformed for page in pages):
                    return None
                return {pod.kubelet_uid: pod for page in pages for pod in page.objects}
        except SourceError:
            return None
