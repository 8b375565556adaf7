"""The containers of a namespace: limits, use, accounted memory, and unused shares."""

from typing import Final

from grafana.dashboards import choices, links
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
from grafana.dashboards.selecting import CHOSEN, or_zero, with_scheme, workload
from grafana.promql import CONTAINER
from grafana.settings import NEAR_LIMIT_RATIO, OVER_LIMIT_RATIO

NO_SHARES: Final = "what is chosen holds no share, or its exporter is not scraped"
NO_SHIM: Final = "no library accounts for what is chosen, or its exporter is not scraped"

NAME: Final = "{{namespace}}/{{pod}}/{{container}}"
NAMES: Final = "namespace, pod, container"
SHOWN: Final = 20
"""Maximum number of containers in a graph, which shows the largest."""


def of_containers(metric: str, beside: str = "", more: str = "") -> str:
    """The metric's series of the selected containers."""
    return workload(f"{metric}{{{CHOSEN}{more}}}", beside)


SHARES: Final = of_containers("vgpu_container_shares_allocated")
USED: Final = of_containers("vgpu_container_memory_used_bytes")
ACCOUNTED: Final = of_containers("vgpu_container_memory_accounted_bytes")
OF_LIMIT: Final = of_containers(
    "vgpu_container_memory_used_bytes", "/ vgpu_container_memory_limit_bytes"
)
UNUSED: Final = (
    "clamp_min("
    + of_containers("vgpu_container_memory_allocated_bytes", "- vgpu_container_memory_used_bytes")
    + ", 0)"
)
BUSIEST: Final = of_containers(
    "0 * vgpu_container_shares_allocated",
    f"+ on ({CONTAINER}, uuid) group_left () max by ({CONTAINER}, uuid)"
    " (max_over_time(vgpu_container_sm_utilization_ratio[1h]))",
)
"""Of the containers that exist now, measured by any pod of the exporter."""

LIMIT_STEPS: Final = (
    (None, Colour.GOOD),
    (NEAR_LIMIT_RATIO, Colour.ODD),
    (OVER_LIMIT_RATIO, Colour.BAD),
)


def largest(expr: str) -> tuple[PanelQuery, ...]:
    """A line for each of the largest containers."""
    return (PanelQuery(f"topk({SHOWN}, sum by ({NAMES}) ({expr}))", NAME),)


SUMMARY: Final = PanelRow(
    "Summary",
    (
        stat(
            "Shares",
            "Shares that are held: a container on a GPU is one.",
            GrafanaUnit.COUNT,
            f"count({SHARES})",
            NO_SHARES,
        ),
        stat(
            "Near their limit",
            f"Shares that use between {NEAR_LIMIT_RATIO:.0%} and {OVER_LIMIT_RATIO:.0%} of their"
            " memory limit: the next allocation may fail.",
            GrafanaUnit.COUNT,
            f"sum(({OF_LIMIT} > bool {NEAR_LIMIT_RATIO}) * ({OF_LIMIT} <= bool"
            f" {OVER_LIMIT_RATIO}))",
            "nothing that is chosen has both a limit and a measured use",
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuContainerMemoryNearLimit"),
        ),
        stat(
            "Over their limit",
            "Shares that use more than their memory limit, at their neighbours' cost.",
            GrafanaUnit.COUNT,
            f"sum({OF_LIMIT} > bool {OVER_LIMIT_RATIO})",
            "nothing that is chosen has both a limit and a measured use",
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuContainerOverLimit"),
        ),
        stat(
            "Idle",
            "Shares that are held and whose processes used no multiprocessor for an hour.",
            GrafanaUnit.COUNT,
            f"sum({BUSIEST} == bool 0)",
            "no utilisation is measured of what is chosen",
            steps=NONE_IS_BETTER,
        ),
        stat(
            "Held back",
            "Containers whose kernels are stopped for a container of higher priority.",
            GrafanaUnit.COUNT,
            or_zero(f"sum({of_containers('vgpu_container_blocked')})", ACCOUNTED),
            NO_SHIM,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuContainerBlocked"),
        ),
        stat(
            "Not measured",
            "Shares that are held but whose use is not known: they are in no sum below.",
            GrafanaUnit.COUNT,
            or_zero(
                "count("
                + of_containers(
                    "vgpu_container_shares_allocated",
                    f"unless on ({CONTAINER}, uuid) vgpu_container_memory_used_bytes",
                )
                + ")",
                SHARES,
            ),
            NO_SHARES,
            steps=NONE_IS_BETTER,
        ),
    ),
)

