"""The steps of a pod on its node: kubelet, device plugin, containers and their use. Pure."""

from typing import Final

from msgspec import structs

from reconciler.reasons import Cause
from vgpu.inventory import WaitingReason
from vgpu.kube.closed_nodes import ClosedReason
from vgpu.kube.errors import one_line
from vgpu.kube.pod_state import CRASH_LOOP, pod_state, waits_in_vain
from vgpu.model.names import Phase
from vgpu.model.objects import Pod, holds_devices
from vgpucli.explain.known_objects import KnownPod
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, ExplainReason, StepReason, WayStep
from vgpucli.explain.pod_facts import (
    container_text,
    has_run,
    holding_text,
    holdings_of,
    runs,
    status_text,
    was_ended,
)
from vgpucli.explain.room_step import NODES_IN_DUMP
from vgpucli.explain.sentences import time_text
from vgpucli.explain.step_values import (
    failed,
    not_checked,
    not_reached,
    passed,
    waiting,
    waiting_with,
)

_ON_NODE: Final = "vgpu top on the node of the pod"
"""What shows the GPUs of a container that the API server does not have."""


_KUBELET_ALLOCATED: Final = (
    "the kubelet starts a container only after the device plugin has allocated its devices"
)

_REPORTED_BEFORE: Final = "the node is not ready: this is what its kubelet has reported before"
"""Of a container: nobody knows whether it still runs."""

_REPORTED_LAST: Final = "the node is gone: this is what its kubelet has reported last"
"""As above."""


def admitted_step(evidence: KnownPod) -> ExplainedStep:
    """Whether the kubelet has accepted the pod."""
    pod = evidence.pod
    if not pod.node:
        return not_reached(WayStep.ADMITTED)
    is_started = has_run(pod)
    lost = None if runs(evidence) or pod.terminal else _lost(evidence, WayStep.ADMITTED, ())
    if lost is not None:
        return lost
    if pod.phase == "Failed" and pod.reason and not is_started and not was_ended(pod):
        text = one_line(f"{pod.reason}: {pod.message}")
        return failed(WayStep.ADMITTED, Cause.OTHER, text)
    if pod.started_at is not None or is_started or pod.phase in ("Running", "Succeeded", "Failed"):
        text = f"the kubelet of {pod.node} accepted the pod"
        return passed(WayStep.ADMITTED, text, since=pod.started_at)
    return waiting(WayStep.ADMITTED, ExplainReason.NOT_REPORTED, f"node {pod.node}")


def with_plugin_refusal(step: ExplainedStep, evidence: KnownPod) -> ExplainedStep:
    """The step of the kubelet's refusal with what the node's device plugin refuses."""
    why = evidence.refusing.get(evidence.pod.node, "")
    if not why or step.step is not WayStep.ADMITTED or step.outcome is not ExplainOutcome.FAILED:
        return step
    reasons = (StepReason.of(ExplainReason.ONE_UNIT), *step.reasons)
    return structs.replace(step, reasons=reasons, detail=f"{evidence.pod.node}: {why}", advice=None)


def allocated_step(evidence: KnownPod) -> ExplainedStep:
    """Whether the device plugin has allocated the GPUs."""
    pod, claims = evidence.pod, evidence.reading.claims
    if not pod.node:
        return not_reached(WayStep.ALLOCATED)
    if any(claim.failed for claim in claims) and not runs(evidence):
        return failed(WayStep.ALLOCATED, WaitingReason.FAILED)
    pending = sorted(
        {
            allocation.container or "the pod"
            for claim in claims
            for allocation in claim.allocations
            if allocation.phase is not Phase.ASSIGNED or allocation.container in claim.unserved
        }
    )
    if pending and holds_devices(pod) and not runs(evidence):
        text = f"not allocated yet: {', '.join(pending)}"
        return waiting(WayStep.ALLOCATED, WaitingReason.NOT_ASSIGNED, text)
    if claims and not pending:
        since = next((claim.assigned_at for claim in claims if claim.assigned_at), None)
        text = "the annotations have every share as allocated"
        return passed(WayStep.ALLOCATED, text, since=since)
    return _allocated_by_state(evidence)


