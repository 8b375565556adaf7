"""Why a scheduler refuses a pod for which nodes have room: the cause with positive evidence. Pure.

For the parts of the scheduler's message, without those about nodes that the pod can never use:

    stale_scheduler  =  each part is a refusal of the pod's own shares, nodes have room by the
                        allocation records and by their allocatable resources, none of them has a
                        lock or a reservation of a pod elsewhere, no pod stands in the way, and not
                        several containers request memory of gpushare's
    other_checks     =  a part names a check that is not about GPUs
    unknown_refusal  =  nothing else

Each cause before these has its evidence in the message, or in the objects.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import structs

from reconciler.model import ObjectKind
from vgpu.inventory import WaitingReason
from vgpu.inventory.nvidia import is_own_unit
from vgpu.kube.closed_nodes import ClosedReason
from vgpu.kube.kept_keys import is_gpu_resource
from vgpu.model.reasons import Explained
from vgpu.placement.result import PlacementReason
from vgpu.schemes.codec import NodeLock
from vgpu.schemes.other_schedulers import is_foreign_resource
from vgpucli.doctor.model import DoctorReason
from vgpucli.explain.known_objects import KnownPod
from vgpucli.explain.model import (
    ExplainedStep,
    ExplainOutcome,
    ExplainReason,
    StepReason,
    WayStep,
)
from vgpucli.explain.obstacles import requested_names
from vgpucli.explain.pod_facts import has_several_containers
from vgpucli.explain.pod_group import group_advice
from vgpucli.explain.rule_steps import reason_of
from vgpucli.explain.scheduler_message import (
    MessagePart,
    PartKind,
    SchedulerMessage,
    named,
    parsed,
)
from vgpucli.explain.sentences import names_text
from vgpucli.explain.step_values import not_checked, waiting
from vgpucli.explain.webhooks import DEFAULT_SCHEDULERS

_Cause = Callable[[KnownPod, SchedulerMessage], ExplainedStep | None]

_CONTROL_PLANE: Final = "node-role.kubernetes.io/"
"""The beginning of the keys of taints that keep pods off nodes of the control plane."""


def refused_step(evidence: KnownPod, fitting: list[str], room: str) -> ExplainedStep:
    """The step of a pod that is refused although ``fitting`` nodes have room."""
    message = parsed(evidence.pod.unschedulable)
    step = _named_by(evidence, message)
    if step is not None:
        return structs.replace(step, evidence=(*step.evidence, room))
    return _of_parts(evidence, message, fitting, (f"kube-scheduler: {message.text}", room))


def missed_units(evidence: KnownPod, message: SchedulerMessage) -> tuple[MessagePart, ...]:
    """The parts about units of NVIDIA's own plugin that the pod requests and nodes lack."""
    parts = message.of_kind(PartKind.RESOURCE)
    return tuple(part for part in parts if part.name in evidence.observed)


def cause_without_room(evidence: KnownPod) -> ExplainedStep | None:
    """The cause that the message names by itself, whatever room nodes have; None if none."""
    message = parsed(evidence.pod.unschedulable)
    return _named_by(evidence, message) if message.parts else None


def _named_by(evidence: KnownPod, message: SchedulerMessage) -> ExplainedStep | None:
    """The step of the most specific cause that the message names, with the message; None if none.

    A cause beside parts about the pod's shares may be one of some nodes only.
    """
    for cause in _CAUSES:
        step = cause(evidence, message)
        if step is not None:
            quoted = f"kube-scheduler: {message.text}"
            is_proven = cause in _NEVER_FOR_ROOM and (
                cause is _by_other_scheduler or not message.of_kind(PartKind.SHARES)
            )
            return structs.replace(step, evidence=(*step.evidence, quoted), is_proven=is_proven)
    return None


# ---------------------------------------------------------------- causes