CONTAINERS: Final = PanelRow(
    "Containers",
    (
        TablePanel(
            "Shares, limits and use",
            'One line for each container and GPU. "Allocated" is the share, "limit" what is'
            ' enforced, "used" what the driver reports, "accounted" what the sharing library'
            " reports. Idle containers: much allocated, little used, no kernel for long.",
            {
                "cluster": "Cluster",
                "instance": "Node",
                "namespace": "Namespace",
                "pod": "Pod",
                "container": "Container",
                "pod_uid": "",
                "uuid": "",
            },
            (
                Column(
                    "Shares",
                    workload(with_scheme(f"vgpu_container_shares_allocated{{{CHOSEN}}}")),
                    more={"scheme": "System", "phase": "Phase"},
                ),
                Column(
                    "Allocated",
                    of_containers("vgpu_container_memory_allocated_bytes"),
                    GrafanaUnit.BYTES,
                ),
                Column(
                    "Limit", of_containers("vgpu_container_memory_limit_bytes"), GrafanaUnit.BYTES
                ),
                Column("Used", USED, GrafanaUnit.BYTES),
                Column("Accounted", ACCOUNTED, GrafanaUnit.BYTES),
                Column("Used of limit", OF_LIMIT, GrafanaUnit.RATIO, steps=LIMIT_STEPS),
                Column(
                    "SM", of_containers("vgpu_container_sm_utilization_ratio"), GrafanaUnit.RATIO
                ),
                Column(
                    "Cores allocated",
                    of_containers("vgpu_container_core_allocated_ratio"),
                    GrafanaUnit.RATIO,
                ),
                Column("Most SM in 1 h", BUSIEST, GrafanaUnit.RATIO),
                Column("Unused", UNUSED, GrafanaUnit.BYTES),
            ),
            "Used of limit",
            NO_SHARES,
            height=11,
            links={"Node": links.NODE, "Pod": links.POD},
        ),
    ),
)

MEMORY: Final = PanelRow(
    "Memory",
    (
        graph(
            "Used",
            f"What the driver sees, of the {SHOWN} largest.",
            GrafanaUnit.BYTES,
            largest(USED),
            "nothing of what is chosen is measured",
        ),
        graph(
            "Used of the limit",
            f"At 100 % the next allocation fails; above it the limit does not hold. The {SHOWN}"
            " nearest.",
            GrafanaUnit.RATIO,
            (PanelQuery(f"topk({SHOWN}, max by ({NAMES}) ({OF_LIMIT}))", NAME),),
            "nothing that is chosen has both a limit and a measured use",
        ),
        graph(
            "Used and not accounted",
            "Memory that the driver reports and the sharing library does not: it escapes the"
            " limit. Below zero, the library still counts memory that is free.",
            GrafanaUnit.BYTES,
            (
                PanelQuery(
                    f"topk({SHOWN}, sum by ({NAMES}) ("
                    + of_containers(
                        "vgpu_container_memory_used_bytes",
                        "- vgpu_container_memory_accounted_bytes",
                    )
                    + "))",
                    NAME,
                ),
            ),
            NO_SHIM,
        ),
    ),
)

CORES: Final = PanelRow(
    "Utilisation and unused shares",
    (
        graph(
            "SM utilisation",
            f"Of the {SHOWN} busiest; 100 % is one whole GPU.",
            GrafanaUnit.RATIO,
            largest(of_containers("vgpu_container_sm_utilization_ratio")),
            "no utilisation is measured of what is chosen",
        ),
        graph(
            "SM utilisation of the allocated cores",
            "Above 100 % a core limit does not hold; the libraries hold it on average, not at each"
            " moment.",
            GrafanaUnit.RATIO,
            (
                PanelQuery(
                    f"topk({SHOWN}, max by ({NAMES}) ("
                    + of_containers(
                        "vgpu_container_sm_utilization_ratio",
                        "/ vgpu_container_core_allocated_ratio",
                    )
                    + "))",
                    NAME,
                ),
            ),
            "nothing that is chosen has both allocated cores and a measured use",
        ),
        bars(
            "Memory allocated and not used",
            "The ten shares with the most.",
            GrafanaUnit.BYTES,
            (PanelQuery(f"sort_desc(topk(10, sum by ({NAMES}) ({UNUSED})))", NAME),),
            NO_SHARES,
            width=12,
        ),
        bars(
            "Time since the last kernel",
            "The ten containers with the longest time since a kernel, as their library reports.",
            GrafanaUnit.SECONDS,
            (
                PanelQuery(
                    f"sort_desc(topk(10, max by ({NAMES}) (time() - "
                    + of_containers("vgpu_container_last_kernel_timestamp_seconds")
                    + ")))",
                    NAME,
                ),
            ),
            NO_SHIM,
            width=12,
        ),
    ),
)

WORKLOAD: Final = Dashboard(
    "vgpu-workload",
    "vgpu / Workload",
    "Containers with shared GPUs: limits, use, accounted memory, and unused shares.",
    (choices.CLUSTER, choices.NAMESPACE, choices.SCHEME, choices.POD),
    (SUMMARY, CONTAINERS, MEMORY, CORES),
    "1h",
)
