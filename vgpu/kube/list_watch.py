"""One kind at the API server as :mod:`vgpu.kube.informer` follows it.

Its failures are told as every source's: a :class:`~vgpu.reasons.SourceError` with a reason code,
or :class:`~vgpu.kube.documents.Expired` where a list mends it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from vgpu.kube.connection import GONE, NOT_FOUND, ClusterError
from vgpu.kube.documents import Expired, Keep, NodePage, PodPage, WatchEvent
from vgpu.kube.objects import MalformedObject, Node, Pod
from vgpu.kube.reader import Reader
from vgpu.reasons import Reason, SourceError

REASONS: Final[Mapping[int | str, Reason]] = {
    "NoConfiguration": Reason.ABSENT,
    "Unreachable": Reason.UNREACHABLE,
    401: Reason.FORBIDDEN,
    403: Reason.FORBIDDEN,
    404: Reason.ABSENT,
    429: Reason.RATE_LIMITED,
    502: Reason.UNREACHABLE,  # said by what stands in front of the server
    503: Reason.UNREACHABLE,
    504: Reason.TIMEOUT,
}
"""HTTP status, or the client's word where there was no answer; others are UNREADABLE."""

_Object = TypeVar("_Object")
_Listed = Iterator[tuple[Iterable[_Object | MalformedObject], str]]


class ListWatch(Generic[_Object]):
    """A kind, to be listed and watched; a :class:`~vgpu.kube.informer.ListWatcher`."""

    def __init__(
        self,
        subject: str,
        pages: Callable[[], _Listed[_Object]],
        watch: Callable[[str], Iterator[WatchEvent[_Object]]],
        *,
        optional: bool = False,
    ) -> None:
        """``subject`` is what failures are said of.

        ``pages`` gives objects and resource version page by page. An ``optional`` kind may be
        unknown to the server.
        """
        self.subject = subject
        self._pages = pages
        self._watch = watch
        self._optional = optional

    def list(self) -> tuple[list[_Object | MalformedObject], str]:
        """All of them, and the version to watch from; "" where there is no such kind.

        Raises SourceError, or Expired.
        """
        found: list[_Object | MalformedObject] = []
        version = ""
        with translate_errors(self.subject, GONE):
            try:
                for objects, page_version in self._pages():
                    found += objects
                    # The first page's: where a token expired, later pages are of a later time.
                    version = version or page_version
            except ClusterError as error:
                if not (self._optional and error.status == NOT_FOUND):
                    raise
                return [], ""
        return found, version

    def watch(self, version: str) -> Iterator[WatchEvent[_Object]]:
        """Every event and bookmark from ``version`` on. Raises SourceError, or Expired."""
        with translate_errors(self.subject, GONE, NOT_FOUND):  # a kind may be withdrawn
            yield from self._watch(version)


def pods(server: Reader, *, keep: Keep = Keep.SHARING) -> ListWatch[Pod]:
    """The pods of a whole cluster: page by page, of the newest state.

    Events come of every pod; it is the mirror's to drop those that share no GPU.
    """
    return ListWatch(
        server.server,
        lambda: map(_pods, server.pods(keep=keep)),
        server.watch_pods,
    )


def pods_of_node(server: Reader, node: str) -> ListWatch[Pod]:
    """One node's pods. Those that share no GPU too: they tell who is alive.

    The list is what the API server itself remembers, as the kubelet asks for it: thousands of nodes
    ask, and none of them is to cost etcd a look at every pod of the cluster.
    """
    chosen = f"spec.nodeName={node}"
    return ListWatch(
        server.server,
        lambda: map(_pods, server.pods(keep=Keep.ALL, resource_version="0", field_selector=chosen)),
        lambda version: server.watch_pods(version, field_selector=chosen),
    )


def read_node(server: Reader, name: str) -> Node:
    """One node, now. Raises SourceError."""
    with translate_errors(f"node {name}"):
        return server.node(name)


def node(server: Reader, name: str) -> ListWatch[Node]:
    """One node alone; as with its pods, from what the API server itself remembers."""
    chosen = f"metadata.name={name}"
    return ListWatch(
        server.server,
        lambda: map(_nodes, server.node_pages(resource_version="0", field_selector=chosen)),
        lambda version: server.watch_nodes(version, field_selector=chosen),
    )


def nodes(server: Reader) -> ListWatch[Node]:
    """All nodes."""
    return ListWatch(
        server.server,
        lambda: map(_nodes, server.node_pages()),
        server.watch_nodes,
    )


def sharepods(server: Reader) -> ListWatch[Pod]:
    """KubeShare's SharePods; there are none where it is not installed."""
    return ListWatch(
        server.server,
        lambda: map(_pods, server.sharepod_pages()),
        server.watch_sharepods,
        optional=True,
    )


def _pods(page: PodPage) -> tuple[Sequence[Pod | MalformedObject], str]:
    return (*page.pods, *page.malformed), page.resource_version


def _nodes(page: NodePage) -> tuple[Sequence[Node | MalformedObject], str]:
    return (*page.nodes, *page.malformed), page.resource_version


@contextmanager
def translate_errors(subject: str, *mended: int) -> Iterator[None]:
    """Tell the client's errors as a source's: Expired where the status is one of ``mended``."""
    try:
        yield
    except ClusterError as error:
        kind = Expired if error.status in mended else SourceError
        reason = REASONS.get(error.status or error.reason, Reason.UNREADABLE)
        raise kind(reason, subject, str(error)) from error