def _locked(evidence: KnownPod, message: SchedulerMessage) -> ExplainedStep | None:
    parts = message.of_kind(PartKind.LOCK)
    if not parts:
        return None
    known = (*evidence.in_the_way.locks, *evidence.in_the_way.full_locked)
    of_open = {node for node, _ in known} - evidence.closed.keys()
    names = {part.name for part in parts} - {""} or of_open or {node for node, _ in known}
    locks = [(node, lock) for node, lock in known if node in names]
    texts = tuple(f"node {node} has {lock.key}: {lock.text!r}" for node, lock in locks)
    nodes = {node for node, _ in locks}
    stale = [
        finding
        for finding in evidence.in_the_way.findings
        if finding.object_ref.kind is ObjectKind.NODE and finding.object_ref.name in nodes
    ]
    own = StepReason.of(ExplainReason.NODE_LOCKED)
    if not locks and names <= evidence.in_the_way.unlocked:
        text = f"no annotation of node {names_text(sorted(names))} is a lock any more"
        step = ExplainedStep(WayStep.RESERVED, ExplainOutcome.FAILED, (own,), (text,))
        since, advice = evidence.pod.scheduled_at, "wait: kube-scheduler tries again"
        return structs.replace(step, since=since, detail=text, advice=advice)
    evidence_texts = (*(text for finding in stale for text in finding.evidence), *texts)
    return ExplainedStep(
        WayStep.RESERVED,
        ExplainOutcome.FAILED,
        (*dict.fromkeys(map(reason_of, stale)), own),
        tuple(dict.fromkeys(evidence_texts)),
        since=evidence.pod.scheduled_at,
        detail=", ".join(_lock_text(node, lock) for node, lock in locks[:1]),
    )


def _lock_text(node: str, lock: NodeLock) -> str:
    owner = "" if lock.owner is None else f" for pod {'/'.join(lock.owner)}"
    return f"node {node} is locked{owner}"


def _bind_failed(evidence: KnownPod, message: SchedulerMessage) -> ExplainedStep | None:
    """Our own scheduler lacks a lock, or its bind fails; a text with details is shown with them."""
    if {part.failure for part in message.parts} == {PlacementReason.NEEDS_LOCK}:
        return _failed(evidence, PlacementReason.NEEDS_LOCK)
    for part in message.of_kind(PartKind.BIND):
        if part.failure is not None:
            detail = "" if part.text.endswith(part.failure.explanation) else part.text
            return structs.replace(_failed(evidence, part.failure), detail=detail)
    return None


def _by_other_scheduler(evidence: KnownPod, message: SchedulerMessage) -> ExplainedStep | None:
    """kube-scheduler counts what only the scheduler of the sharing system can count.

    Without positive evidence for a wrong schedulerName the configuration of the scheduler is the
    cause: the right scheduler counts these resources, too, where it does not leave them to its
    extender.
    """
    uncounted = evidence.in_the_way.uncounted
    names = [part.name for part in message.of_kind(PartKind.RESOURCE) if part.name in uncounted]
    if not names:
        return None
    missed = f"kube-scheduler misses {', '.join(names)}"
    text = f"{missed}, which the scheduler of the sharing system alone counts"
    if not _has_wrong_scheduler(evidence):
        scheduler = f"the pod's schedulerName is {evidence.pod.scheduler}"
        step = _failed(evidence, ExplainReason.COUNTED_WITHOUT_EXTENDER, text, scheduler)
        return structs.replace(step, detail=f"{missed}; {scheduler}")
    texts = tuple(scheduler_texts(evidence))
    step = _failed(evidence, ExplainReason.WRONG_SCHEDULER, text, *texts)
    return structs.replace(step, detail=next(iter(texts), ""))


def _has_wrong_scheduler(evidence: KnownPod) -> bool:
    """Whether it is known that the pod's scheduler is not that of its sharing system.

    Without a schedulerName, or with the default one, unless that scheduler places its pods; or
    with a name that is another system's.
    """
    known, name = evidence.in_the_way, evidence.pod.scheduler
    return name not in known.schedulers and (name in DEFAULT_SCHEDULERS or known.is_of_other_system)


