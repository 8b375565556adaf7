"""What is wrong, in words, for people who look at the status page. Pure."""

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from exporter.view import ContainerRow, Orphan, ShareRow, View
from vgpu.reasons import Reason

RECENT_XID_SECONDS = 3600.0


class Severity(IntEnum):
    """How loud a problem is; the page sorts by it."""

    ERROR = 0
    WARNING = 1
    NOTE = 2


class Problem(msgspec.Struct, frozen=True, order=True):
    """One sentence with its severity."""

    severity: Severity
    text: str


def problems(view: View) -> list[Problem]:
    """Everything worth a person's attention, the loudest first."""
    found = [
        *collector_problems(view),
        *device_problems(view),
        *share_problems(view),
        *leftovers(view),
    ]
    return sorted(found)


def collector_problems(view: View) -> Iterator[Problem]:
    """What could not be read."""
    for row in view.collectors:
        if row.stuck_seconds:
            late = f"{row.stuck_seconds:.0f} s past its deadline"
            yield Problem(Severity.ERROR, f"Collector {row.name} is stuck, {late}.")
        elif row.success is False:
            yield Problem(Severity.ERROR, f"Collector {row.name} fails: {row.last_error}.")
        only_absent = set(row.rejected) <= {Reason.ABSENT}
        severity = Severity.NOTE if only_absent else Severity.WARNING
        for example in row.examples:
            yield Problem(severity, f"Refused by {row.name}: {example}.")


def device_problems(view: View) -> Iterator[Problem]:
    """Lost cards and XIDs."""
    for row in view.attribution.gpus:
        if not row.answers:
            yield Problem(Severity.ERROR, f"Device {row.gpu.uuid} no longer answers.")
    for xid in view.xids:
        if view.timestamp - xid.last_timestamp < RECENT_XID_SECONDS:
            ago = view.timestamp - xid.last_timestamp
            text = f"XID {xid.xid} on {xid.device or 'an unknown device'}, {ago:.0f} s ago."
            yield Problem(Severity.ERROR, text)


def share_problems(view: View) -> Iterator[Problem]:
    """Containers over their limit, with phantom memory, or held back."""
    for share in view.attribution.shares:
        name = who(share)
        limit, used, told = share.limit_bytes, share.used_bytes, share.accounted
        if limit and used and used > limit:
            text = (
                f"{name} uses {size(used)}, {size(used - limit)} over its limit of {size(limit)}."
            )
            yield Problem(Severity.ERROR, text)
        if told is not None and told.phantom:
            text = f"{name}: dead processes still claim {size(told.phantom)} in its region."
            yield Problem(Severity.WARNING, text)
    for row in view.attribution.containers:
        if row.blocked:
            yield Problem(Severity.WARNING, f"{who(row)} is held back for a higher priority.")


def leftovers(view: View) -> Iterator[Problem]:
    """Failed pods and regions that nobody owns."""
    for status in view.attribution.statuses or ():
        if status.wants_gpu and status.phase == "Failed":
            name = f"{status.ref.namespace}/{status.ref.name}"
            yield Problem(Severity.ERROR, f"Pod {name} is Failed: {status.reason or 'no reason'}.")
    for orphan in view.attribution.orphans or ():
        text = f"Orphaned region: no pod {orphan.pod_uid} on this node ({orphan.path})."
        yield Problem(Severity.WARNING, text)
    for orphan in view.attribution.released or ():
        yield Problem(Severity.NOTE, f"{who(orphan)} has ended; its region is still there.")


def who(row: ShareRow | ContainerRow | Orphan) -> str:
    """namespace/pod/container, or what is known instead."""
    pod = f"{row.namespace}/{row.pod}" if row.pod else row.pod_uid or "outside Kubernetes"
    return f"{pod}/{row.container}" if row.container else pod


def size(count: float) -> str:
    """Bytes for people: the largest binary unit, three digits."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
