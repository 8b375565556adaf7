"""Links from one dashboard to the next with the selected values, and to the runbooks."""

from typing import Final

from grafana.dashboards.model import Link, RunbookLink

_KEEP: Final = "${datasource:queryparam}&${__url_time_range}"
_ITS_CLUSTER: Final = "var-cluster=${__data.fields.Cluster}"
"""The row's cluster, since several clusters may have the same names; empty if there is none."""

NODE: Final = Link(
    "This node", f"/d/vgpu-node?{_KEEP}&{_ITS_CLUSTER}&var-node=${{__data.fields.Node}}"
)
NAMESPACE: Final = Link(
    "Its workloads",
    f"/d/vgpu-workload?{_KEEP}&{_ITS_CLUSTER}&var-namespace=${{__data.fields.Namespace}}",
)
POD: Final = Link(
    "This pod",
    f"/d/vgpu-workload?{_KEEP}&${{cluster:queryparam}}&var-namespace=${{__data.fields.Namespace}}"
    "&var-pod=${__data.fields.Pod}",
)
RECONCILER: Final = Link("What it does", f"/d/vgpu-reconciler?{_KEEP}&${{cluster:queryparam}}")
PLUGIN: Final = Link("What they do", f"/d/vgpu-device-plugin?{_KEEP}&${{cluster:queryparam}}")
RUNBOOKS: Final = RunbookLink("alerts/README")
RULE: Final = RunbookLink("${__field.labels.rule}")


def runbook(alert: str) -> RunbookLink:
    """The runbook of an alert."""
    return RunbookLink(f"alerts/{alert}")
