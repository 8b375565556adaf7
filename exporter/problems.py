"""The problems of a node as sentences for the status page. Pure."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final

import msgspec

from exporter.view import ExporterView
from vgpu.ledger import Conflict, ConflictKind, Statement
from vgpu.ledger.conflicts import OF_GPU_GROUPS
from vgpu.ledger.container_usage import ContainerUsage, ShareUsage
from vgpu.ledger.limit_verdict import LimitState
from vgpu.model.allocation import Share
from vgpu.model.facts import Gpu
from vgpu.model.names import PodRef, Source
from vgpu.model.reasons import Reason
from vgpu.model.units import count, percent
from vgpu.model.xids import RECENT_SECONDS, XidSeverity, described, severity_of

SHORT_UUID = len("GPU-") + 8
"""Characters of a UUID that identify a device for people."""

MAX_PARTIES = 2
"""Maximum number of quoted statements of a conflict; the others are counted."""

MAX_SHARES = 2
"""Maximum number of quoted shares of a statement; the others are counted."""

MAX_QUOTE = 200
"""Maximum length of a quoted place or detail, in characters; a longer one is cut."""

SERIOUS = frozenset(
    {
        ConflictKind.GPU_DIFFERS,
        ConflictKind.NODE_DIFFERS,
        ConflictKind.DOUBLE_BOOKED,
        ConflictKind.RUNNING_WITHOUT_DEVICE,
        ConflictKind.DEVICE_MISSING,
    }
)
"""Conflicts in which a container uses a device that was not allocated to it, or none."""

COLLECTORS = "collectors"
"""The part of the status page with the collectors."""


_CONFLICTS: Final = "alerts/VgpuAllocationConflict"

CONFLICT_RUNBOOKS: Final[Mapping[ConflictKind, str]] = {
    ConflictKind.GPU_DIFFERS: "card_drift",
    ConflictKind.FILE_DIFFERS: _CONFLICTS,
    ConflictKind.SIZE_DIFFERS: _CONFLICTS,
    ConflictKind.LIMIT_DIFFERS: _CONFLICTS,
    ConflictKind.NODE_DIFFERS: _CONFLICTS,
    ConflictKind.DOUBLE_BOOKED: "double_booked",
    ConflictKind.OVERCOMMITTED: "double_booked",
    ConflictKind.HELD_BY_NOBODY_ALIVE: _CONFLICTS,
    ConflictKind.OUTLIVES_POD: _CONFLICTS,
    ConflictKind.RUNNING_WITHOUT_DEVICE: "running_without_device",
    ConflictKind.PROCESS_WITHOUT_ALLOCATION: "unowned_process",
    ConflictKind.DEVICE_MISSING: "lost_device",
    ConflictKind.DEVICE_UNHEALTHY: "lost_device",
    ConflictKind.RESOURCE_CLAIM_LEFT: "resource_claim",
    ConflictKind.CDI_SPEC_MISSING: "resource_claim",
    ConflictKind.MALFORMED: "malformed_object",
    **dict.fromkeys(OF_GPU_GROUPS, "kai"),
}
"""The runbook of each kind of conflict."""

_REGIONS: Final = "runbooks/orphan_shim_dir"
_LIMITS: Final = "limits"
_PLAN: Final = "vgpu reconcile plan --scope node"
_ON_NODE: Final = "vgpu doctor node"


class ProblemSeverity(IntEnum):
    """The severity of a problem; the page sorts by it."""

    ERROR = 0
    WARNING = 1
    NOTE = 2


XID_SEVERITIES = {
    XidSeverity.CRITICAL: ProblemSeverity.ERROR,
    XidSeverity.WARNING: ProblemSeverity.WARNING,
    XidSeverity.NONE: ProblemSeverity.NOTE,
    None: ProblemSeverity.NOTE,
}
"""As severe as the alert; None is an XID that is not known."""


class ProblemDetail(msgspec.Struct, frozen=True, order=True):
    """What the status page has about an object that no part of it shows otherwise.

    Attributes:
        name: the object, for people.
        command: what to type to find the cause.
        page: its page in the documentation.
    """

    name: str
    command: str
    page: str

    @property
    def place(self) -> str:
        """The fragment of its row."""
        return f"{self.page}:{self.name}"


class Problem(msgspec.Struct, frozen=True, order=True):
    """One sentence with its severity.

    ``place`` is the part of the status page that has more: a device's UUID, ``COLLECTORS``, or the
    row of ``detail``.
    """

    severity: ProblemSeverity
    text: str
    place: str
    detail: ProblemDetail | None = None


def _problem(severity: ProblemSeverity, text: str, device: str, detail: ProblemDetail) -> Problem:
    """It leads to the device, or to the row of ``detail`` if the page shows no device for it."""
    return (
        Problem(severity, text, device) if device else Problem(severity, text, detail.place, detail)
    )


def problems(view: ExporterView) -> list[Problem]:
    """All problems of the node, the most severe first."""
    all_problems = [
        *exporter_problems(view),
        *collector_problems(view),
        *device_problems(view),
        *share_problems(view),
        *conflict_problems(view),
        *leftovers(view),
    ]
    return sorted(all_problems)


def exporter_problems(view: ExporterView) -> Iterator[Problem]:
    """A sample that failed."""
    if view.is_withdrawn:
        text = "The last sample failed, so there is no data of the node: the log has the reason."
        yield Problem(ProblemSeverity.ERROR, text, COLLECTORS)


def collector_problems(view: ExporterView) -> Iterator[Problem]:
    """Collectors that fail, and data that they refused."""
    for row in view.collectors:
        if row.stuck_seconds:
            late = f"{row.stuck_seconds:.0f} s past its deadline"
            yield Problem(
                ProblemSeverity.ERROR, f"Collector {row.name} is stuck, {late}.", COLLECTORS
            )
        elif row.success is False:
            text = f"Collector {row.name} fails: {row.last_error}."
            yield Problem(ProblemSeverity.ERROR, text, COLLECTORS)
        only_absent = set(row.rejected) <= {Reason.ABSENT}
        severity = ProblemSeverity.NOTE if only_absent else ProblemSeverity.WARNING
        for example in row.examples:
            yield Problem(severity, f"Refused by {row.name}: {example}.", COLLECTORS)


def device_problems(view: ExporterView) -> Iterator[Problem]:
    """Missing GPUs and XIDs."""
    names = {row.gpu.uuid: gpu_name(row.gpu) for row in view.gpus}
    for row in view.gpus:
        if not row.answers:
            uuid = row.gpu.uuid
            yield Problem(ProblemSeverity.ERROR, f"{names[uuid]} no longer answers.", uuid)
    known = sum(not row.gpu.parent for row in view.gpus)
    expected = view.gpus_expected
    if view.driver is not None and expected is not None and expected > known:
        missing = f"{expected - known} of {count(expected, 'GPU')} that this node should have"
        text = f"{missing}: not there, or not identified."
        yield Problem(ProblemSeverity.ERROR, text, COLLECTORS)
    for xid in view.xids:
        ago = view.timestamp - xid.last_timestamp
        if ago < RECENT_SECONDS:
            device = names.get(xid.device, xid.device) or "an unknown device"
            text = f"{described(xid.xid)} on {device}, {ago:.0f} s ago."
            place = xid.device if xid.device in names else ""
            detail = ProblemDetail(device, _ON_NODE, "xids")
            yield _problem(XID_SEVERITIES[severity_of(xid.xid)], text, place, detail)


def gpu_name(gpu: Gpu) -> str:
    """A device for people: its number, its model and the beginning of its UUID."""
    number = f"MIG {gpu.info.get('mig_profile', '')}" if gpu.parent else f"GPU {gpu.index}"
    parts = filter(None, (gpu.info.get("name", ""), gpu.uuid[:SHORT_UUID]))
    return f"{number} ({', '.join(parts)})"


def share_problems(view: ExporterView) -> Iterator[Problem]:
    """Containers over their limit or without one, with phantom memory, or held back."""
    for share in view.usage.shares:
        name = who(share)
        limit, used, accounted = share.limit_bytes, share.used_bytes, share.accounted
        if limit and used and share.is_over_limit:
            excess = f"{short_size(used - limit)} over its limit of {short_size(limit)}"
            text = f"{name} uses {short_size(used)}, {excess}."
            detail = _of_pod(share, "runbooks/over_limit")
            yield _problem(ProblemSeverity.ERROR, text, share.device, detail)
        if accounted is not None and accounted.phantom:
            text = (
                f"{name}: dead processes still claim {short_size(accounted.phantom)} in its region."
            )
            detail = _of_pod(share, "inspect")
            yield _problem(ProblemSeverity.WARNING, text, share.device, detail)
    devices = {(share.pod.uid, share.container): share.device for share in view.usage.shares}
    for row in view.usage.containers:
        reason = row.limit_reason
        if reason is not None and reason.state is LimitState.MISSING:
            text = f"{who(row)} is not limited: {reason.explanation}."
            place = devices.get((row.pod.uid, row.container), "")
            yield _problem(ProblemSeverity.ERROR, text, place, _of_pod(row, _LIMITS))
        if row.blocked:
            text = f"{who(row)} is held back for a higher priority."
            place = devices.get((row.pod.uid, row.container), "")
            detail = _of_pod(row, "runbooks/alerts/VgpuContainerBlocked")
            yield _problem(ProblemSeverity.WARNING, text, place, detail)


def _of_pod(row: ShareUsage | ContainerUsage, page: str) -> ProblemDetail:
    return ProblemDetail(who(row), _explain(row.pod), page)


def _explain(pod: PodRef) -> str:
    """The command about a pod; about the node if the pod has no name."""
    return (
        shlex.join(("vgpu", "explain", "pod", f"{pod.namespace}/{pod.name}"))
        if pod.name
        else _ON_NODE
    )


def conflict_problems(view: ExporterView) -> Iterator[Problem]:
    """Disagreements between sources of the ledger; orphaned regions count as leftovers."""
    if view.allocations is None:
        return
    ledger = view.allocations.ledger
    names = {holding.pod.uid: holding.pod for holding in ledger.holdings}
    gpus = {row.gpu.uuid: gpu_name(row.gpu) for row in view.gpus}
    shown = gpus.keys() | {share.device for share in view.usage.shares}
    orphaned = {orphan.path for orphan in view.usage.orphans or ()}
    for conflict in ledger.conflicts:
        paths = {statement.where for statement in conflict.statements}
        if not paths or not paths <= orphaned:
            text = conflict_text(conflict, names, gpus)
            place = conflict.device if conflict.device in shown else ""
            yield _problem(_severity(conflict), text, place, _of_conflict(conflict))


def _of_conflict(conflict: Conflict) -> ProblemDetail:
    """About the pod, the device or, where several of both conflict, the kind of the conflict."""
    page = f"runbooks/{CONFLICT_RUNBOOKS[conflict.kind]}"
    if conflict.pod is not None:
        return ProblemDetail(named(conflict.pod, conflict.container), _explain(conflict.pod), page)
    return ProblemDetail(conflict.device or conflict.kind.explanation, _PLAN, page)


def _severity(conflict: Conflict) -> ProblemSeverity:
    if conflict.kind in SERIOUS:
        return ProblemSeverity.ERROR
    outside = conflict.kind is ConflictKind.PROCESS_WITHOUT_ALLOCATION and conflict.pod is None
    return ProblemSeverity.NOTE if outside else ProblemSeverity.WARNING


def conflict_text(conflict: Conflict, names: Mapping[str, PodRef], gpus: Mapping[str, str]) -> str:
    """The pod, the problem, and the sources' reports; ``names`` is by pod UID, ``gpus`` by UUID."""
    device = gpus.get(conflict.device, conflict.device)
    pod = named(conflict.pod, conflict.container) if conflict.pod else ""
    object_name = " on ".join(filter(None, (pod, device)))
    parties = [
        _report(statement, conflict, names.get(statement.pod.uid, statement.pod), gpus)
        for statement in conflict.statements[:MAX_PARTIES]
    ]
    more = len(conflict.statements) - len(parties)
    parties += [f"{more} more"] if more else []
    detail = f" ({_quote(conflict.detail)})" if conflict.detail else ""
    text = f"{conflict.kind.explanation}{detail}{': ' if parties else ''}{'; '.join(parties)}."
    return f"{object_name}: {text}" if object_name else text


