"""Families of the exporter itself: collectors, driver calls, sampling."""

from collections.abc import Callable, Mapping
from typing import Any

from exporter.details import Detail
from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType
from vgpu.metrics.process_families import BUILD_INFO, process_family
from vgpu.model.facts import CallCost
from vgpu.sources.samples import CollectorRow

GAUGE, COUNTER = MetricType.GAUGE, MetricType.COUNTER


def by_reason(field: str) -> Callable[[CollectorRow], Labelled]:
    """A collector's counts by reason."""

    def pick(row: CollectorRow) -> Labelled:
        counts: Mapping[Any, int] = getattr(row, field)
        return {(reason.value,): count for reason, count in counts.items()}

    return pick


COLLECTORS = FamilyTable(
    title="Health of the collectors",
    rows=lambda view: view.collectors,
    labels=("collector",),
    key=lambda row: (row.name,),
    families=(
        Family(
            "vgpu_collector_success",
            GAUGE,
            "1 if the collector's last pass was finished in time and brought data; also 0 if it"
            " ran out of file descriptors or memory and brought only a part.",
            lambda row: None if row.success is None else int(row.success),
        ),
        Family(
            "vgpu_collector_duration_seconds",
            GAUGE,
            "Duration of the last finished pass.",
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
            "Passes that brought no data, or only a part (exhausted), by reason.",
            by_reason("failures"),
            ("reason",),
        ),
        Family(
            "vgpu_collector_rejected",
            GAUGE,
            "Inputs refused in the last pass, by reason; the other data is used.",
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

CALLS = FamilyTable(
    title="Cost of the driver calls",
    note="Load on the driver, by NVML call.",
    rows=lambda view: view.calls.items(),
    labels=("call",),
    key=lambda item: (item[0],),
    families=(
        Family(
            "vgpu_nvml_calls_total",
            COUNTER,
            "NVML calls made.",
            lambda item: _cost(item).count,
            detail=Detail.CALLS,
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


SELF = FamilyTable(
    title="The exporter itself",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        BUILD_INFO,
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
            "Time by which the current driver call has passed its deadline, 0 if none has.",
            lambda view: next(
                (row.stuck_seconds for row in view.collectors if row.name == "nvml"), None
            ),
            unit="seconds",
        ),
        process_family(
            "vgpu_api_heard_timestamp_seconds",
            "When the API server last sent an event or a bookmark, in unix time; its data counts"
            " for three minutes (--collector.api).",
            unit="timestamp",
        ),
        Family(
            "vgpu_compat_skipped_series",
            GAUGE,
            "Series of the compatibility sets left out because the pod's name is unknown.",
            lambda view: view.skipped_series,
        ),
        process_family(
            "vgpu_dropped_series",
            "Rows of the page before that were left out because another had the same labels.",
        ),
        process_family(
            "vgpu_join_failures_total",
            "Samples whose data, or a part of it, was lost to a defect of the exporter or a lack of"
            " memory; the log has the details.",
            COUNTER,
        ),
    ),
)
