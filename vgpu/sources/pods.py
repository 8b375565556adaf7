"""One node at the API server: its pods, from a dump or followed by a watch, and its own object.

The watch costs the API server one list at the start and then what changes on this node
(:mod:`vgpu.apiserver.informer`). :meth:`PodWatch.sample` only returns what it has, while
the server has lately shown that this is up to date.

The node's object reports how much of each GPU the node's plugins have registered. It is read when
the pods are listed and whenever their watch is opened again, which is every few minutes; after a
failure that may pass, also with an event a minute later. It is not watched: the registered amounts
change rarely, while plugins write the object every half minute. A refusal is a rejection and no
failure: the pods are useful without the node.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from vgpu.apiserver.informer import Informer, ListWatcher
from vgpu.kube.documents import Keep, WatchEvent
from vgpu.kube.kinds import PODS
from vgpu.model.objects import MalformedObject, Node, Pod
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.model.units import count
from vgpu.sources.files import Remembered, printable, read_file
from vgpu.sources.samples import NodeSample, PodSample, pod_sample, with_node

FILE_LIMIT: Final = 64 * 1024 * 1024
"""Maximum size in bytes; about 9,000 pods. Larger clusters: dump one node with a field selector."""

FIRST_LIST_SECONDS: Final = 5.0
"""Maximum time for which the first sample waits for the first list, in seconds."""

# ---------------------------------------------------------------- a dump


class PodFile:
    """A dump of ``kubectl get pods -A -o json``, read again when it changes.

    For nodes without access to the API server, and for tests.
    """

    def __init__(self, path: str, node: str = "") -> None:
        """Only pods bound to ``node`` count, of any node if it is ""."""
        self._file = Remembered(path, lambda path: _load(path, node))

    def sample(self, now: float) -> PodSample:
        """The pods; ``now`` is unix seconds.

        Raises SourceError: what reading a file can be; MALFORMED; ABSENT if there are pods, but
        none is on the node.
        """
        return self._file.get(now)


def _load(path: str, node: str) -> PodSample:
    # A ConfigMap's files are symlinks, and this path is the operator's own.
    content, object_name = read_file(path, FILE_LIMIT, follow=True), printable(path)
    page = PODS.page(content, object_name, keep=Keep.ALL, node=node)
    if page.total and not page.objects and not page.malformed:
        detail = f"it has {count(page.total, 'pod')}, none of them on node {node!r} (--node-name)"
        raise SourceError(Reason.ABSENT, object_name, detail)
    pods = {pod.ref.uid: pod for pod in page.objects}.values()
    return pod_sample(pods, complete=False, malformed=page.malformed)


# ---------------------------------------------------------------- the watch


class PodWatch:
    """Follows the pods of one node on a thread of its own, from the first sample on."""

    def __init__(
        self,
        api: ListWatcher[Pod],
        object_name: str,
        *,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``object_name`` is the object of failures; the rest as of a :class:`Informer`."""
        self._object_name = object_name
        key = attrgetter("ref.uid")
        self._informer = Informer(api, object_name, key=key, pause=pause, clock=clock)
        self._made: tuple[Mapping[str, Pod], tuple[MalformedObject, ...], PodSample] | None = None

    def sample(self, now: float) -> PodSample:
        """The pods as of now; ``now`` is unix seconds. Never asks the server itself.

        Raises SourceError: the last failure, or TIMEOUT, when the server has sent nothing for
        ``STALE_SECONDS``; ABSENT when no pod is on the node, which has at least our own.
        """
        if self._informer.start():
            self._informer.wait(FIRST_LIST_SECONDS)
        state = self._informer.state()
        silent, failure = state.silent, state.failure
        if silent is None or not state.synced:
            if failure is not None:
                raise SourceError(failure.reason, failure.object_name, failure.detail)
            duration = "" if silent is None else f" for {silent:.0f} s"
            raise SourceError(Reason.TIMEOUT, self._object_name, f"no answer{duration}")
        if not state.objects and not state.malformed:
            detail = "no pod is on this node (--node-name)"
            raise SourceError(Reason.ABSENT, self._object_name, detail)
        made = self._made
        if made is None or made[0] is not state.objects or made[1] != state.malformed:
            pods = state.objects.values()
            sample = pod_sample(pods, complete=True, malformed=state.malformed)
            made = self._made = state.objects, state.malformed, sample
        return msgspec.structs.replace(
            made[2],
            heard_at=now - silent,
            rejections=(*made[2].rejections, *((failure.rejection(),) if failure else ())),
        )

    def close(self) -> None:
        """Follow no longer; a read under way is left to itself."""
        self._informer.close()


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
        self._api = NodeListWatcher(pods, read, clock)
        self._watch = PodWatch(self._api, object_name)

    def sample(self, now: float) -> NodeSample:
        """Pods and node as of now; ``now`` is unix seconds. Raises as :meth:`PodWatch.sample`."""
        pods, node = self._watch.sample(now), self._api.last_read
        return with_node(pods, node.node, node.rejections)

    def close(self) -> None:
        """Follow no longer; a read under way is left to itself."""
        self._watch.close()


class _NodeRead(msgspec.Struct, frozen=True):
    """The node as it was last read, and why it could not be read since."""

    node: Node | None = None
    rejections: tuple[Rejection, ...] = ()


class NodeListWatcher:
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
        """The pods and their version; the node is read as well."""
        pods, self._listed = self._pods.list()
        self._look()
        return pods, self._listed

    def watch(
        self, version: str, opened: Callable[[], object] = lambda: None
    ) -> Iterator[WatchEvent[Pod]]:
        """The pods' events; the node is read again while a failure may pass."""
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
