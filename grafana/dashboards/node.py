"""One node: data health, its GPUs, their holders and their condition."""

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
from grafana.dashboards.nvidia_row import node_row
from grafana.dashboards.selecting import NODE, or_zero, with_gpu, with_scheme
from grafana.dashboards.tokens_row import TOKENS
from grafana.promql import DEVICE, GPU, once, once_a_node, own_names
from grafana.settings import NEAR_LIMIT_RATIO, OVER_LIMIT_RATIO

NO_EXPORTER: Final = "the node's exporter is not scraped"
NO_DRIVER: Final = "the driver does not answer, or the node's exporter is not scraped"
NO_SHARES: Final = "no container holds a share, or the node's exporter is not scraped"

GPU_NAME: Final = "{{gpu}} {{model}}"
CONTAINER_NAME: Final = "{{namespace}}/{{pod}}/{{container}}"


def of_node(metric: str, more: str = "") -> str:
    """The node's series of the metric."""
    return f"{metric}{{{NODE}{more}}}"


def of_containers(metric: str, beside: str = "") -> str:
    """The node's series of the metric, with the containers' own names; ``beside`` follows it."""
    return own_names(lambda which: of_node(metric, f", {which}") + beside)


CONTAINER_NAMES: Final = "namespace, pod, container"
SHARE_NAMES: Final = f"cluster, {CONTAINER_NAMES}, pod_uid, uuid"

COLLECTORS: Final = of_node("vgpu_collector_success")
CONFLICTS: Final = once_a_node(of_node("vgpu_allocation_conflicts"), "type")

TRUST: Final = PanelRow(
    "Data health and problems",
    (
        stat(
            "Age of page",
            "Time since the exporter last sampled the node.",
            GrafanaUnit.SECONDS,
            f"time() - max({of_node('vgpu_snapshot_timestamp_seconds')})",
            NO_EXPORTER,
            steps=((None, Colour.GOOD), (120, Colour.BAD)),
            link=links.runbook("VgpuDataStale"),
        ),
        stat(
            "Driver call stuck",
            "Time by which a call into the NVIDIA driver has passed its deadline.",
            GrafanaUnit.SECONDS,
            f"max({of_node('vgpu_driver_call_stuck_seconds')})",
            NO_EXPORTER,
            steps=((None, Colour.GOOD), (1, Colour.BAD)),
            link=links.runbook("VgpuDriverNotAnswering"),
        ),
        stat(
            "Collectors failing",
            "Parts of the exporter whose last pass brought no data; their names are further down.",
            GrafanaUnit.COUNT,
            f"sum({once_a_node(f'{COLLECTORS} == bool 0', 'collector', metric=COLLECTORS)})",
            NO_EXPORTER,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuCollectorFailing"),
        ),
        stat(
            "GPUs missing",
            "GPUs that were there within a day, or should be, and do not answer.",
            GrafanaUnit.COUNT,
            f"sum({once_a_node(of_node('instance:vgpu_gpus_missing:max'))})",
            f"{NO_DRIVER}, or the recording rules are not loaded",
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuGpuMissing"),
        ),
        stat(
            "Conflicts",
            "Disagreements between the sources about who holds what; by type further down.",
            GrafanaUnit.COUNT,
            f"sum({CONFLICTS})",
            NO_EXPORTER,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuAllocationConflict"),
        ),
        stat(
            "Processes in no container",
            "Processes on the GPUs that belong to no container and are not accounted.",
            GrafanaUnit.COUNT,
            f"sum({once_a_node(of_node('vgpu_gpu_unattributed_processes'), 'uuid')})",
            "the driver does not answer, or processes cannot be assigned to containers (hostPID)",
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuAttributionGap"),
        ),
    ),
)

XID_AGE: Final = (
    f"max by ({GPU}) ({of_node('vgpu_gpu_xid_last_timestamp_seconds')}) * 1000"
    f" or on ({GPU}) ({of_node('vgpu_gpu_xid_watched')} - 1)"
)
"""Time of the newest XID, in ms; 0 if there was none, -1 if XIDs are not recorded."""

