"""All nodes: data health, capacity, allocation and use, problems."""

from typing import Final

from msgspec import structs

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
    stat,
)
from grafana.dashboards.selecting import (
    BOTH_SCOPES,
    CLUSTER,
    findings,
    free_memory,
    hours,
    largest,
    or_zero,
    with_node,
)
from grafana.promql import PLUGIN_TARGET, TARGET, once, once_a_node
from grafana.settings import EXPORTER, XID_SECONDS
from vgpu.model.units import GIB

NO_RULES: Final = "no exporter is scraped, or the recording rules are not loaded"
NO_EXPORTER: Final = "no exporter is scraped"
NO_HOLDERS: Final = (
    "no container holds a share, no exporter is scraped, or no recording rules are loaded"
)
INIT_AND_APP: Final = (
    "A pod's init and app containers both count; of a GPU's memory only the larger of the two"
    " is allocated."
)

FOUND: Final = findings(CLUSTER)
MISSING: Final = f"instance:vgpu_gpus_missing:max{{{CLUSTER}}}"
FREE: Final = free_memory(CLUSTER)
FREE_PART: Final = free_memory(CLUSTER, " / vgpu_gpu_memory_total_bytes")
FREE_BESIDE_SHARES: Final = free_memory(CLUSTER, " * (vgpu_gpu_shares_allocated > bool 0)")

UTILISATION: Final = (
    f"sum(cluster:vgpu_gpu_utilization_ratio:avg{{{CLUSTER}}} * cluster:vgpu_gpus:sum)"
    f" / sum(cluster:vgpu_gpus:sum{{{CLUSTER}}})"
)
"""The mean of all GPUs, of clusters by their size."""

FRAGMENTATION: Final = (
    ("all of it free", 1, 2),
    ("75 % to all", 0.75, 1),
    ("50 to 75 %", 0.5, 0.75),
    ("25 to 50 %", 0.25, 0.5),
    ("up to 25 %", 0, 0.25),
)
"""Classes of GPUs by the part of their memory that is not allocated: name, from, to."""


def recorded(name: str) -> str:
    """A sum over clusters, by the recording rules."""
    return f"cluster:{name}:sum{{{CLUSTER}}}"


def by_namespace(metric: str) -> str:
    """A sum over clusters, by namespace."""
    return f"cluster_namespace:{metric}:sum{{{CLUSTER}}}"


def by_node(metric: str) -> str:
    """A sum over clusters, by node."""
    return f"instance:{metric}:sum{{{CLUSTER}}}"


RULES_LOADED: Final = f"cluster:vgpu_gpus:sum{{{CLUSTER}}}"
FIRING: Final = f'ALERTS{{{CLUSTER}, alertstate="firing", alertname=~"Vgpu.+"}}'
WAKING: Final = f'{FIRING[:-1]}, severity!="info"}}'
XID_TIMES: Final = f"vgpu_gpu_xid_last_timestamp_seconds{{{CLUSTER}}}"
RECENT_XIDS: Final = once_a_node(
    f"time() - {XID_TIMES} < {XID_SECONDS}", "uuid", "xid", metric=XID_TIMES
)
XIDS_RECORDED: Final = f"vgpu_gpu_xid_watched{{{CLUSTER}}} == 1"
NO_XIDS: Final = "XIDs are not recorded (collector xid), or no exporter is scraped"
COLLECTORS: Final = f"vgpu_collector_success{{{CLUSTER}}}"
FAILED_PODS: Final = f'vgpu_pods{{{CLUSTER}, phase="Failed"}}'
OTHER_PODS: Final = f'vgpu_pods{{{CLUSTER}, phase!~"Running|Succeeded"}}'
STAT_WIDTH: Final = 3
"""Eight numbers fill a line."""

