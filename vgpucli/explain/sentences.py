"""The sentences of an explanation: shares, GPUs and times, the conclusion, and what to do. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import structs

from reconciler.reasons import Cause
from scheduler.reasons import BindFailure
from vgpu.inventory import WaitingReason
from vgpu.kube.closed_nodes import ClosedNode, ClosedReason
from vgpu.model.allocation import Device, Share
from vgpu.model.documentation import page
from vgpu.model.units import percentage, rounded_size
from vgpu.placement.result import PlacementReason
from vgpucli.doctor.model import DoctorReason
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, ExplainReason, Explanation, WayStep

_UUID: Final = 12
"""Number of characters of a UUID that a person is shown."""


MOST_NAMED: Final = 5
"""Maximum number of objects that a sentence names."""


def names_text(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def gpu_text(device: Device) -> str:
    """A GPU by its index and model with its short UUID."""
    short = device.uuid[:_UUID]
    parts = [short, device.model] if device.index is None else [str(device.index)]
    parts += [] if device.index is None else [device.model, short]
    first, *inside = [part for part in parts if part] or ["without a name"]
    title = first if first.startswith("GPU-") else f"GPU {first}"
    return title + (f" ({', '.join(inside)})" if inside else "")


def share_text(share: Share, devices: Mapping[str, str]) -> str:
    """A share; ``devices`` are the GPUs of the node for people, under every name."""
    parts = [] if share.memory_bytes is None else [rounded_size(share.memory_bytes)]
    if share.cores_milli:
        parts.append(f"{percentage(share.cores_milli)} of the cores")
    device = devices.get(share.device)
    if device is None:
        device = f"GPU {share.device[:_UUID]}" if share.device else "an unknown GPU"
    return f"{' and '.join(parts) or 'a share'} of {device}"


def time_text(seconds: float) -> str:
    """Unix seconds as RFC 3339; the bare number if no calendar has such a time."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s"


_REQUEST = "correct the resources or annotations of the pod, and create the pod again"
_QUOTA = "raise the quota, end other pods of the namespace, or request less"
_ROOM = (
    "end or move other pods (vgpu fit --defragment names the fewest, vgpu inspect the holders),"
    " request less, or add a GPU"
)
_NODE = "vgpu explain node NODE shows what is wrong with such a node"

_ADVICE_FOR_NODES: Final[Mapping[str, str]] = {
    PlacementReason.MIXED_NODE: "use one sharing system per node",
    PlacementReason.UNREADABLE: "correct what cannot be read; vgpu reconcile plan names each"
    " object",
    PlacementReason.POD_WITHOUT_GPU: "vgpu explain pod of the pod that is named shows what is wrong"
    " with it",
    PlacementReason.OTHER_SCHEDULER: "wait until the other scheduler has bound its pod; vgpu"
    " reconcile plan names reservations that stay",
}
"""What to do about a node, where the advice for a pod would be the command that was run."""
_PLACED_PAST = (
    "check schedulerName and nodeName in the template of the pod: it gets a GPU only if the"
    " scheduler of its sharing system places it"
)
_KUBELET = "look at the kubelet and the device plugin of the node"
_DESCRIBE = "kubectl describe pod shows the events of the pod"

