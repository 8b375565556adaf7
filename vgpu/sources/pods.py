"""One node's pods as the API server knows them: followed by a watch, or from a dump.

The watch costs the API server one list at the start and then what changes on this node. Its thread
alone talks to the server; :meth:`PodWatch.sample` only hands out what that thread has, as long as
the server has lately shown that it is up to date.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from vgpu.facts import ContainerName, PodStatus
from vgpu.kube import ContainerState, Pod
from vgpu.kube_json import Event, EventType, Keep, decode_pods
from vgpu.kube_projection import shares_gpus
from vgpu.model import ContainerKind, PodRef
from vgpu.reasons import Reason, Rejection, SourceError
from vgpu.sources.files import Remembered, printable, read_file

log = logging.getLogger(__name__)

FILE_LIMIT: Final = 64 * 1024 * 1024
"""Bytes; about 9,000 pods. For a larger cluster, dump one node's with a field selector."""

STALE_SECONDS: Final = 180.0
"""What the server last said counts so long: it sends a bookmark about every minute."""

FIRST_LIST_SECONDS: Final = 5.0
"""So long the first sample waits for the first list."""

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0

_COMPLETED: Final = "Completed"
"""The kubelet's reason for a container that ended with exit code 0."""


class PodSample(msgspec.Struct, frozen=True):
    """The pods of one node, with what they tell of names and phases.

    Attributes:
        pods: each once.
        complete: whether a pod that is not among them is not on the node. A dump may be older
            than a pod.
        names: UID on the node -> pod; a static pod's is not the API server's.
        containers: container id -> names.
        statuses: phase and reason of each pod.
        finished: (UID on the node, name) of init containers that have done their work.
        heard_at: when the server last said something, in unix seconds; None of a dump.
        rejections: why it is not heard now, if it is not.
    """

    pods: tuple[Pod, ...]
    complete: bool
    names: Mapping[str, PodRef] = {}
    containers: Mapping[str, ContainerName] = {}
    statuses: tuple[PodStatus, ...] = ()
    finished: frozenset[tuple[str, str]] = frozenset()
    heard_at: float | None = None
    rejections: tuple[Rejection, ...] = ()


def pod_sample(pods: Iterable[Pod], *, complete: bool) -> PodSample:
    """What these pods tell."""
    each = tuple(pods)
    names: dict[str, PodRef] = {}
    containers: dict[str, ContainerName] = {}
    statuses = []
    finished = set()
    for pod in each:
        ref = PodRef(pod.kubelet_uid, pod.ref.namespace, pod.ref.name)
        names[ref.uid] = ref
        statuses.append(PodStatus(ref, pod.phase, pod.reason, shares_gpus(pod)))
        for status in pod.statuses:
            if status.id:  # not before the first start
                containers[status.id] = ContainerName(ref.namespace, ref.name, status.name, ref.uid)
            ended = status.state is ContainerState.TERMINATED and status.reason == _COMPLETED
            if ended and status.kind is ContainerKind.INIT:
                finished.add((ref.uid, status.name))
    return PodSample(each, complete, names, containers, tuple(statuses), frozenset(finished))


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
    if page.total and not page.pods:
        detail = f"none of its {page.total} pods is on node {node!r} (--node-name)"
        raise SourceError(Reason.ABSENT, subject, detail)
    return pod_sample({pod.ref.uid: pod for pod in page.pods}.values(), complete=False)


# ---------------------------------------------------------------- the watch


class Expired(SourceError):  # noqa: N818  # it is what happened, and no fault of anybody's
    """The version to watch from is too old for the server: the pods have to be listed anew."""


class PodApi(Protocol):
    """The API server, asked for all pods of one node. Both raise SourceError, or Expired."""

    def list(self) -> tuple[Sequence[Pod], str]:
        """The pods, and the resource version to watch from."""
        ...

    def watch(self, version: str) -> Iterator[Event]:
        """What happens from ``version`` on, until the server ends it."""
        ...


