"""The steps of a pod that KAI Scheduler has to place, by what KAI has written about it. Pure.

KAI's pod grouper makes a PodGroup; its scheduler places the pods of a group and writes a
BindRequest for each; its binder reserves the GPU and binds the pod. For a pod without a node:

    request   =  the pod's annotations
    quota     =  failed by a code or a text about the queue; passed once the scheduler has placed
                 the pod, or has refused it for its nodes alone
    nodes     =  failed by a text about nodes; passed once there is a BindRequest
    reserved  =  failed by the binder's message; waiting while there is a BindRequest, or none yet

What the scheduler wrote before its BindRequest is history: KAI keeps it until the pod is bound.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import structs

from reconciler.reasons import Cause
from vgpu.inventory import WaitingReason
from vgpu.kube.errors import one_line
from vgpu.kube.kai_groups import DEVICES, KAI_GROUPS, KAI_PODS, REQUESTS, UNLIMITED, Unschedulable
from vgpu.kube.kai_kinds import BIND_REQUESTS
from vgpu.kube.quantities import rounded_up
from vgpu.model.units import count
from vgpu.placement.result import PlacementReason
from vgpu.schemes.kai.groups import is_reservation, reserved_gpu
from vgpucli.explain.kai_objects import KaiObjects, groups_of, is_of_kai
from vgpucli.explain.kai_texts import KaiPart, binding_part, causes, gang_text
from vgpucli.explain.known_objects import KnownPod
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, ExplainReason, WayStep
from vgpucli.explain.sentences import MOST_NAMED, names_text
from vgpucli.explain.step_values import failed, not_checked, not_reached, passed, waiting

_FAILED: Final = "Failed"

_NO_GROUP_ADVICE: Final = (
    "look at KAI's pod grouper, which makes the PodGroup and the annotation pod-group-name"
)


def with_kai(step: ExplainedStep, evidence: KnownPod) -> ExplainedStep:
    """The step by what KAI has written, of a pod that KAI has to place; else the step as it is."""
    kai, pod = evidence.kai, evidence.pod
    if kai is None or pod.node or pod.terminal or pod.gated:
        return _placed(step, evidence) if pod.node and is_of_kai(pod) else step
    match step.step:
        case WayStep.REQUEST:
            return _request(step, {} if kai.pod is None else kai.pod.request)
        case WayStep.QUOTA:
            return _quota(evidence, kai)
        case WayStep.NODES:
            return _nodes(evidence, kai)
        case WayStep.RESERVED:
            return _reserved(evidence, kai)
        case _:
            return step


def _placed(step: ExplainedStep, evidence: KnownPod) -> ExplainedStep:
    """The step of a pod with a share that KAI has bound: the kubelet allocates nothing to it."""
    pod = evidence.pod
    groups = groups_of(pod)
    if is_reservation(pod):
        return _of_reservation(step, evidence)
    asked = {key: pod.annotations.get(key, "") for key in REQUESTS}
    if len(groups) > 1:
        asked[DEVICES] = str(len(groups))
    if step.reasons or not (groups and any(asked.values())):
        return step
    named = f"GPU {'group' if len(groups) == 1 else 'groups'} {', '.join(groups)}"
    match step.step:
        case WayStep.REQUEST:
            return _request(step, asked)
        case WayStep.RESERVED:
            return passed(WayStep.RESERVED, f"the pod is bound to node {pod.node}, in {named}")
        case WayStep.ALLOCATED if step.outcome is ExplainOutcome.PASSED:
            is_doomed = any(each.cause is Cause.GROUP_UNRESERVED for each in evidence.findings)
            text = _BY_LOST_RESERVATION if is_doomed else _BY_RESERVATION
            return passed(WayStep.ALLOCATED, f"{named}: {text}")
        case _:
            return step


def _of_reservation(step: ExplainedStep, evidence: KnownPod) -> ExplainedStep:
    """The step of a reservation pod, which has the GPU of its group and uses nothing of it."""
    if evidence.pod.terminal or step.outcome is not ExplainOutcome.NOT_CHECKED:
        return step
    text = reservation_text(evidence)
    match step.step:
        case WayStep.REQUEST:
            return passed(WayStep.REQUEST, "a reservation pod of KAI Scheduler: a whole GPU")
        case WayStep.QUOTA:
            return passed(WayStep.QUOTA, "KAI's binder has created the pod, and it is admitted")
        case WayStep.ALLOCATED:
            return passed(WayStep.ALLOCATED, text)
        case WayStep.USE:
            return passed(WayStep.USE, text, NEVER_DELETE)
        case _:
            return step


def reservation_text(evidence: KnownPod) -> str:
    """Which GPU a reservation pod keeps, and for whom."""
    gpu = reserved_gpu(evidence.pod) or "a GPU that it has not reported yet"
    groups = groups_of(evidence.pod)
    if not groups:
        return f"it keeps {gpu}"
    names = names_text(evidence.tenants) if evidence.tenants else "no pod of the node"
    return f"it keeps {gpu} for group {', '.join(groups)}: {names}"


NEVER_DELETE: Final = (
    "never delete it while its group has pods: KAI's binder then deletes the running pods of the"
    " group"
)

_BY_LOST_RESERVATION: Final = (
    "the device plugin has allocated the GPU to a reservation pod of KAI, which is gone or being"
    " deleted; the kubelet allocates nothing to the pod itself"
)

_BY_RESERVATION: Final = (
    "a reservation pod of KAI has the GPU from the device plugin; the kubelet allocates nothing to"
    " the pod itself"
)


def _request(step: ExplainedStep, asked: Mapping[str, str]) -> ExplainedStep:
    """What the annotations ask for; whole GPUs are the resources that the step already has."""
    asked = {key: value for key, value in asked.items() if value}
    if "gpu-fraction" in asked:
        text = f"{asked['gpu-fraction'][:_LONGEST]} of the memory of a GPU"
    elif "gpu-memory" in asked:
        text = f"{asked['gpu-memory'][:_LONGEST]} MiB of the memory of a GPU"
    else:
        return step
    if devices := asked.get(DEVICES):
        text += f", on each of {devices[:_LONGEST]} GPUs"
    if container := asked.get("gpu-fraction-container-name"):
        text += f", for container {container[:_LONGEST]}"
    return passed(WayStep.REQUEST, f"KAI Scheduler: {one_line(text)}")


_LONGEST: Final = 63
"""Maximum number of characters of an annotation that a sentence repeats."""


# ---------------------------------------------------------------- what the scheduler has written


def _parts(evidence: KnownPod, kai: KaiObjects) -> tuple[KaiPart, ...]:
    """Why the scheduler does not place the pod; () if it does, or has reported nothing."""
    if kai.request is not None:
        return ()
    return causes(_reasons(evidence, kai), kai.without_gpus)


def _reasons(evidence: KnownPod, kai: KaiObjects) -> Iterator[Unschedulable]:
    if kai.group is not None:
        yield from kai.group.reasons
    if evidence.pod.unschedulable:
        yield Unschedulable("", evidence.pod.unschedulable)


def _quota(evidence: KnownPod, kai: KaiObjects) -> ExplainedStep:
    parts = _parts(evidence, kai)
    about = (*_queue_texts(kai), *_label_texts(kai))
    own = [part for part in parts if part.cause.step is WayStep.QUOTA]
    if own:
        step = failed(WayStep.QUOTA, own[0].cause.reason, *(part.text for part in own), *about)
        return structs.replace(step, detail=own[0].text, advice=own[0].cause.advice or None)
    if kai.request is not None or (parts and all(part.is_known for part in parts)):
        return passed(WayStep.QUOTA, "KAI Scheduler names no quota", *about)
    if kai.lacks(KAI_GROUPS):
        needs = f"the PodGroup of the pod: kubectl get podgroups.{_GROUP_KINDS}"
        return not_checked(WayStep.QUOTA, needs, *about)
    return not_checked(WayStep.QUOTA, "the answer of KAI's scheduler", *about)


_GROUP_KINDS: Final = KAI_GROUPS.group


def _queue_texts(kai: KaiObjects) -> Iterator[str]:
    """The queue of the group and those above it, with their GPUs."""
    if kai.group is not None and kai.group.queue and not kai.queues:
        yield f"PodGroup {kai.group.name} is for Queue {kai.group.queue}"
    for queue in kai.queues:
        used = f"{_allocated(queue.allocated_gpus)} allocated by its status"
        yield (
            f"Queue {queue.name}: quota {_gpus(queue.quota_gpus)}, limit {_gpus(queue.limit_gpus)},"
            f" {used}"
        )


def _gpus(number: float) -> str:
    return "unlimited" if number == UNLIMITED else f"{number:g} {'GPU' if number == 1 else 'GPUs'}"


def _allocated(quantity: str) -> str:
    """A quantity of GPUs with three decimals at most, as they are rounded up there."""
    milli = rounded_up(quantity or "0", _MILLI)
    return "an unknown number" if milli is None else f"{milli / _MILLI:g}"


_MILLI: Final = 1000


def _label_texts(kai: KaiObjects) -> Iterator[str]:
    """Labels by which the pod names another queue than the one of its group."""
    if kai.pod is None or kai.group is None or not kai.group.queue:
        return
    for key, value in kai.pod.queues.items():
        if value != kai.group.queue:
            yield f"the pod's label {key} names Queue {value}, its PodGroup {kai.group.queue}"


def _nodes(evidence: KnownPod, kai: KaiObjects) -> ExplainedStep:
    if kai.request is not None:
        return passed(WayStep.NODES, f"KAI Scheduler has chosen node {kai.request.node}")
    gang = _gang(_reasons(evidence, kai))
    own = [part for part in _parts(evidence, kai) if part.cause.step is WayStep.NODES]
    if own:
        first = own[0]
        reason = first.cause.reason
        if reason is PlacementReason.MEMORY and not (kai.pod is not None and kai.pod.request):
            reason = PlacementReason.EXCLUSIVE  # the pod asks for whole GPUs
        texts = [_part_text(part) for part in own[:MOST_NAMED]]
        if own[MOST_NAMED:]:
            texts.append(f"and {count(len(own) - MOST_NAMED, 'reason')} more")
        step = failed(WayStep.NODES, reason, *texts, *gang)
        detail = "; ".join((_part_text(first), *gang))
        return structs.replace(step, detail=detail, advice=first.cause.advice or None)
    return not_checked(WayStep.NODES, "the answer of KAI's scheduler, which places the pod")


def _gang(reasons: Iterable[Unschedulable]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (gang_text(each.message) for each in reasons))))


def _part_text(part: KaiPart) -> str:
    if part.nodes is None:
        return part.text
    text = part.text.removeprefix("node(s) ")
    return f"{part.nodes} {'node' if part.nodes == 1 else 'nodes'}: {text}"


# ---------------------------------------------------------------- what the binder has written


def _reserved(evidence: KnownPod, kai: KaiObjects) -> ExplainedStep:
    request = kai.request
    refusal = _refusal(kai)
    if refusal:
        part = binding_part(refusal)
        where = () if request is None else (_request_text(kai), *_before(kai))
        step = failed(WayStep.RESERVED, part.cause.reason, part.text, *where)
        return structs.replace(
            step,
            detail=part.text,
            advice=part.cause.advice or None,
            since=None if request is None else request.created_at,
        )
    if request is not None:
        step = waiting(WayStep.RESERVED, WaitingReason.NOT_BOUND, _request_text(kai), *_before(kai))
        return structs.replace(
            step,
            since=request.created_at,
            detail=f"node {request.node}",
            advice="wait for KAI's binder; look at its log if this lasts",
        )
    return _unplaced(evidence, kai)


def _refusal(kai: KaiObjects) -> str:
    """The binder's message: that of a request that failed, else the pod's, if no request waits."""
    request = kai.request
    if request is not None and request.phase == _FAILED:
        return request.reason or "Failed"
    return "" if kai.pod is None else kai.pod.refusal


def _before(kai: KaiObjects) -> tuple[str, ...]:
    """An earlier attempt of the binder, which the condition calls a success."""
    is_called_bound = kai.pod is not None and kai.pod.is_called_bound
    text = "the condition PodBound is true and the pod has no node: an attempt of the binder failed"
    return (text,) if is_called_bound else ()


def _request_text(kai: KaiObjects) -> str:
    request = kai.request
    if request is None:
        return ""
    share = f"{request.portion} of " if request.portion else ""
    gpus = f"{share}{request.count} {'GPU' if request.count == 1 else 'GPUs'}"
    groups = f", group {', '.join(request.groups)}" if request.groups else ""
    return (
        f"BindRequest {request.namespace}/{request.name} to node {request.node}: {gpus}{groups},"
        f" phase {request.phase or 'Pending'}"
    )


def _unplaced(evidence: KnownPod, kai: KaiObjects) -> ExplainedStep:
    """Why there is no BindRequest."""
    if parts := _parts(evidence, kai):
        message = one_line(evidence.pod.unschedulable)
        texts = (f"KAI Scheduler: {message}",) if message else ()
        if parts[0].cause.step is WayStep.NODES:
            return waiting(WayStep.RESERVED, WaitingReason.UNSCHEDULABLE, *texts)
        return structs.replace(not_reached(WayStep.RESERVED), evidence=texts)
    if kai.lacks(BIND_REQUESTS):
        needs = f"the BindRequest of the pod: kubectl get bindrequests.{BIND_REQUESTS.group}"
        return not_checked(WayStep.RESERVED, needs)
    return _without_group(kai) or _incomplete(kai) or _untried()


def _untried() -> ExplainedStep:
    step = waiting(WayStep.RESERVED, WaitingReason.NOT_SCHEDULED)
    return structs.replace(step, advice="look at KAI's scheduler, which reports nothing yet")


def _without_group(kai: KaiObjects) -> ExplainedStep | None:
    """The step of a pod that is known to have no PodGroup."""
    if kai.pod is None or kai.lacks(KAI_PODS):
        return None
    if not kai.pod.group:
        step = waiting(WayStep.RESERVED, ExplainReason.NO_POD_GROUP)
        return structs.replace(step, advice=_NO_GROUP_ADVICE)
    if kai.group is not None or kai.lacks(KAI_GROUPS):
        return None
    text = f"there is no PodGroup {kai.pod.namespace}/{kai.pod.group}, which the pod names"
    step = waiting(WayStep.RESERVED, ExplainReason.NO_POD_GROUP, text)
    return structs.replace(step, detail=text, advice=_NO_GROUP_ADVICE)


def _incomplete(kai: KaiObjects) -> ExplainedStep | None:
    """The step of a pod whose group has too few pods; KAI reports it by an event only."""
    group, members = kai.group, kai.members
    if group is None or members is None or members >= group.least:
        return None
    text = (
        f"PodGroup {group.namespace}/{group.name} needs {group.least} pods, and {members} of them"
        f" {'exists' if members == 1 else 'exist'}"
    )
    step = waiting(WayStep.RESERVED, ExplainReason.POD_GROUP_WAITS, text)
    advice = "look at what creates the pods of the group, or lower its minMember"
    return structs.replace(step, detail=text, advice=advice)
