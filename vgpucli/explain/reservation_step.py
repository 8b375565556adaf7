"""The step of a pod at which a scheduler reserves GPUs and binds it. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from vgpu.inventory import WaitingReason
from vgpu.kube.errors import one_line
from vgpu.placement.result import PlacementRefusal
from vgpu.quota.kueue_tree import waits_for_kueue
from vgpucli.explain.known_objects import KnownPod
from vgpucli.explain.model import ExplainedStep, ExplainReason, StepReason, WayStep
from vgpucli.explain.obstacles import requested_names
from vgpucli.explain.pod_facts import (
    claim_text,
    has_run,
    holdings_of,
    is_placed_by_others,
    runs,
    unreadable_texts,
)
from vgpucli.explain.refusal import (
    cause_without_room,
    claims_step,
    group_step,
    missed_units,
    refused_step,
    scheduler_texts,
    stopped_step,
    unread_group_step,
)
from vgpucli.explain.scheduler_message import parsed
from vgpucli.explain.sentences import names_text
from vgpucli.explain.step_values import failed, not_checked, not_reached, passed, waiting
from vgpucli.misread_amounts import misread_amounts

_READ_NODES: Final = "explain the pod from a dump that has the nodes, too"


def reserved_step(evidence: KnownPod) -> ExplainedStep:
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
    unread = unreadable_texts(evidence)
    if unread and not claims and not pod.terminal:
        step = failed(WayStep.RESERVED, WaitingReason.UNREADABLE, *unread)
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
        if pod.node and not has_run(pod) and (texts := _wrong_scheduler(evidence)):
            step = failed(WayStep.RESERVED, ExplainReason.WRONG_SCHEDULER, text, *texts)
            return structs.replace(step, detail=texts[0])
        needs = "the annotations that the scheduler wrote"
        return not_checked(WayStep.RESERVED, needs, text)
    return _unclaimed(evidence) if pod.node else _unbound(evidence)


def _claimed(evidence: KnownPod) -> ExplainedStep:
    """The reservation that the annotations of the pod have."""
    pod, claims = evidence.pod, evidence.reading.claims
    texts = tuple(claim_text(evidence, claim) for claim in claims)
    since = next((claim.assumed_at for claim in claims if claim.assumed_at), None)
    elsewhere = [claim for claim in claims if claim.node and pod.node and claim.node != pod.node]
    if elsewhere and not pod.terminal:
        differs = failed(WayStep.RESERVED, ExplainReason.ANNOTATED_ELSEWHERE, *texts)
        detail = f"the annotations name {elsewhere[0].node}, the pod is bound to {pod.node}"
        return structs.replace(differs, since=since, detail=detail)
    if pod.node or pod.terminal:
        return passed(WayStep.RESERVED, *texts, since=since)
    quoted = (f"kube-scheduler: {one_line(pod.unschedulable)}",) if pod.unschedulable else ()
    return waiting(WayStep.RESERVED, WaitingReason.NOT_BOUND, *texts, *quoted)


def _unclaimed(evidence: KnownPod) -> ExplainedStep:
    """Why a bound pod has no reservation."""
    where = f"the pod is bound to node {evidence.pod.node}"
    if evidence.claims or not (evidence.reading.wanted or holdings_of(evidence)):
        return passed(WayStep.RESERVED, where, *(claim.text for claim in evidence.claims))
    if holdings_of(evidence):
        return passed(WayStep.RESERVED, where, "the only GPU of the node needs no annotation")
    if texts := _wrong_scheduler(evidence):
        step = failed(WayStep.RESERVED, ExplainReason.WRONG_SCHEDULER, where, *texts)
        return structs.replace(step, detail=texts[0])
    is_running = runs(evidence)
    reason = WaitingReason.RUNNING_WITHOUT if is_running else WaitingReason.NO_ANNOTATION
    return failed(WayStep.RESERVED, reason, where)


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


_NO_WORKLOAD: Final = (
    "the Workload of the pod was not read: kubectl get workloads,localqueues,clusterqueues,cohorts"
)


def _gate_text(gate: str) -> str:
    owner = _GATE_OWNERS.get(gate.partition("/")[0])
    return f"scheduling gate {gate}" + (f", which {owner} sets and removes" if owner else "")


def _unbound(evidence: KnownPod) -> ExplainedStep:
    """Why a pod without a reservation is not bound."""
    pod, message = evidence.pod, one_line(evidence.pod.unschedulable)
    if pod.gated:
        gates = tuple(map(_gate_text, pod.gates))
        unread = () if evidence.queue is not None or not waits_for_kueue(pod) else (_NO_WORKLOAD,)
        step = waiting(WayStep.RESERVED, ExplainReason.GATED, *gates, *unread)
        return structs.replace(step, detail="; ".join(gates))
    waits = claims_step(evidence) if evidence.by_claims else None
    is_refused = isinstance(evidence.demanded, PlacementRefusal)
    if waits is not None or (is_refused and not is_placed_by_others(evidence)):
        return waits or not_reached(WayStep.RESERVED)
    if not message:
        texts = tuple(scheduler_texts(evidence))
        waits = waiting(WayStep.RESERVED, WaitingReason.NOT_SCHEDULED, *texts)
        waits = structs.replace(waits, detail="; ".join(texts))
        unread_group = None if texts else unread_group_step(evidence)
        return stopped_step(evidence) or group_step(evidence) or unread_group or waits
    taking = [name for name, _, refusal in evidence.answers if refusal is None]
    taking += sorted(evidence.units_free) if evidence.observed else ()
    fitting = [name for name in taking if name not in evidence.closed]
    misses_no_unit = evidence.observed and not missed_units(evidence, parsed(message))
    if (fitting or misses_no_unit or evidence.by_claims) and not evidence.in_the_way.missing:
        shown = "free units" if evidence.observed else "room by the allocation records"
        room = f"nodes with {shown}: {names_text(fitting) or 'none'}"
        if taking and not fitting:
            room = f"nodes with {shown}, all closed to the pod: {names_text(taking)}"
        return refused_step(evidence, fitting, room)
    cause = cause_without_room(evidence)
    if cause is not None:
        return cause
    locks = (
        f"node {node}, which has no room, has {lock.key}: {lock.text!r}"
        for node, lock in evidence.in_the_way.full_locked
    )
    quoted = f"kube-scheduler: {message}"
    step = waiting(WayStep.RESERVED, WaitingReason.UNSCHEDULABLE, quoted, *locks)
    return step if evidence.nodes_read else structs.replace(step, advice=_READ_NODES)
