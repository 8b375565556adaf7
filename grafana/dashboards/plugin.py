"""The device plugins: what they offer, what the kubelet is answered, who waits and why."""

from typing import Final

from grafana.dashboards import choices, links, plugin_summary
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
from grafana.settings import API_ERRORS, SLOW_SECONDS

NO_CARDS: Final = "no device plugin is scraped, or none has found GPUs"
NOT_KNOWN: Final = "no device plugin is scraped, or none knows yet who holds what"


def of_it(metric: str, more: str = "") -> str:
    """The chosen nodes' series of it."""
    return f"{metric}{{{NODE}{more}}}"


CARDS: Final = of_it("vgpu_plugin_device_healthy")


def of_plugin(expr: str, beside: str = "scheme") -> str:
    """A number of each plugin, with its scheme; ``expr`` has a target's labels and no others."""
    return f"({expr}) * on ({PLUGIN_TARGET}) group_left ({beside}) vgpu_plugin_info"


def total(expr: str) -> str:
    """Added up for each plugin."""
    return of_plugin(f"sum by ({PLUGIN_TARGET}) ({expr})")


def total_or_zero(expr: str) -> str:
    """The same, and 0 where a plugin tells none."""
    return total(f"{expr} or 0 * {of_it('vgpu_plugin_ready')}")


def mean(step: str, window: str) -> str:
    """How long a step took, for each plugin."""
    which = f', step="{step}"'
    took = f"rate({of_it('vgpu_plugin_wait_seconds_total', which)}[{window}])"
    return of_plugin(f"{took} / rate({of_it('vgpu_plugin_waits_total', which)}[{window}])")


SUMMARY: Final = PanelRow("Can pods be served, and is anything wrong?", plugin_summary.panels(NODE))

WHICH: Final = PanelRow(
    "Plugins",
    (
        TablePanel(
            "Plugins",
            "One line for each, of which a node has one for each sharing system. Foreign pods were"
            " admitted by another plugin; their shares count.",
            {"cluster": "Cluster", "instance": "Node", "scheme": "System"},
            (
                Column(
                    "State",
                    of_plugin(of_it("vgpu_plugin_ready"), "scheme, mode"),
                    steps=((None, Colour.BAD), (1, Colour.GOOD)),
                    words={0: "NOT READY", 1: "ready"},
                    more={"mode": "Gives by"},
                ),
                Column(
                    "Not registered",
                    total(f"{of_it('vgpu_plugin_resource_registered')} == bool 0"),
                    steps=NONE_IS_GOOD,
                ),
                Column("Cards", of_plugin(f"count by ({PLUGIN_TARGET}) ({CARDS})")),
                Column(
                    "Unhealthy",
                    total(f"{CARDS} == bool 0"),
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
    "What is offered",
    (
        TablePanel(
            "Resources",
            "One line for each resource of a node. A list of IDs that is longer than the kubelet"
            " takes is not registered: then a larger unit of memory is told that would do.",
            {"cluster": "Cluster", "instance": "Node", "resource": "Resource"},
            (
                Column(
                    "Kubelet",
                    of_it("vgpu_plugin_resource_registered"),
                    steps=((None, Colour.BAD), (1, Colour.GOOD)),
                    words={0: "DOES NOT TAKE IT", 1: "takes it"},
                ),
                Column("Healthy", of_it("vgpu_plugin_resource_devices", ', health="healthy"')),
                Column(
                    "Unhealthy",
                    of_it("vgpu_plugin_resource_devices", ', health="unhealthy"'),
                    steps=NONE_IS_BETTER,
                ),
                Column("List", of_it("vgpu_plugin_resource_list_bytes"), GrafanaUnit.BYTES),
                Column(
                    "Unit that would do",
                    f"{of_it('vgpu_plugin_resource_smallest_unit_bytes')}"
                    f" or 0 * {of_it('vgpu_plugin_resource_registered')}",
                    GrafanaUnit.BYTES,
                    steps=((None, Colour.GOOD), (1, Colour.BAD)),
                    words={0: "the one it has"},
                ),
            ),
            "List",
            NO_CARDS,
            width=14,
            links={"Node": links.NODE},
        ),
        bars(
            "Why GPUs are unhealthy",
            "One bar for each GPU and reason. Nothing new is put on them; what runs there stays.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        "sum by (instance, gpu, reason)"
                        f" ({of_it('vgpu_plugin_device_unhealthy_info')})",
                        CARDS,
                        reason="none is unhealthy",
                    ),
                    "{{instance}} {{gpu}} {{reason}}",
                ),
            ),
            NO_CARDS,
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
            "How long it takes",
            "The mean, by step: the answer to Allocate, from there to the binding, and the answer"
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
            "How often each step went well. Allocate is asked once for each resource.",
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
            "By reason: those that cannot start, and answers of which the kubelet has not written"
            " down yet whose they are.",
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
    "Behind it",
    (
        graph(
            "Pods that hold devices",
            "Bound by the plugin, taken over from another one (foreign), or holding what is not"
            " there (unbooked).",
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
            "Written for others",
            "To the API server: pods' annotations, the node's marks, locks, events, by what came of"
            " it.",
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
        graph(
            "Requests to the API server",
            "By what was answered; code 0 is that no answer came. Errors that need a person are"
            f" {API_ERRORS.replace('|', ', ')}.",
            GrafanaUnit.PER_SECOND,
            (
                PanelQuery(
                    "sum by (verb, code)"
                    f" (rate({of_it('vgpu_plugin_api_requests_total')}[$__rate_interval]))",
                    "{{verb}} {{code}}",
                ),
            ),
            "no device plugin is scraped, or none has asked yet",
            stacked=True,
            link=links.runbook("VgpuPluginApiErrors"),
        ),
    ),
)

SERVING: Final = Dashboard(
    "vgpu-device-plugin",
    "vgpu / Device plugin",
    "What device plugins offer, how the kubelet is answered, which containers wait and why.",
    (choices.CLUSTER, choices.PLUGIN_NODE),
    (SUMMARY, WHICH, OFFERED, ANSWERS, BEHIND),
    "6h",
)
