"""Six numbers of the device plugins, for their own dashboard and for that of all nodes."""

from grafana.dashboards import links
from grafana.dashboards.model import NONE_IS_BETTER, NONE_IS_GOOD, GrafanaUnit, Panel, stat
from grafana.dashboards.selecting import or_zero
from grafana.promql import gained
from grafana.settings import PLUGIN

NO_PLUGIN = "no device plugin is scraped"


def refused(selector: str) -> str:
    """Pods that were refused within an hour, by step and reason, with the first one."""
    return gained(f'vgpu_plugin_refusals_total{{{selector}, step="allocate"}}', "1h")


def panels(selector: str) -> tuple[Panel, ...]:
    """The panels of the plugins that ``selector`` selects."""
    return (
        stat(
            "Plugins down",
            "Device plugins that are scrape targets and do not answer.",
            GrafanaUnit.COUNT,
            f"sum(up{{{PLUGIN}, {selector}}} == bool 0)",
            "no scrape job of device plugins, or it has another name",
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuPluginDown"),
        ),
        stat(
            "Plugins not ready",
            "Device plugins that have not recovered allocations, or have not registered all"
            " possible resources.",
            GrafanaUnit.COUNT,
            f"sum(vgpu_plugin_ready{{{selector}}} == bool 0)",
            NO_PLUGIN,
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuPluginNotReady"),
        ),
        stat(
            "Not registered",
            "Resources of nodes that the kubelet does not accept from the plugin now.",
            GrafanaUnit.COUNT,
            f"sum(vgpu_plugin_resource_registered{{{selector}}} == bool 0)",
            "no device plugin is scraped, or none has found GPUs",
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuPluginNotRegistered"),
        ),
        stat(
            "GPUs unhealthy",
            "GPUs of which no new shares are allocated; running containers stay.",
            GrafanaUnit.COUNT,
            f"sum(vgpu_plugin_device_healthy{{{selector}}} == bool 0)",
            "no device plugin is scraped, or none has found GPUs",
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuPluginCardUnhealthy"),
        ),
        stat(
            "Containers that wait",
            "Containers that have devices from the kubelet and cannot start: no share is bound to"
            " them.",
            GrafanaUnit.COUNT,
            or_zero(
                f"sum(vgpu_plugin_unbound_containers{{{selector}}})",
                f"vgpu_plugin_recovered{{{selector}}} == 1",
            ),
            "no device plugin is scraped, or none has recovered allocations yet",
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuPluginUnbound"),
        ),
        stat(
            "Refused pods, 1 h",
            "Pods that failed because the plugin refused the kubelet's request. Counted from the"
            " first: `increase()` would not see it.",
            GrafanaUnit.COUNT,
            or_zero(f"sum({refused(selector)})", f"vgpu_plugin_ready{{{selector}}}"),
            NO_PLUGIN,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuPluginRefusing"),
        ),
    )
