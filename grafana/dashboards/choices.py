"""The variables at the top of a dashboard; the default is all values."""

from typing import Final

from grafana.dashboards.model import Variable
from grafana.dashboards.selecting import CLUSTER as IN_CLUSTER
from grafana.promql import named, own_names

_CONTAINERS: Final = f"vgpu_container_info{{{IN_CLUSTER}}}"


def _containers(which: str) -> str:
    return f"vgpu_container_info{{{IN_CLUSTER}, {which}}}"


CLUSTER: Final = Variable(
    "cluster", "Cluster", "label_values(vgpu_snapshot_timestamp_seconds, cluster)", ""
)


def _nodes(info: str) -> str:
    """The targets and names of nodes that there were in the selected time range."""
    seen = f"last_over_time({info}{{{IN_CLUSTER}}}[$__range])"
    return f"query_result(group by (instance, node) ({seen}))"


NODE: Final = Variable(
    "node", "Node", _nodes("vgpu_node_info"), "instance", several=False, shown_as="node"
)
NAMESPACE: Final = Variable(
    "namespace",
    "Namespace",
    f"query_result(group by (namespace) ({named(_CONTAINERS, 'namespace')}))",
    "namespace",
)
TEAM: Final = Variable(
    "team",
    "Team",
    f'label_values(vgpu_reconcile_namespace_info{{{IN_CLUSTER}, team!=""}}, team)',
    "",
)
SCHEME: Final = Variable("scheme", "Sharing system", f"label_values({_CONTAINERS}, scheme)", "")
POD: Final = Variable(
    "pod",
    "Pod",
    f"query_result(group by (pod) ({own_names(_containers, 'pod')}))",
    "pod",
)
PLUGIN_NODE: Final = Variable(
    "node", "Node", _nodes("vgpu_plugin_info"), "instance", shown_as="node"
)
RECONCILER: Final = Variable(
    "reconciler",
    "Reconciler",
    f"label_values(vgpu_reconcile_info{{{IN_CLUSTER}}}, instance)",
    "",
)
SCHEDULER: Final = Variable(
    "scheduler",
    "Scheduler",
    f"label_values(vgpu_extender_ready{{{IN_CLUSTER}}}, instance)",
    "",
)
