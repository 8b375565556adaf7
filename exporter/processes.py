"""The processes on the GPUs, each with its container: `/processes`, for `vgpu top`. Pure.

They are no metrics: a series for each process would cost Prometheus memory with every start.
"""

from collections.abc import Iterator

import msgspec

from exporter.view import ExporterView
from vgpu.ledger.container_usage import NO_POD


class ProcessRow(msgspec.Struct, frozen=True, gc=False):
    """One process on one device, by host pid; the names are "" where its container is unknown.

    ``used_bytes`` is None where the driver hides it, ``sm_utilization_ratio`` where the device has
    none by process.
    """

    pid: int
    uuid: str
    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    used_bytes: int | None = None
    sm_utilization_ratio: float | None = None


class ProcessList(msgspec.Struct, frozen=True):
    """All processes of one sample; ``timestamp`` is the sample's, in unix seconds."""

    timestamp: float
    processes: tuple[ProcessRow, ...] = ()


def process_list(view: ExporterView) -> ProcessList:
    """The processes of the page's sample, those with the most memory first."""
    rows = sorted(_rows(view), key=lambda row: (-(row.used_bytes or 0), row.pid, row.uuid))
    return ProcessList(view.timestamp, tuple(rows))


def _rows(view: ExporterView) -> Iterator[ProcessRow]:
    sample = view.driver
    if sample is None:
        return
    places = {(pid, usage.device): usage for usage in view.usage.processes for pid in usage.pids}
    pods = {each.pod.uid: each.pod for each in view.usage.containers}
    for process in (*sample.processes, *sample.unplaced):
        at = process.pid, process.device
        usage = places.get(at)
        uid, container = (usage.pod_uid, usage.container) if usage else ("", "")
        pod = pods.get(uid, NO_POD) if uid else NO_POD
        idle = 0.0 if process.device in sample.utilization_known else None
        yield ProcessRow(
            *at,
            pod.namespace,
            pod.name,
            container,
            uid,
            process.used_bytes,
            sample.utilization.get(at, idle),
        )
