"""What an explanation needs of a cluster's objects, by the very code of the programs.

Placements and quotas are answers of the scheduler's cache, filled with these objects; findings are
those of the reconciler's rules. Only the objects near the explained one are judged: a whole cluster
would take seconds.
"""

from vgpu.model.objects import Node, Pod
from vgpucli.explain.known_cluster import KnownCluster
from vgpucli.explain.known_objects import KnownNode, KnownPod
from vgpucli.explain.node_evidence import node_evidence
from vgpucli.explain.pod_evidence import pod_evidence


class ClusterEvidence(KnownCluster):
    """A cluster's objects, and what is known of one pod or node by all of them."""

    def of_pod(self, pod: Pod) -> KnownPod:
        """What is known about the pod."""
        return pod_evidence(self, pod)

    def of_node(self, node: Node) -> KnownNode:
        """What is known about the node."""
        return node_evidence(self, node)
