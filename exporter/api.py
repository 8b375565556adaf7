"""The API server as the exporter sees it: this node and its pods, failures as a source tells them.

The only part of the exporter that loads the Kubernetes client; imported when it is switched on.
"""

from functools import partial

from vgpu.cluster import Cluster
from vgpu.cluster.followed import pods_of_node, read_node, told
from vgpu.sources.own_node import NodeWatch


def watch(kubeconfig: str, node: str) -> NodeWatch:
    """What is told of a node, by the server that :meth:`Cluster.connect` finds.

    Raises SourceError.
    """
    with told("kubeconfig"):
        server = Cluster.connect(kubeconfig)
    return NodeWatch(pods_of_node(server, node), partial(read_node, server, node), server.server)