TRUST: Final = PanelRow(
    "Data health and problems",
    (
        stat(
            "Firing alerts",
            "Alerts of these rules that page or warn and fire now; their names are below.",
            GrafanaUnit.COUNT,
            or_zero(f"count({WAKING})", RULES_LOADED),
            NO_RULES,
            width=STAT_WIDTH,
            steps=NONE_IS_GOOD,
            link=links.RUNBOOKS,
        ),
        stat(
            "Exporters down",
            "Exporters that are scrape targets and do not answer: their nodes are not monitored.",
            GrafanaUnit.COUNT,
            f"sum(up{{{EXPORTER}, {CLUSTER}}} == bool 0)",
            "no scrape job of exporters, or it has another name",
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuExporterDown"),
            width=STAT_WIDTH,
        ),
        stat(
            "GPUs missing",
            "GPUs that were there within a day, or should be, and do not answer.",
            GrafanaUnit.COUNT,
            f"sum({once_a_node(MISSING)})",
            NO_RULES,
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuGpuMissing"),
            width=STAT_WIDTH,
        ),
        stat(
            "XIDs, 1 h",
            "XID errors that GPUs reported within an hour: each number of each GPU counts once.",
            GrafanaUnit.COUNT,
            or_zero(f"count({RECENT_XIDS})", XIDS_RECORDED),
            NO_XIDS,
            width=STAT_WIDTH,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuXidCritical"),
        ),
        stat(
            "Collectors failing",
            "Parts of exporters whose last pass brought no data. Their data is missing here.",
            GrafanaUnit.COUNT,
            f"sum({once_a_node(f'{COLLECTORS} == bool 0', 'collector', metric=COLLECTORS)})",
            NO_EXPORTER,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuCollectorFailing"),
            width=STAT_WIDTH,
        ),
        stat(
            "Conflicts",
            "Disagreements between the sources about who holds what; by type further down.",
            GrafanaUnit.COUNT,
            f"sum(cluster_type:vgpu_allocation_conflicts:sum{{{CLUSTER}}})",
            NO_RULES,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuAllocationConflict"),
            width=STAT_WIDTH,
        ),
        stat(
            "Failed pods",
            "Pods that requested a shared GPU, failed, and were not deleted.",
            GrafanaUnit.COUNT,
            or_zero(
                f"sum({once_a_node(FAILED_PODS, 'reason')})",
                f'vgpu_allocation_source_read{{{CLUSTER}, source="annotations"}} == 1',
            ),
            "no exporter reads pods (--collector.api)",
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuStuckPods"),
            width=STAT_WIDTH,
        ),
        stat(
            "Findings",
            f"Objects with a finding of the reconciler. {BOTH_SCOPES}",
            GrafanaUnit.COUNT,
            f"sum({FOUND})",
            "no reconciler is scraped, or none of them has a plan",
            steps=NONE_IS_BETTER,
            link=links.RECONCILER,
            width=STAT_WIDTH,
        ),
    ),
)

