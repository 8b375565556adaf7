"""The state of a node, and of one of its GPUs, in steps. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from msgspec import structs

from reconciler.model import ObjectKind
from reconciler.reasons import Cause, Rule
from reconciler.rules.conflicts import CAUSES
from reconciler.rules.kai import CAUSES as GROUP_CAUSES
from scheduler.filter.refusals import node_lines
from vgpu.inventory import MaybeHeld, WaitingReason
from vgpu.kube.closed_nodes import closed_to_new_pods
from vgpu.kube.errors import one_line
from vgpu.ledger import Conflict, DeviceEntry
from vgpu.model.folding import folded_texts
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, Node
from vgpu.model.taints import KEEPS_OFF
from vgpu.model.units import count, count_more, percentage, rounded_size
from vgpu.placement.node_view import StandingPod, StandingReason
from vgpu.placement.result import PlacementReason
from vgpu.schemes.counted_claims import ClaimProblem
from vgpu.schemes.kai.keys import KAI
from vgpu.schemes.other_schedulers import is_foreign_resource
from vgpu.schemes.registry import registry
from vgpu.schemes.system_titles import system_title
from vgpucli.doctor.model import DoctorReason
from vgpucli.explain.known_objects import KnownNode
from vgpucli.explain.model import (
    ExplainedStep,
    ExplainOutcome,
    ExplainReason,
    Explanation,
    StepReason,
    WayStep,
)
from vgpucli.explain.rule_steps import GPU_STEPS, with_findings
from vgpucli.explain.sentences import concluded, gpu_text, names_text, repair_advice, share_text
from vgpucli.free_texts import kept_text, maybe_held_text

NODE_STEPS: Final = (
    WayStep.REGISTERED,
    WayStep.READY,
    WayStep.PLUGIN,
    WayStep.LOCK,
    WayStep.RECORDS,
    WayStep.FOLDERS,
)
"""The steps of a node, in order."""


_NO_KNOWN_NAME: Final = (
    "the node advertises no resource of a name that vgpu knows; an operator may have renamed it"
)

_ON_NODE: Final = "vgpu reconcile plan --scope node on the node"
"""What shows the leftover folders of a node."""


_CORRECT_REGISTER: Final = (
    "the device plugin of the node writes this annotation: look at its version and its log"
)
"""What helps a node whose register cannot be read."""

_HOLDS_A_LOST_GPU: Final = "a pod of the node holds a GPU that the node does not have"
"""What is wrong with the node of a GPU, beside the GPU."""

_PODS_IN_DUMP: Final = "pods in the dump: kubectl get pods -A"
"""What shows who holds GPUs, where a dump has no pod."""


def explain_node(evidence: KnownNode) -> Explanation:
    """The steps of the node, its GPUs, and a closing sentence."""
    node = evidence.node
    return concluded(
        Explanation(
            "Node",
            node.name,
            tuple(_with_maybe_held_of_node(step, evidence) for step in _steps(evidence)),
            evidence.now,
            lines=tuple(_gpus(evidence)),
            system=_system(evidence),
        )
    )


def _steps(evidence: KnownNode) -> tuple[ExplainedStep, ...]:
    steps = (
        _not_registered(evidence) or _registered(evidence),
        _ready(evidence),
        _driver(evidence) or _plugin(evidence),
        _lock(evidence),
        _with_conflicts_of_groups(
            _with_lost(_with_conflicts_of_gpus(_records(evidence), evidence), evidence), evidence
        ),
        ExplainedStep(WayStep.FOLDERS, ExplainOutcome.NOT_CHECKED, needs=_ON_NODE),
    )
    findings = [
        finding for finding in evidence.findings if finding.object_ref.kind is not ObjectKind.DEVICE
    ]
    return tuple(
        structs.replace(found, advice=step.advice) if step is steps[0] else found
        for step in steps
        for found in (with_findings(step, findings),)
    )


def _system(evidence: KnownNode) -> str:
    """The sharing systems of the node for people."""
    if not evidence.systems and evidence.published:
        return system_title("dra")
    return system_title(*(evidence.systems or (("nvidia",) if evidence.observed else ())))


def explain_unreadable_node(node: MalformedObject, now: float) -> Explanation:
    """The explanation of a node that cannot be read."""
    reason = StepReason.of(Cause.MALFORMED, "malformed_object")
    text = one_line(f"the object cannot be read: {node.detail}")
    first = ExplainedStep(WayStep.REGISTERED, ExplainOutcome.FAILED, (reason,), (text,))
    rest = (ExplainedStep(step, ExplainOutcome.WAITING) for step in NODE_STEPS[1:])
    return concluded(Explanation("Node", node.name, (first, *rest), now))


def gpu_entry(evidence: KnownNode, gpu: str) -> DeviceEntry | None:
    """The GPU of this index, UUID or beginning of a UUID; None if none or several match.

    The beginning counts as the tables show it, too: without ``GPU-``, and with ``…`` behind it.
    Where the GPUs have no index, their position counts.
    """
    entries = evidence.ledger.devices
    exact = [entry for entry in entries if gpu in entry.device.names]
    is_number = gpu.isdecimal() and str(int(gpu)) == gpu
    if not exact and is_number and all(entry.device.index is None for entry in entries):
        exact = list(entries[int(gpu) : int(gpu) + 1])
    start = _without_prefix(gpu.removesuffix("…"))
    begun = [
        entry for entry in entries if start and _without_prefix(entry.device.uuid).startswith(start)
    ]
    matching = exact or begun
    return matching[0] if len(matching) == 1 else None


def _without_prefix(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def explain_gpu(evidence: KnownNode, entry: DeviceEntry) -> Explanation:
    """The steps of a GPU, its holders, and a closing sentence.

    What is wrong with the node, and what pods of the node hold on an unknown GPU, are remarks.
    """
    device = entry.device
    state = _with_node(_gpu_state(evidence, entry), evidence)
    shown = evidence.shown
    kept = kept_text(shown, entry)
    held = (
        f"{rounded_size(entry.held.memory_bytes)} of {rounded_size(device.memory_bytes or 0)}"
        f" and {percentage(entry.held.cores_milli)} of the cores are held"
    )
    texts = (held, kept) if kept else (held,)
    shares = ExplainedStep(WayStep.SHARES, ExplainOutcome.PASSED, evidence=texts)
    if not evidence.pods_read:
        shares = _not_checked(WayStep.SHARES, _PODS_IN_DUMP)
    shares = _with_maybe_held(
        shares, shown.free_memory_bytes(entry) or 0, shown.maybe_held_of(entry)
    )
    own = [each for each in evidence.findings if each.object_ref.name in (device.name, device.uuid)]
    steps = tuple(
        with_findings(_with_conflicts(step, evidence, entry), own) for step in (state, shares)
    )
    names = dict.fromkeys(device.names, "this GPU")
    lines = tuple(
        f"{each.pod.namespace}/{each.pod.name or each.pod.uid}"
        f"{f'/{each.container}' if each.container else ''}:"
        f" {share_text(each.share, names)}, {each.phase}"
        for each in entry.holdings
    )
    title = f"{evidence.node.name}/{device.uuid or device.name}"
    return concluded(
        Explanation("GPU", title, steps, evidence.now, lines=lines, system=_system(evidence))
    )


# ---------------------------------------------------------------- steps


def _unread_register(evidence: KnownNode) -> str:
    """Why the register of the node cannot be read; "" if it can."""
    view = evidence.view
    if view is None or view.reason is not PlacementReason.UNREADABLE or evidence.ledger.devices:
        return ""
    return next((each.detail for each in evidence.ledger.malformed if each.pod is None), "")


def _not_registered(evidence: KnownNode) -> ExplainedStep | None:
    """The step of a node whose register cannot be read; None of another node."""
    unread = _unread_register(evidence)
    if not unread:
        return None
    reason = StepReason.of(PlacementReason.UNREADABLE)
    step = _failed(WayStep.REGISTERED, reason, one_line(unread))
    return structs.replace(step, advice=_CORRECT_REGISTER)


def _registered(evidence: KnownNode) -> ExplainedStep:
    if evidence.ledger.devices and (evidence.systems or not evidence.published):
        systems = system_title(*evidence.systems) or "a sharing system"
        text = f"{count(len(evidence.ledger.devices), 'GPU')} of {systems}"
        if evidence.reason is PlacementReason.MIXED_NODE:
            return _failed(WayStep.REGISTERED, StepReason.of(evidence.reason), text)
        if not any(entry.device.healthy for entry in evidence.ledger.devices):
            reason = StepReason.of(PlacementReason.UNHEALTHY)
            return _failed(WayStep.REGISTERED, reason, text, "all of them are reported unhealthy")
        sick = [
            gpu_text(each.device) for each in evidence.ledger.devices if not each.device.healthy
        ]
        step = ExplainedStep(WayStep.REGISTERED, ExplainOutcome.PASSED, evidence=(text,))
        return _with_unhealthy(step, sick) if sick else step
    if evidence.observed:
        units = ", ".join(f"{name}: {number}" for name, number in evidence.observed.items())
        text = f"NVIDIA's device plugin, which registers no GPUs at the API server: {units}"
        return ExplainedStep(WayStep.REGISTERED, ExplainOutcome.PASSED, evidence=(text,))
    if evidence.published:
        drivers = ", ".join(sorted(evidence.published))
        number = sum(evidence.published.values())
        text = f"{count(number, 'device')} in the ResourceSlices of DRA driver {drivers}"
        return ExplainedStep(WayStep.REGISTERED, ExplainOutcome.PASSED, evidence=(text,))
    return _without_gpus(evidence)


def _without_gpus(evidence: KnownNode) -> ExplainedStep:
    """The step of a node without GPUs of a system of ours: another system's are unknown."""
    foreign = sorted(filter(is_foreign_resource, evidence.node.others))
    if not foreign:
        return _failed(WayStep.REGISTERED, StepReason.of(PlacementReason.NO_GPUS))
    text = f"it advertises {names_text(foreign)} of another system: its GPUs are unknown"
    return _not_checked(WayStep.REGISTERED, "the records of the other system", text)