ADVICE: Final[Mapping[str, str]] = {
    PlacementReason.MALFORMED_REQUEST: _REQUEST,
    PlacementReason.SEVERAL_SYSTEMS: _REQUEST,
    PlacementReason.INIT_CONTAINER: _REQUEST,
    PlacementReason.NOTHING_REQUESTED: "request a resource of a sharing system",
    PlacementReason.FOREIGN_ANNOTATIONS: "remove the annotations, and create the pod again",
    PlacementReason.QUOTA: _QUOTA,
    PlacementReason.QUOTA_UNREADABLE: "correct the object that declares the quota",
    PlacementReason.QUOTA_MODEL: _QUOTA,
    PlacementReason.QUOTA_POOL: _QUOTA,
    PlacementReason.NO_GPUS: "check that the device plugin of the pod's sharing system runs",
    PlacementReason.MIXED_NODE: _NODE,
    PlacementReason.UNREADABLE: _NODE,
    PlacementReason.OTHER_SCHEDULER: "wait until the other scheduler has bound its pod; vgpu"
    " reconcile plan names reservations that stay",
    PlacementReason.POD_WITHOUT_GPU: _NODE,
    PlacementReason.NEEDS_LOCK: "start vgpu scheduler with --original-plugin, as long as HAMi's own"
    " device plugin serves a node, or update the plugin of this project there",
    PlacementReason.TOO_FEW_GPUS: "request fewer GPUs for a container, or add a larger node",
    PlacementReason.MEMORY: _ROOM,
    PlacementReason.CORES: _ROOM,
    PlacementReason.SLOTS: _ROOM,
    PlacementReason.EXCLUSIVE: _ROOM,
    PlacementReason.EXCLUSIVELY_USED: _ROOM,
    PlacementReason.NO_FITTING_GPU: _ROOM,
    PlacementReason.POD_GROUP: _ROOM,
    PlacementReason.NUMA: _ROOM,
    PlacementReason.UUID: "correct the annotations of the pod that choose GPUs",
    PlacementReason.TYPE: "correct the annotations of the pod that choose GPUs",
    PlacementReason.UNHEALTHY: "repair the GPUs, or add a node",
    PlacementReason.CORDONED: "remove the cordon of the GPUs, or add a node",
    ExplainReason.STALE_SCHEDULER: "restart the scheduler or scheduler extender of the pod's"
    " sharing system, and look at the pod again",
    ExplainReason.SEVERAL_CONTAINERS: "request gpushare's memory in one container only, or have"
    " vgpu device-plugin serve the node",
    ExplainReason.ONE_UNIT: "request one unit for each container: several share one GPU there, so"
    " that more units are no larger share",
    ExplainReason.OTHER_CHECKS: "correct what kube-scheduler names",
    ExplainReason.MISSING_RESOURCE: "correct the name of the resource, or install the device plugin"
    " that advertises it",
    ExplainReason.WRONG_SCHEDULER: "create the pod again with the schedulerName of its sharing"
    " system; a webhook of the system sets it where no label of the pod or Namespace excludes it",
    ExplainReason.COUNTED_WITHOUT_EXTENDER: "check the configuration of this scheduler with vgpu"
    " scheduler check-config: managedResources of its extender has to name the resource with"
    " ignoredByScheduler: true",
    ExplainReason.NODE_LOCKED: "wait for the pod that has the lock; vgpu reconcile plan names a"
    " lock that nobody needs",
    BindFailure.GONE: "look at the pod again: the message is about one that is gone or being"
    " deleted",
    BindFailure.BOUND_ELSEWHERE: "look for a second scheduler that has bound the pod",
    BindFailure.CONFLICT: "look for a program that changes the pod, or its node, all the time;"
    " kube-scheduler tries again",
    BindFailure.REFUSED: "correct what the API server names, such as the rights of the scheduler's"
    " ServiceAccount",
    BindFailure.UNREACHABLE: "look at the API server and at the log of vgpu scheduler, which calls"
    " it; kube-scheduler tries again",
    BindFailure.POD_UNREADABLE: "correct the field of the pod that is named",
    BindFailure.LEASE_UNREADABLE: "look at the Lease that is named, which only vgpu scheduler"
    " writes",
    ExplainReason.FOREIGN_RESERVATION: "vgpu explain pod of the pod that is named shows what is"
    " wrong with it; its scheduler counts its GPUs on the wrong node until it is recreated",
    ExplainReason.UNITS_MISSING: "end other pods, request less, or add a GPU; vgpu explain node"
    " shows why a node can allocate fewer units than it has",
    ExplainReason.PARTLY_ALLOCATABLE: "look at the log of the device plugin of the node: a GPU that"
    " is unhealthy is not allocatable",
    ExplainReason.NODE_GONE: "make sure that the machine is off; kube-controller-manager deletes"
    " the pods of nodes that are gone",
    ExplainReason.DELETING: "wait for the kubelet and for the owners of the finalizers, which"
    " remove them",
    ExplainReason.ANNOTATED_ELSEWHERE: "a controller that recreates the pod gets it placed again;"
    " look for a nodeName or a second scheduler that has bound it",
    ExplainReason.EXTENDER_FAILS: "look at the pods and the log of the scheduler extender that"
    " kube-scheduler calls, and at its Service and certificate",
    ExplainReason.RESOURCE_CLAIMS_WAIT: "kubectl describe resourceclaim shows why the claims of the"
    " pod wait",
    ExplainReason.POD_GROUP_WAITS: "kubectl describe podgroup shows how many pods the group needs,"
    " and kubectl describe queue what its queue allows",
    ExplainReason.QUEUE_FULL: "kubectl describe queue shows what the queue allows and what is"
    " allocated",
    ExplainReason.SCHEDULER_QUOTA: _QUOTA,
    ExplainReason.UNITS_IN_USE: "look for pods that request the resource and hold no GPU: vgpu"
    " inspect NODE",
    ExplainReason.NODES_CLOSED: "make a node with room take pods again",
    ExplainReason.GATED: "wait for the controller that has set the gate (spec.schedulingGates)",
    ExplainReason.OTHER_PLACEMENT: "look at the controller of the pod's sharing system",
    ExplainReason.NOT_REPORTED: _KUBELET,
    ClosedReason.NOT_READY: "repair the node; without its kubelet nothing is known about its pods",
    ClosedReason.CORDONED_NODE: "kubectl uncordon the node when it may take pods",
    ExplainReason.NOT_ADVERTISED: "check that the device plugin of the node runs and has registered"
    " its resources",
    DoctorReason.NOTHING_ALLOCATABLE: DoctorReason.NOTHING_ALLOCATABLE.advice,
    ExplainReason.STARTING: f"wait; {_DESCRIBE}",
    WaitingReason.UNREADABLE: "correct or remove the annotations that are quoted",
    WaitingReason.NOT_BOUND: "wait for kube-scheduler, which binds the pod or gives the GPU back",
    WaitingReason.NOT_SCHEDULED: "check the schedulerName of the pod, and that this scheduler runs",
    WaitingReason.UNSCHEDULABLE: "step nodes has the reasons of the nodes",
    WaitingReason.NO_ANNOTATION: _PLACED_PAST,
    WaitingReason.RUNNING_WITHOUT: _PLACED_PAST,
    WaitingReason.FAILED: _KUBELET,
    WaitingReason.NOT_ASSIGNED: _KUBELET,
    Cause.OTHER: _DESCRIBE,
    Cause.CANNOT_START: _DESCRIBE,
    Cause.CRASH_LOOP: "kubectl logs --previous shows why the container ended",
}
"""What to do, by the code of the first reason."""


