"""The API server as the exporter sees it: this node and its pods, failures as a source reports
them.

The only part of the exporter that loads the Kubernetes client; imported when it is switched on.
"""

from functools import partial

from vgpu.kube.client import ApiClient
from vgpu.kube.list_watch import pods_of_node, read_node, translate_errors
from vgpu.sources.own_node import NodeWatch


def watch(kubeconfig: str, node: str) -> NodeWatch:
    """The data about a node, from the server that :meth:`ApiClient.connect` finds.

    Raises SourceError.
    """
    with translate_errors("kubeconfig"):
        server = ApiClient.connect(kubeconfig)
    return NodeWatch(pods_of_node(server, node), partial(read_node, server, node), server.server)
