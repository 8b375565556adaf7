"""The API server as the pod watch sees it: this node's pods, and failures as a source tells them.

The only part of the exporter that loads the Kubernetes client; imported when it is switched on.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Self

from vgpu.cluster import Cluster, ClusterError
from vgpu.kube import Pod
from vgpu.kube_json import Event, Keep
from vgpu.reasons import Reason, SourceError
from vgpu.sources.pods import Expired

GONE: Final = 410

REASONS: Final[Mapping[int | str, Reason]] = {
    "NoConfiguration": Reason.ABSENT,
    "Unreachable": Reason.UNREACHABLE,
    401: Reason.FORBIDDEN,
    403: Reason.FORBIDDEN,
    429: Reason.RATE_LIMITED,
    504: Reason.TIMEOUT,
}
"""HTTP status, or the client's word where there was no answer; others are UNREADABLE."""


class NodePods:
    """One node's pods; a :class:`~vgpu.sources.pods.PodApi`."""

    def __init__(self, server: Cluster, node: str) -> None:
        """Ask ``server`` about ``node``."""
        self._server = server
        self._selector = {"field_selector": f"spec.nodeName={node}"}
        self.subject = server.server

    @classmethod
    def connect(cls, kubeconfig: str, node: str) -> Self:
        """As :meth:`Cluster.connect` finds the server. Raises SourceError."""
        with _told("kubeconfig"):
            return cls(Cluster.connect(kubeconfig), node)

    def list(self) -> tuple[Sequence[Pod], str]:
        """All pods, and the version that the list is of: what came after is watched.

        Pods that share no GPU too: they tell who is alive.
        """
        pods: list[Pod] = []
        version = ""
        with _told(self.subject):
            for page in self._server.pods(keep=Keep.ALL, **self._selector):
                pods += page.pods
                version = version or page.resource_version
        return pods, version

    def watch(self, version: str) -> Iterator[Event]:
        """Every event and bookmark from ``version`` on."""
        with _told(self.subject):
            yield from self._server.watch_pods(version, **self._selector)


@contextmanager
def _told(subject: str) -> Iterator[None]:
    """Tell the client's errors as a source's."""
    try:
        yield
    except ClusterError as error:
        kind = Expired if error.status == GONE else SourceError
        raise kind(
            REASONS.get(error.status or error.reason, Reason.UNREADABLE), subject, str(error)
        ) from error
