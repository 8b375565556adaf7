"""One node's pods as the API server knows them: followed by a watch, or from a dump.

The watch costs the API server one list at the start and then what changes on this node
(:mod:`vgpu.apiserver.informer`). :meth:`PodWatch.sample` only returns what it has, while
the server has lately shown that this is up to date.
"""

import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final

import msgspec

from vgpu.apiserver.informer import Informer, ListWatcher
from vgpu.kube.documents import Keep
from vgpu.kube.kinds import PODS
from vgpu.model.objects import MalformedObject, Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import count
from vgpu.sources.files import Remembered, printable, read_file
from vgpu.sources.samples import PodSample, pod_sample

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