def _with_unhealthy(step: ExplainedStep, gpus: list[str]) -> ExplainedStep:
    """The step with the unhealthy ones of the node's GPUs as a remark."""
    text = f"{count(len(gpus), 'GPU')} reported unhealthy: {names_text(gpus)}"
    return structs.replace(
        step,
        remarks=(StepReason.of(WaitingReason.DEVICE_UNHEALTHY),),
        evidence=(*step.evidence, text),
    )


def _ready(evidence: KnownNode) -> ExplainedStep:
    node = evidence.node
    closed = closed_to_new_pods(node)
    taints = tuple(f"taint {taint.text}" for taint in node.taints if taint.effect in KEEPS_OFF)
    if closed is not None:
        return _failed(WayStep.READY, StepReason.of(closed.reason), *taints)
    texts = ("its kubelet reports Ready, and it is not cordoned", *taints)
    return ExplainedStep(WayStep.READY, ExplainOutcome.PASSED, evidence=texts)


def _driver(evidence: KnownNode) -> ExplainedStep | None:
    """The step of a node of a DRA driver alone; None of another node."""
    if not evidence.published or evidence.systems or not evidence.node.ready:
        return None
    texts = (f"{name}: {count(number, 'device')}" for name, number in evidence.published.items())
    return ExplainedStep(WayStep.PLUGIN, ExplainOutcome.PASSED, evidence=tuple(sorted(texts)))