_OF_KUBERNETES: Final = ("node.kubernetes.io/", "node-role.kubernetes.io/")
"""Prefixes of the keys of taints that show a state of the node, and that no pod should tolerate."""


_SCARCE: Final = "end or move pods of a node with free GPUs, or request less {}"

_REOPENING: Final[Mapping[ClosedReason, str]] = {
    ClosedReason.NODE_SELECTOR: "correct the pod's nodeSelector, or label a node so",
    ClosedReason.NODE_AFFINITY: "correct the pod's node affinity, or label a node so",
    ClosedReason.TOO_MANY_PODS: "end or move pods of a node with free GPUs, which has as many as"
    " its kubelet takes",
    ClosedReason.NOTHING_ALLOCATABLE: "look at the device plugin of the node of which nothing is"
    " allocatable",
    ClosedReason.INSUFFICIENT_CPU: _SCARCE.format("CPU"),
    ClosedReason.INSUFFICIENT_MEMORY: _SCARCE.format("memory"),
    ClosedReason.INSUFFICIENT_RESOURCE: _SCARCE.format("of the resource that is named"),
}


def reopening(closed: Iterable[ClosedNode]) -> str:
    """What makes one of these nodes take the pod."""
    parts = []
    reasons = {each.reason for each in closed}
    if ClosedReason.NOT_READY in reasons:
        parts.append("repair the node that is not ready")
    if ClosedReason.CORDONED_NODE in reasons:
        parts.append("kubectl uncordon the node when it may take pods")
    taints = sorted(
        each.detail
        for each in closed
        if each.reason is ClosedReason.TAINTED_NODE and not each.detail.startswith(_OF_KUBERNETES)
    )
    if taints:
        parts.append(f"let the pod tolerate {taints[0]} if it belongs there")
    elif ClosedReason.TAINTED_NODE in reasons:
        parts.append("find out why the node has its taint")
    parts += (advice for reason, advice in _REOPENING.items() if reason in reasons)
    return ", or ".join(parts)