def _report(statement: Statement, conflict: Conflict, pod: PodRef, gpus: Mapping[str, str]) -> str:
    """``<source>: <shares> (<where>)``; with the pod if the conflict is not one pod's."""
    whose = f" for {named(pod, statement.container)}" if conflict.pod is None and pod.uid else ""
    about = [
        share for share in statement.shares if share.device == conflict.device
    ] or statement.shares
    if statement.source is Source.PROCESS:
        there = _listed(gpus.get(share.device, share.device) for share in about)
        on_it = conflict.device and all(share.device == conflict.device for share in about)
        return f"{_quote(statement.where)}{whose} {'uses this GPU' if on_it else f'is on {there}'}"
    where = f" ({_quote(statement.where)})" if statement.where and conflict.pod else ""
    shares = _listed(_share(share, conflict.device, gpus) for share in about) or "nothing"
    return f"{statement.source.value}: {shares}{whose}{where}"


def _quote(text: str) -> str:
    return text if len(text) <= MAX_QUOTE else f"{text[: MAX_QUOTE - 1]}…"


def _listed(texts: Iterable[str]) -> str:
    """The first texts, and the number of the others: a problem has to fit a phone's screen."""
    every = list(texts)
    others = len(every) - MAX_SHARES
    return ", ".join(every[:MAX_SHARES]) + (f" and {others} more" if others > 0 else "")