def _plugin(evidence: KnownNode) -> ExplainedStep:
    node, resources = evidence.node, {**evidence.observed, **evidence.resources}
    texts = tuple(_units_text(node, name, units) for name, units in sorted(resources.items()))
    gone = [each for each in evidence.errors if each.code == DoctorReason.NOTHING_ALLOCATABLE]
    if gone:
        return _failed(WayStep.PLUGIN, gone[0], *texts)
    if evidence.ledger.devices and evidence.schemes and evidence.resources:
        if not any(evidence.resources.values()):
            return _failed(WayStep.PLUGIN, StepReason.of(ExplainReason.NOT_ADVERTISED), *texts)
    elif evidence.ledger.devices and not evidence.resources and not _is_served_by_nvidia(evidence):
        return _not_checked(WayStep.PLUGIN, "the name of its resource", _NO_KNOWN_NAME)
    if not node.ready:
        text = "the node is not ready: this is what its kubelet has reported before"
        return _not_checked(WayStep.PLUGIN, "a node that is ready", *texts, text)
    if not any(resources.values()):
        return _not_checked(WayStep.PLUGIN, "a resource that the node advertises", *texts)
    remarks = tuple(
        StepReason.of(ExplainReason.PARTLY_ALLOCATABLE)
        for name, units in resources.items()
        if 0 < units < node.capacity.get(name, 0)
    )[:1]
    return ExplainedStep(WayStep.PLUGIN, ExplainOutcome.PASSED, evidence=texts, remarks=remarks)


def _is_served_by_nvidia(evidence: KnownNode) -> bool:
    """Whether NVIDIA's plugin serves the node's systems, which advertise nothing themselves."""
    advertised_by = registry().advertised_by
    own = [name for name in evidence.systems if advertised_by.get(name)]
    if evidence.systems:
        return bool(evidence.observed) and not own
    return bool(evidence.observed) and _is_of_kai(evidence)