def concluded(explanation: Explanation) -> Explanation:
    """The explanation with its closing sentence and advice."""
    decisive = explanation.decisive
    kind = explanation.kind if explanation.kind == "GPU" else explanation.kind.lower()
    if decisive is None:
        return structs.replace(explanation, conclusion=_all_passed(explanation))
    verb = "fails" if decisive.outcome is ExplainOutcome.FAILED else "waits"
    text = f"the {kind} {verb} at step {decisive.step}"
    if decisive.reasons:
        text += f": {decisive.reasons[0].explanation}"
    elif (unchecked := _unchecked_before(explanation, decisive)) is not None:
        text += f"; step {unchecked.step} before it is not checked: it needs {unchecked.needs}"
    if decisive.detail:
        text += f" ({decisive.detail})"
    advice = _advice(decisive)
    is_own = decisive.advice is not None or any(each.rule for each in decisive.reasons[:1])
    if kind == "node" and decisive.reasons and not is_own:
        advice = _ADVICE_FOR_NODES.get(decisive.reasons[0].code, advice)
    return structs.replace(explanation, conclusion=text, advice=advice)


def _unchecked_before(explanation: Explanation, step: ExplainedStep) -> ExplainedStep | None:
    """The step before one that waits for it, if that is not checked."""
    place = explanation.steps.index(step)
    before = explanation.steps[place - 1] if place else None
    is_unchecked = before is not None and before.outcome is ExplainOutcome.NOT_CHECKED
    return before if is_unchecked else None


def repair_advice(rule: str) -> str:
    """What to do about what a rule of the reconciler has found."""
    runbook = page(f"runbooks/{rule}")
    return f"vgpu reconcile plan shows the repair, if there is one; see {runbook}"


def _advice(step: ExplainedStep) -> str:
    if step.advice is not None:
        return step.advice
    if not step.reasons:
        return ""
    reason = step.reasons[0]
    if reason.rule:
        return repair_advice(reason.rule)
    return ADVICE.get(reason.code, "")


def _all_passed(explanation: Explanation) -> str:
    use = next((step for step in explanation.steps if step.step is WayStep.USE), None)
    remarked = next((step for step in explanation.steps if step.remarks), None)
    remark = "" if remarked is None else f"; {remarked.remarks[0].text} (step {remarked.step})"
    unchecked = any(step.outcome is ExplainOutcome.NOT_CHECKED for step in explanation.steps)
    if use is None:
        kind = explanation.kind if explanation.kind == "GPU" else explanation.kind.lower()
        if remark:
            return f"no step of the {kind} fails{remark}"
        what = "nothing that was checked" if unchecked else "nothing"
        return f"{what} is wrong with the {kind}"
    if any("has ended" in text for text in use.evidence):
        return f"the pod has ended and holds no share of a GPU{remark}"
    first = explanation.steps[0]
    if first.step is WayStep.REQUEST and first.outcome is ExplainOutcome.NOT_CHECKED:
        return f"the pod runs; its share of a GPU is unknown{remark}"
    if use.outcome is ExplainOutcome.NOT_CHECKED:
        return f"the pod runs; which GPU it uses is not checked{remark}"
    return f"the pod runs{remark or ' and has its share of a GPU'}"
