"""The containers of a namespace: limits, use, accounted memory, and unused shares."""

from typing import Final

from msgspec import structs

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
from grafana.dashboards.nvidia_row import workload_row
from grafana.dashboards.selecting import (
    CHOSEN,
    largest,
    of_targets,
    or_zero,
    with_node,
    with_scheme,
    workload,
)
from grafana.promql import CONTAINER, SHARE
from grafana.settings import NEAR_LIMIT_RATIO, OVER_LIMIT_RATIO

NO_SHARES: Final = "what is chosen holds no share, or its exporter is not scraped"
NO_SHIM: Final = "no library accounts for what is chosen, or its exporter is not scraped"

NAME: Final = "{{namespace}}/{{pod}}/{{container}}"
NAMES: Final = "namespace, pod, container"
SHOWN: Final = 20
"""Maximum number of containers in a graph, which shows the largest."""

LISTED: Final = 100
"""Maximum number of shares in the table: more are no longer read, and cost the browser time."""


def of_containers(metric: str, beside: str = "", *labels: str) -> str:
    """The metric's series of the selected containers, each once; ``labels`` are to be kept."""
    return workload(f"{metric}{{{CHOSEN}}}", beside, *labels)


def column(metric: str, beside: str = "") -> str:
    """The same with the labels of its target, for a table with the name of the node."""
    return of_targets(f"{metric}{{{CHOSEN}}}", beside)


SHARES: Final = of_containers("vgpu_container_shares_allocated")
USED: Final = of_containers("vgpu_container_memory_used_bytes")
ACCOUNTED: Final = of_containers("vgpu_container_memory_accounted_bytes")
OF_LIMIT: Final = of_containers(
    "vgpu_container_memory_used_bytes", "/ vgpu_container_memory_limit_bytes"
)
NOT_USED: Final = "vgpu_container_memory_allocated_bytes", "- vgpu_container_memory_used_bytes"
UNUSED: Final = f"clamp_min({of_containers(*NOT_USED)}, 0)"
BUSY: Final = (
    "0 * vgpu_container_shares_allocated",
    (
        f"+ on ({CONTAINER}, uuid) group_left () max by ({CONTAINER}, uuid)"
        " (max_over_time(vgpu_container_sm_utilization_ratio[1h]))"
    ),
)
BUSIEST: Final = of_containers(*BUSY)
"""Of the containers that exist now, measured by any pod of the exporter."""

LIMIT_STEPS: Final = (
    (None, Colour.GOOD),
    (NEAR_LIMIT_RATIO, Colour.ODD),
    (OVER_LIMIT_RATIO, Colour.BAD),
)


NEAREST: Final = f"topk({LISTED}, {OF_LIMIT} or on ({SHARE}) 0 * {SHARES})"
"""The shares that the table lists; those without a limit or a measured use come last."""


def listed(expr: str) -> str:
    """Of the shares of the table, with their nodes' names."""
    return with_node(f"({expr}) and on ({SHARE}) {NEAREST}")


def lines(expr: str, of: str = "sum") -> tuple[PanelQuery, ...]:
    """A line for each of the largest containers, which may have several shares."""
    return (PanelQuery(largest(SHOWN, NAMES, f"{of} by ({NAMES}) ({expr})"), NAME),)


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

COLUMNS: Final = (
    Column(
        "Shares",
        of_targets(with_scheme(f"vgpu_container_shares_allocated{{{CHOSEN}}}")),
        more={"scheme": "System", "phase": "Phase"},
    ),
    Column("Allocated", column("vgpu_container_memory_allocated_bytes"), GrafanaUnit.BYTES),
    Column("Limit", column("vgpu_container_memory_limit_bytes"), GrafanaUnit.BYTES),
    Column("Used", column("vgpu_container_memory_used_bytes"), GrafanaUnit.BYTES),
    Column("Accounted", column("vgpu_container_memory_accounted_bytes"), GrafanaUnit.BYTES),
    Column(
        "Used of limit",
        column("vgpu_container_memory_used_bytes", "/ vgpu_container_memory_limit_bytes"),
        GrafanaUnit.RATIO,
        steps=LIMIT_STEPS,
    ),
    Column("SM", column("vgpu_container_sm_utilization_ratio"), GrafanaUnit.RATIO),
    Column("Cores allocated", column("vgpu_container_core_allocated_ratio"), GrafanaUnit.RATIO),
    Column("Most SM in 1 h", column(*BUSY), GrafanaUnit.RATIO),
    Column("Unused", f"clamp_min({column(*NOT_USED)}, 0)", GrafanaUnit.BYTES),
)

