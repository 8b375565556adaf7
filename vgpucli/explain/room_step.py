"""The step of a pod at which nodes answer whether they have room. Pure."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec import structs

from reconciler.reasons import Rule
from scheduler.filter.refusals import (
    RefusedNodes,
    largest_gpu,
    largest_share,
    rejection_text,
    summary_of,
)
from vgpu.kube.closed_nodes import ClosedReason
from vgpu.model.reasons import Explained
from vgpu.model.units import count, count_more, exact_size
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import StandingReason
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpucli.explain.known_objects import KnownPod
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, ExplainReason, StepReason, WayStep
from vgpucli.explain.pod_claims import UNCHECKED
from vgpucli.explain.pod_facts import (
    has_several_containers,
    is_placed_by_others,
    names_needed,
    unnamed_request,
)
from vgpucli.explain.refusal import missed_units
from vgpucli.explain.scheduler_message import parsed
from vgpucli.explain.sentences import ADVICE, MOST_NAMED, names_text, reopening, repair_advice
from vgpucli.explain.step_values import failed, not_checked, not_reached, passed, waiting

NODES_IN_DUMP: Final = "nodes in the dump: kubectl get nodes"
"""What shows whether a node has room, where a dump has none."""


def nodes_step(evidence: KnownPod) -> ExplainedStep:
    """Whether a node has room for the pod, or has had."""
    pod = evidence.pod
    if pod.node:
        return passed(WayStep.NODES, f"the pod is bound to node {pod.node}", since=pod.scheduled_at)
    if pod.terminal:
        return passed(WayStep.NODES, "the pod has ended and was never bound to a node")
    if is_placed_by_others(evidence):
        return _nodes_of_others(evidence)
    is_refused = evidence.over_quota is not None or _waits_for_queue(evidence)
    if isinstance(evidence.demanded, PlacementRefusal) or is_refused:
        return not_reached(WayStep.NODES)
    if system := unnamed_request(evidence):
        return not_checked(WayStep.NODES, names_needed(system))
    return _missing(evidence) or _room(evidence, *evidence.demanded)


def _waits_for_queue(evidence: KnownPod) -> bool:
    """Whether a queue has to admit the pod before any node is asked."""
    queue = evidence.queue
    return queue is not None and (queue.reason is not None or bool(queue.needs))


def _nodes_of_others(evidence: KnownPod) -> ExplainedStep:
    """The nodes of a pod that our scheduler does not place."""
    if evidence.by_claims:
        texts = (*(claim.text for claim in evidence.claims), *evidence.free_devices)
        if evidence.claims and all(claim.is_allocated for claim in evidence.claims):
            return passed(WayStep.NODES, *texts)
        return not_checked(WayStep.NODES, UNCHECKED, *texts)
    if evidence.observed:
        return _refused_units(evidence) or _units(evidence)
    other = evidence.other
    texts = () if other is None else (f"{other.scheduler} places the pod",)
    return waiting(WayStep.NODES, ExplainReason.OTHER_PLACEMENT, *texts)


def _refused_units(evidence: KnownPod) -> ExplainedStep | None:
    """The step of a pod that the device plugin of each node with free units refuses, else None."""
    refusing = sorted(evidence.units_free & evidence.refusing.keys())
    if not refusing or not evidence.units_free <= evidence.refusing.keys():
        return None
    step = failed(WayStep.NODES, ExplainReason.ONE_UNIT, *evidence.units)
    return structs.replace(step, detail=f"{refusing[0]}: {evidence.refusing[refusing[0]]}")


def _units(evidence: KnownPod) -> ExplainedStep:
    """Whether nodes have the units of a pod that kube-scheduler alone places."""
    message = parsed(evidence.pod.unschedulable)
    quoted = f"kube-scheduler: {message.text}"
    missed = missed_units(evidence, message)
    free = sorted(evidence.units_free - evidence.refusing.keys())
    if free and evidence.closed.keys() >= evidence.units_free:
        text = f"units are free on {count(len(free), 'node')}: {names_text(free)}"
        return _closed(evidence, free, text, *evidence.units)
    if not missed:
        needs = "the message of kube-scheduler, which alone places the pod"
        return not_checked(WayStep.NODES, needs, *evidence.units)
    if not evidence.nodes_read:
        return not_checked(WayStep.NODES, NODES_IN_DUMP, quoted)
    if missing := _missing(evidence):
        return structs.replace(missing, evidence=(*missing.evidence, quoted))
    if free:
        return passed(WayStep.NODES, *evidence.units)
    reason: Explained = ExplainReason.UNITS_MISSING
    if evidence.none_allocatable:
        reason = ClosedReason.NOTHING_ALLOCATABLE
    step = failed(WayStep.NODES, reason, *evidence.units, quoted)
    return structs.replace(step, detail=next(iter(evidence.units), ""))


def _missing(evidence: KnownPod) -> ExplainedStep | None:
    """The step of a pod that requests what no node advertises; None of another pod."""
    texts = tuple(each.text for each in evidence.in_the_way.missing)
    if not texts:
        return None
    step = failed(WayStep.NODES, ExplainReason.MISSING_RESOURCE, *texts)
    return structs.replace(step, detail=texts[0])


def _room(evidence: KnownPod, scheme: SchedulerScheme, demand: PodDemand) -> ExplainedStep:
    """Whether a node has room for a pod that is not bound."""
    if not evidence.nodes_read:
        return not_checked(WayStep.NODES, NODES_IN_DUMP)
    if not evidence.answers:
        return failed(WayStep.NODES, PlacementReason.NO_GPUS, "no node registers GPUs to share")
    refused = {name: refusal for name, _, refusal in evidence.answers if refusal is not None}
    of_others = {name for name, each in refused.items() if each.cause is PlacementReason.NO_GPUS}
    if len(of_others) < len(evidence.answers):  # the pod can never use them
        refused = {name: each for name, each in refused.items() if name not in of_others}
    fitting = [name for name, _, refusal in evidence.answers if refusal is None]
    if not fitting:
        views = (view for _, view, _ in evidence.answers)
        largest = largest_gpu(scheme, demand, views)
        summary = structs.replace(summary_of(RefusedNodes.of(refused)), largest_bytes=largest)
        reasons = tuple(StepReason.of(reason) for reason, _ in summary.counts)
        texts = tuple(rejection_text(summary, scheme, demand).split("; "))
        step = ExplainedStep(WayStep.NODES, ExplainOutcome.FAILED, reasons, texts)
        step = _with_ending(_of_node(step, evidence), evidence)
        if too_large := _too_large(largest, scheme, demand):
            advice = "request less memory for each GPU, or add a larger GPU"
            if has_several_containers(evidence.pod):
                advice = "request less memory in all containers together, or add a larger GPU"
            return structs.replace(step, detail=too_large, advice=advice)
        return step
    taking = [name for name in fitting if name not in evidence.closed]
    named = taking or fitting
    total = count(len(fitting) + len(refused), "node")
    text = f"GPUs have room on {len(named)} of {total}: {names_text(named)}"
    return passed(WayStep.NODES, text) if taking else _closed(evidence, fitting, text)


def _with_ending(step: ExplainedStep, evidence: KnownPod) -> ExplainedStep:
    """The step with a pod that holds its share since its deletion, and does not end."""
    found = [each for each in evidence.in_the_way.findings if each.rule is Rule.STUCK_TERMINATING]
    if not found or step.detail:
        return step
    pods = [f"{each.object_ref.namespace}/{each.object_ref.name}" for each in found]
    text = f"deleted pods that do not end still hold their shares: {names_text(pods)}"
    advice = f"vgpu explain pod {pods[0]} shows what keeps it"
    return structs.replace(step, evidence=(*step.evidence, text), detail=text, advice=advice)


def _of_node(step: ExplainedStep, evidence: KnownPod) -> ExplainedStep:
    """The step with the first node that refuses by its first reason, and the pod in the way there.

    Only for a reason that is about the node, and not about the amounts that the pod requests.
    """
    if step.reasons[0].code not in _ABOUT_NODES:
        return step
    found = {each.object_ref.uid: each for each in evidence.in_the_way.findings}
    for name, view, refusal in evidence.answers:
        if refusal is None or refusal.cause.value != step.reasons[0].code:
            continue
        detail, advice = f"node {name}", f"vgpu explain node {name} shows what is wrong there"
        if view is not None and view.standing and view.reason is None:
            pod = view.standing[0]
            detail = f"node {name}, {pod.text}"
            if pod.reason is not StandingReason.RESERVED:
                named = f"{pod.pod.namespace}/{pod.pod.name}"
                advice = f"vgpu explain pod {named} shows what is wrong with it"
            elif (finding := found.get(pod.pod.uid)) is not None:
                advice = repair_advice(finding.rule.value)
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
    more = f" and {count_more(len(others), 'node')}" if others else ""
    step = failed(WayStep.NODES, reason, *texts)
    if not evidence.answers:
        shown = (f"{name}: {each.text}" for name, each in closed.items())
        step = structs.replace(step, evidence=(*step.evidence, *islice(shown, MOST_NAMED)))
    return structs.replace(step, advice=advice, detail=f"{first}{more}: {detail}")


def _too_large(largest: int | None, scheme: SchedulerScheme, demand: PodDemand) -> str:
    """That no GPU is as large as the pod requests, as a sentence; "" if one is."""
    wanted, text = largest_share(scheme, demand)
    if largest is None or wanted <= largest:
        return ""
    return f"{text}, the largest GPU has {exact_size(largest)}"