GPUS: Final = PanelRow(
    "The GPUs",
    (
        TablePanel(
            "GPUs",
            'One line for each GPU, and for each MIG instance. "Allocated" is what containers hold,'
            ' used or not; "in no container" is used outside containers.',
            {"uuid": "UUID"},
            (
                Column(
                    "State",
                    with_gpu(of_node("vgpu_gpu_up")),
                    steps=((None, Colour.BAD), (1, Colour.GOOD)),
                    value_texts={0: "LOST", 1: "answers"},
                    more={"gpu": "GPU", "model": "Model"},
                ),
                Column("Memory", of_node("vgpu_gpu_memory_total_bytes"), GrafanaUnit.BYTES),
                Column("Allocated", of_node("vgpu_gpu_memory_allocated_bytes"), GrafanaUnit.BYTES),
                Column("Used", of_node("vgpu_gpu_memory_used_bytes"), GrafanaUnit.BYTES),
                Column(
                    "In no container",
                    of_node("vgpu_gpu_memory_unattributed_bytes"),
                    GrafanaUnit.BYTES,
                ),
                Column(
                    "Cores allocated", of_node("vgpu_gpu_core_allocated_ratio"), GrafanaUnit.RATIO
                ),
                Column(
                    "Utilisation",
                    of_node("vgpu_gpu_utilization_ratio"),
                    GrafanaUnit.RATIO,
                    bar=True,
                ),
                Column("Temperature", of_node("vgpu_gpu_temperature_celsius"), GrafanaUnit.CELSIUS),
                Column("Power", of_node("vgpu_gpu_power_usage_watts"), GrafanaUnit.WATTS),
                Column(
                    "Uncorrected ECC",
                    of_node(
                        "vgpu_gpu_ecc_errors_total", ', type="uncorrected", lifetime="volatile"'
                    ),
                    steps=NONE_IS_GOOD,
                ),
                Column(
                    "Newest XID",
                    XID_AGE,
                    GrafanaUnit.AGO,
                    steps=((None, Colour.ODD), (0, Colour.GOOD), (1, Colour.ODD)),
                    value_texts={0: "none heard", -1: "not recorded"},
                ),
            ),
            "Allocated",
            NO_DRIVER,
            height=6,
        ),
    ),
)

HOLDERS: Final = PanelRow(
    "Allocations",
    (
        TablePanel(
            "Allocations",
            'One line for each container and GPU. "Allocated" is the share, "limit" what is'
            ' enforced, "used" what the driver reports, "accounted" what the sharing library'
            " reports; where they differ something is wrong.",
            {
                "namespace": "Namespace",
                "pod": "Pod",
                "container": "Container",
                "pod_uid": "",
                "uuid": "UUID",
            },
            (
                Column(
                    "Shares",
                    own_names(
                        lambda which: with_scheme(
                            of_node("vgpu_container_shares_allocated", f", {which}")
                        )
                    ),
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
                Column(
                    "Used", of_containers("vgpu_container_memory_used_bytes"), GrafanaUnit.BYTES
                ),
                Column(
                    "Accounted",
                    of_containers("vgpu_container_memory_accounted_bytes"),
                    GrafanaUnit.BYTES,
                ),
                Column(
                    "Used of limit",
                    of_containers(
                        "vgpu_container_memory_used_bytes", " / vgpu_container_memory_limit_bytes"
                    ),
                    GrafanaUnit.RATIO,
                    steps=(
                        (None, Colour.GOOD),
                        (NEAR_LIMIT_RATIO, Colour.ODD),
                        (OVER_LIMIT_RATIO, Colour.BAD),
                    ),
                ),
                Column(
                    "SM", of_containers("vgpu_container_sm_utilization_ratio"), GrafanaUnit.RATIO
                ),
                Column(
                    "Cores allocated",
                    of_containers("vgpu_container_core_allocated_ratio"),
                    GrafanaUnit.RATIO,
                ),
            ),
            "Used of limit",
            NO_SHARES,
            links={"Pod": links.POD},
            height=10,
        ),
    ),
)

TIME: Final = PanelRow(
    "Over time",
    (
        graph(
            "Memory in use, by GPU",
            "Memory in use on each GPU as the driver reports it, by containers or by other"
            " processes.",
            GrafanaUnit.BYTES,
            (PanelQuery(with_gpu(of_node("vgpu_gpu_memory_used_bytes")), GPU_NAME),),
            NO_DRIVER,
        ),
        graph(
            "Memory in use, by container",
            "What the processes of each container use, over all its GPUs.",
            GrafanaUnit.BYTES,
            (
                PanelQuery(
                    f"sum by ({CONTAINER_NAMES})"
                    f" ({once(SHARE_NAMES, of_containers('vgpu_container_memory_used_bytes'))})",
                    CONTAINER_NAME,
                ),
            ),
            NO_SHARES,
            stacked=True,
        ),
        graph(
            "Utilisation, by GPU",
            "Part of the time in which a kernel ran. A GPU may be at 100 % and do little.",
            GrafanaUnit.RATIO,
            (PanelQuery(with_gpu(of_node("vgpu_gpu_utilization_ratio")), GPU_NAME),),
            NO_DRIVER,
            most=1,
        ),
        graph(
            "SM utilisation, by container",
            "What the processes of each container use of the GPUs' multiprocessors.",
            GrafanaUnit.RATIO,
            (
                PanelQuery(
                    f"sum by ({CONTAINER_NAMES})"
                    f" ({once(SHARE_NAMES, of_containers('vgpu_container_sm_utilization_ratio'))})",
                    CONTAINER_NAME,
                ),
            ),
            NO_SHARES,
            stacked=True,
        ),
    ),
)

HEALTH: Final = PanelRow(
    "GPU condition",
    (
        graph(
            "Temperature",
            "Of each GPU, and where the driver begins to slow it down.",
            GrafanaUnit.CELSIUS,
            (
                PanelQuery(with_gpu(of_node("vgpu_gpu_temperature_celsius")), GPU_NAME),
                PanelQuery(
                    "min("
                    + of_node("vgpu_gpu_temperature_threshold_celsius", ', threshold="slowdown"')
                    + ")",
                    "slows down",
                ),
            ),
            NO_DRIVER,
        ),
        graph(
            "Power",
            "What each GPU draws. One at its limit is slowed: sw_power_cap, below.",
            GrafanaUnit.WATTS,
            (PanelQuery(with_gpu(of_node("vgpu_gpu_power_usage_watts")), GPU_NAME),),
            NO_DRIVER,
        ),
        graph(
            "XID errors",
            "Number of each since the exporter started: the level, since a rate would not see the"
            ' first. "None heard" is drawn only where XIDs are recorded.',
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    with_gpu(of_node("vgpu_gpu_xid_errors_total"), "xid"),
                    "{{gpu}}: XID {{xid}}",
                ),
                PanelQuery(
                    f"0 * ({with_gpu(of_node('vgpu_gpu_xid_watched') + ' == 1')})"
                    f" unless on ({DEVICE}) vgpu_gpu_xid_errors_total",
                    "{{gpu}}: none heard",
                ),
            ),
            "XIDs are not recorded (collector xid)",
            link=links.runbook("VgpuXidCritical"),
        ),
        graph(
            "Clock throttle reasons",
            "Part of the time for which each reason held; an idle GPU is no reason. A GPU that is"
            " hot or short of power is slow.",
            GrafanaUnit.RATIO,
            (
                PanelQuery(
                    or_zero(
                        "max by (reason) (sum_over_time("
                        + of_node("vgpu_gpu_clock_event_active", ', reason!="gpu_idle"')
                        + "[$__rate_interval]))"
                        + " / scalar(max(count_over_time("
                        + of_node("vgpu_gpu_up")
                        + "[$__rate_interval])))",
                        of_node("vgpu_gpu_up"),
                        reason="none",
                    ),
                    "{{reason}}",
                ),
            ),
            NO_DRIVER,
            most=1,
            link=links.runbook("VgpuThermalSlowdown"),
        ),
    ),
)

