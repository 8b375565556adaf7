"""The device plugins: advertised resources, answers to the kubelet, waiting containers."""

from typing import Final

from grafana.dashboards import choices, links, plugin_summary
from grafana.dashboards.api_requests import api_requests
from grafana.dashboards.model import (
    NONE_IS_BETTER,
    NONE_IS_GOOD,
    Colour,
    Column,
    Dashboard,
    GrafanaUnit,
    PanelQuery,
    PanelRow,
    TablePanel,
    bars,
    graph,
)
from grafana.dashboards.plugin_summary import NO_PLUGIN, refused
from grafana.dashboards.selecting import NODE, or_zero
from grafana.promql import PLUGIN_TARGET
from grafana.settings import SLOW_SECONDS

NO_GPUS: Final = "no device plugin is scraped, or none has found GPUs"
NOT_KNOWN: Final = "no device plugin is scraped, or none has recovered allocations yet"


def of_it(metric: str, more: str = "") -> str:
    """The metric's series of the selected nodes."""
    return f"{metric}{{{NODE}{more}}}"


GPUS: Final = of_it("vgpu_plugin_device_healthy")


def of_plugin(expr: str, beside: str = "scheme, node") -> str:
    """``expr`` with its plugin's scheme and the name of its node."""
    return f"({expr}) * on ({PLUGIN_TARGET}) group_left ({beside}) vgpu_plugin_info"


def named_node(expr: str) -> str:
    """``expr`` with the name of its node."""
    return of_plugin(expr, "node")


def devices(health: str) -> str:
    """Advertised devices of this health."""
    return named_node(of_it("vgpu_plugin_resource_devices", f', health="{health}"'))


def total(expr: str) -> str:
    """The sum for each plugin."""
    return of_plugin(f"sum by ({PLUGIN_TARGET}) ({expr})")


def total_or_zero(expr: str) -> str:
    """The sum for each plugin, 0 where a plugin has no series."""
    return total(f"{expr} or 0 * {of_it('vgpu_plugin_ready')}")


def mean(step: str, window: str) -> str:
    """Mean time of a step, for each plugin."""
    which = f', step="{step}"'
    took = f"rate({of_it('vgpu_plugin_wait_seconds_total', which)}[{window}])"
    return of_plugin(f"{took} / rate({of_it('vgpu_plugin_waits_total', which)}[{window}])")


SUMMARY: Final = PanelRow("Health and problems", plugin_summary.panels(NODE))

WHICH: Final = PanelRow(
    "Plugins",
    (
        TablePanel(
            "Plugins",
            "One line for each plugin; a node has one for each sharing system. Foreign pods were"
            " admitted by another plugin; their shares count.",
            {"cluster": "Cluster", "node": "Node", "scheme": "System"},
            (
                Column(
                    "State",
                    of_plugin(of_it("vgpu_plugin_ready"), "scheme, node, mode"),
                    steps=((None, Colour.BAD), (1, Colour.GOOD)),
                    value_texts={0: "NOT READY", 1: "ready"},
                    more={"mode": "Injection"},
                ),
                Column(
                    "Not registered",
                    total(f"{of_it('vgpu_plugin_resource_registered')} == bool 0"),
                    steps=NONE_IS_GOOD,
                ),
                Column("GPUs", of_plugin(f"count by ({PLUGIN_TARGET}) ({GPUS})")),
                Column(
                    "Unhealthy",
                    total(f"{GPUS} == bool 0"),
                    steps=NONE_IS_BETTER,
                ),
                Column("Pods", total(of_it("vgpu_plugin_tenants", ', kind="bound"'))),
                Column("Foreign", total(of_it("vgpu_plugin_tenants", ', kind="foreign"'))),
                Column(
                    "Waiting",
                    total_or_zero(of_it("vgpu_plugin_unbound_containers")),
                    steps=NONE_IS_BETTER,
                ),
                Column("Refused, 1 h", total_or_zero(refused(NODE)), steps=NONE_IS_BETTER),
                Column("Conflicts", total(of_it("vgpu_plugin_conflicts")), steps=NONE_IS_BETTER),
                Column(
                    "To bind, 1 h",
                    mean("bind", "1h"),
                    GrafanaUnit.SECONDS,
                    steps=((None, Colour.GOOD), (SLOW_SECONDS, Colour.ODD)),
                ),
            ),
            "Waiting",
            NO_PLUGIN,
            links={"Node": links.NODE},
        ),
    ),
)

