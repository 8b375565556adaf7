"""Families about ourselves: the collectors, the driver calls, the process."""

from collections.abc import Callable, Mapping
from typing import Any

from exporter.view import CollectorRow
from vgpu.facts import CallCost
from vgpu.metrics.family import Family, Kind, Labelled, Table

GAUGE, COUNTER = Kind.GAUGE, Kind.COUNTER


def by_reason(field: str) -> Callable[[CollectorRow], Labelled]:
    """A collector's counts by reason."""

    def pick(row: CollectorRow) -> Labelled:
        counts: Mapping[Any, int] = getattr(row, field)
        return {(reason.value,): count for reason, count in counts.items()}

    return pick


COLLECTORS = Table(
    title="Health of the collectors",
    rows=lambda view: view.collectors,
    labels=("collector",),
    key=lambda row: (row.name,),
    families=(
        Family(
            "vgpu_collector_success",
            GAUGE,
            "1 if the collector's last pass was finished in time and brought data.",
            lambda row: None if row.success is None else int(row.success),
        ),
        Family(
            "vgpu_collector_duration_seconds",
            GAUGE,
            "How long the last finished pass took.",
            lambda row: row.duration,
            unit="seconds",
        ),
        Family(
            "vgpu_collector_last_success_timestamp_seconds",
            GAUGE,
            "When the collector last succeeded, in unix time.",
            lambda row: row.last_success,
            unit="timestamp",
        ),
        Family(
            "vgpu_collector_failures_total",
            COUNTER,
            "Passes that brought no data, by reason.",
            by_reason("failures"),
            ("reason",),
        ),
        Family(
            "vgpu_collector_rejected",
            GAUGE,
            "Inputs refused in the last pass, by reason; the rest of the data stands.",
            by_reason("rejected"),
            ("reason",),
        ),
        Family(
            "vgpu_collector_rejections_total",
            COUNTER,
            "Inputs refused since start, counted once a pass, by reason.",
            by_reason("rejections"),
            ("reason",),
        ),
    ),
)

CALLS = Table(
    title="Cost of the driver calls",
    note="What we ask of the driver's lock, by NVML call.",
    rows=lambda view: view.calls.items(),
    labels=("call",),
    key=lambda item: (item[0],),
    families=(
        Family(
            "vgpu_nvml_calls_total",
            COUNTER,
            "NVML calls made.",
            lambda item: _cost(item).count,
        ),
        Family(
            "vgpu_nvml_call_seconds_total",
            COUNTER,
            "Seconds spent inside NVML calls.",
            lambda item: _cost(item).seconds,
            unit="seconds",
        ),
    ),
)


def _cost(item: tuple[str, CallCost]) -> CallCost:
    return item[1]


def _own(name: str, help_: str, kind: Kind = GAUGE, unit: str = "") -> Family:
    return Family(name, kind, help_, lambda view: view.own.get(name), unit=unit)


BUILD_LABELS = ("version", "revision", "python_version")

SELF = Table(
    title="The exporter itself",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        Family(
            "vgpu_build_info",
            GAUGE,
            "Always 1; what is running.",
            lambda view: {tuple(view.build.get(name, "") for name in BUILD_LABELS): 1},
            BUILD_LABELS,
        ),
        Family(
            "vgpu_snapshot_timestamp_seconds",
            GAUGE,
            "When this page was made, in unix time; its age is time() minus this. A collector"
            " that fails may be older: vgpu_collector_last_success_timestamp_seconds.",
            lambda view: view.timestamp,
            unit="timestamp",
        ),
        Family(
            "vgpu_sample_interval_seconds",
            GAUGE,
            "The configured interval between samples (--sample.interval).",
            lambda view: view.interval,
            unit="seconds",
        ),
        Family(
            "vgpu_driver_call_stuck_seconds",
            GAUGE,
            "How long the driver call under way has been past its deadline, 0 if none is.",
            lambda view: next(
                (row.stuck_seconds for row in view.collectors if row.name == "nvml"), None
            ),
            unit="seconds",
        ),
        _own(
            "vgpu_api_heard_timestamp_seconds",
            "When the API server last sent an event or a bookmark, in unix time; what it said"
            " counts for three minutes (--collector.api).",
            unit="timestamp",
        ),
        Family(
            "vgpu_compat_skipped_series",
            GAUGE,
            "Series of the compatibility sets left out because the pod's name is unknown.",
            lambda view: view.skipped_series,
        ),
        _own(
            "vgpu_dropped_series",
            "Rows of the page before that were left out because another had the same labels.",
        ),
        _own(
            "vgpu_join_failures_total",
            "Samples whose data was lost to a defect of the exporter; the log has the details.",
            COUNTER,
        ),
    ),
)


WEB = Table(
    title="The web config file",
    note="Only with --web.config.file.",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        _own(
            "vgpu_web_config_last_reload_successful",
            "1 if the file as it is now is in force, 0 if it is broken and an older one is.",
        ),
        _own("vgpu_web_config_reload_failures_total", "Attempts to read a broken file.", COUNTER),
    ),
)

PROCESS = Table(
    title="The exporter's process",
    note="As every Prometheus client has them (prometheus_client's ProcessCollector).",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        _own("process_cpu_seconds_total", "CPU time used (/proc/self/stat).", COUNTER, "seconds"),
        _own("process_open_fds", "Open file descriptors (/proc/self/fd)."),
        _own("process_max_fds", "The most file descriptors allowed (/proc/self/limits)."),
        _own("process_virtual_memory_bytes", "Virtual memory (/proc/self/stat).", unit="bytes"),
        _own("process_resident_memory_bytes", "Resident memory (/proc/self/stat).", unit="bytes"),
        _own(
            "process_start_time_seconds",
            "When the process started, in unix time (/proc/self/stat).",
            unit="seconds",
        ),
    ),
)
