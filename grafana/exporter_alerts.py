"""The alerts of the exporter: whether it can be scraped, and what it can read."""

from typing import Final

from grafana.promql import TARGET, Alert, AlertSeverity, RuleGroup, once
from grafana.settings import ABSENT_REMEMBERED, EXPORTER, SCRAPE_SECONDS, SLOW_PART, STALE_INTERVALS
from grafana.templates import COUNT, THE_NODE, TIME

CRITICAL, WARNING = AlertSeverity.CRITICAL, AlertSeverity.WARNING

EXPORTERS: Final = RuleGroup(
    "vgpu-exporters",
    (
        Alert(
            "VgpuExporterDown",
            WARNING,
            f"up{{{EXPORTER}}} == 0",
            "10m",
            f"The exporter on {THE_NODE} cannot be scraped",
            "This node's GPUs are not monitored. First: check whether the exporter's pod runs"
            " there, and read the end of its log.",
        ),
        Alert(
            "VgpuExportersAbsent",
            CRITICAL,
            f"last_over_time(cluster:vgpu_gpus:sum[{ABSENT_REMEMBERED}])"
            f" unless on (cluster) up{{{EXPORTER}}}",
            "15m",
            "Prometheus has no exporter to scrape any more",
            f"{COUNT} GPUs were seen within the last week, and now no exporter is a target. First:"
            " look for the scrape job, its ServiceMonitor or PodMonitor, and the DaemonSet.",
        ),
        Alert(
            "VgpuDriverNotAnswering",
            CRITICAL,
            'vgpu_collector_success{collector="nvml"} == 0',
            "5m",
            f"The NVIDIA driver on {THE_NODE} does not answer",
            "The driver cannot be read, and its series are withdrawn. First: run nvidia-smi on the"
            " node, and look at dmesg for NVRM lines; if it hangs, drain the node.",
        ),
        Alert(
            "VgpuCollectorFailing",
            WARNING,
            'vgpu_collector_success{collector!="nvml"} == 0',
            "15m",
            f"The collector {{{{ $labels.collector }}}} on {THE_NODE} brings no data",
            "Data that only this collector reads is missing. First: see the reason in"
            " vgpu_collector_failures_total, or the error on the exporter's status page.",
        ),
        Alert(
            "VgpuDataStale",
            WARNING,
            "time() - vgpu_snapshot_timestamp_seconds"
            f" > {STALE_INTERVALS} * vgpu_sample_interval_seconds + {SCRAPE_SECONDS}",
            "5m",
            f"The exporter on {THE_NODE} serves an old page",
            f"The page is {TIME} old: the exporter answers, but no longer takes samples. First:"
            " compare"
            " the node's clock with this server's; if both are right, restart the exporter.",
        ),
        Alert(
            "VgpuCollectionSlow",
            WARNING,
            f"vgpu_collector_duration_seconds > on ({TARGET}) group_left ()"
            f" ({SLOW_PART} * {once(TARGET, 'vgpu_sample_interval_seconds')})",
            "15m",
            f"The collector {{{{ $labels.collector }}}} on {THE_NODE} is slow",
            f"A pass takes {TIME}. First: look at the node's load and disk; for nvml, see which"
            " call takes long in vgpu_nvml_call_seconds_total.",
        ),
        Alert(
            "VgpuExporterDefect",
            WARNING,
            "increase(vgpu_join_failures_total[15m]) > 0 or vgpu_dropped_series > 0",
            "5m",
            f"The exporter on {THE_NODE} lost data to a defect of its own",
            f"{COUNT} samples or series were left out. First: save the exporter's log, which has"
            " the details, and report it.",
        ),
        Alert(
            "VgpuWebConfigBroken",
            WARNING,
            "vgpu_web_config_last_reload_successful == 0",
            "5m",
            f"The web config file of {THE_NODE} is broken",
            "The version before it stays in force; a restart would fail. First: run promtool check"
            " web-config on the file, and look at the log.",
        ),
    ),
)