def scheduler_texts(evidence: KnownPod) -> Iterator[str]:
    """What shows that another scheduler has to place the pod."""
    known = evidence.in_the_way
    name = evidence.pod.scheduler
    if known.webhook:
        yield known.webhook
    if name:
        yield f"the pod's schedulerName is {name}"
    others = [(each, pod) for each, pod in known.schedulers.items() if each != name]
    if others and name not in known.schedulers:
        scheduler, pod = others[0]
        yield f"other pods of its sharing system are placed by {scheduler}, such as {pod}"
        yield from () if known.webhook else known.webhook_remarks


def claims_step(evidence: KnownPod) -> ExplainedStep | None:
    """The step of a pod that waits for a ResourceClaim: the first that is missing, else waiting.

    None if the state of its ResourceClaims does not show it, or if the message names more.
    """
    waiting = [claim for claim in evidence.claims if claim.reason is not None]
    message = parsed(evidence.pod.unschedulable)
    if any(part.kind is not PartKind.RESOURCE_CLAIM for part in message.parts):
        return None
    quoted = (f"kube-scheduler: {message.text}",) if message.text else ()
    free = names_text(evidence.free_devices)
    if evidence.supplied and message.parts:
        step = _failed(
            evidence, ExplainReason.RESOURCE_CLAIMS_WAIT, *evidence.free_devices, *quoted
        )
        return structs.replace(step, detail=free, advice=_DEVICE_CLASS)
    if not waiting:
        return None
    waiting.sort(key=lambda claim: claim.reason is not ExplainReason.RESOURCE_CLAIM_MISSING)
    first, *_ = waiting
    reason = first.reason or ExplainReason.RESOURCE_CLAIMS_WAIT
    step = _failed(evidence, reason, *(claim.text for claim in waiting), *quoted)
    is_missing = reason is ExplainReason.RESOURCE_CLAIM_MISSING
    detail = first.text if is_missing else "; ".join(filter(None, (first.text, free)))
    return structs.replace(step, detail=detail, advice=first.advice)


_DEVICE_CLASS: Final = (
    "kubectl get deviceclass -o yaml shows which DeviceClass serves the resource"
    " (spec.extendedResourceName), and kubectl get resourceslices what its driver has"
)


def stopped_step(evidence: KnownPod) -> ExplainedStep | None:
    """The step of a pod whose scheduler cannot place it by doctor's errors; None without one."""
    error = next((each for each in evidence.in_the_way.installation if each.stops_placing), None)
    if error is None:
        return None
    step = _failed(evidence, error.reason, error.text)
    return structs.replace(step, detail=error.text, advice=error.advice)


def _by_message(kind: PartKind, reason: ExplainReason) -> _Cause:
    """A cause that a part of the message names."""

    def cause(evidence: KnownPod, message: SchedulerMessage) -> ExplainedStep | None:
        if not message.of_kind(kind):
            return None
        step = _failed(evidence, reason)
        return structs.replace(step, detail=named(message.of_kind(kind)[:1]))

    return cause


def _by_group(kind: PartKind, reason: ExplainReason) -> _Cause:
    """A cause that a part of the message names, with the PodGroup and its queue."""
    by_message = _by_message(kind, reason)

    def cause(evidence: KnownPod, message: SchedulerMessage) -> ExplainedStep | None:
        step, group = by_message(evidence, message), evidence.in_the_way.group
        if step is None or group is None:
            return step
        full = tuple(group.full())
        own = full[0] if full and reason is ExplainReason.QUEUE_FULL else step.detail
        return structs.replace(
            step,
            evidence=(*group.texts, *full, *group.holders, *step.evidence),
            detail=own,
            advice=group_advice(group, evidence.pod.ref.namespace),
        )

    return cause


def group_step(evidence: KnownPod) -> ExplainedStep | None:
    """The step of a pod that no scheduler has tried to place, since its PodGroup waits."""
    group = evidence.in_the_way.group
    cause = None if group is None else group.cause()
    if group is None or cause is None:
        return None
    reason, detail = cause
    texts = (*group.texts, *group.full(), *group.holders)
    step = _failed(evidence, reason, *texts)
    return structs.replace(
        step, detail=detail, advice=group_advice(group, evidence.pod.ref.namespace)
    )