CONTAINERS: Final = PanelRow(
    "Containers",
    (
        TablePanel(
            "Shares, limits and use",
            f"The {LISTED} shares that use the most of their limit; choose a namespace or a pod for"
            ' others. One line for each container and GPU. "Allocated" is the share, "limit" what'
            ' is enforced, "used" what the driver reports, "accounted" what the sharing library'
            " reports. Idle containers: much allocated, little used, no kernel for long.",
            {
                "cluster": "Cluster",
                "node": "Node",
                "namespace": "Namespace",
                "pod": "Pod",
                "container": "Container",
                "pod_uid": "",
                "uuid": "",
            },
            tuple(structs.replace(each, expr=listed(each.expr)) for each in COLUMNS),
            "Used of limit",
            NO_SHARES,
            height=11,
            links={"Node": links.NODE, "Pod": links.POD},
        ),
    ),
)

MEMORY: Final = PanelRow(
    "Memory and unused shares",
    (
        graph(
            "Used",
            f"What the driver reports, of the {SHOWN} containers with the most now.",
            GrafanaUnit.BYTES,
            lines(USED),
            "nothing of what is chosen is measured",
        ),
        graph(
            "Used of the limit",
            f"At 100 % the next allocation fails; above it the limit does not hold. The {SHOWN}"
            " nearest now.",
            GrafanaUnit.RATIO,
            lines(OF_LIMIT, "max"),
            "nothing that is chosen has both a limit and a measured use",
        ),
        graph(
            "Used and not accounted",
            "Memory that the driver reports and the sharing library does not: it escapes the"
            " limit. Below zero, the library still counts memory that is free.",
            GrafanaUnit.BYTES,
            lines(
                of_containers(
                    "vgpu_container_memory_used_bytes", "- vgpu_container_memory_accounted_bytes"
                )
            ),
            NO_SHIM,
        ),
        bars(
            "Memory allocated and not used",
            "The ten shares with the most.",
            GrafanaUnit.BYTES,
            (PanelQuery(f"sort_desc(topk(10, sum by ({NAMES}) ({UNUSED})))", NAME),),
            NO_SHARES,
            width=12,
            height=8,
        ),
    ),
)

CORES: Final = PanelRow(
    "Utilisation",
    (
        graph(
            "SM utilisation",
            f"Of the {SHOWN} busiest containers of now; 100 % is one whole GPU.",
            GrafanaUnit.RATIO,
            lines(of_containers("vgpu_container_sm_utilization_ratio")),
            "no utilisation is measured of what is chosen",
        ),
        graph(
            "SM utilisation of the allocated cores",
            "Above 100 % a core limit does not hold; the libraries hold it on average, not at each"
            " moment.",
            GrafanaUnit.RATIO,
            lines(
                of_containers(
                    "vgpu_container_sm_utilization_ratio",
                    "/ (vgpu_container_core_allocated_ratio > 0)",
                ),
                "max",
            ),
            "nothing that is chosen has both allocated cores and a measured use",
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
            width=24,
            height=8,
        ),
    ),
)

OF_FAIR_SHARE: Final = of_containers(
    "vgpu_container_memory_used_bytes", "/ vgpu_container_memory_fair_share_bytes"
)

NVIDIA: Final = workload_row(
    of_containers("vgpu_container_sharing_info", "", "sharing"), lines(OF_FAIR_SHARE, "max"), SHOWN
)

WORKLOAD: Final = Dashboard(
    "vgpu-workload",
    "vgpu / Workload",
    "Containers with shared GPUs: limits, use, accounted memory, and unused shares.",
    (choices.CLUSTER, choices.NAMESPACE, choices.SCHEME, choices.POD),
    (SUMMARY, CONTAINERS, MEMORY, CORES, NVIDIA),
    "1h",
)
