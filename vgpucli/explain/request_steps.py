"""The steps of a pod before any node: its request and the quotas of its namespace. Pure."""

from typing import Final

from msgspec import structs

from scheduler.filter.refusals import quota_lines, request_text
from vgpu.inventory import WaitingReason
from vgpu.inventory.marked_pods import marks_of
from vgpu.placement.result import OF_QUOTA, PlacementReason, PlacementRefusal
from vgpu.schemes.counted_claims import ClaimProblem
from vgpu.schemes.other_schedulers import system_of_resource
from vgpu.schemes.system_titles import system_title
from vgpucli.explain.known_objects import KnownPod
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, ExplainReason, StepReason, WayStep
from vgpucli.explain.pod_facts import (
    foreign_requests,
    has_several_containers,
    is_placed,
    is_placed_by_others,
    names_needed,
    reached,
    runs,
    unknown_amounts,
    unnamed_request,
    unreadable_texts,
)
from vgpucli.explain.queue_step import queue_step
from vgpucli.explain.step_values import failed, not_checked, passed
from vgpucli.misread_amounts import misread_amounts

_NO_QUOTA: Final = (
    "the scheduler counts no quota for this pod, and the API server has admitted it: ResourceQuotas"
    " are enforced when a pod is created"
)


def request_step(evidence: KnownPod) -> ExplainedStep:
    """Whether the request is valid, with amounts that are meant in another unit."""
    step = _unknown_share(evidence) or _valid_request(evidence)
    if has_several_containers(evidence.pod) and not runs(evidence):
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
    demanded = evidence.demanded
    if text := _observed_request(evidence):
        return passed(WayStep.REQUEST, text)
    if not isinstance(demanded, PlacementRefusal):
        scheme, demand = demanded
        text = f"{system_title(scheme.row.name)}: {request_text(demand.requests)}"
        if unknown_amounts(demand.requests):
            return not_checked(WayStep.REQUEST, names_needed(scheme.row.name), text)
        return passed(WayStep.REQUEST, text)
    if is_placed_by_others(evidence):
        requests = tuple(want.request for want in evidence.reading.wanted)
        return passed(WayStep.REQUEST, *foreign_requests(evidence, requests))
    return _refused_request(evidence, demanded)


def _refused_request(evidence: KnownPod, demanded: PlacementRefusal) -> ExplainedStep:
    """The step of a pod whose request no scheduler of ours takes."""
    pod = evidence.pod
    unread = unreadable_texts(evidence)
    if demanded.reason is PlacementReason.NOTHING_REQUESTED and unread:
        return failed(WayStep.REQUEST, WaitingReason.UNREADABLE, *unread)
    if pod.node or pod.terminal:
        text = f"our scheduler would refuse this request: {demanded.text}"
        return passed(WayStep.REQUEST, text)
    missing = tuple(each.text for each in evidence.in_the_way.missing)
    if demanded.reason is PlacementReason.NOTHING_REQUESTED and missing:
        step = failed(WayStep.REQUEST, ExplainReason.MISSING_RESOURCE, *missing)
        return structs.replace(step, detail=missing[0])
    message = demanded.message if demanded.message != demanded.reason.explanation else ""
    remarks = (
        wrong.detail
        for wrong in evidence.reading.malformed
        if wrong.problem is ClaimProblem.REQUESTS_NOTHING
    )
    texts = filter(None, (message, demanded.container, next(remarks, "")))
    return failed(WayStep.REQUEST, demanded.reason, *texts)


def _unknown_share(evidence: KnownPod) -> ExplainedStep | None:
    """The step of a pod that has a sharing system's marks, and no allocation that can be read."""
    if (other := evidence.other) is not None:
        text = f"a pod of {other.scheduler}, by {other.key}: its share is unknown"
        return not_checked(WayStep.REQUEST, f"the records of {other.scheduler}", text)
    demanded, pod = evidence.demanded, evidence.pod
    if not isinstance(demanded, PlacementRefusal) or is_placed_by_others(evidence):
        return None
    is_asking = demanded.reason is not PlacementReason.NOTHING_REQUESTED
    if is_asking or _observed_request(evidence) or unreadable_texts(evidence):
        return None
    marks = marks_of(pod)
    text = f"{', '.join(marks)}: of a sharing system; the pod's share is unknown"
    needs = "an allocation that can be read"
    return not_checked(WayStep.REQUEST, needs, text) if marks else None


def _observed_request(evidence: KnownPod) -> str:
    """The request of a pod whose share is not read, as text; "" for another pod."""
    if evidence.supplied:
        units = ", ".join(f"{number} {name}" for name, number in sorted(evidence.supplied.items()))
        return f"{units}, which no node advertises: a DRA driver has the GPUs"
    if evidence.by_claims:
        return "the GPUs of the pod, if it has any, come from ResourceClaims"
    if not evidence.observed:
        return ""
    units = ", ".join(f"{number} {name}" for name, number in sorted(evidence.observed.items()))
    others = sorted(
        {
            f"{name} of {system}"
            for container in evidence.pod.containers
            for name, number in container.others.items()
            if number and (system := system_of_resource(name))
        }
    )
    also = f"; {', '.join(others)}, which vgpu does not read" if others else ""
    return f"NVIDIA's device plugin, which vgpu only observes: {units}{also}"


def quota_step(evidence: KnownPod) -> ExplainedStep:
    """What the quotas answer, with what Kubernetes counts by itself."""
    queue = evidence.queue
    if queue is not None and (queue.reason is not None or queue.needs):
        step = queue_step(queue)
    elif system := unnamed_request(evidence):
        step = not_checked(WayStep.QUOTA, names_needed(system))
    else:
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
    group = evidence.in_the_way.group
    if group is not None and group.group is not None:
        about = f"queue {group.group.queue_name} of Volcano counts the pod: see step reserved"
        texts = (*texts, about)
    return structs.replace(step, evidence=(*step.evidence, *texts)) if texts else step


def _answered_quota(evidence: KnownPod) -> ExplainedStep:
    quota = evidence.quota
    if evidence.other is not None:
        text = "what the pod counts is unknown"
        return not_checked(WayStep.QUOTA, f"the records of {evidence.other.scheduler}", text)
    if quota is None:
        return reached(WayStep.QUOTA, evidence, _NO_QUOTA)
    if not quota:
        return _without_quota(evidence)
    lines = tuple(line.strip() for line in quota_lines(quota, evidence.used))
    refusal = evidence.over_quota
    if refusal is not None and not is_placed(evidence):
        return failed(WayStep.QUOTA, refusal.reason, refusal.message, *lines)
    of_placement = [
        refusal
        for _, _, refusal in evidence.answers
        if refusal is not None and refusal.reason in OF_QUOTA
    ]
    if of_placement and len(of_placement) == len(evidence.answers):
        return failed(WayStep.QUOTA, of_placement[0].reason, of_placement[0].message, *lines)
    return passed(WayStep.QUOTA, *lines)


def _without_quota(evidence: KnownPod) -> ExplainedStep:
    """The step of a pod in a namespace of which no quota is known."""
    namespace = evidence.pod.ref.namespace
    if evidence.quotas_read:
        return passed(WayStep.QUOTA, f"namespace {namespace} has no quota of shared GPUs")
    if is_placed(evidence):
        return passed(WayStep.QUOTA, "the pod has been placed: no quota refused it")
    return not_checked(WayStep.QUOTA, f"Namespace {namespace} and its ResourceQuotas")