def unread_group_step(evidence: KnownPod) -> ExplainedStep | None:
    """The step of a pod whose PodGroup was not read: Volcano looks at that before the pod.

    Without any object of Volcano it is not even known whether Volcano has the pod.
    """
    group = evidence.in_the_way.group
    if group is None or group.group is not None:
        return None
    command = f"kubectl get podgroups -n {evidence.pod.ref.namespace}"
    texts = (*group.texts, *group.full())
    if group.volcano.has_queues or group.volcano.groups:
        return not_checked(WayStep.RESERVED, f"PodGroup {group.name}: {command}", *texts)
    step = waiting(WayStep.RESERVED, WaitingReason.NOT_SCHEDULED, *texts)
    advice = f"{command} shows whether Volcano has admitted the group of the pod"
    return structs.replace(step, detail=texts[0], advice=advice)


_by_extender: Final = _by_message(PartKind.EXTENDER, ExplainReason.EXTENDER_FAILS)

_NEVER_FOR_ROOM: Final = frozenset({_locked, _bind_failed, _by_other_scheduler, _by_extender})
"""Causes that no scheduler names for nodes without room: they decide over what nodes answer."""

_CAUSES: Final[tuple[_Cause, ...]] = (
    _locked,
    _bind_failed,
    _by_other_scheduler,
    _by_extender,
    _by_message(PartKind.GATE, ExplainReason.GATED),
    _by_message(PartKind.RESOURCE_CLAIM, ExplainReason.RESOURCE_CLAIMS_WAIT),
    _by_group(PartKind.QUEUE, ExplainReason.QUEUE_FULL),
    _by_group(PartKind.GROUP, ExplainReason.POD_GROUP_WAITS),
    _by_message(PartKind.QUOTA, ExplainReason.SCHEDULER_QUOTA),
)
"""Causes that the message names, the most specific first."""


# ---------------------------------------------------------------- the parts


def _of_parts(
    evidence: KnownPod, message: SchedulerMessage, fitting: list[str], texts: tuple[str, ...]
) -> ExplainedStep:
    """The cause by what each part is about."""
    known = evidence.in_the_way
    parts = [part for part in message.parts if not _is_about_other_nodes(part, evidence)]
    units = requested_names(evidence.pod) & frozenset(_gpu_units(evidence))
    of_shares = [
        part
        for part in parts
        if part.kind is PartKind.SHARES or (part.kind is PartKind.RESOURCE and part.name in units)
    ]
    checks = [
        part
        for part in parts
        if part.kind in (PartKind.CHECK, PartKind.TAINT)
        or (part.kind is PartKind.RESOURCE and part.name not in units)
    ]
    free = [name for name in fitting if name in evidence.units_free]
    if of_shares and known.foreign:
        step = _failed(evidence, ExplainReason.FOREIGN_RESERVATION, *known.foreign)
        step = structs.replace(step, detail=known.foreign[0])
    elif not free and any(part.kind is PartKind.RESOURCE for part in of_shares):
        step = _without_units(evidence)
    elif checks:
        return _other_checks(evidence, checks, message, texts)
    elif (stopped := stopped_step(evidence)) is not None:
        step = stopped
    elif (
        parts
        and parts == of_shares
        and free
        and not evidence.observed
        and not _is_obstructed(evidence, free)
    ):
        step = _failed(evidence, ExplainReason.STALE_SCHEDULER)
        if has_several_containers(evidence.pod):
            step = _failed(evidence, ExplainReason.SEVERAL_CONTAINERS)
        advertised = f"nodes whose advertised resources suffice, too: {', '.join(free[:5])}"
        texts = (*texts, advertised)
    else:
        step = _failed(evidence, ExplainReason.UNKNOWN_REFUSAL)
        step = structs.replace(step, advice="", detail=repr(message.text))
        texts = (*texts, *_lock_texts(evidence))
    return structs.replace(step, evidence=(*step.evidence, *texts))