SOURCES: Final = PanelRow(
    "Data sources",
    (
        TablePanel(
            "Collectors",
            "The parts of the exporter: whether the last pass brought data, how long it took, and"
            " how many inputs it refused.",
            {"collector": "Collector"},
            (
                Column(
                    "Last pass",
                    of_node("vgpu_collector_success"),
                    steps=((None, Colour.BAD), (1, Colour.GOOD)),
                    value_texts={0: "FAILED", 1: "good"},
                ),
                Column("Took", of_node("vgpu_collector_duration_seconds"), GrafanaUnit.SECONDS),
                Column(
                    "Last good",
                    f"{of_node('vgpu_collector_last_success_timestamp_seconds')} * 1000",
                    GrafanaUnit.AGO,
                ),
                Column(
                    "Refused",
                    "sum by (collector)"
                    f" ({once_a_node(of_node('vgpu_collector_rejected'), 'collector', 'reason')})"
                    f" or on (collector) 0 * {COLLECTORS}",
                    steps=NONE_IS_BETTER,
                ),
            ),
            "Refused",
            NO_EXPORTER,
            width=12,
        ),
        bars(
            "Conflicts by type",
            "The exporter's status page has the pods and what each source reports.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sort_desc(sum by (type) ({CONFLICTS}) > 0)",
                        of_node("vgpu_allocation_conflicts"),
                        type="none",
                    ),
                    "{{type}}",
                ),
            ),
            NO_EXPORTER,
            steps=NONE_IS_BETTER,
            width=6,
        ),
        bars(
            "Sources of the ledger",
            "1 for each source that the ledger was built with. A conflict that only an absent"
            " source would show is not seen.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    f"max by (source) ({of_node('vgpu_allocation_source_read')})", "{{source}}"
                ),
            ),
            NO_EXPORTER,
            steps=((None, Colour.UNKNOWN), (1, Colour.GOOD)),
            value_texts={0: "not read", 1: "read"},
            most=1,
            width=6,
        ),
    ),
)

BY_NODE: Final = Dashboard(
    "vgpu-node",
    "vgpu / Node",
    "One node: its GPUs, their holders and their condition.",
    (choices.CLUSTER, choices.NODE),
    (TRUST, GPUS, HOLDERS, node_row(of_containers), TIME, HEALTH, TOKENS, SOURCES),
    "1h",
)
