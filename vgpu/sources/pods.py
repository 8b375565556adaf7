"""One node's pods as the API server knows them: followed by a watch, or from a dump.

The watch costs the API server one list at the start and then what changes on this node
(:mod:`vgpu.kube.informer`). :meth:`PodWatch.sample` only hands out what it has, as long as the
server has lately shown that this is up to date.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Final

import msgspec

from vgpu.facts import ContainerName, PodSummary
from vgpu.kube.documents import Keep, decode_pods
from vgpu.kube.informer import Informer, ListWatcher
from vgpu.kube.objects import MalformedObject, Pod
from vgpu.kube.projection import shares_gpus
from vgpu.model import ContainerKind, PodRef
from vgpu.reasons import Reason, Rejection, SourceError
from vgpu.sources.files import Remembered, printable, read_file

FILE_LIMIT: Final = 64 * 1024 * 1024
"""Bytes; about 9,000 pods. For a larger cluster, dump one node's with a field selector."""

FIRST_LIST_SECONDS: Final = 5.0
"""So long the first sample waits for the first list."""

_SHOWN: Final = 64
"""Characters of a UID that are shown: a mirror pod's is an annotation, of any length."""


class PodSample(msgspec.Struct, frozen=True):
    """The pods of one node, with what they tell of names and phases.

    Attributes:
        pods: each once.
        complete: whether a pod that is not among them is not on the node. A dump may be older
            than a pod.
        names: UID on the node -> pod; a static pod's is not the API server's. Of a UID that several
            pods call theirs nothing is told: whoever makes a pod may call it a static pod's mirror.
        containers: container id -> names.
        statuses: phase and reason of each pod.
        finished: (UID on the node, name) of init containers that have done their work.
        heard_at: when the server last said something, in unix seconds; None of a dump.
        rejections: the UIDs of several pods, and the pods that cannot be read; why the server is
            not heard now, if it is not.
    """

    pods: tuple[Pod, ...]
    complete: bool
    names: Mapping[str, PodRef] = {}
    containers: Mapping[str, ContainerName] = {}
    statuses: tuple[PodSummary, ...] = ()
    finished: frozenset[tuple[str, str]] = frozenset()
    heard_at: float | None = None
    rejections: tuple[Rejection, ...] = ()


def pod_sample(
    pods: Iterable[Pod], *, complete: bool, malformed: Iterable[MalformedObject] = ()
) -> PodSample:
    """What these pods tell; of those that are ``malformed`` it is known that they are there."""
    each = tuple(pods)
    refs: dict[str, list[PodRef]] = {}
    containers: dict[str, ContainerName] = {}
    statuses = []
    finished = set()
    for pod in each:
        ref = PodRef(pod.kubelet_uid, pod.ref.namespace, pod.ref.name)
        refs.setdefault(ref.uid, []).append(ref)
        statuses.append(PodSummary(ref, pod.phase, pod.reason, shares_gpus(pod)))
        for status in pod.statuses:
            if status.id:  # not before the first start
                containers[status.id] = ContainerName(ref.namespace, ref.name, status.name, ref.uid)
            if status.has_succeeded and status.kind is ContainerKind.INIT:
                finished.add((ref.uid, status.name))
    names = {uid: told[0] for uid, told in refs.items() if len(told) == 1}
    unread = tuple(malformed)
    for bad in unread:
        if bad.ref.uid:
            names.setdefault(bad.ref.uid, bad.ref)
    return PodSample(
        each,
        complete and not unread,
        names,
        containers,
        tuple(statuses),
        frozenset(finished),
        rejections=(
            *(_shared(uid, told) for uid, told in refs.items() if len(told) > 1),
            *(Rejection(bad.title, Reason.MALFORMED, bad.detail) for bad in unread),
        ),
    )


def _shared(uid: str, refs: Iterable[PodRef]) -> Rejection:
    first, second, *more = sorted(f"{ref.namespace}/{ref.name}" for ref in refs)
    detail = f"{2 + len(more)} pods have this UID: {first}, {second}{', …' if more else ''}"
    return Rejection(uid[:_SHOWN], Reason.AMBIGUOUS, detail)


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
    content, subject = read_file(path, FILE_LIMIT, follow=True), printable(path)
    page = decode_pods(content, subject, keep=Keep.ALL, node=node)
    if page.total and not page.pods and not page.malformed:
        detail = f"none of its {page.total} pods is on node {node!r} (--node-name)"
        raise SourceError(Reason.ABSENT, subject, detail)
    pods = {pod.ref.uid: pod for pod in page.pods}.values()
    return pod_sample(pods, complete=False, malformed=page.malformed)


# ---------------------------------------------------------------- the watch


class PodWatch:
    """Follows the pods of one node on a thread of its own, from the first sample on."""

    def __init__(
        self,
        api: ListWatcher[Pod],
        subject: str,
        *,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``subject`` is what failures are said of; the rest as of a :class:`Informer`."""
        self._subject = subject
        key = attrgetter("ref.uid")
        self._informer = Informer(api, subject, key=key, pause=pause, clock=clock)
        self._made: tuple[Mapping[str, Pod], tuple[MalformedObject, ...], PodSample] | None = None

    def sample(self, now: float) -> PodSample:
        """The pods as of now; ``now`` is unix seconds. Never asks the server itself.

        Raises SourceError: the last failure, or TIMEOUT, when the server has said nothing for
        ``STALE_SECONDS``; ABSENT when no pod is on the node, which has at least our own.
        """
        if self._informer.start():
            self._informer.wait(FIRST_LIST_SECONDS)
        state = self._informer.state()
        silent, failure = state.silent, state.failure
        if silent is None or not state.synced:
            if failure is not None:
                raise SourceError(failure.reason, failure.subject, failure.detail)
            said = "" if silent is None else f" for {silent:.0f} s"
            raise SourceError(Reason.TIMEOUT, self._subject, f"no answer{said}")
        if not state.objects and not state.malformed:
            detail = "no pod is on this node (--node-name)"
            raise SourceError(Reason.ABSENT, self._subject, detail)
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
