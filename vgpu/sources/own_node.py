"""One node at the API server: its pods, followed by a watch, and beside them its own object.

The object reports how much of each GPU the node's plugins have registered. It is read when the pods
are listed and whenever their watch is opened again, which is every few minutes; after a
failure that may pass, also with an event a minute later. It is not watched: the registered amounts
change rarely, while plugins write the object every half minute. A refusal is a rejection and no
failure: the pods are useful without the node.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from vgpu.apiserver.informer import ListWatcher
from vgpu.kube.documents import WatchEvent
from vgpu.model.objects import MalformedObject, Node, Pod
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.sources.pods import PodWatch
from vgpu.sources.samples import NodeSample, with_node

RETRY_SECONDS: Final = 60.0
"""Minimum interval between two attempts to read the node after a failure, in seconds."""


class NodeWatch:
    """Follows a node's pods as :class:`PodWatch` does, and knows the node's object."""

    def __init__(
        self,
        pods: ListWatcher[Pod],
        read: Callable[[], Node],
        object_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pods`` are the node's, ``read`` asks for the node and raises SourceError.

        ``object_name`` is the object of the watch's failures; ``clock`` returns seconds.
        """
        self._both = _Both(pods, read, clock)
        self._watch = PodWatch(self._both, object_name)

    def sample(self, now: float) -> NodeSample:
        """Pods and node as of now; ``now`` is unix seconds. Raises as :meth:`PodWatch.sample`."""
        pods, node = self._watch.sample(now), self._both.last_read
        return with_node(pods, node.node, node.rejections)

    def close(self) -> None:
        """Follow no longer; a read under way is left to itself."""
        self._watch.close()


class _NodeRead(msgspec.Struct, frozen=True):
    """The node as it was last read, and why it could not be read since."""

    node: Node | None = None
    rejections: tuple[Rejection, ...] = ()


class _Both:
    """The pods' API, which also reads the node; one thread calls it, any may read its result."""

    def __init__(
        self, pods: ListWatcher[Pod], read: Callable[[], Node], clock: Callable[[], float]
    ) -> None:
        self._pods = pods
        self._read = read
        self._clock = clock
        self._looked_at = 0.0
        self._listed = ""
        self.last_read = _NodeRead()

    def list(self) -> tuple[Sequence[Pod | MalformedObject], str]:
        pods, self._listed = self._pods.list()
        self._look()
        return pods, self._listed

    def watch(
        self, version: str, opened: Callable[[], object] = lambda: None
    ) -> Iterator[WatchEvent[Pod]]:
        if version != self._listed:  # else it was read just now
            self._look()
        for event in self._pods.watch(version, opened):
            if self._may_pass() and self._clock() - self._looked_at >= RETRY_SECONDS:
                self._look()
            yield event

    def _may_pass(self) -> bool:
        """Whether the node could not be read for a reason that may be over by now."""
        return any(
            rejection.reason is not Reason.FORBIDDEN for rejection in self.last_read.rejections
        )

    def _look(self) -> None:
        self._looked_at = self._clock()
        try:
            self.last_read = _NodeRead(self._read())
        except SourceError as error:
            self.last_read = _NodeRead(self.last_read.node, (error.rejection(),))