def _share(share: Share, device: str, gpus: Mapping[str, str]) -> str:
    """The reported memory and cores of the share; its device if not ``device``."""
    parts = [] if share.memory_bytes is None else [short_size(share.memory_bytes)]
    parts += [] if share.cores_milli is None else [f"{percent(share.cores_milli)} % of the cores"]
    elsewhere = gpus.get(share.device, share.device) or "an unknown device"
    there = "" if device and share.device == device else f" on {elsewhere}"
    return f"{' and '.join(parts) or 'a share'}{there}"


def leftovers(view: ExporterView) -> Iterator[Problem]:
    """Failed pods, regions without an owner, and libraries that tenants can change."""
    for status in view.statuses or ():
        if status.wants_gpu and status.phase == "Failed":
            name = named(status.ref, "")
            text = f"Pod {name} is Failed: {status.reason or 'no reason'}."
            detail = ProblemDetail(name, _explain(status.ref), "runbooks/alerts/VgpuStuckPods")
            yield Problem(ProblemSeverity.ERROR, text, detail.place, detail)
    for orphan in view.usage.orphans or ():
        text = f"Orphaned region: no pod {orphan.pod_uid} on this node ({orphan.path})."
        detail = ProblemDetail(orphan.path, _PLAN, _REGIONS)
        yield Problem(ProblemSeverity.WARNING, text, detail.place, detail)
    for library, places in (view.usage.library_writers or {}).items():
        if places:
            text = (
                f"{count(len(places), 'container')} can change {library} of this node, which limits"
                f" others: {_listed(named(*place) for place in places)}."
            )
            detail = ProblemDetail(library, f"sha256sum {shlex.quote(library)}", _LIMITS)
            yield Problem(ProblemSeverity.WARNING, text, detail.place, detail)
    for container in view.usage.released or ():
        text = f"{who(container)} has ended; its region is still there."
        detail = ProblemDetail(who(container), _PLAN, _REGIONS)
        yield Problem(ProblemSeverity.NOTE, text, detail.place, detail)


def who(row: ShareUsage | ContainerUsage) -> str:
    """namespace/pod/container, or the names that are known."""
    return named(row.pod, row.container)


def named(pod: PodRef, container: str) -> str:
    """The same of a pod and the name of its container."""
    name = f"{pod.namespace}/{pod.name}" if pod.name else pod.uid or "outside Kubernetes"
    return f"{name}/{container}" if container else name


def short_size(count: float) -> str:
    """Bytes for people: the largest binary unit, three digits."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