def _without_units(evidence: KnownPod) -> ExplainedStep:
    """Nodes with room lack units: they cannot allocate them, or other pods request them."""
    lacking = evidence.in_the_way.unallocatable
    if not lacking:
        return _failed(evidence, ExplainReason.UNITS_IN_USE)
    step = _failed(evidence, DoctorReason.NOTHING_ALLOCATABLE, *lacking)
    if not any(": 0 of " in text for text in lacking):
        step = _failed(evidence, ExplainReason.PARTLY_ALLOCATABLE, *lacking)
    return structs.replace(step, detail=lacking[0])


def _is_obstructed(evidence: KnownPod, free: list[str]) -> bool:
    """Whether something else than the scheduler's memory may close the nodes with room.

    A pod whose GPUs are not known may count as more for a scheduler than it does here.
    """
    known = evidence.in_the_way
    locked = {node for node, _ in known.locks}
    uid = evidence.pod.ref.uid
    return bool(
        known.foreign
        or any(
            each.pod.uid != uid
            for _, view, _ in evidence.answers
            if view is not None
            for each in view.standing
        )
        or known.missing
        or known.on_unknown_gpus
        or evidence.pod.uses_resource_claims
        or locked.intersection(free)
    )


def _lock_texts(evidence: KnownPod) -> Iterator[str]:
    for node, lock in evidence.in_the_way.locks[:3]:
        yield f"node {node} has {lock.key}: {lock.text!r}"


def _is_about_other_nodes(part: MessagePart, evidence: KnownPod) -> bool:
    """Whether the part is about nodes that the pod can never use, by their taint.

    These are nodes of the control plane, also where they were not read, and as many nodes as the
    part counts that are closed to the pod by such a taint. Nodes with room are never closed.
    """
    if part.kind is not PartKind.TAINT or not evidence.answers:
        return False
    if part.name.startswith(_CONTROL_PLANE) and part.name not in evidence.in_the_way.taints:
        return True
    keys = Counter(
        closed.detail.partition(":")[0].partition("=")[0]
        for closed in evidence.closed.values()
        if closed.reason is ClosedReason.TAINTED_NODE
    )
    closed_nodes = keys[part.name] if part.name else keys.total()
    return part.nodes is not None and 0 < part.nodes <= closed_nodes


def _gpu_units(evidence: KnownPod) -> Iterator[str]:
    if isinstance(evidence.demanded, tuple):
        yield from (name for name, _ in evidence.demanded[1].units)
    yield from evidence.observed


def _other_checks(
    evidence: KnownPod,
    checks: list[MessagePart],
    message: SchedulerMessage,
    texts: tuple[str, ...],
) -> ExplainedStep:
    """Checks that are not about GPUs; GPUs are excluded only if no part is about them."""
    about_gpus = any(
        part.names_gpus
        or part.kind is PartKind.UNKNOWN
        or part.name in _gpu_units(evidence)
        or _is_of_gpus(part.name)
        for part in message.parts
    )
    advice = f"correct what kube-scheduler names: {named(checks)}"
    if not about_gpus:
        advice += "; GPUs are not the reason"
    return ExplainedStep(
        WayStep.RESERVED,
        ExplainOutcome.WAITING,
        (StepReason.of(ExplainReason.OTHER_CHECKS),),
        texts,
        since=evidence.pod.scheduled_at,
        advice=advice,
        detail=named(checks),
    )


def _is_of_gpus(resource: str) -> bool:
    """Whether a resource is a GPU's by its name, of whichever system or vendor."""
    tests = (is_gpu_resource, is_own_unit, is_foreign_resource)
    return any(is_gpus(resource) for is_gpus in tests)


def _failed(evidence: KnownPod, reason: Explained, *texts: str) -> ExplainedStep:
    return ExplainedStep(
        WayStep.RESERVED,
        ExplainOutcome.FAILED,
        (StepReason.of(reason),),
        texts,
        since=evidence.pod.scheduled_at,
    )