CAPACITY: Final = PanelRow(
    "Capacity, allocation and use",
    (
        stat(
            "GPUs",
            "GPUs that answer; MIG instances are part of their GPU.",
            GrafanaUnit.COUNT,
            f"sum({recorded('vgpu_gpus')})",
            NO_RULES,
            width=STAT_WIDTH,
        ),
        stat(
            "Memory allocated",
            "Part of all memory that is allocated to containers, used or not.",
            GrafanaUnit.RATIO,
            f"sum({recorded('vgpu_gpu_memory_allocated_bytes')})"
            f" / sum({recorded('vgpu_gpu_memory_total_bytes')})",
            NO_RULES,
            steps=((None, Colour.PLAIN), (1.001, Colour.ODD)),
            width=STAT_WIDTH,
        ),
        stat(
            "Memory in use",
            "Part of all memory that is in use, by containers or by other processes.",
            GrafanaUnit.RATIO,
            f"sum({recorded('vgpu_gpu_memory_used_bytes')})"
            f" / sum({recorded('vgpu_gpu_memory_total_bytes')})",
            NO_RULES,
            width=STAT_WIDTH,
        ),
        stat(
            "Waste",
            "Part of the memory that was allocated and that its holders do not use. Of a pod's init"
            " and app containers a GPU counts the larger, what is unused counts both.",
            GrafanaUnit.RATIO,
            f"sum({recorded('vgpu_container_memory_unused_bytes')})"
            f" / sum({recorded('vgpu_gpu_memory_allocated_bytes')})",
            NO_RULES,
            steps=((None, Colour.PLAIN), (0.5, Colour.ODD)),
            width=STAT_WIDTH,
        ),
        stat(
            "Largest free share",
            "The largest share of memory that still fits on one GPU.",
            GrafanaUnit.BYTES,
            f"max({FREE})",
            "no exporter is scraped, or no GPU's shares are all known",
            width=STAT_WIDTH,
        ),
        stat(
            "Fragmented free memory",
            "Fragmentation: part of the free memory that is on partly allocated GPUs. Not a number"
            " if nothing is free.",
            GrafanaUnit.RATIO,
            f"sum({FREE_BESIDE_SHARES}) / sum({FREE})",
            "no exporter is scraped, or nothing is free",
            steps=((None, Colour.PLAIN), (0.5, Colour.ODD)),
            width=STAT_WIDTH,
        ),
        stat(
            "Utilisation",
            "Part of the time in which a kernel ran, as the mean of all GPUs.",
            GrafanaUnit.RATIO,
            UTILISATION,
            NO_RULES,
            width=STAT_WIDTH,
        ),
        stat(
            "Power",
            "What all GPUs draw.",
            GrafanaUnit.WATTS,
            f"sum({recorded('vgpu_gpu_power_usage_watts')})",
            NO_RULES,
            width=STAT_WIDTH,
        ),
        graph(
            "Memory",
            "All memory of all GPUs, what of it is allocated, and what is in use. In use above"
            " allocated: containers use memory that was not allocated to them.",
            GrafanaUnit.BYTES,
            (
                PanelQuery(f"sum({recorded('vgpu_gpu_memory_total_bytes')})", "total"),
                PanelQuery(f"sum({recorded('vgpu_gpu_memory_allocated_bytes')})", "allocated"),
                PanelQuery(f"sum({recorded('vgpu_gpu_memory_used_bytes')})", "in use"),
                PanelQuery(
                    f"sum({recorded('vgpu_gpu_memory_unattributed_bytes')})", "in no container"
                ),
            ),
            NO_RULES,
            width=8,
            height=7,
        ),
        graph(
            "Utilisation over time",
            "Part of the time in which a kernel ran, as the mean of all GPUs, and the part of all"
            " cores that is allocated.",
            GrafanaUnit.RATIO,
            (
                PanelQuery(UTILISATION, "utilisation"),
                PanelQuery(
                    f"sum({recorded('vgpu_gpu_core_allocated_ratio')})"
                    f" / sum({recorded('vgpu_gpus')})",
                    "cores allocated",
                ),
            ),
            NO_RULES,
            width=8,
            height=7,
        ),
        graph(
            "Power over time",
            "What all GPUs draw.",
            GrafanaUnit.WATTS,
            (PanelQuery(f"sum({recorded('vgpu_gpu_power_usage_watts')})", "drawn"),),
            NO_RULES,
            width=8,
            height=7,
        ),
    ),
)

PROBLEMS: Final = PanelRow(
    "Alerts, XIDs and conflicts",
    (
        bars(
            "Firing alerts by name",
            "Number of places in which each alert of these rules fires now, also of severity info.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sort_desc(count by (alertname, severity) ({FIRING}))",
                        RULES_LOADED,
                        alertname="none fires",
                    ),
                    "{{alertname}} {{severity}}",
                ),
            ),
            NO_RULES,
            height=7,
            steps=NONE_IS_BETTER,
            link=links.RUNBOOKS,
        ),
        bars(
            "XIDs of the last hour",
            "Number of GPUs of each node that reported the XID.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sort_desc(count by (node, xid) ({RECENT_XIDS}))",
                        XIDS_RECORDED,
                        xid="errors: none",
                    ),
                    "XID {{xid}} {{node}}",
                ),
            ),
            NO_XIDS,
            height=7,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuXidCritical"),
        ),
        bars(
            "Conflicts by type",
            "Where the sources disagree, or report impossible values, in the sources that are read"
            " (`vgpu_allocation_source_read`).",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        "sort_desc(sum by (type)"
                        f" (cluster_type:vgpu_allocation_conflicts:sum{{{CLUSTER}}}) > 0)",
                        f"cluster_type:vgpu_allocation_conflicts:sum{{{CLUSTER}}}",
                        type="none",
                    ),
                    "{{type}}",
                ),
            ),
            NO_RULES,
            height=7,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuAllocationConflict"),
        ),
    ),
)

