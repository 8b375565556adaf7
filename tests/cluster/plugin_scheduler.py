"""A stand-in for the scheduler of a sharing system: it promises GPUs to pods, and binds them.

    with Scheduler(client, namespace, node, promise) as scheduler: ...

Its pods are those with ``schedulerName: stand-in``; ``promise`` gives a pod's annotations. What the
kubelet is to hear all at once is done while it is ``deaf``.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from tests.support.bed.client import Client, Object, Refused
from tests.support.bed.node import Node
from tests.support.bed.processes import Daemon

NAME = "stand-in"

EVERY_SECONDS = 0.2

Promise = Callable[[Object], Mapping[str, str]]


class Scheduler:
    """Serves one namespace while the block lasts."""

    def __init__(self, client: Client, namespace: str, node: Node, promise: Promise) -> None:
        self._client, self._node, self._promise = client, node, promise
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="scheduler")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def waiting(self) -> list[Object]:
        """The pods that no node has yet."""
        return [
            pod
            for pod in self._client.list(self._pods)
            if pod["spec"].get("schedulerName") == NAME and "nodeName" not in pod["spec"]
        ]

    def bind(self, pod: Object) -> None:
        """Promise, then bind."""
        patch = {"metadata": {"annotations": dict(self._promise(pod))}}
        self._client.patch(pod, patch)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {key: pod["metadata"][key] for key in ("name", "namespace")},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self._node.name},
        }
        self._client.raw("POST", self._client.path(pod, "binding"), binding)

    def _serve(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            for pod in self.waiting():
                try:
                    self.bind(pod)
                except Refused as refused:
                    if refused.status not in (404, 409):  # it was deleted meanwhile
                        raise


@contextmanager
def deaf(kubelet: Daemon) -> Iterator[None]:
    """Meanwhile the kubelet does not hear of pods; then of all, in the order in which they came."""
    kubelet.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        kubelet.signal(signal.SIGCONT)
        os.kill(kubelet._process.pid, signal.SIGCONT)  # nsenter stops with its child
