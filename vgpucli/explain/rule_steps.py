"""The step that each of the reconciler's rules belongs to. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import structs

from reconciler.model import Finding, ObjectKind
from reconciler.reasons import Rule
from vgpu.model.folding import folded_texts
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, StepReason, WayStep

POD_STEPS: Final[Mapping[Rule, WayStep]] = {
    Rule.REFUSED: WayStep.ADMITTED,
    Rule.TERMINATED: WayStep.USE,
    Rule.OVER_PROMISED: WayStep.RESERVED,
    Rule.PRESTART_FAILED: WayStep.ALLOCATED,
    Rule.NO_GPU_MATCHED: WayStep.ALLOCATED,
    Rule.ASSUMED_EXPIRED: WayStep.ALLOCATED,
    Rule.ASSUMED_UNBOUND: WayStep.RESERVED,
    Rule.LEFTOVER_CLAIM: WayStep.ALLOCATED,
    Rule.GPU_DRIFT: WayStep.ALLOCATED,
    Rule.RECOVER: WayStep.ALLOCATED,
    Rule.DOUBLE_BOOKED: WayStep.RESERVED,
    Rule.RUNNING_WITHOUT_DEVICE: WayStep.ALLOCATED,
    Rule.LOST_DEVICE: WayStep.USE,
    Rule.UNOWNED_PROCESS: WayStep.USE,
    Rule.OVER_LIMIT: WayStep.USE,
    Rule.KUBESHARE: WayStep.RESERVED,
    Rule.KAI: WayStep.RESERVED,
    Rule.STUCK_TERMINATING: WayStep.USE,
    Rule.HELD_FOR_NOTHING: WayStep.STARTED,
    Rule.IDLE_HOLDER: WayStep.USE,
    Rule.OVER_QUOTA: WayStep.QUOTA,
    Rule.MALFORMED_OBJECT: WayStep.REQUEST,
}
"""The steps of findings about pods and SharePods."""

NODE_STEPS: Final[Mapping[Rule, WayStep]] = {
    Rule.STALE_LOCK: WayStep.LOCK,
    Rule.STALE_HANDSHAKE: WayStep.PLUGIN,
    Rule.MALFORMED_OBJECT: WayStep.REGISTERED,
    Rule.ORPHAN_SHIM_DIR: WayStep.FOLDERS,
}
"""The steps of findings about nodes and folders on nodes."""

CLAIM_STEPS: Final[Mapping[Rule, WayStep]] = {Rule.RESOURCE_CLAIM: WayStep.RECORDS}
"""The steps of a node at which findings about ResourceClaims are, which have devices of it."""

GPU_STEPS: Final[Mapping[Rule, WayStep]] = {
    Rule.DOUBLE_BOOKED: WayStep.SHARES,
    Rule.RUNNING_WITHOUT_DEVICE: WayStep.SHARES,
    Rule.UNOWNED_PROCESS: WayStep.SHARES,
    Rule.LOST_DEVICE: WayStep.HEALTHY,
    Rule.RESOURCE_CLAIM: WayStep.SHARES,
}
"""The steps of findings about devices."""

STEPS_BY_KIND: Final[Mapping[ObjectKind, Mapping[Rule, WayStep]]] = {
    ObjectKind.POD: POD_STEPS,
    ObjectKind.SHARE_POD: POD_STEPS,
    ObjectKind.NODE: NODE_STEPS,
    ObjectKind.FOLDER: NODE_STEPS,
    ObjectKind.DEVICE: GPU_STEPS,
    ObjectKind.RESOURCE_CLAIM: CLAIM_STEPS,
}
"""The step of each rule, by the kind of the finding's object."""

REMARKED_STEPS: Final[Mapping[ObjectKind, WayStep]] = {
    ObjectKind.RESOURCE_QUOTA: WayStep.QUOTA,
    ObjectKind.NAMESPACE: WayStep.QUOTA,
    ObjectKind.DEVICE: WayStep.USE,
    ObjectKind.NODE: WayStep.NODES,
    ObjectKind.POD: WayStep.NODES,
}
"""The steps of a pod at which findings about another object are remarks: about its namespace or a
ResourceQuota there, about a device that it holds, about the node of a pod that does not run, a
locked node with room for it, and pods that are in its way."""


def step_of(finding: Finding) -> WayStep | None:
    """The step that fails by the finding; None if its rule has none for such an object."""
    return STEPS_BY_KIND.get(finding.object_ref.kind, {}).get(finding.rule)


def with_findings(step: ExplainedStep, findings: Iterable[Finding]) -> ExplainedStep:
    """The step with the findings that belong to it: it has failed if there is one.

    The step's own reasons come after those of the findings, which know more.
    """
    own = [finding for finding in findings if step_of(finding) is step.step]
    if not own:
        return step
    reasons = dict.fromkeys(map(reason_of, own))
    codes = {reason.code for reason in reasons}
    others = (reason for reason in step.reasons if reason.code not in codes)
    since = [finding.since for finding in own if finding.since is not None]
    return structs.replace(
        step,
        outcome=ExplainOutcome.FAILED,
        reasons=(*reasons, *others),
        evidence=tuple(dict.fromkeys((*_evidence(own), *step.evidence))),
        since=min(since, default=step.since),
        needs="",
        detail="",
        advice=None,
    )


def remarked_step(finding: Finding) -> WayStep | None:
    """The step at which a finding is a remark; that of a quota is one for a pod that is placed."""
    if finding.rule is Rule.OVER_QUOTA:
        return WayStep.QUOTA
    return REMARKED_STEPS.get(finding.object_ref.kind)


def with_remarks(step: ExplainedStep, findings: Iterable[Finding]) -> ExplainedStep:
    """The step with findings about other objects, which change nothing about its outcome."""
    own = [each for each in findings if remarked_step(each) is step.step]
    if not own:
        return step
    texts = [
        (each.object_ref.name, f"{_title(each)}: {text}") for each in own for text in each.evidence
    ]
    by_reason: dict[StepReason, dict[str, None]] = {}
    for each in own:
        by_reason.setdefault(reason_of(each), {})[_title(each)] = None
    remarks = (
        structs.replace(reason, about=_first_of(tuple(titles)))
        for reason, titles in by_reason.items()
    )
    return structs.replace(
        step,
        evidence=(*step.evidence, *folded_texts(texts)),
        remarks=tuple(dict.fromkeys((*step.remarks, *remarks))),
    )


def reason_of(finding: Finding) -> StepReason:
    """The cause of a finding as the reason of a step."""
    return StepReason.of(finding.cause, finding.rule.value)


def _title(finding: Finding) -> str:
    about = finding.object_ref
    is_namespace = about.kind is ObjectKind.NAMESPACE
    names = (about.name,) if is_namespace else (about.namespace, about.name)
    return f"{about.kind} {'/'.join(filter(None, names))}"


def _first_of(titles: tuple[str, ...]) -> str:
    more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
    return titles[0] + more


def _evidence(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        is_claim = finding.object_ref.kind is ObjectKind.RESOURCE_CLAIM  # the step is of its node
        title = f"{_title(finding)}: " if is_claim else ""
        yield from (title + text for text in finding.evidence)