SHAPE: Final = PanelRow(
    "Fragmentation",
    (
        bars(
            "GPUs by free memory",
            "Fragmentation: a share needs its memory on one GPU, so a few free GPUs are better"
            " than many half-free ones.",
            GrafanaUnit.COUNT,
            tuple(
                PanelQuery(f"sum(({FREE_PART} >= bool {low}) * ({FREE_PART} < bool {high}))", name)
                for name, low, high in FRAGMENTATION
            ),
            NO_EXPORTER,
            width=12,
            height=6,
        ),
        bars(
            "Containers by sharing system",
            "Containers that hold a share, by the system that allocated it.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    f"sum by (scheme) (cluster_scheme:vgpu_containers:count{{{CLUSTER}}})",
                    "{{scheme}}",
                ),
            ),
            NO_HOLDERS,
            width=12,
            height=6,
        ),
    ),
)

UNUSED: Final = by_namespace("vgpu_container_memory_unused_bytes")
ALLOCATED: Final = by_namespace("vgpu_container_memory_allocated_bytes")
USED_OF_ALLOCATED: Final = by_namespace("vgpu_container_memory_used_of_allocated_bytes")
MEASURED: Final = f"({USED_OF_ALLOCATED} + {UNUSED})"
"""The allocated memory whose use is measured: parts are parts of this."""

NAMESPACES: Final = PanelRow(
    "Namespaces",
    (
        TablePanel(
            "Holders",
            "Each namespace's memory and cores now: allocated, and used. Click on a name for its"
            f" workloads. Of a share, the mean of its parts of cores and memory are the GPUs"
            " allocated. Containers with a replica of a GPU (time-slicing, MPS) hold no amount:"
            f" they are in what is used only. {INIT_AND_APP}",
            {"cluster": "Cluster", "namespace": "Namespace"},
            (
                Column("Allocated", ALLOCATED, GrafanaUnit.BYTES),
                Column("Used", by_namespace("vgpu_container_memory_used_bytes"), GrafanaUnit.BYTES),
                Column(
                    "Used of allocated",
                    f"{USED_OF_ALLOCATED} / ({MEASURED} > 0)",
                    GrafanaUnit.RATIO,
                    bar=True,
                ),
                Column("Unused", UNUSED, GrafanaUnit.BYTES),
                Column("GPUs allocated", by_namespace("vgpu_gpus_allocated")),
                Column("GPUs used", by_namespace("vgpu_container_sm_utilization_ratio")),
            ),
            "Unused",
            NO_HOLDERS,
            links={"Namespace": links.NAMESPACE},
        ),
        TablePanel(
            "GPU-hours and GiB-hours",
            "What each namespace has held in the selected time range, also if it holds nothing"
            " now: GPUs allocated, memory allocated, and memory allocated and not used, each times"
            " hours.",
            {"cluster": "Cluster", "namespace": "Namespace"},
            (
                Column("GPU-hours", hours(by_namespace("vgpu_gpus_allocated"))),
                Column("GiB-hours", hours(f"{ALLOCATED} / {GIB}")),
                Column("Unused GiB-hours", hours(f"{UNUSED} / {GIB}")),
                Column(
                    "Unused part",
                    f"{hours(UNUSED)} / ({hours(MEASURED)} > 0)",
                    GrafanaUnit.RATIO,
                    bar=True,
                ),
            ),
            "Unused GiB-hours",
            NO_HOLDERS,
            width=12,
            links={"Namespace": links.NAMESPACE},
        ),
        graph(
            "Allocated and not used, by namespace",
            f"The ten namespaces with the most allocated and unused memory now. {INIT_AND_APP}",
            GrafanaUnit.BYTES,
            (
                PanelQuery(
                    largest(10, "namespace", f"sum by (namespace) ({UNUSED})"), "{{namespace}}"
                ),
            ),
            NO_RULES,
            height=9,
        ),
    ),
)

