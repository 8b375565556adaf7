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
from grafana.dashboards.selecting import BOTH_SCOPES, CLUSTER, findings, free_memory, or_zero
from grafana.settings import EXPORTER

NO_RULES: Final = "no exporter is scraped, or the recording rules are not loaded"
NO_EXPORTER: Final = "no exporter is scraped"
INIT_AND_APP: Final = (
    "A pod's init and app containers both count; of a GPU's memory only the larger of the two"
    " is allocated."
)

FOUND: Final = findings(CLUSTER)
MISSING: Final = f"instance:vgpu_gpus_missing:max{{{CLUSTER}}}"
FREE: Final = free_memory(CLUSTER)
FREE_PART: Final = f"({FREE}) / vgpu_gpu_memory_total_bytes"

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


TRUST: Final = PanelRow(
    "Data health and problems",
    (
        stat(
            "Exporters down",
            "Exporters that are scrape targets and do not answer: their nodes are not monitored.",
            GrafanaUnit.COUNT,
            f"sum(up{{{EXPORTER}, {CLUSTER}}} == bool 0)",
            "no scrape job of exporters, or it has another name",
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuExporterDown"),
        ),
        stat(
            "GPUs missing",
            "GPUs that were there within a day, or should be, and do not answer.",
            GrafanaUnit.COUNT,
            f"sum({MISSING})",
            NO_RULES,
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuGpuMissing"),
        ),
        stat(
            "Collectors failing",
            "Parts of exporters whose last pass brought no data. Their data is missing here.",
            GrafanaUnit.COUNT,
            f"sum(vgpu_collector_success{{{CLUSTER}}} == bool 0)",
            NO_EXPORTER,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuCollectorFailing"),
        ),
        stat(
            "Conflicts",
            "Disagreements between the sources about who holds what; by type further down.",
            GrafanaUnit.COUNT,
            f"sum(cluster_type:vgpu_allocation_conflicts:sum{{{CLUSTER}}})",
            NO_RULES,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuAllocationConflict"),
        ),
        stat(
            "Failed pods",
            "Pods that requested a shared GPU, failed, and were not deleted.",
            GrafanaUnit.COUNT,
            or_zero(
                f'sum(vgpu_pods{{{CLUSTER}, phase="Failed"}})',
                f'vgpu_allocation_source_read{{{CLUSTER}, source="annotations"}} == 1',
            ),
            "no exporter reads pods (--collector.api)",
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuStuckPods"),
        ),
        stat(
            "Findings",
            f"Objects with a finding of the reconciler. {BOTH_SCOPES}",
            GrafanaUnit.COUNT,
            f"sum({FOUND})",
            "no reconciler is scraped, or none of them has a plan",
            steps=NONE_IS_BETTER,
            link=links.RECONCILER,
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
        ),
        stat(
            "Memory allocated",
            "Part of all memory that is allocated to containers, used or not.",
            GrafanaUnit.RATIO,
            f"sum({recorded('vgpu_gpu_memory_allocated_bytes')})"
            f" / sum({recorded('vgpu_gpu_memory_total_bytes')})",
            NO_RULES,
            steps=((None, Colour.PLAIN), (1.001, Colour.ODD)),
        ),
        stat(
            "Memory in use",
            "Part of all memory that is in use, by containers or by other processes.",
            GrafanaUnit.RATIO,
            f"sum({recorded('vgpu_gpu_memory_used_bytes')})"
            f" / sum({recorded('vgpu_gpu_memory_total_bytes')})",
            NO_RULES,
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
        ),
        stat(
            "Largest free share",
            "The largest share of memory that still fits on one GPU.",
            GrafanaUnit.BYTES,
            f"max({FREE})",
            "no exporter is scraped, or no GPU's shares are all known",
        ),
        stat(
            "Fragmented free memory",
            "Fragmentation: part of the free memory that is on partly allocated GPUs. Not a number"
            " if nothing is free.",
            GrafanaUnit.RATIO,
            f"sum(({FREE}) * (vgpu_gpu_shares_allocated > bool 0)) / sum({FREE})",
            "no exporter is scraped, or nothing is free",
            steps=((None, Colour.PLAIN), (0.5, Colour.ODD)),
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
        ),
        graph(
            "Allocated and not used, by namespace",
            f"The ten namespaces with the most allocated and unused memory. {INIT_AND_APP}",
            GrafanaUnit.BYTES,
            (
                PanelQuery(
                    "topk(10, sum by (namespace)"
                    f" ({by_namespace('vgpu_container_memory_unused_bytes')}))",
                    "{{namespace}}",
                ),
            ),
            NO_RULES,
        ),
    ),
)