def _is_of_kai(evidence: KnownNode) -> bool:
    """Whether KAI Scheduler shares all GPUs of the node that are known."""
    systems = (evidence.of_other_systems.get(each.device.name) for each in evidence.ledger.devices)
    return set(systems) == {KAI.value}


def _units_text(node: Node, name: str, units: int) -> str:
    """What is allocatable of a resource, beside the capacity where it is less."""
    capacity = node.capacity.get(name, units)
    return f"{name}: {units}" + (f" of {capacity} allocatable" if capacity != units else "")


def _lock(evidence: KnownNode) -> ExplainedStep:
    """The locks of the node; the reconciler's rule finds those that nobody needs."""
    locks = tuple(f"{lock.key}: {lock.text!r}" for lock in evidence.locks)
    texts = locks or ("no annotation of the node is a lock",)
    return ExplainedStep(WayStep.LOCK, ExplainOutcome.PASSED, evidence=texts)


def _not_checked(step: WayStep, needs: str, *evidence: str) -> ExplainedStep:
    return ExplainedStep(step, ExplainOutcome.NOT_CHECKED, evidence=evidence, needs=needs)


def _records(evidence: KnownNode) -> ExplainedStep:
    view = evidence.view
    unread = tuple(folded_texts(_unread(evidence)))
    claiming = tuple(folded_texts(map(_claiming_text, evidence.claiming)))
    pods = () if view is None else view.standing
    standing = tuple(folded_texts((_pod_text(each.pod), each.text) for each in pods))
    if not unread and _unread_register(evidence):
        return _not_checked(WayStep.RECORDS, "a register that can be read", *claiming)
    if view is not None and view.reason is not None and not _unread_register(evidence):
        reason = StepReason.of(view.reason)
        return _failed(WayStep.RECORDS, reason, view.detail, *standing, *unread)
    if view is not None and view.standing_reason is not None:
        texts = (*standing, *unread, *claiming)
        step = _failed(WayStep.RECORDS, StepReason.of(view.standing_reason), *texts)
        return _with_repair(_of_first(step, pods), evidence)
    if unread:
        reason = StepReason.of(PlacementReason.UNREADABLE)
        return _failed(WayStep.RECORDS, reason, *unread, *claiming)
    if not evidence.pods_read:
        return _not_checked(WayStep.RECORDS, _PODS_IN_DUMP)
    text = f"{count(len(evidence.pods), 'pod')} with devices"
    return ExplainedStep(WayStep.RECORDS, ExplainOutcome.PASSED, evidence=(text, *claiming))


def _of_first(step: ExplainedStep, pods: Sequence[StandingPod]) -> ExplainedStep:
    """The step with the first of the pods in the way, and how many more there are."""
    first, *others = pods
    more = f" and {count_more(len(others), 'pod')}" if others else ""
    step = structs.replace(step, detail=f"{first.text}{more}")
    if first.reason is StandingReason.RESERVED:
        return step
    named = f"{first.pod.namespace}/{first.pod.name}"
    return structs.replace(step, advice=f"vgpu explain pod {named} shows what is wrong with it")


def _claiming_text(claiming: tuple[str, StepReason]) -> tuple[str, str]:
    pod, cause = claiming
    rule = f" ({cause.rule})" if cause.rule else ""
    return pod, f"{pod}: {cause.explanation}{rule}"


def _with_repair(step: ExplainedStep, evidence: KnownNode) -> ExplainedStep:
    """The step with the repair of a reservation that stays; without one it is waited for."""
    found = [(pod, cause) for pod, cause in evidence.claiming if cause.rule]
    if step.reasons[0].code != PlacementReason.OTHER_SCHEDULER or not found:
        return step
    pod, cause = found[0]
    advice = repair_advice(cause.rule)
    return structs.replace(step, detail=f"{pod}: {cause.explanation}", advice=advice)


def _unread(evidence: KnownNode) -> Iterator[tuple[str, str]]:
    """What of the records cannot be read, each with the pod that it is of."""
    of_register = bool(_unread_register(evidence))
    for each in evidence.ledger.malformed:
        if of_register and each.pod is None:
            continue
        if each.problem is not ClaimProblem.REQUESTS_NOTHING:
            pod = "" if each.pod is None else _pod_text(each.pod)
            yield pod, one_line(": ".join(filter(None, (pod, each.detail))))


