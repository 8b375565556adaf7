"""The API server: pages and watches of pods, nodes and SharePods, and the product's few writes.

=============== =================================================================================
access          how one server is reached, and as whom: a value
configured      which one is meant
service_account access as the pod that this runs in
kubeconfig      access by a kubeconfig; alone imports the official client
connection      the way there: requests, refusals
paths           where the kinds live
reads           lists, watches and single objects, decoded by :mod:`vgpu.kube_json`
bodies          what is sent by the writes; pure
writes          :class:`Cluster`: evictions, annotations, ConfigMaps, Leases, Events
followed        a kind as :mod:`vgpu.sources.mirror` follows it, failures told as a source's
=============== =================================================================================

The client's models cost a hundred times as much a pod as ours, and differ between its releases.
"""

from vgpu.cluster.connection import ClusterError
from vgpu.cluster.writes import Cluster

__all__ = ["Cluster", "ClusterError"]