SHAPE: Final = PanelRow(
    "Fragmentation and conflicts",
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
        ),
        bars(
            "Conflicts by type",
            "Where the sources disagree, or report impossible values. A zero counts only for"
            " sources that are read (`vgpu_allocation_source_read`).",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    "sort_desc(sum by (type)"
                    f" (cluster_type:vgpu_allocation_conflicts:sum{{{CLUSTER}}}))",
                    "{{type}}",
                ),
            ),
            NO_RULES,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuAllocationConflict"),
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
            "no container holds a share, no exporter is scraped, or no recording rules are loaded",
        ),
    ),
)

NAMESPACES: Final = PanelRow(
    "Namespaces",
    (
        TablePanel(
            "Holders",
            "Each namespace's memory and cores: allocated, and used. Click on a name for its"
            f" workloads. {INIT_AND_APP}",
            {"cluster": "Cluster", "namespace": "Namespace"},
            (
                Column(
                    "Allocated",
                    by_namespace("vgpu_container_memory_allocated_bytes"),
                    GrafanaUnit.BYTES,
                ),
                Column("Used", by_namespace("vgpu_container_memory_used_bytes"), GrafanaUnit.BYTES),
                Column(
                    "Used of allocated",
                    f"{by_namespace('vgpu_container_memory_used_bytes')}"
                    " / cluster_namespace:vgpu_container_memory_allocated_bytes:sum",
                    GrafanaUnit.RATIO,
                    bar=True,
                ),
                Column(
                    "Unused", by_namespace("vgpu_container_memory_unused_bytes"), GrafanaUnit.BYTES
                ),
                Column("GPUs allocated", by_namespace("vgpu_container_core_allocated_ratio")),
                Column("GPUs used", by_namespace("vgpu_container_sm_utilization_ratio")),
            ),
            "Unused",
            "no container holds a share, no exporter is scraped, or no recording rules are loaded",
            links={"Namespace": links.NAMESPACE},
        ),
    ),
)

NODES: Final = PanelRow(
    "Nodes",
    (
        TablePanel(
            "Nodes",
            "One line each; click on a node for its GPUs and who holds them. With an old page or a"
            " missing GPU, the rest of the line is not reliable.",
            {"cluster": "Cluster", "instance": "Node"},
            (
                Column("GPUs", f"vgpu_gpus{{{CLUSTER}}}"),
                Column("Missing", MISSING, steps=NONE_IS_GOOD),
                Column(
                    "Allocated",
                    f"{by_node('vgpu_gpu_memory_allocated_bytes')}"
                    " / instance:vgpu_gpu_memory_total_bytes:sum",
                    GrafanaUnit.RATIO,
                    bar=True,
                ),
                Column(
                    "In use",
                    f"{by_node('vgpu_gpu_memory_used_bytes')}"
                    " / instance:vgpu_gpu_memory_total_bytes:sum",
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
                    f"sum by (cluster, instance) (vgpu_allocation_conflicts{{{CLUSTER}}})",
                    steps=NONE_IS_BETTER,
                ),
                Column(
                    "Plugin",
                    f"min by (cluster, instance) (vgpu_plugin_ready{{{CLUSTER}}})",
                    steps=((None, Colour.BAD), (1, Colour.GOOD)),
                    value_texts={0: "NOT READY", 1: "ready"},
                ),
                Column(
                    "Age of page",
                    f"time() - vgpu_snapshot_timestamp_seconds{{{CLUSTER}}}",
                    GrafanaUnit.SECONDS,
                    steps=((None, Colour.GOOD), (120, Colour.BAD)),
                ),
            ),
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
                        "sum by (phase, reason)"
                        f' (vgpu_pods{{{CLUSTER}, phase!~"Running|Succeeded"}})',
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
    tuple(structs.replace(panel, link=links.PLUGIN) for panel in plugin_summary.panels(CLUSTER)),
)

FLEET: Final = Dashboard(
    "vgpu-fleet",
    "vgpu / Fleet",
    "All nodes with shared GPUs: data health, capacity, allocation and use, problems.",
    (choices.CLUSTER,),
    (TRUST, CAPACITY, SHAPE, NAMESPACES, NODES, PLUGINS, REPAIR),
    "6h",
)