class PodWatch:
    """Follows the pods on a thread of its own, from the first sample on."""

    def __init__(
        self,
        api: PodApi,
        subject: str,
        *,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``subject`` is what failures are said of.

        ``pause`` waits so many seconds, and less when the watch is closed; ``clock`` tells seconds
        that never go back.
        """
        self._api = api
        self._subject = subject
        self._stop = threading.Event()
        self._pause = pause or self._stop.wait
        self._clock = clock
        self._lock = threading.Lock()
        self._listed = threading.Event()
        self._pods: dict[str, Pod] = {}
        self._made: PodSample | None = None
        self._heard: float | None = None
        self._failure: SourceError | None = None
        self._attempts = 0
        self._thread = threading.Thread(target=self._follow, name="api-watch", daemon=True)

    def sample(self, now: float) -> PodSample:
        """The pods as of now; ``now`` is unix seconds. Never asks the server itself.

        Raises SourceError: the last failure, or TIMEOUT, when the server has said nothing for
        ``STALE_SECONDS``; ABSENT when no pod is on the node, which has at least our own.
        """
        if self._thread.ident is None:
            self._thread.start()
            self._listed.wait(FIRST_LIST_SECONDS)
        with self._lock:
            heard, failure = self._heard, self._failure
            silent = None if heard is None else self._clock() - heard
            if silent is None or silent > STALE_SECONDS:
                if failure is not None:
                    raise SourceError(failure.reason, failure.subject, failure.detail)
                said = "" if silent is None else f" for {silent:.0f} s"
                raise SourceError(Reason.TIMEOUT, self._subject, f"it has said nothing{said}")
            if not self._pods:
                detail = "no pod is on this node (--node-name)"
                raise SourceError(Reason.ABSENT, self._subject, detail)
            if self._made is None:
                self._made = pod_sample(self._pods.values(), complete=True)
            return msgspec.structs.replace(
                self._made,
                heard_at=now - silent,
                rejections=(failure.rejection(),) if failure else (),
            )

    def close(self) -> None:
        """Follow no longer; a read under way is left to itself."""
        self._stop.set()

    # ------------------------------------------------------------ the thread's side

    def _follow(self) -> None:
        version = ""
        while not self._stop.is_set():
            try:
                version = version or self._list()
                for event in self._api.watch(version):
                    version = event.resource_version or version
                    self._hear(event)
                    if self._stop.is_set():
                        return
                # The server ends every watch after some minutes; one that never said a word
                # must not be opened again without end.
                self._attempts += 1
            except SourceError as error:
                if isinstance(error, Expired) or error.reason is Reason.MALFORMED:
                    version = ""
                self._fail(error)
            except Exception:
                log.exception("following the API server failed on a defect")
                version = ""
                self._fail(SourceError(Reason.INTERNAL, self._subject))
            if self._attempts:
                self._pause(pause_seconds(self._attempts, random.random()))  # noqa: S311  # jitter

    def _list(self) -> str:
        pods, version = self._api.list()
        with self._lock:
            self._pods = {pod.ref.uid: pod for pod in pods}
            self._made = None
            self._note()
        self._listed.set()
        return version

    def _hear(self, event: Event) -> None:
        pod = event.pod
        with self._lock:
            if pod is not None:
                if event.type is EventType.DELETED:
                    self._pods.pop(pod.ref.uid, None)
                else:
                    self._pods[pod.ref.uid] = pod
                self._made = None
            self._attempts = 0
            self._note()

    def _note(self) -> None:
        """The server has answered: what failed before is over."""
        if self._failure is not None:
            log.info("the API server answers again")
        self._heard, self._failure = self._clock(), None

    def _fail(self, error: SourceError) -> None:
        self._attempts += 1
        with self._lock:
            if not isinstance(error, Expired):  # a list will mend that
                self._failure = error
        self._listed.set()  # a first sample need not wait any longer


def pause_seconds(attempts: int, luck: float) -> float:
    """How long to wait after so many failures in a row; ``luck`` is uniform in 0..1.

    Full jitter: so that the exporters of a cluster do not come back all at once.
    """
    doublings = min(attempts - 1, 16)
    return luck * min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * (1 << doublings))