OFFERED: Final = PanelRow(
    "Advertised resources",
    (
        TablePanel(
            "Resources",
            "One line for each resource of a node. A list of device IDs that is longer than the"
            " kubelet accepts is not registered: then the smallest sufficient unit of memory is"
            " shown.",
            {"cluster": "Cluster", "node": "Node", "resource": "Resource"},
            (
                Column(
                    "Kubelet",
                    named_node(of_it("vgpu_plugin_resource_registered")),
                    steps=((None, Colour.BAD), (1, Colour.GOOD)),
                    value_texts={0: "DOES NOT TAKE IT", 1: "takes it"},
                ),
                Column("Healthy", devices("healthy")),
                Column(
                    "Unhealthy",
                    devices("unhealthy"),
                    steps=NONE_IS_BETTER,
                ),
                Column(
                    "List",
                    named_node(of_it("vgpu_plugin_resource_list_bytes")),
                    GrafanaUnit.BYTES,
                ),
                Column(
                    "Sufficient unit",
                    named_node(
                        f"{of_it('vgpu_plugin_resource_smallest_unit_bytes')}"
                        f" or 0 * {of_it('vgpu_plugin_resource_registered')}"
                    ),
                    GrafanaUnit.BYTES,
                    steps=((None, Colour.GOOD), (1, Colour.BAD)),
                    value_texts={0: "the one it has"},
                ),
            ),
            "List",
            NO_GPUS,
            width=14,
            links={"Node": links.NODE},
        ),
        bars(
            "Why GPUs are unhealthy",
            "One bar for each GPU and reason. No new shares of them are allocated; running"
            " containers stay.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        "sum by (node, gpu, reason)"
                        f" ({named_node(of_it('vgpu_plugin_device_unhealthy_info'))})",
                        GPUS,
                        reason="none is unhealthy",
                    ),
                    "{{node}} {{gpu}} {{reason}}",
                ),
            ),
            NO_GPUS,
            steps=NONE_IS_BETTER,
            width=10,
            link=links.runbook("VgpuPluginCardUnhealthy"),
        ),
    ),
)

ANSWERS: Final = PanelRow(
    "Answers to the kubelet",
    (
        graph(
            "Duration of answers",
            "Mean time by step: the answer to Allocate, from there to the binding, and the answer"
            " to PreStartContainer, for which the start of a container waits.",
            GrafanaUnit.SECONDS,
            (
                PanelQuery(
                    "sum by (step)"
                    f" (rate({of_it('vgpu_plugin_wait_seconds_total')}[$__rate_interval]))"
                    " / sum by (step)"
                    f" (rate({of_it('vgpu_plugin_waits_total')}[$__rate_interval]))",
                    "{{step}}",
                ),
            ),
            "no device plugin is scraped; gaps are times in which the kubelet asked for nothing",
            link=links.runbook("VgpuPluginSlow"),
        ),
        graph(
            "Answers",
            "Successful answers by step. The kubelet calls Allocate once for each resource.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    "sum by (step)"
                    f" (increase({of_it('vgpu_plugin_waits_total')}[$__rate_interval]))",
                    "{{step}}",
                ),
            ),
            NO_PLUGIN,
        ),
        graph(
            "Refused since it started",
            "By step and reason; a refused Allocate fails the pod, the others are tried again. The"
            " level, since a rate would not see the first of each.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sum by (step, reason) ({of_it('vgpu_plugin_refusals_total')})",
                        of_it("vgpu_plugin_ready"),
                        reason="none refused",
                    ),
                    "{{step}} {{reason}}",
                ),
            ),
            NO_PLUGIN,
            stacked=True,
            link=links.runbook("VgpuPluginRefusing"),
        ),
        graph(
            "Why containers wait",
            "By reason: containers that cannot start, and answers that are not in the kubelet's"
            " checkpoint yet.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sum by (reason) ({of_it('vgpu_plugin_unbound_containers')})",
                        f"{of_it('vgpu_plugin_recovered')} == 1",
                        reason="none waits",
                    ),
                    "{{reason}}",
                ),
                PanelQuery(
                    f"sum({of_it('vgpu_plugin_expected_bindings')})", "not written by the kubelet"
                ),
            ),
            NOT_KNOWN,
            stacked=True,
            link=links.runbook("VgpuPluginUnbound"),
        ),
    ),
)

BEHIND: Final = PanelRow(
    "Allocations and API server",
    (
        graph(
            "Pods that hold devices",
            "Bound by the plugin, adopted from another one (foreign), or holding more than the"
            " devices have (unbooked).",
            GrafanaUnit.COUNT,
            (PanelQuery(f"sum by (kind) ({of_it('vgpu_plugin_tenants')})", "{{kind}}"),),
            NO_PLUGIN,
            stacked=True,
        ),
        graph(
            "Registrations since it started",
            "With the kubelet, by result: it forgets all plugins when it starts.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    f"sum by (result) ({of_it('vgpu_plugin_registrations_total')})",
                    "{{result}}",
                ),
            ),
            "no device plugin is scraped, or none has tried to register",
            link=links.runbook("VgpuPluginNotRegistered"),
        ),
        graph(
            "Writes to the API server",
            "Annotations of pods and nodes, locks and events, by result.",
            GrafanaUnit.PER_SECOND,
            (
                PanelQuery(
                    "sum by (subject, result)"
                    f" (rate({of_it('vgpu_plugin_told_total')}[$__rate_interval]))",
                    "{{subject}} {{result}}",
                ),
            ),
            "no device plugin is scraped, or none has written anything yet",
            stacked=True,
            link=links.runbook("VgpuPluginNotTelling"),
        ),
        api_requests(
            of_it("vgpu_plugin_api_requests_total"),
            "device plugin",
            "VgpuPluginApiErrors",
        ),
    ),
)

SERVING: Final = Dashboard(
    "vgpu-device-plugin",
    "vgpu / Device plugin",
    "Device plugins: advertised resources, answers to the kubelet, waiting containers and reasons.",
    (choices.CLUSTER, choices.PLUGIN_NODE),
    (SUMMARY, WHICH, OFFERED, ANSWERS, BEHIND),
    "6h",
)