def _allocated_by_state(evidence: KnownPod) -> ExplainedStep:
    """The step of a pod whose annotations do not show the allocation, by its containers."""
    pod = evidence.pod
    if not (runs(evidence) or has_run(pod) or was_ended(pod)):
        return not_reached(WayStep.ALLOCATED)
    if evidence.other is not None:
        return not_checked(WayStep.ALLOCATED, f"the records of {evidence.other.scheduler}")
    if evidence.reading.claims or evidence.observed or evidence.claims or holdings_of(evidence):
        verb = "runs" if runs(evidence) else "ran"
        return passed(WayStep.ALLOCATED, f"{container_text(pod)} {verb}; {_KUBELET_ALLOCATED}")
    return not_checked(WayStep.ALLOCATED, _ON_NODE, container_text(pod))


def started_step(evidence: KnownPod) -> ExplainedStep:
    """Whether the containers run, or have run."""
    pod = evidence.pod
    if not pod.node:
        return not_reached(WayStep.STARTED)
    if pod.terminal:
        return _ended(pod)
    failing = next((status for status in pod.statuses if waits_in_vain(status)), None)
    if failing is not None:
        cause = Cause.CRASH_LOOP if failing.reason == CRASH_LOOP else Cause.CANNOT_START
        return failed(WayStep.STARTED, cause, status_text(failing))
    if runs(evidence):
        return _running(evidence)
    state = pod_state(pod)
    text = one_line(f"{state.waiting_reason}: {state.waiting_message}".strip(": "))
    if not pod.statuses and pod.started_at is None:
        return not_reached(WayStep.STARTED)
    return waiting(WayStep.STARTED, ExplainReason.STARTING, *filter(None, (text,)))


def _running(evidence: KnownPod) -> ExplainedStep:
    """The step of a pod whose containers run by the last report of its kubelet."""
    pod = evidence.pod
    text = f"{container_text(pod)} runs"
    if evidence.node_gone:
        return not_checked(WayStep.STARTED, "a node that exists", text, _REPORTED_LAST)
    if evidence.node is not None and not evidence.node.ready:
        return not_checked(WayStep.STARTED, "a node that is ready", text, _REPORTED_BEFORE)
    since = [s.started_at for s in pod.statuses if s.started_at is not None]
    return passed(WayStep.STARTED, text, since=min(since, default=None))


def _ended(pod: Pod) -> ExplainedStep:
    """Whether a pod that has ended did run."""
    text = one_line(f"the pod has ended: {pod.phase} {pod.reason}").strip()
    if pod.phase == "Succeeded" or has_run(pod) or was_ended(pod):
        return passed(WayStep.STARTED, text)
    return waiting_with(WayStep.STARTED, text, "no container of it is known to have run")


def use_step(evidence: KnownPod) -> ExplainedStep:
    """What the containers hold on a node that is ready."""
    pod = evidence.pod
    if not pod.node:
        return not_reached(WayStep.USE)
    if not holds_devices(pod):
        return passed(WayStep.USE, "the pod has ended and holds no share of a GPU")
    held = tuple(holding_text(evidence, holding) for holding in holdings_of(evidence))
    if pod.deleted_at is not None:
        due = f"the deletion of the pod is due since {time_text(pod.deleted_at)}"
        left = ", ".join(pod.finalizers)
        more = (f"finalizers that are left: {left}",) if left else ()
        lost = _lost(evidence, WayStep.USE, (due, *more, *held))
        if lost is not None:  # no kubelet ends it
            return lost
        step = waiting(WayStep.USE, ExplainReason.DELETING, due, *more, *held)
        return structs.replace(step, detail=more[0] if more else "")
    if not runs(evidence):
        return waiting_with(WayStep.USE, *(f"not running, {text}" for text in held))
    return _lost(evidence, WayStep.USE, held) or _used(evidence, held)


def _lost(evidence: KnownPod, step: WayStep, held: tuple[str, ...]) -> ExplainedStep | None:
    """The step of a pod whose node is not ready or gone; None of another pod."""
    node = evidence.pod.node
    if evidence.node_gone:
        return failed(step, ExplainReason.NODE_GONE, f"node {node}", *held)
    if evidence.node is not None and not evidence.node.ready:
        text = f"node {node} is not ready: its kubelet does not report whether the pod runs"
        return failed(step, ClosedReason.NOT_READY, text, *held)
    return None


def _used(evidence: KnownPod, held: tuple[str, ...]) -> ExplainedStep:
    """The step of a pod that runs on a node that is ready."""
    if evidence.observed or evidence.other:
        text = "the API server does not have its GPU: vgpu top on the node shows it"
        return not_checked(WayStep.USE, _ON_NODE, text, *held)
    if not evidence.nodes_read:
        return not_checked(WayStep.USE, NODES_IN_DUMP, *held)
    return passed(WayStep.USE, *held) if held else not_checked(WayStep.USE, _ON_NODE)
