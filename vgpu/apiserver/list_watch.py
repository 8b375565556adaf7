"""One kind at the API server, for :mod:`vgpu.apiserver.informer` to follow.

Its failures are those of every source: :class:`~vgpu.model.reasons.SourceError` with a reason code,
or :class:`~vgpu.kube.documents.Expired` if a new list repairs it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from vgpu.apiserver.connection import GONE, NOT_FOUND, ClusterError
from vgpu.apiserver.reader import PAGE_SIZE, Reader
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.documents import Expired, Keep, ObjectPage, WatchEvent
from vgpu.kube.kinds import (
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    SHARE_PODS,
)
from vgpu.model.objects import MalformedObject, Namespace, Node, Pod, ResourceQuota
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import ResourceClaim, ResourceSlice

REASONS: Final[Mapping[int | str, Reason]] = {
    "NoConfiguration": Reason.ABSENT,
    "Unreachable": Reason.UNREACHABLE,
    401: Reason.FORBIDDEN,
    403: Reason.FORBIDDEN,
    404: Reason.ABSENT,
    429: Reason.RATE_LIMITED,
    502: Reason.UNREACHABLE,  # from a proxy in front of the server
    503: Reason.UNREACHABLE,
    504: Reason.TIMEOUT,
}
"""By HTTP status, or by the client's reason if there was no answer; others are UNREADABLE."""

_Object = TypeVar("_Object")


class ListWatch(Generic[_Object]):
    """The list and watch of a kind; a :class:`~vgpu.apiserver.informer.ListWatcher`."""

    def __init__(
        self,
        server: Reader,
        kind: ApiKind[_Object],
        *,
        keep: Keep = Keep.ALL,
        resource_version: str = "",
        **selectors: str,
    ) -> None:
        """``keep`` and ``resource_version`` are those of the list, as in :class:`Reader`.

        Events are of every object; the informer drops objects that are not kept.
        """
        self.object_name = server.server
        """The source that errors name."""
        self._server = server
        self._kind = self._served = kind
        self._keep = keep
        self._resource_version = resource_version
        self._selectors = selectors

    def list(self) -> tuple[list[_Object | MalformedObject], str]:
        """All objects, and the version to watch from, "" if there is no such kind.

        Raises SourceError, or Expired.
        """
        for kind in self._kind.in_each_version():
            listed: list[_Object | MalformedObject] = []
            version = ""
            with translate_errors(self.object_name, GONE):
                try:
                    for page in self._pages(kind):
                        listed += (*page.objects, *page.malformed)
                        # Of the first page: if a token expired, later pages have a later version.
                        version = version or page.resource_version
                except ClusterError as error:
                    if not (kind.optional and error.status == NOT_FOUND):
                        raise
                    continue
            self._served = kind
            return listed, version
        return [], ""

    def _pages(self, kind: ApiKind[_Object]) -> Iterator[ObjectPage[_Object]]:
        return self._server.pages(
            kind,
            keep=self._keep,
            resource_version=self._resource_version,
            limit=PAGE_SIZE,
            ahead=False,
            **self._selectors,
        )

    def watch(
        self, version: str, opened: Callable[[], object] = lambda: None
    ) -> Iterator[WatchEvent[_Object]]:
        """Every event and bookmark from ``version`` on. Raises SourceError, or Expired.

        ``opened`` is called when the server has accepted the watch, before the first event.
        """
        with translate_errors(self.object_name, GONE, NOT_FOUND):  # a kind may be withdrawn
            yield from self._server.watch(self._served, version, opened, **self._selectors)


def pods(server: Reader, *, keep: Keep = Keep.SHARING) -> ListWatch[Pod]:
    """The pods of a whole cluster: page by page, of the newest state."""
    return ListWatch(server, PODS, keep=keep)


def pods_of_node(server: Reader, node: str) -> ListWatch[Pod]:
    """One node's pods, including those without a shared GPU, which show who is alive.

    The list is from the API server's cache, as the kubelet requests it: thousands of nodes ask, and
    no request should make etcd read every pod of the cluster.
    """
    return ListWatch(server, PODS, resource_version="0", field_selector=f"spec.nodeName={node}")


def read_node(server: Reader, name: str) -> Node:
    """One node in its current state. Raises SourceError."""
    with translate_errors(f"node {name}"):
        return server.node(name)


def node(server: Reader, name: str) -> ListWatch[Node]:
    """One node alone, from the API server's cache, like its pods."""
    return ListWatch(server, NODES, resource_version="0", field_selector=f"metadata.name={name}")


def nodes(server: Reader) -> ListWatch[Node]:
    """All nodes."""
    return ListWatch(server, NODES)


def namespaces(server: Reader) -> ListWatch[Namespace]:
    """All Namespaces."""
    return ListWatch(server, NAMESPACES)


def resource_quotas(server: Reader) -> ListWatch[ResourceQuota]:
    """All ResourceQuotas."""
    return ListWatch(server, RESOURCE_QUOTAS)


def resource_claims(server: Reader) -> ListWatch[ResourceClaim]:
    """All ResourceClaims; there are none where the server does not have the kind."""
    return ListWatch(server, RESOURCE_CLAIMS)


def resource_slices(server: Reader) -> ListWatch[ResourceSlice]:
    """All ResourceSlices; there are none where the server does not have the kind."""
    return ListWatch(server, RESOURCE_SLICES)


def sharepods(server: Reader) -> ListWatch[Pod]:
    """KubeShare's SharePods; there are none where it is not installed."""
    return ListWatch(server, SHARE_PODS)


@contextmanager
def translate_errors(object_name: str, *recoverable: int) -> Iterator[None]:
    """Raise the client's errors as a source's: Expired where the status is ``recoverable``."""
    try:
        yield
    except ClusterError as error:
        kind = Expired if error.status in recoverable else SourceError
        reason = REASONS.get(error.status or error.reason, Reason.UNREADABLE)
        raise kind(reason, object_name, str(error)) from error
