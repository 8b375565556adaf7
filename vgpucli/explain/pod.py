"""The way of a pod in steps: from its request to the use of its GPUs. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import structs

from reconciler.reasons import Cause, Rule
from reconciler.rules.rejected_pods import RAN_AND_ENDED
from scheduler.filter.refusals import (
    RefusedNodes,
    quota_lines,
    rejection_text,
    request_text,
    summary_of,
)
from vgpu.inventory import WaitingReason
from vgpu.kube.closed_nodes import ClosedReason
from vgpu.kube.errors import one_line
from vgpu.kube.pod_state import CRASH_LOOP, pod_state, waits_in_vain
from vgpu.ledger import ConflictKind, Holding
from vgpu.model.allocation import Claim, Request
from vgpu.model.names import Phase
from vgpu.model.objects import MIRROR, ContainerState, MalformedObject, Pod, Status, holds_devices
from vgpu.model.reasons import Explained
from vgpu.model.units import count, percentage, rounded_size
from vgpu.placement.candidate import PodDemand
from vgpu.placement.node_view import StandingReason
from vgpu.placement.result import OF_QUOTA, PlacementReason, PlacementRefusal
from vgpu.quota.resources import CORES, MEMORY
from vgpu.schemes.counted_claims import ClaimProblem
from vgpu.schemes.gpushare.node import MEMORY as GPUSHARE_MEMORY
from vgpucli.explain.amounts import misread_amounts
from vgpucli.explain.known_objects import KnownPod, NodeAnswer, node_groups
from vgpucli.explain.model import (
    ExplainedStep,
    ExplainOutcome,
    ExplainReason,
    Explanation,
    StepReason,
    WayStep,
)
from vgpucli.explain.obstacles import requested_names
from vgpucli.explain.pod_claims import UNCHECKED
from vgpucli.explain.refusal import (
    cause_without_room,
    claims_step,
    group_step,
    missed_units,
    refused_step,
    scheduler_texts,
    stopped_step,
)
from vgpucli.explain.rule_steps import with_findings, with_remarks
from vgpucli.explain.scheduler_message import parsed
from vgpucli.explain.sentences import (
    ADVICE,
    MOST_NAMED,
    concluded,
    gpu_text,
    names_text,
    reopening,
    share_text,
    system_title,
    time_text,
)
from vgpucli.group_usage import MeasuredUse


def explain_pod(evidence: KnownPod) -> Explanation:
    """The steps of the pod, with a closing sentence."""
    steps: list[ExplainedStep] = []
    over_quota = [each for each in evidence.findings if each.rule is Rule.OVER_QUOTA]
    remarked_findings = over_quota if _is_placed(evidence) else []
    decisive_findings = [each for each in evidence.findings if each not in remarked_findings]
    for check in _CHECKS:
        step = with_findings(check(evidence), decisive_findings)
        step = with_remarks(step, (*remarked_findings, *evidence.nearby))
        steps.append(_with_conflicts(step, evidence) if step.step is WayStep.USE else step)
    ref = evidence.pod.ref
    explanation = Explanation(
        "Pod",
        f"{ref.namespace}/{ref.name}",
        tuple(steps),
        evidence.now,
        nodes=() if evidence.in_the_way.missing else node_groups(evidence.answers, evidence.closed),
        system=_system(evidence),
    )
    explanation = concluded(explanation)
    if explanation.advice and MIRROR in evidence.pod.annotations:
        return structs.replace(explanation, advice=_STATIC)
    return explanation


def _system(evidence: KnownPod) -> str:
    """The sharing system of the pod for people."""
    if evidence.other is not None:
        return evidence.other.scheduler.value
    if evidence.by_claims:
        return system_title("dra")
    if evidence.observed:
        return system_title("nvidia")
    if not isinstance(evidence.demanded, PlacementRefusal):
        return system_title(evidence.demanded[0].row.name)
    schemes = {want.scheme.value for want in evidence.reading.wanted}
    schemes |= {claim.scheme.value for claim in evidence.reading.claims}
    return system_title(*sorted(schemes))


_STATIC: Final = (
    "it is a static pod: correct its manifest on the node (the kubelet's staticPodPath), from which"
    " the kubelet recreates it; deleting its mirror at the API server changes nothing"
)


def _with_conflicts(step: ExplainedStep, evidence: KnownPod) -> ExplainedStep:
    """The step with the conflicts of the ledger that no finding reports, as remarks."""
    conflicts = [
        conflict
        for conflict in evidence.conflicts
        if conflict.kind is not ConflictKind.NODE_DIFFERS
    ]
    reasons = (StepReason.of(conflict.kind) for conflict in conflicts)
    details = (conflict.detail for conflict in conflicts if conflict.detail)
    return structs.replace(
        step,
        remarks=tuple(dict.fromkeys((*step.remarks, *reasons))),
        evidence=(*step.evidence, *details),
    )


def explain_unreadable_pod(pod: MalformedObject, now: float) -> Explanation:
    """The explanation of a pod that cannot be read."""
    reason = StepReason.of(Cause.MALFORMED, "malformed_object")
    evidence = (one_line(f"the object cannot be read: {pod.detail}"),)
    steps = [ExplainedStep(WayStep.REQUEST, ExplainOutcome.FAILED, (reason,), evidence)]
    steps += [_not_reached(step) for step in POD_STEPS[1:]]
    name = f"{pod.ref.namespace}/{pod.ref.name}"
    return concluded(Explanation("Pod", name, tuple(steps), now))


# ---------------------------------------------------------------- the checks

_NO_QUOTA: Final = (
    "the scheduler counts no quota for this pod, and the API server has admitted it: ResourceQuotas"
    " are enforced when a pod is created"
)

_ON_NODE: Final = "vgpu top on the node of the pod"
"""What shows the GPUs of a container that the API server does not have."""

_NODES_IN_DUMP: Final = "nodes in the dump: kubectl get nodes"
"""What shows whether a node has room, where a dump has none."""

_READ_NODES: Final = "explain the pod from a dump that has the nodes, too"

_KUBELET_ALLOCATED: Final = (
    "the kubelet starts a container only after the device plugin has allocated its devices"
)


def _request(evidence: KnownPod) -> ExplainedStep:
    """Whether the request is valid, with amounts that are meant in another unit."""
    step = _valid_request(evidence)
    sharing = [each for each in evidence.pod.containers if each.limits.get(GPUSHARE_MEMORY)]
    if len(sharing) > 1 and not _runs(evidence):
        step = structs.replace(step, remarks=(StepReason.of(ExplainReason.SEVERAL_CONTAINERS),))
    misread = list(misread_amounts(evidence.pod, evidence.unit_bytes))
    if not misread:
        return step
    texts = (*step.evidence, *(text for text, _ in misread))
    if step.outcome is ExplainOutcome.FAILED:
        advice = "; ".join(dict.fromkeys(advice for _, advice in misread))
        detail = misread[0][0]
        return structs.replace(step, evidence=texts, advice=advice, detail=detail)
    remarks = (*step.remarks, StepReason.of(ExplainReason.IMPLAUSIBLE_AMOUNT))
    return structs.replace(step, evidence=texts, remarks=remarks)


def _valid_request(evidence: KnownPod) -> ExplainedStep:
    demanded, pod = evidence.demanded, evidence.pod
    if text := _observed_request(evidence):
        return _passed(WayStep.REQUEST, text)
    if not isinstance(demanded, PlacementRefusal):
        scheme, demand = demanded
        text = f"{system_title(scheme.row.name)}: {request_text(demand.requests)}"
        return _passed(WayStep.REQUEST, text)
    if _is_placed_by_others(evidence):
        requests = tuple(want.request for want in evidence.reading.wanted)
        return _passed(WayStep.REQUEST, *_foreign_requests(evidence, requests))
    unread = _unreadable(evidence)
    if demanded.reason is PlacementReason.NOTHING_REQUESTED and unread:
        return _failed(WayStep.REQUEST, WaitingReason.UNREADABLE, *unread)
    if pod.node or pod.terminal:
        text = f"our scheduler would refuse this request: {demanded.text}"
        return _passed(WayStep.REQUEST, text)
    message = demanded.message if demanded.message != demanded.reason.explanation else ""
    remarks = (
        wrong.detail
        for wrong in evidence.reading.malformed
        if wrong.problem is ClaimProblem.REQUESTS_NOTHING
    )
    texts = filter(None, (message, demanded.container, next(remarks, "")))
    return _failed(WayStep.REQUEST, demanded.reason, *texts)


def _observed_request(evidence: KnownPod) -> str:
    """The request of a pod whose share is not read, as text; "" for another pod."""
    if evidence.supplied:
        units = ", ".join(f"{number} {name}" for name, number in sorted(evidence.supplied.items()))
        return f"{units}, which no node advertises: a DRA driver has the GPUs"
    if evidence.by_claims:
        return "the GPUs of the pod, if it has any, come from ResourceClaims"
    if (other := evidence.other) is not None:
        return f"a pod of {other.scheduler}, by {other.key}: vgpu does not read its share"
    if not evidence.observed:
        return ""
    units = ", ".join(f"{number} {name}" for name, number in sorted(evidence.observed.items()))
    return f"NVIDIA's device plugin, which vgpu only observes: {units}"


def _quota(evidence: KnownPod) -> ExplainedStep:
    """What the quotas answer, with what Kubernetes counts by itself."""
    step = _answered_quota(evidence)
    texts = tuple(
        f"ResourceQuota {quota.namespace}/{quota.name}: Kubernetes counts {quota.used[name]} of"
        f" {most} {name}"
        if name in quota.used
        else f"ResourceQuota {quota.namespace}/{quota.name} has no status for {name}:"
        " kube-controller-manager has not counted it"
        for quota in evidence.declared
        for name, most in quota.hard.items()
    )
    return structs.replace(step, evidence=(*step.evidence, *texts)) if texts else step


def _answered_quota(evidence: KnownPod) -> ExplainedStep:
    quota = evidence.quota
    if quota is None:
        return _reached(WayStep.QUOTA, evidence, _NO_QUOTA)
    if not quota:
        return _without_quota(evidence)
    lines = tuple(line.strip() for line in quota_lines(quota, evidence.used))
    refusal = evidence.over_quota
    if refusal is not None and not _is_placed(evidence):
        return _failed(WayStep.QUOTA, refusal.reason, refusal.message, *lines)
    of_placement = [
        refusal
        for _, _, refusal in evidence.answers
        if refusal is not None and refusal.reason in OF_QUOTA
    ]
    if of_placement and len(of_placement) == len(evidence.answers):
        return _failed(WayStep.QUOTA, of_placement[0].reason, of_placement[0].message, *lines)
    return _passed(WayStep.QUOTA, *lines)


def _without_quota(evidence: KnownPod) -> ExplainedStep:
    """The step of a pod in a namespace of which no quota is known."""
    namespace = evidence.pod.ref.namespace
    if evidence.quotas_read:
        return _passed(WayStep.QUOTA, f"namespace {namespace} has no quota of shared GPUs")
    if _is_placed(evidence):
        return _passed(WayStep.QUOTA, "the pod has been placed: no quota refused it")
    return _not_checked(WayStep.QUOTA, f"Namespace {namespace} and its ResourceQuotas")


def _nodes(evidence: KnownPod) -> ExplainedStep:
    pod = evidence.pod
    if pod.node:
        return _passed(
            WayStep.NODES, f"the pod is bound to node {pod.node}", since=pod.scheduled_at
        )
    if pod.terminal:
        return _passed(WayStep.NODES, "the pod has ended and was never bound to a node")
    if _is_placed_by_others(evidence):
        return _nodes_of_others(evidence)
    if isinstance(evidence.demanded, PlacementRefusal) or evidence.over_quota is not None:
        return _not_reached(WayStep.NODES)
    return _missing(evidence) or _room(evidence, evidence.demanded[1])


def _nodes_of_others(evidence: KnownPod) -> ExplainedStep:
    """The nodes of a pod that our scheduler does not place."""
    if evidence.by_claims:
        texts = (*(claim.text for claim in evidence.claims), *evidence.free_devices)
        if evidence.claims and all(claim.is_allocated for claim in evidence.claims):
            return _passed(WayStep.NODES, *texts)
        return _not_checked(WayStep.NODES, UNCHECKED, *texts)
    if evidence.observed:
        return _units(evidence)
    other = evidence.other
    texts = () if other is None else (f"{other.scheduler} places the pod",)
    return _waiting(WayStep.NODES, ExplainReason.OTHER_PLACEMENT, *texts)


def _units(evidence: KnownPod) -> ExplainedStep:
    """Whether nodes have the units of a pod that kube-scheduler alone places."""
    message = parsed(evidence.pod.unschedulable)
    quoted = f"kube-scheduler: {message.text}"
    missed = missed_units(evidence, message)
    free = sorted(evidence.units_free)
    if free and evidence.closed.keys() >= evidence.units_free:
        text = f"units are free on {count(len(free), 'node')}: {names_text(free)}"
        return _closed(evidence, free, text, *evidence.units)
    if not missed:
        needs = "the message of kube-scheduler, which alone places the pod"
        return _not_checked(WayStep.NODES, needs, *evidence.units)
    if not evidence.nodes_read:
        return _not_checked(WayStep.NODES, _NODES_IN_DUMP, quoted)
    if missing := _missing(evidence):
        return structs.replace(missing, evidence=(*missing.evidence, quoted))
    if free:
        return _passed(WayStep.NODES, *evidence.units)
    reason: Explained = ExplainReason.UNITS_MISSING
    if evidence.none_allocatable:
        reason = ClosedReason.NOTHING_ALLOCATABLE
    step = _failed(WayStep.NODES, reason, *evidence.units, quoted)
    return structs.replace(step, detail=next(iter(evidence.units), ""))


def _missing(evidence: KnownPod) -> ExplainedStep | None:
    """The step of a pod that requests what no node advertises; None of another pod."""
    texts = tuple(each.text for each in evidence.in_the_way.missing)
    if not texts:
        return None
    step = _failed(WayStep.NODES, ExplainReason.MISSING_RESOURCE, *texts)
    return structs.replace(step, detail=texts[0])


def _room(evidence: KnownPod, demand: PodDemand) -> ExplainedStep:
    """Whether a node has room for a pod that is not bound."""
    if not evidence.nodes_read:
        return _not_checked(WayStep.NODES, _NODES_IN_DUMP)
    if not evidence.answers:
        return _failed(WayStep.NODES, PlacementReason.NO_GPUS, "no node registers GPUs to share")
    refused = {name: refusal for name, _, refusal in evidence.answers if refusal is not None}
    fitting = [name for name, _, refusal in evidence.answers if refusal is None]
    if not fitting:
        numbers = RefusedNodes.of(refused)
        reasons = tuple(StepReason.of(reason) for reason, _ in numbers.counts())
        text = rejection_text(summary_of(numbers), demand)
        texts = tuple(text.split("; "))
        step = ExplainedStep(WayStep.NODES, ExplainOutcome.FAILED, reasons, texts)
        step = _of_node(step, evidence.answers)
        if too_large := _too_large(evidence, demand):
            advice = "request less memory for each GPU, or add a larger GPU"
            texts = (*texts, too_large)
            return structs.replace(step, evidence=texts, detail=too_large, advice=advice)
        return step
    taking = [name for name in fitting if name not in evidence.closed]
    named = taking or fitting
    total = count(len(evidence.answers), "node")
    text = f"GPUs have room on {len(named)} of {total}: {names_text(named)}"
    return _passed(WayStep.NODES, text) if taking else _closed(evidence, fitting, text)


def _of_node(step: ExplainedStep, answers: Iterable[NodeAnswer]) -> ExplainedStep:
    """The step with the first node that refuses by its first reason, and the pod in the way there.

    Only for a reason that is about the node, and not about the amounts that the pod requests.
    """
    if step.reasons[0].code not in _ABOUT_NODES:
        return step
    for name, view, refusal in answers:
        if refusal is None or refusal.cause.value != step.reasons[0].code:
            continue
        detail, advice = f"node {name}", f"vgpu explain node {name} shows what is wrong there"
        if view is not None and view.standing and view.reason is None:
            pod = view.standing[0]
            detail = f"node {name}, {pod.text}"
            if pod.reason is not StandingReason.RESERVED:
                named = f"{pod.pod.namespace}/{pod.pod.name}"
                advice = f"vgpu explain pod {named} shows what is wrong with it"
            else:
                advice = ADVICE[PlacementReason.OTHER_SCHEDULER]
        return structs.replace(step, detail=detail, advice=advice)
    return step


_ABOUT_NODES: Final = frozenset(
    {
        PlacementReason.MIXED_NODE,
        PlacementReason.UNREADABLE,
        PlacementReason.OTHER_SCHEDULER,
        PlacementReason.POD_WITHOUT_GPU,
    }
)


def _closed(evidence: KnownPod, names: Iterable[str], *texts: str) -> ExplainedStep:
    """The step of a pod for which only nodes that take no new pods have room: ``names``."""
    closed = {name: evidence.closed[name] for name in sorted(names)}
    first, *others = closed
    why = closed[first]
    reason: Explained = ExplainReason.NODES_CLOSED
    advice: str | None = reopening(closed.values())
    detail = "".join((why.reason.explanation, why.detail and f", {why.detail}"))
    if {each.reason for each in closed.values()} == {ClosedReason.NOTHING_ALLOCATABLE}:
        reason, advice, detail = ClosedReason.NOTHING_ALLOCATABLE, None, why.detail
    more = f" and {count(len(others), 'more node')}" if others else ""
    step = _failed(WayStep.NODES, reason, *texts)
    if not evidence.answers:
        shown = (f"{name}: {each.text}" for name, each in closed.items())
        step = structs.replace(step, evidence=(*step.evidence, *islice(shown, MOST_NAMED)))
    return structs.replace(step, advice=advice, detail=f"{first}{more}: {detail}")


def _too_large(evidence: KnownPod, demand: PodDemand) -> str:
    """That no GPU of the nodes is as large as the pod requests, as a sentence; "" if one is."""
    wanted = max((request.memory_bytes or 0 for request in demand.requests), default=0)
    sizes = [
        gpu.capacity_bytes
        for _, view, _ in evidence.answers
        if view is not None
        for gpu in view.candidate.gpus
    ]
    largest = max(sizes, default=0)
    if not largest or wanted <= largest:
        return ""
    return f"the largest GPU has {rounded_size(largest)}, requested are {rounded_size(wanted)}"


def _reserved(evidence: KnownPod) -> ExplainedStep:
    """Whether a scheduler has reserved GPUs, with the errors of the installation as remarks."""
    step = _reserved_by(evidence)
    errors = [
        error
        for error in evidence.in_the_way.installation
        if error.reason.value not in {reason.code for reason in step.reasons}
    ]
    return structs.replace(
        step,
        remarks=(*step.remarks, *dict.fromkeys(StepReason.of(each.reason) for each in errors)),
        evidence=(*step.evidence, *(each.text for each in errors)),
    )


def _reserved_by(evidence: KnownPod) -> ExplainedStep:
    pod, claims = evidence.pod, evidence.reading.claims
    unread = _unreadable(evidence)
    if unread and not claims and not pod.terminal:
        step = _failed(WayStep.RESERVED, WaitingReason.UNREADABLE, *unread)
        names = requested_names(pod) | {name for each in pod.containers for name in each.broken}
        if any(text.partition(":")[0] in names for text in unread):
            misread = dict.fromkeys(
                advice for _, advice in misread_amounts(pod, evidence.unit_bytes)
            )
            advice = "; ".join(misread) or "correct the resources of the containers"
            return structs.replace(step, advice=f"{advice}, in a new pod", detail=unread[0])
        return step
    if claims:
        return _claimed(evidence)
    if pod.terminal:
        text = "the pod has ended, and its annotations name no GPU"
        if pod.node and not _has_run(pod) and (texts := _wrong_scheduler(evidence)):
            step = _failed(WayStep.RESERVED, ExplainReason.WRONG_SCHEDULER, text, *texts)
            return structs.replace(step, detail=texts[0])
        needs = "the annotations that the scheduler wrote"
        return _not_checked(WayStep.RESERVED, needs, text)
    return _unclaimed(evidence) if pod.node else _unbound(evidence)


def _claimed(evidence: KnownPod) -> ExplainedStep:
    """The reservation that the annotations of the pod have."""
    pod, claims = evidence.pod, evidence.reading.claims
    texts = tuple(_claim_text(evidence, claim) for claim in claims)
    since = next((claim.assumed_at for claim in claims if claim.assumed_at), None)
    elsewhere = [claim for claim in claims if claim.node and pod.node and claim.node != pod.node]
    if elsewhere and not pod.terminal:
        differs = _failed(WayStep.RESERVED, ExplainReason.ANNOTATED_ELSEWHERE, *texts)
        detail = f"the annotations name {elsewhere[0].node}, the pod is bound to {pod.node}"
        return structs.replace(differs, since=since, detail=detail)
    if pod.node or pod.terminal:
        return _passed(WayStep.RESERVED, *texts, since=since)
    quoted = (f"kube-scheduler: {one_line(pod.unschedulable)}",) if pod.unschedulable else ()
    return _waiting(WayStep.RESERVED, WaitingReason.NOT_BOUND, *texts, *quoted)


def _unclaimed(evidence: KnownPod) -> ExplainedStep:
    """Why a bound pod has no reservation."""
    where = f"the pod is bound to node {evidence.pod.node}"
    if evidence.claims or not (evidence.reading.wanted or _holdings(evidence)):
        return _passed(WayStep.RESERVED, where, *(claim.text for claim in evidence.claims))
    if _holdings(evidence):
        return _passed(WayStep.RESERVED, where, "the only GPU of the node needs no annotation")
    if texts := _wrong_scheduler(evidence):
        step = _failed(WayStep.RESERVED, ExplainReason.WRONG_SCHEDULER, where, *texts)
        return structs.replace(step, detail=texts[0])
    is_running = _runs(evidence)
    reason = WaitingReason.RUNNING_WITHOUT if is_running else WaitingReason.NO_ANNOTATION
    return _failed(WayStep.RESERVED, reason, where)


def _wrong_scheduler(evidence: KnownPod) -> tuple[str, ...]:
    """What shows that another scheduler has bound the pod than that of its system; () if nothing.

    A webhook that skips the pod, or a schedulerName that placed no other pod of the system.
    """
    known = evidence.in_the_way
    if isinstance(evidence.demanded, PlacementRefusal) or evidence.pod.scheduler in (
        "",
        *known.schedulers,
    ):
        return ()
    return tuple(scheduler_texts(evidence)) if known.schedulers or known.webhook else ()


_GATE_OWNERS: Final[Mapping[str, str]] = {
    "kueue.x-k8s.io": "Kueue",
    "scheduling.volcano.sh": "Volcano",
    "volcano.sh": "Volcano",
    "run.ai": "Run:ai",
}
"""Programs by the domain of the gates that they set."""


def _gate_text(gate: str) -> str:
    owner = _GATE_OWNERS.get(gate.partition("/")[0])
    return f"scheduling gate {gate}" + (f", which {owner} sets and removes" if owner else "")


def _unbound(evidence: KnownPod) -> ExplainedStep:
    """Why a pod without a reservation is not bound."""
    pod, message = evidence.pod, one_line(evidence.pod.unschedulable)
    if pod.gated:
        return _waiting(WayStep.RESERVED, ExplainReason.GATED, *map(_gate_text, pod.gates))
    waits = claims_step(evidence) if evidence.by_claims else None
    is_refused = isinstance(evidence.demanded, PlacementRefusal)
    if waits is not None or (is_refused and not _is_placed_by_others(evidence)):
        return waits or _not_reached(WayStep.RESERVED)
    if not message:
        texts = scheduler_texts(evidence)
        waits = _waiting(WayStep.RESERVED, WaitingReason.NOT_SCHEDULED, *texts)
        return stopped_step(evidence) or group_step(evidence) or waits
    taking = [name for name, _, refusal in evidence.answers if refusal is None]
    taking += sorted(evidence.units_free) if evidence.observed else ()
    fitting = [name for name in taking if name not in evidence.closed]
    misses_no_unit = evidence.observed and not missed_units(evidence, parsed(message))
    if (fitting or misses_no_unit or evidence.by_claims) and not evidence.in_the_way.missing:
        shown = "free units" if evidence.observed else "room by the allocation records"
        room = f"nodes with {shown}: {names_text(fitting) or 'none'}"
        return refused_step(evidence, fitting, room)
    cause = cause_without_room(evidence)
    if cause is not None:
        return cause
    texts = (
        f"node {node}, which has no room, has {lock.key}: {lock.text!r}"
        for node, lock in evidence.in_the_way.full_locked
    )
    quoted = f"kube-scheduler: {message}"
    step = _waiting(WayStep.RESERVED, WaitingReason.UNSCHEDULABLE, quoted, *texts)
    return step if evidence.nodes_read else structs.replace(step, advice=_READ_NODES)


def _admitted(evidence: KnownPod) -> ExplainedStep:
    pod = evidence.pod
    if not pod.node:
        return _not_reached(WayStep.ADMITTED)
    has_run = _has_run(pod)
    lost = None if _runs(evidence) or pod.terminal else _lost(evidence, WayStep.ADMITTED, ())
    if lost is not None:
        return lost
    if pod.phase == "Failed" and pod.reason and not has_run and not _was_ended(pod):
        text = one_line(f"{pod.reason}: {pod.message}")
        return _failed(WayStep.ADMITTED, Cause.OTHER, text)
    if pod.started_at is not None or has_run or pod.phase in ("Running", "Succeeded", "Failed"):
        text = f"the kubelet of {pod.node} accepted the pod"
        return _passed(WayStep.ADMITTED, text, since=pod.started_at)
    return _waiting(WayStep.ADMITTED, ExplainReason.NOT_REPORTED, f"node {pod.node}")


def _allocated(evidence: KnownPod) -> ExplainedStep:
    pod, claims = evidence.pod, evidence.reading.claims
    if not pod.node:
        return _not_reached(WayStep.ALLOCATED)
    if any(claim.failed for claim in claims) and not _runs(evidence):
        return _failed(WayStep.ALLOCATED, WaitingReason.FAILED)
    pending = sorted(
        {
            allocation.container or "the pod"
            for claim in claims
            for allocation in claim.allocations
            if allocation.phase is not Phase.ASSIGNED or allocation.container in claim.unserved
        }
    )
    if pending and holds_devices(pod) and not _runs(evidence):
        text = f"not allocated yet: {', '.join(pending)}"
        return _waiting(WayStep.ALLOCATED, WaitingReason.NOT_ASSIGNED, text)
    if claims and not pending:
        since = next((claim.assigned_at for claim in claims if claim.assigned_at), None)
        text = "the annotations have every share as allocated"
        return _passed(WayStep.ALLOCATED, text, since=since)
    return _allocated_by_state(evidence)


def _allocated_by_state(evidence: KnownPod) -> ExplainedStep:
    """The step of a pod whose annotations do not show the allocation, by its containers."""
    pod = evidence.pod
    if not (_runs(evidence) or _has_run(pod) or _was_ended(pod)):
        return _not_reached(WayStep.ALLOCATED)
    if evidence.other is not None:
        return _not_checked(WayStep.ALLOCATED, f"the records of {evidence.other.scheduler}")
    if evidence.reading.claims or evidence.observed or evidence.claims or _holdings(evidence):
        verb = "runs" if _runs(evidence) else "ran"
        return _passed(WayStep.ALLOCATED, f"{_container_text(pod)} {verb}; {_KUBELET_ALLOCATED}")
    return _not_checked(WayStep.ALLOCATED, _ON_NODE, _container_text(pod))


def _started(evidence: KnownPod) -> ExplainedStep:
    pod = evidence.pod
    if not pod.node:
        return _not_reached(WayStep.STARTED)
    if pod.terminal:
        return _ended(pod)
    failing = next((status for status in pod.statuses if waits_in_vain(status)), None)
    if failing is not None:
        cause = Cause.CRASH_LOOP if failing.reason == CRASH_LOOP else Cause.CANNOT_START
        return _failed(WayStep.STARTED, cause, _status_text(failing))
    if _runs(evidence):
        since = [s.started_at for s in pod.statuses if s.started_at is not None]
        text = f"{_container_text(pod)} runs"
        return _passed(WayStep.STARTED, text, since=min(since, default=None))
    state = pod_state(pod)
    text = one_line(f"{state.waiting_reason}: {state.waiting_message}".strip(": "))
    if not pod.statuses and pod.started_at is None:
        return _not_reached(WayStep.STARTED)
    return _waiting(WayStep.STARTED, ExplainReason.STARTING, *filter(None, (text,)))


def _ended(pod: Pod) -> ExplainedStep:
    """Whether a pod that has ended did run."""
    text = one_line(f"the pod has ended: {pod.phase} {pod.reason}").strip()
    if pod.phase == "Succeeded" or _has_run(pod) or _was_ended(pod):
        return _passed(WayStep.STARTED, text)
    return _waiting_with(WayStep.STARTED, text, "no container of it is known to have run")


def _use(evidence: KnownPod) -> ExplainedStep:
    pod = evidence.pod
    if not pod.node:
        return _not_reached(WayStep.USE)
    if not holds_devices(pod):
        return _passed(WayStep.USE, "the pod has ended and holds no share of a GPU")
    held = tuple(_holding_text(evidence, holding) for holding in _holdings(evidence))
    if pod.deleted_at is not None:
        due = f"the deletion of the pod is due since {time_text(pod.deleted_at)}"
        left = ", ".join(pod.finalizers)
        more = (f"finalizers that are left: {left}",) if left else ()
        step = _waiting(WayStep.USE, ExplainReason.DELETING, due, *more, *held)
        return structs.replace(step, detail=more[0] if more else "")
    if not _runs(evidence):
        return _waiting_with(WayStep.USE, *(f"not running, {text}" for text in held))
    return _lost(evidence, WayStep.USE, held) or _used(evidence, held)


def _lost(evidence: KnownPod, step: WayStep, held: tuple[str, ...]) -> ExplainedStep | None:
    """The step of a pod whose node is not ready or gone; None of another pod."""
    node = evidence.pod.node
    if evidence.node_gone:
        return _failed(step, ExplainReason.NODE_GONE, f"node {node}", *held)
    if evidence.node is not None and not evidence.node.ready:
        text = f"node {node} is not ready: its kubelet does not report whether the pod runs"
        return _failed(step, ClosedReason.NOT_READY, text, *held)
    return None


def _used(evidence: KnownPod, held: tuple[str, ...]) -> ExplainedStep:
    """The step of a pod that runs on a node that is ready."""
    if evidence.observed or evidence.other:
        text = "the API server does not have its GPU: vgpu top on the node shows it"
        return _not_checked(WayStep.USE, _ON_NODE, text, *held)
    if not evidence.nodes_read:
        return _not_checked(WayStep.USE, _NODES_IN_DUMP, *held)
    return _passed(WayStep.USE, *held) if held else _not_checked(WayStep.USE, _ON_NODE)


_CHECKS: Final[tuple[Callable[[KnownPod], ExplainedStep], ...]] = (
    _request,
    _quota,
    _nodes,
    _reserved,
    _admitted,
    _allocated,
    _started,
    _use,
)

POD_STEPS: Final = (
    WayStep.REQUEST,
    WayStep.QUOTA,
    WayStep.NODES,
    WayStep.RESERVED,
    WayStep.ADMITTED,
    WayStep.ALLOCATED,
    WayStep.STARTED,
    WayStep.USE,
)
"""The steps of a pod, in order."""


def with_use(explanation: Explanation, use: MeasuredUse | None) -> Explanation:
    """The explanation with what an exporter measured of the pod; None is nothing."""
    if use is None or MEMORY not in use.used:
        text = "no exporter that was asked measures the pod"
    else:
        cores = f" and {percentage(use.used[CORES])} of a GPU's cores" if CORES in use.used else ""
        idle = f"; {rounded_size(use.idle[MEMORY])} are idle" if MEMORY in use.idle else ""
        text = f"it uses {rounded_size(use.used[MEMORY])} of GPU memory{cores} now{idle}"
    steps = tuple(
        structs.replace(step, evidence=(*step.evidence, text))
        if step.step is WayStep.USE and step.outcome is not ExplainOutcome.WAITING
        else step
        for step in explanation.steps
    )
    return structs.replace(explanation, steps=steps)


# ---------------------------------------------------------------- parts


def _passed(step: WayStep, *evidence: str, since: float | None = None) -> ExplainedStep:
    return ExplainedStep(step, ExplainOutcome.PASSED, evidence=evidence, since=since)


def _failed(step: WayStep, reason: Explained, *evidence: str) -> ExplainedStep:
    return ExplainedStep(step, ExplainOutcome.FAILED, (StepReason.of(reason),), evidence)


def _waiting(step: WayStep, reason: Explained, *evidence: str) -> ExplainedStep:
    return ExplainedStep(step, ExplainOutcome.WAITING, (StepReason.of(reason),), evidence)


def _not_checked(step: WayStep, needs: str, *evidence: str) -> ExplainedStep:
    """A step that nothing shows to be passed; ``needs`` would show it."""
    return ExplainedStep(step, ExplainOutcome.NOT_CHECKED, evidence=evidence, needs=needs)


def _waiting_with(step: WayStep, *evidence: str) -> ExplainedStep:
    """A step that was not reached, with what shows it."""
    return ExplainedStep(step, ExplainOutcome.WAITING, evidence=evidence)


def _was_ended(pod: Pod) -> bool:
    """Whether the pod has run and was ended, though no status of a container may be left."""
    return pod.phase == "Failed" and pod.reason in RAN_AND_ENDED


def _container_text(pod: Pod) -> str:
    """The containers that run, or have run, for people."""
    running = [s.name for s in pod.statuses if s.state is ContainerState.RUNNING]
    ended = [s.name for s in pod.statuses if s.state is ContainerState.TERMINATED]
    names = running or ended
    if not names:
        return f"the pod, in phase {pod.phase} by its kubelet,"
    return f"{'container' if len(names) == 1 else 'containers'} {names_text(names)}"


def _has_run(pod: Pod) -> bool:
    """Whether the kubelet has reported a container of the pod that ran."""
    return any(status.state is not ContainerState.WAITING for status in pod.statuses)


def _not_reached(step: WayStep) -> ExplainedStep:
    return ExplainedStep(step, ExplainOutcome.WAITING)


def _reached(step: WayStep, evidence: KnownPod, text: str) -> ExplainedStep:
    """The step of a pod that the scheduler does not place: passed unless the request is invalid."""
    if _is_placed(evidence) or _is_placed_by_others(evidence):
        return _passed(step, text)
    return _not_reached(step)


def _is_placed_by_others(evidence: KnownPod) -> bool:
    """Whether another than our scheduler places the pod, as for KubeShare."""
    demanded, reading = evidence.demanded, evidence.reading
    return bool(evidence.observed or evidence.other or evidence.by_claims) or (
        isinstance(demanded, PlacementRefusal)
        and demanded.reason is PlacementReason.NOTHING_REQUESTED
        and bool(reading.claims or reading.wanted)
    )


def _is_placed(evidence: KnownPod) -> bool:
    return bool(evidence.pod.node) or evidence.pod.terminal


def _runs(evidence: KnownPod) -> bool:
    """Whether a container runs, or the kubelet reports the pod as running."""
    pod = evidence.pod
    return any(status.state is ContainerState.RUNNING for status in pod.statuses) or (
        pod.phase == "Running" and not pod.statuses
    )


def _unreadable(evidence: KnownPod) -> tuple[str, ...]:
    return tuple(
        one_line(malformed.detail)
        for malformed in evidence.reading.malformed
        if malformed.problem is not ClaimProblem.REQUESTS_NOTHING
    )


def _foreign_requests(evidence: KnownPod, requests: Iterable[Request]) -> Iterator[str]:
    schemes = {want.scheme.value for want in evidence.reading.wanted}
    schemes |= {claim.scheme.value for claim in evidence.reading.claims}
    named = system_title(*sorted(schemes))
    text = request_text(requests)
    yield f"{named}: {text}" if text else f"{named}, by the annotations of the pod"


def _holdings(evidence: KnownPod) -> tuple[Holding, ...]:
    ledger = evidence.ledger
    return () if ledger is None else ledger.of_pod(evidence.pod.kubelet_uid)


def _claim_text(evidence: KnownPod, claim: Claim) -> str:
    """By whom, where and when a reservation was made."""
    devices = _devices(evidence)
    parts = [
        share_text(share, devices)
        for allocation in claim.allocations
        for share in allocation.shares
    ]
    where = f" of node {claim.node or evidence.pod.node}" if claim.node or evidence.pod.node else ""
    when = f" at {time_text(claim.assumed_at)}" if claim.assumed_at is not None else ""
    what = ", ".join(parts) or "nothing"
    demanded = evidence.demanded
    own = "" if isinstance(demanded, PlacementRefusal) else demanded[0].row.name
    system = system_title(own or claim.scheme.value)
    return f"the scheduler of {system} reserved {what}{where}{when}"


def _holding_text(evidence: KnownPod, holding: Holding) -> str:
    sources = ", ".join(holding.sources)
    who = f"{holding.container} holds" if holding.container else "the pod holds"
    return f"{who} {share_text(holding.share, _devices(evidence))} ({sources})"


def _devices(evidence: KnownPod) -> Mapping[str, str]:
    """The GPUs of the pod's node for people, under every name that a share may have."""
    ledger = evidence.ledger
    entries = ledger.devices if ledger is not None else ()
    return {name: gpu_text(entry.device) for entry in entries for name in entry.device.names}


def _status_text(status: Status) -> str:
    message = "" if status.reason == CRASH_LOOP else f": {one_line(status.message)}"
    restarts = f", {count(status.restarts, 'restart')}" if status.restarts else ""
    last = f"; it ended with {status.last_reason}" if status.last_reason else ""
    return f"container {status.name}: {status.reason}{restarts}{message}{last}"