def _pod_text(pod: PodRef) -> str:
    return f"pod {pod.namespace}/{pod.name or pod.uid}"


def _gpu_state(evidence: KnownNode, entry: DeviceEntry) -> ExplainedStep:
    device = entry.device
    if not device.healthy:
        reason = StepReason.of(PlacementReason.UNHEALTHY)
        return _failed(WayStep.HEALTHY, reason, gpu_text(device))
    gone = [each for each in evidence.errors if each.code == DoctorReason.NOTHING_ALLOCATABLE]
    if gone:
        units = {**evidence.observed, **evidence.resources}
        texts = (_units_text(evidence.node, name, each) for name, each in sorted(units.items()))
        return _failed(WayStep.HEALTHY, gone[0], gpu_text(device), *texts)
    gpus = evidence.view.candidate.gpus if evidence.view is not None else ()
    if any(gpu.cordoned for gpu in gpus if gpu.device.name == device.name):
        return _failed(WayStep.HEALTHY, StepReason.of(PlacementReason.CORDONED), gpu_text(device))
    return ExplainedStep(WayStep.HEALTHY, ExplainOutcome.PASSED, evidence=(gpu_text(device),))


def _with_node(step: ExplainedStep, evidence: KnownNode) -> ExplainedStep:
    """The step of a GPU with the failed steps of its node as remarks."""
    failed = [each for each in _steps(evidence) if each.outcome is ExplainOutcome.FAILED]
    lost = _reasons_of(_lost(evidence))
    node = f"Node {evidence.node.name}"
    own = (
        [structs.replace(reason, about=node) for reason in each.reasons if reason not in lost][:1]
        for each in failed
    )
    reasons = (
        *chain.from_iterable(own),
        *(structs.replace(each, explanation=_HOLDS_A_LOST_GPU, about=node) for each in lost),
    )
    return structs.replace(
        step,
        remarks=tuple(dict.fromkeys((*step.remarks, *reasons))),
        evidence=(*step.evidence, *(text for each in failed for text in each.evidence)),
    )


def _lost(evidence: KnownNode) -> list[Conflict]:
    """The conflicts about GPUs that the node does not have."""
    known = {entry.device.name for entry in evidence.ledger.devices}
    return [
        each
        for each in evidence.ledger.conflicts
        if each.device and each.device not in known and each.kind in CAUSES
    ]


def _reasons_of(conflicts: Iterable[Conflict]) -> tuple[StepReason, ...]:
    causes = (CAUSES[each.kind] for each in conflicts)
    return tuple(dict.fromkeys(StepReason.of(cause, rule.value) for rule, cause in causes))


def _with_lost(step: ExplainedStep, evidence: KnownNode) -> ExplainedStep:
    """The step with what its pods hold of GPUs that the node does not have.

    They say more about it than that a pod has no GPU of the node.
    """
    lost = _lost(evidence)
    reasons = _reasons_of(lost)
    standing = {each.pod.uid for each in evidence.shown.standing if each.named}
    texts = folded_texts(
        (each.device, f"{pod}GPU {one_line(each.device)}: {each.kind.explanation}")
        for each in lost
        if each.pod is None or each.pod.uid not in standing
        for pod in ("" if each.pod is None else f"{_pod_text(each.pod)}: ",)
    )
    step = structs.replace(step, evidence=(*step.evidence, *texts))
    if step.outcome is ExplainOutcome.FAILED:
        return structs.replace(step, reasons=tuple(dict.fromkeys((*reasons, *step.reasons))))
    return structs.replace(step, remarks=tuple(dict.fromkeys((*step.remarks, *reasons))))


def _with_conflicts_of_gpus(step: ExplainedStep, evidence: KnownNode) -> ExplainedStep:
    """The step of a node with the conflicts about its GPUs as remarks."""
    devices = {entry.device.name: gpu_text(entry.device) for entry in evidence.ledger.devices}
    conflicts = [
        (devices[conflict.device], conflict)
        for conflict in evidence.ledger.conflicts
        if conflict.device in devices and conflict.kind in CAUSES
    ]
    reasons = dict.fromkeys(
        StepReason.of(cause, rule.value)
        for rule, cause in (CAUSES[conflict.kind] for _, conflict in conflicts)
    )
    texts = folded_texts(
        (gpu, f"{gpu}: {conflict.detail or conflict.kind.explanation}")
        for gpu, conflict in conflicts
    )
    return structs.replace(
        step,
        remarks=(*step.remarks, *(each for each in reasons if each not in step.remarks)),
        evidence=(*step.evidence, *texts),
    )


