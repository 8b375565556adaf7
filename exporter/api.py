"""The API server as the exporter sees it: this node and its pods, failures as a source reports
them.

The only part of the exporter that loads the Kubernetes client; imported when it is switched on.
"""

from collections.abc import Callable
from functools import partial

from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.list_watch import pods_of_node, read_node, translate_errors
from vgpu.model.facts import KubeletSample
from vgpu.sources.pods import NodeWatch
from vgpu.sources.resource_claims import ResourceClaimSource


def connect(kubeconfig: str) -> ApiClient:
    """The server that :meth:`ApiClient.connect` finds. Raises SourceError."""
    with translate_errors("kubeconfig"):
        return ApiClient.connect(kubeconfig)


def watch(server: ApiClient, node: str) -> NodeWatch:
    """The data about a node and its pods."""
    return NodeWatch(pods_of_node(server, node), partial(read_node, server, node), server.server)


def resource_claims(
    server: ApiClient, node: str, kubelet: Callable[[], KubeletSample | None]
) -> ResourceClaimSource:
    """The ResourceClaims of a node; ``kubelet`` returns the kubelet's newest sample."""
    return ResourceClaimSource(server, node, kubelet)