CONFLICTS: Final = f"vgpu_allocation_conflicts{{{CLUSTER}}}"
OF_NODE: Final = (
    Column("GPUs", f"vgpu_gpus{{{CLUSTER}}}"),
    Column("Missing", MISSING, steps=NONE_IS_GOOD),
    Column(
        "Allocated",
        f"{by_node('vgpu_gpu_memory_allocated_bytes')} / instance:vgpu_gpu_memory_total_bytes:sum",
        GrafanaUnit.RATIO,
        bar=True,
    ),
    Column(
        "In use",
        f"{by_node('vgpu_gpu_memory_used_bytes')} / instance:vgpu_gpu_memory_total_bytes:sum",
        GrafanaUnit.RATIO,
        bar=True,
    ),
    Column("Free", by_node("vgpu_gpu_memory_unallocated_bytes"), GrafanaUnit.BYTES),
    Column(
        "In no container",
        by_node("vgpu_gpu_memory_unattributed_bytes"),
        GrafanaUnit.BYTES,
    ),
    Column(
        "Utilisation",
        f"instance:vgpu_gpu_utilization_ratio:avg{{{CLUSTER}}}",
        GrafanaUnit.RATIO,
    ),
    Column("Power", by_node("vgpu_gpu_power_usage_watts"), GrafanaUnit.WATTS),
    Column(
        "Conflicts",
        f"sum by ({TARGET}) ({once(f'{TARGET}, type', CONFLICTS)})",
        steps=NONE_IS_BETTER,
    ),
    Column(
        "Age of page",
        f"time() - vgpu_snapshot_timestamp_seconds{{{CLUSTER}}}",
        GrafanaUnit.SECONDS,
        steps=((None, Colour.GOOD), (120, Colour.BAD)),
    ),
)
PLUGIN: Final = Column(
    "Plugin",
    f"min by (cluster, node) (vgpu_plugin_ready{{{CLUSTER}}}"
    f" * on ({PLUGIN_TARGET}) group_left (node)"
    f" {once(f'{PLUGIN_TARGET}, node', 'vgpu_plugin_info')})",
    steps=((None, Colour.BAD), (1, Colour.GOOD)),
    value_texts={0: "NOT READY", 1: "ready"},
)

NODES: Final = PanelRow(
    "Nodes",
    (
        TablePanel(
            "Nodes",
            "One line each; click on a node for its GPUs and who holds them. With an old page or a"
            " missing GPU, the rest of the line is not reliable.",
            {"cluster": "Cluster", "node": "Node"},
            (*(structs.replace(each, expr=with_node(each.expr)) for each in OF_NODE), PLUGIN),
            "Conflicts",
            NO_EXPORTER,
            links={"Node": links.NODE},
        ),
    ),
)

REPAIR: Final = PanelRow(
    "The reconciler",
    (
        graph(
            "Findings by rule",
            "Findings that persist. A line that does not fall is not repaired: the reconciler's"
            f" own dashboard shows why. {BOTH_SCOPES}",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sum by (rule) ({FOUND}) > 0",
                        FOUND,
                        rule="nothing found",
                    ),
                    "{{rule}}",
                ),
            ),
            "no reconciler is scraped, or none of them has a plan",
            stacked=True,
            link=links.RECONCILER,
        ),
        graph(
            "Failed and waiting pods",
            "Pods of shared GPUs that do not run, by phase and reason, as the exporters see them.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sum by (phase, reason) ({once_a_node(OTHER_PODS, 'phase', 'reason')})",
                        f'vgpu_allocation_source_read{{{CLUSTER}, source="annotations"}} == 1',
                        phase="none",
                    ),
                    "{{phase}} {{reason}}",
                ),
            ),
            "no exporter reads pods (--collector.api)",
            stacked=True,
        ),
    ),
)

PLUGINS: Final = PanelRow(
    "The device plugins",
    (
        stat(
            "Problems of device plugins",
            "What the device plugins' own dashboard explains; a number for each kind of problem.",
            GrafanaUnit.COUNT,
            "",
            plugin_summary.NO_PLUGIN,
            queries=tuple(
                PanelQuery(panel.queries[0].expr, panel.title)
                for panel in plugin_summary.panels(CLUSTER)
            ),
            width=24,
            steps=NONE_IS_BETTER,
            link=links.PLUGIN,
        ),
    ),
)

FLEET: Final = Dashboard(
    "vgpu-fleet",
    "vgpu / Fleet",
    "All nodes with shared GPUs: data health, capacity, allocation and use, problems.",
    (choices.CLUSTER,),
    (TRUST, CAPACITY, PROBLEMS, SHAPE, NAMESPACES, NODES, PLUGINS, REPAIR),
    "6h",
)
