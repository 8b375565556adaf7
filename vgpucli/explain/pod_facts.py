"""What a pod has done so far, and who places it; its shares for people. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from reconciler.rules.rejected_pods import RAN_AND_ENDED
from scheduler.filter.refusals import request_text
from vgpu.kube.errors import one_line
from vgpu.kube.pod_state import CRASH_LOOP
from vgpu.ledger import Holding
from vgpu.model.allocation import Claim, Request
from vgpu.model.objects import ContainerState, Pod, Status
from vgpu.model.units import count
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.schemes.counted_claims import ClaimProblem
from vgpu.schemes.registry import names_of, registry
from vgpu.schemes.system_titles import system_title
from vgpucli.explain.known_objects import KnownPod
from vgpucli.explain.model import ExplainedStep, WayStep
from vgpucli.explain.sentences import gpu_text, names_text, share_text, time_text
from vgpucli.explain.step_values import not_reached, passed


def has_several_containers(pod: Pod) -> bool:
    """Whether several containers request memory of gpushare's, which its plugin does not serve."""
    memory = names_of("gpushare").memory
    return sum(bool(each.limits.get(memory)) for each in pod.containers) > 1


def was_ended(pod: Pod) -> bool:
    """Whether the pod has run and was ended, though no status of a container may be left."""
    return pod.phase == "Failed" and pod.reason in RAN_AND_ENDED


def container_text(pod: Pod) -> str:
    """The containers that run, or have run, for people."""
    running = [s.name for s in pod.statuses if s.state is ContainerState.RUNNING]
    ended = [s.name for s in pod.statuses if s.state is ContainerState.TERMINATED]
    names = running or ended
    if not names:
        return f"the pod, in phase {pod.phase} by its kubelet,"
    return f"{'container' if len(names) == 1 else 'containers'} {names_text(names)}"


def has_run(pod: Pod) -> bool:
    """Whether the kubelet has reported a container of the pod that ran."""
    return any(status.state is not ContainerState.WAITING for status in pod.statuses)


def reached(step: WayStep, evidence: KnownPod, text: str) -> ExplainedStep:
    """The step of a pod that the scheduler does not place: passed unless the request is invalid."""
    if is_placed(evidence) or is_placed_by_others(evidence):
        return passed(step, text)
    return not_reached(step)


def is_placed_by_others(evidence: KnownPod) -> bool:
    """Whether another than our scheduler places the pod, as for KubeShare."""
    demanded, reading = evidence.demanded, evidence.reading
    return bool(evidence.observed or evidence.other or evidence.by_claims) or (
        isinstance(demanded, PlacementRefusal)
        and demanded.reason is PlacementReason.NOTHING_REQUESTED
        and bool(reading.claims or reading.wanted)
    )


def is_placed(evidence: KnownPod) -> bool:
    """Whether the pod is bound, or has ended."""
    return bool(evidence.pod.node) or evidence.pod.terminal


def runs(evidence: KnownPod) -> bool:
    """Whether a container runs, or the kubelet reports the pod as running."""
    pod = evidence.pod
    return any(status.state is ContainerState.RUNNING for status in pod.statuses) or (
        pod.phase == "Running" and not pod.statuses
    )


def unreadable_texts(evidence: KnownPod) -> tuple[str, ...]:
    """What of the pod's requests and annotations cannot be read."""
    return tuple(
        one_line(malformed.detail)
        for malformed in evidence.reading.malformed
        if malformed.problem is not ClaimProblem.REQUESTS_NOTHING
    )


def read_system(evidence: KnownPod) -> str:
    """The systems of the pod's requests and annotations for people.

    Volcano and HAMi are one scheme: where the pod has annotations or labels of one, it is that one.
    """
    reading, keys = evidence.reading, (*evidence.pod.annotations, *evidence.pod.labels)
    schemes = {want.scheme for want in reading.wanted} | {claim.scheme for claim in reading.claims}
    names: set[str] = set()
    for scheme in schemes:
        marked = {
            row.name
            for row in registry().rows
            if row.scheme is scheme and any(key.startswith(row.keys.marks) for key in keys)
        }
        names |= marked or {scheme.value}
    return system_title(*sorted(names))


def unknown_amounts(requests: Iterable[Request]) -> bool:
    """Whether memory and cores are requested by names that are not known."""
    return any(request.has_unknown_amounts for request in requests)


def unnamed_request(evidence: KnownPod) -> str:
    """The system of a pod that is not placed and whose amounts are unknown; "" of another pod."""
    demanded = evidence.demanded
    if isinstance(demanded, PlacementRefusal) or is_placed(evidence):
        return ""
    scheme, demand = demanded
    return scheme.row.name if unknown_amounts(demand.requests) else ""


def names_needed(system: str) -> str:
    """What a step needs to know the request: the flag with the names of a system's resources."""
    return f"the names of the resources of {system_title(system)}: --{system}.resource"


def foreign_requests(evidence: KnownPod, requests: Iterable[Request]) -> Iterator[str]:
    """The requests of a pod that our scheduler does not place, for people."""
    named = read_system(evidence)
    text = request_text(requests)
    yield f"{named}: {text}" if text else f"{named}, by the annotations of the pod"


def holdings_of(evidence: KnownPod) -> tuple[Holding, ...]:
    """What the pod holds, by the ledger of its node."""
    ledger = evidence.ledger
    return () if ledger is None else ledger.of_pod(evidence.pod.kubelet_uid)


def claim_text(evidence: KnownPod, claim: Claim) -> str:
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
    own = "" if isinstance(demanded, PlacementRefusal) else system_title(demanded[0].row.name)
    system = own or read_system(evidence)
    return f"the scheduler of {system} reserved {what}{where}{when}"


def holding_text(evidence: KnownPod, holding: Holding) -> str:
    """What a container holds, with the sources that report it."""
    sources = ", ".join(holding.sources)
    who = f"{holding.container} holds" if holding.container else "the pod holds"
    return f"{who} {share_text(holding.share, _devices(evidence))} ({sources})"


def _devices(evidence: KnownPod) -> Mapping[str, str]:
    """The GPUs of the pod's node for people, under every name that a share may have."""
    ledger = evidence.ledger
    entries = ledger.devices if ledger is not None else ()
    return {name: gpu_text(entry.device) for entry in entries for name in entry.device.names}


def status_text(status: Status) -> str:
    """The state of a container that waits in vain."""
    message = "" if status.reason == CRASH_LOOP else f": {one_line(status.message)}"
    restarts = f", {count(status.restarts, 'restart')}" if status.restarts else ""
    last = f"; it ended with {status.last_reason}" if status.last_reason else ""
    return f"container {status.name}: {status.reason}{restarts}{message}{last}"
