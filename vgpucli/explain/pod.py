"""The way of a pod in steps: from its request to the use of its GPUs. Pure.

Each module ``*_step`` or ``*_steps`` has the checks of its steps.
"""

from collections.abc import Callable
from typing import Final

from msgspec import structs

from reconciler.reasons import Cause, Rule
from vgpu.kube.errors import one_line
from vgpu.ledger import Conflict, ConflictKind
from vgpu.model.objects import MIRROR, MalformedObject
from vgpu.model.units import percentage, rounded_size
from vgpu.placement.result import PlacementRefusal
from vgpu.quota.resources import CORES, MEMORY
from vgpu.schemes.kai.groups import is_reservation
from vgpu.schemes.system_titles import system_title
from vgpucli.explain.kai_steps import with_kai
from vgpucli.explain.known_objects import KnownPod, node_groups
from vgpucli.explain.limited_step import limited_step
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, Explanation, StepReason, WayStep
from vgpucli.explain.pod_facts import is_placed, read_system, unnamed_request
from vgpucli.explain.request_steps import quota_step, request_step
from vgpucli.explain.reservation_step import reserved_step
from vgpucli.explain.room_step import nodes_step
from vgpucli.explain.rule_steps import with_findings, with_remarks
from vgpucli.explain.run_steps import (
    admitted_step,
    allocated_step,
    started_step,
    use_step,
    with_plugin_refusal,
)
from vgpucli.explain.sentences import concluded
from vgpucli.explain.step_values import not_reached
from vgpucli.group_usage import MeasuredUse


def explain_pod(evidence: KnownPod) -> Explanation:
    """The steps of the pod, with a closing sentence."""
    steps: list[ExplainedStep] = []
    over_quota = [each for each in evidence.findings if each.rule is Rule.OVER_QUOTA]
    remarked_findings = over_quota if is_placed(evidence) else []
    if evidence.node_gone:  # whatever else is wrong follows from it
        remarked_findings = list(evidence.findings)
    decisive_findings = [each for each in evidence.findings if each not in remarked_findings]
    for check in _CHECKS:
        step = with_findings(with_kai(check(evidence), evidence), decisive_findings)
        step = with_plugin_refusal(step, evidence)
        step = with_remarks(step, (*remarked_findings, *evidence.nearby))
        steps.append(_with_conflicts(step, evidence) if step.step is WayStep.USE else step)
    ref = evidence.pod.ref
    explanation = Explanation(
        "Pod",
        f"{ref.namespace}/{ref.name}",
        tuple(steps),
        evidence.now,
        nodes=()
        if evidence.in_the_way.missing or unnamed_request(evidence)
        else node_groups(evidence.answers, evidence.closed),
        system=_system(evidence),
    )
    explanation = concluded(explanation)
    if is_reservation(evidence.pod):
        conclusion = explanation.conclusion.replace(_HAS_SHARE, "keeps a GPU for other pods")
        explanation = structs.replace(explanation, conclusion=conclusion)
    if not explanation.advice and any(
        each.kind is ConflictKind.PORTION_ZERO for each in evidence.conflicts
    ):
        explanation = structs.replace(explanation, advice=_PORTION_ADVICE)
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
    return read_system(evidence)


_HAS_SHARE: Final = "has its share of a GPU"

_PORTION_ADVICE: Final = "ask for at least 0.01 of a GPU, or for an amount by gpu-memory"

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
    reasons = (
        structs.replace(StepReason.of(conflict.kind), about=_about(conflict, evidence))
        for conflict in conflicts
    )
    details = (conflict.detail for conflict in conflicts if conflict.detail)
    return structs.replace(
        step,
        remarks=tuple(dict.fromkeys((*step.remarks, *reasons))),
        evidence=(*step.evidence, *details),
    )


def _about(conflict: Conflict, evidence: KnownPod) -> str:
    """The object of a conflict that is not the pod's own; "" of the pod."""
    if conflict.pod is not None or evidence.ledger is None:
        return ""
    if conflict.device:
        return f"GPU {one_line(conflict.device)}"
    return f"Node {evidence.ledger.node}"


def explain_unreadable_pod(pod: MalformedObject, now: float) -> Explanation:
    """The explanation of a pod that cannot be read."""
    reason = StepReason.of(Cause.MALFORMED, "malformed_object")
    evidence = (one_line(f"the object cannot be read: {pod.detail}"),)
    steps = [ExplainedStep(WayStep.REQUEST, ExplainOutcome.FAILED, (reason,), evidence)]
    steps += [not_reached(step) for step in POD_STEPS[1:]]
    name = f"{pod.ref.namespace}/{pod.ref.name}"
    return concluded(Explanation("Pod", name, tuple(steps), now))


_CHECKS: Final[tuple[Callable[[KnownPod], ExplainedStep], ...]] = (
    request_step,
    quota_step,
    nodes_step,
    reserved_step,
    admitted_step,
    allocated_step,
    started_step,
    use_step,
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
    steps: list[ExplainedStep] = []
    for step in explanation.steps:
        if step.step is WayStep.USE and step.outcome is not ExplainOutcome.WAITING:
            steps.append(limited_step(use.limits if use is not None else {}))
            steps.append(structs.replace(step, evidence=(*step.evidence, text)))
        else:
            steps.append(step)
    before = explanation.decisive
    explanation = structs.replace(explanation, steps=tuple(steps))
    return explanation if explanation.decisive is before else concluded(explanation)