def _with_conflicts_of_groups(step: ExplainedStep, evidence: KnownNode) -> ExplainedStep:
    """The step of a node with the conflicts of GPU groups as remarks."""
    conflicts = [each for each in evidence.ledger.conflicts if each.kind in GROUP_CAUSES]
    reasons = (StepReason.of(GROUP_CAUSES[each.kind], Rule.KAI.value) for each in conflicts)
    return structs.replace(
        step,
        remarks=tuple(dict.fromkeys((*step.remarks, *reasons))),
        evidence=(*step.evidence, *(each.detail for each in conflicts)),
    )


def _with_maybe_held_of_node(step: ExplainedStep, evidence: KnownNode) -> ExplainedStep:
    if step.step is not WayStep.RECORDS:
        return step
    shown = evidence.shown
    return _with_maybe_held(step, shown.free_bytes, shown.maybe_held)


def _with_maybe_held(step: ExplainedStep, free: int, maybe_held: MaybeHeld) -> ExplainedStep:
    """The step with what pods on an unknown GPU may hold of the free memory, as a remark."""
    if not maybe_held.memory_bytes:
        return step
    pods = sorted(f"{pod.namespace}/{pod.name or pod.uid}" for pod in maybe_held.pods)
    text = f"{rounded_size(free)} free{maybe_held_text(maybe_held)}: {names_text(pods)}"
    remark = StepReason.of(ExplainReason.ON_UNKNOWN_GPU)
    return structs.replace(step, remarks=(*step.remarks, remark), evidence=(*step.evidence, text))


def _with_conflicts(step: ExplainedStep, evidence: KnownNode, entry: DeviceEntry) -> ExplainedStep:
    """The step with the conflicts of the ledger about the GPU, by the rules that report them.

    The finding of such a conflict may be about one of the pods. Conflicts of which no rule reports
    are remarks of the shares.
    """
    of_gpu = [each for each in evidence.ledger.conflicts if each.device == entry.device.name]
    others = [each for each in of_gpu if each.kind not in CAUSES]
    if others and step.step is WayStep.SHARES:
        remarks = dict.fromkeys(StepReason.of(each.kind) for each in others)
        step = structs.replace(step, remarks=(*step.remarks, *remarks))
    conflicts = [(CAUSES[each.kind], each) for each in of_gpu if each.kind in CAUSES]
    own = [each for each in conflicts if GPU_STEPS.get(each[0][0]) is step.step]
    if not own:
        return step
    reasons = (StepReason.of(cause, rule.value) for (rule, cause), _ in own)
    return structs.replace(
        step,
        outcome=ExplainOutcome.FAILED,
        reasons=tuple(dict.fromkeys((*reasons, *step.reasons))),
        evidence=(*step.evidence, *(conflict.detail for _, conflict in own if conflict.detail)),
    )


def _failed(step: WayStep, reason: StepReason, *evidence: str) -> ExplainedStep:
    return ExplainedStep(step, ExplainOutcome.FAILED, (reason,), tuple(filter(None, evidence)))


def _gpus(evidence: KnownNode) -> Iterator[str]:
    """The GPUs as the scheduler sees them, else as the ledger has them; findings about them."""
    if evidence.view is not None and evidence.view.candidate.gpus:
        rows = [registry().of(scheme) for scheme in evidence.schemes]
        shares_cores = any(row is None or row.shares_cores for row in rows)
        lines = node_lines(evidence.node.name, evidence.view, None, shares_cores=shares_cores)
        shown = evidence.shown
        kept_by_name = {
            entry.device.name: kept_text(shown, entry) for entry in evidence.ledger.devices
        }
        for gpu, line in zip(evidence.view.candidate.gpus, lines[1:], strict=True):
            kept = kept_by_name.get(gpu.device.name, "")
            yield ", ".join(filter(None, (line.strip(), kept)))
    else:
        for entry in evidence.ledger.devices:
            free = entry.free_memory_bytes
            amount = "free memory unknown" if free is None else f"{rounded_size(free)} free"
            yield f"{gpu_text(entry.device)}: {amount}, {count(len(entry.holdings), 'share')}"
    yield from folded_texts(
        (each.object_ref.name, f"{each.rule}: {'; '.join(each.evidence)}")
        for each in evidence.findings
        if each.object_ref.kind is ObjectKind.DEVICE
    )
