"""Computes who holds what when the plugin starts, before it answers any call. Pure.

It joins three inputs. Our own checkpoint names admitted pods and their bindings. The ledger names
holders by all other sources: those that another plugin admitted, and ours if the checkpoint was
lost. And what a running container uses besides its reservation is held, too: it has these devices
now, and may start again with the reserved ones. An admitted pod of the checkpoint is dropped only
if it has certainly left; missing data is no evidence.

A pod whose assignment has a name of ours, and which the checkpoint does not have, gets the shares
of its claim, in the claim's order, so that its containers can be bound to the same shares under the
same names as before.

A pod that another plugin admitted, or whose admission is forgotten, is **adopted**. The ledger
knows the devices of its containers and the amounts on them, but neither the order in which they see
their devices nor the size of each share of a device. The claim knows both. So a container's shares
are those of its claim if the ledger agrees. A container that we answered has the claim's shares in
any case, since we allocate nothing else.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.allocate.allocation_state import AllocationState, seen
from deviceplugin.allocate.binder_state import Recovered
from deviceplugin.allocate.contradictions import disagreements
from deviceplugin.allocate.ended_pods import collectable
from deviceplugin.model import AllocationConflict, ContainerDevices
from vgpu.ledger import Holding, Ledger
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Allocation, Device, Share
from vgpu.model.names import Phase, Scheme, Source, is_number
from vgpu.model.objects import ContainerState, Pod
from vgpu.schemes.codec import ClaimError, SchemeCodec

Claims = Mapping[str, Allocation]
"""Container -> its allocation in its pod's annotations, devices by UUID."""

Answers = Mapping[str, bool]
"""Container with an answer of ours in the kubelet's checkpoint -> whether it is known as bound."""

_KUBELET: Final = frozenset({Source.CHECKPOINT, Source.POD_RESOURCES})

_CREATED: Final = frozenset({Source.PROCESS, Source.OWN_CHECKPOINT, Source.SHIM, Source.LIMIT_FILE})
"""Sources that report only allocated devices, also those of init containers without a claim."""


class Adoption(msgspec.Struct, frozen=True):
    """The admitted pod, and whether the devices of all its containers are known."""

    admitted_pod: AdmittedPod
    complete: bool


def is_granted(
    holdings: Iterable[Holding], pod: Pod | None, answers: Answers, read: Collection[Source]
) -> bool:
    """Whether these holdings were allocated to the pod, and not only reserved.

    A container that we answered has its holdings once it is bound: a refused container has an
    answer, too. If the kubelet's data is missing, a pod that has ever started has its holdings.
    """
    started = {
        status.name
        for status in (pod.statuses if pod else ())
        if status.state is not ContainerState.WAITING or status.restarts
    }
    if any(answers.values()) or started & answers.keys():
        return True
    if started and _KUBELET.isdisjoint(read):
        return True
    return any(
        holding.alive
        or not _CREATED.isdisjoint(holding.sources)
        or (holding.phase is Phase.ASSIGNED and holding.container not in answers)
        for holding in holdings
    )


def is_alive(holding: Holding) -> bool:
    """Whether a process of it is known, perhaps in a container of its pod without a known name."""
    return holding.alive or Source.PROCESS in holding.sources


def claims_of(
    codec: SchemeCodec, pod: Pod | None, named: Mapping[str, Device], node: str
) -> Claims:
    """The allocations in the annotations; {} if they are unreadable, failed or of another node.

    ``named`` are the devices of ``node`` by every name. A lost GPU is still known by its UUID; its
    number may be another GPU's by now.
    """
    try:
        claim = codec.claim(pod) if pod is not None else None
    except ClaimError:
        return {}
    if claim is None or claim.failed or (claim.node and node and claim.node != node):
        return {}
    return {
        allocation.container: Allocation(
            allocation.container,
            tuple(_by_uuid(share, named) for share in allocation.shares),
            Phase.ASSIGNED,
        )
        for allocation in claim.allocations
        if all(share.device in named or not is_number(share.device) for share in allocation.shares)
    }


def adopted(holdings: Sequence[Holding], claims: Claims, answers: Answers, now: float) -> Adoption:
    """The pod with these holdings, of which there is at least one.

    ``now`` is unix seconds, for holdings whose start no source reports.
    """
    by_container: dict[str, list[Holding]] = {}
    for holding in holdings:
        by_container.setdefault(holding.container, []).append(holding)
    allocations = []
    complete = True
    for container in dict.fromkeys((*claims, *by_container)):
        here = by_container.get(container, [])
        claim = claims.get(container)
        if claims and claim is None and container in answers:
            continue  # an init container of ours: it uses the shares of another container
        if claim is not None and (container in answers or _agree(claim, here)):
            allocations.append(claim)
            continue
        placed = tuple(s for holding in here if holding.share.device for s in _shares(holding))
        if placed:
            allocations.append(Allocation(container, placed, Phase.ASSIGNED))
        complete = complete and all(holding.share.device for holding in here)
    since = min((holding.since for holding in holdings if holding.since is not None), default=now)
    admitted_pod = AdmittedPod(holdings[0].pod, tuple(allocations), since=since, foreign=True)
    return Adoption(admitted_pod, complete)


def _by_uuid(share: Share, named: Mapping[str, Device]) -> Share:
    device = named.get(share.device)
    return share if device is None else replace(share, device=device.uuid)


def _agree(claim: Allocation, holdings: Collection[Holding]) -> bool:
    """Whether the container's holdings are those of its claim, or there are none."""
    if not holdings:
        return True
    reserved: dict[str, list[Share]] = {}
    for share in claim.shares:
        reserved.setdefault(share.device, []).append(share)
    return {holding.share.device for holding in holdings} == reserved.keys() and all(
        _is_sum_of(holding.share, reserved[holding.share.device]) for holding in holdings
    )


def _is_sum_of(whole: Share, parts: Collection[Share]) -> bool:
    """Whether the parts add up to the share of one device; unknown amounts are no contradiction."""
    amounts = (
        (whole.memory_bytes, [part.memory_bytes for part in parts]),
        (whole.cores_milli, [part.cores_milli for part in parts]),
    )
    return all(
        total is None or None in known or total == sum(amount or 0 for amount in known)
        for total, known in amounts
    )


def _shares(holding: Holding) -> tuple[Share, ...]:
    """The holding as the counted number of equal shares, since their sizes are unknown."""
    whole, count = holding.share, holding.slots
    return tuple(
        Share(
            whole.device,
            _part(whole.memory_bytes, position, count),
            _part(whole.cores_milli, position, count),
        )
        for position in range(count)
    )


def _part(amount: int | None, position: int, count: int) -> int | None:
    """The ``position``-th of ``count`` parts that add up to the amount."""
    return None if amount is None else amount // count + (position < amount % count)


# ---------------------------------------------------------------- the state of all pods

Holdings = Mapping[str, Sequence[Holding]]
"""Holdings by the pod's UID on the node."""

_UNPLACED: Final = "the pod holds a share, but no source names the device"


class RecoverySources(msgspec.Struct, frozen=True):
    """The data of the sources, read at about the same time. None if a source was unreadable.

    Attributes:
        ledger: the ledger of all sources, with our own checkpoint.
        assignments: the kubelet's, of the binding resource.
        pods: all pods of the node.
        live_pods: UIDs that have a cgroup.
        written: the names whose files were written since the node started.
        booted_at: when the node started, in unix seconds.
    """

    ledger: Ledger
    assignments: tuple[ContainerDevices, ...] | None = None
    pods: tuple[Pod, ...] | None = None
    live_pods: frozenset[str] | None = None
    written: frozenset[str] = frozenset()
    booted_at: float = 0.0


def recover(
    codec: SchemeCodec,
    devices: Iterable[Device],
    own: Iterable[AdmittedPod],
    sources: RecoverySources,
    now: float,
) -> Recovered:
    """The allocation state at the start.

    ``own`` are the admitted pods of our checkpoint, if it was written since the node started, and
    those of another plugin's checkpoint; ``now`` is unix seconds. Raises CapacityError if two
    devices have the same UUID.
    """
    empty = AllocationState.of(devices)
    holdings = _by_pod(sources.ledger, empty)
    sound, crossed = _sound(own, sources.assignments or ())
    admitted_pods = _without_gone(empty, sound, sources, holdings, now)
    unplaced = {}
    for uid, adoption in _adoptions(codec, empty, sources, holdings, now):
        known = admitted_pods.get(uid)
        if known is not None and not known.foreign:
            continue
        if adoption.admitted_pod.allocations:
            since = (known.since if known else 0.0) or adoption.admitted_pod.since
            admitted_pods[uid] = replace(adoption.admitted_pod, since=since)
        if not adoption.complete:
            unplaced[uid] = adoption.admitted_pod.pod
    for pod in sources.pods or ():
        if (admitted_pod := admitted_pods.get(pod.kubelet_uid)) is not None:
            admitted_pods[pod.kubelet_uid] = seen(admitted_pod, pod, sources.booted_at)
    admitted_before = [
        _using(admitted, holdings.get(uid, ()), empty) for uid, admitted in admitted_pods.items()
    ]
    allocation_state, _ = AllocationState.over(empty.devices, admitted_before)
    differ, remarks = disagreements(sources.ledger, codec.scheme, admitted_pods)
    conflicts = (
        *crossed,
        *(AllocationConflict(pod, _UNPLACED) for pod in unplaced.values()),
        *differ,
    )
    unproven = _unproven(sources, codec.scheme) - admitted_pods.keys()
    return Recovered(allocation_state, conflicts, unproven | unplaced.keys(), remarks)


def _by_pod(ledger: Ledger, allocation_state: AllocationState) -> Holdings:
    """UID -> holdings. On a node with one device, a holding of an unknown device is on that one."""
    sole = allocation_state.devices[0].uuid if len(allocation_state.devices) == 1 else ""
    by_uid: dict[str, list[Holding]] = {}
    for holding in ledger.holdings:
        if holding.pod.uid:
            share = replace(holding.share, device=holding.share.device or sole)
            by_uid.setdefault(holding.pod.uid, []).append(replace(holding, share=share))
    return by_uid


# ---------------------------------------------------------------- our own checkpoint


def _sound(
    own: Iterable[AdmittedPod], assignments: Iterable[ContainerDevices]
) -> tuple[dict[str, AdmittedPod], list[AllocationConflict]]:
    """The pods by UID without bindings under other containers' names, and their conflicts."""
    owners = {entry.name: (entry.pod_uid, entry.container) for entry in assignments if entry.name}
    admitted_pods: dict[str, AdmittedPod] = {}
    crossed = []
    for admitted_pod in own:
        uid = admitted_pod.pod.uid
        if uid in admitted_pods and admitted_pod.foreign:
            continue
        bindings = []
        for binding in admitted_pod.bindings:
            if owners.setdefault(binding.name, (uid, binding.container)) == (
                uid,
                binding.container,
            ):
                bindings.append(binding)
                continue
            container, name = binding.container, binding.name
            detail = f"our checkpoint has {container} bound to {name}, which is another's"
            crossed.append(AllocationConflict(admitted_pod.pod, detail))
        admitted_pods[uid] = replace(admitted_pod, bindings=tuple(bindings), beside=())
    return admitted_pods, crossed


def _without_gone(
    empty: AllocationState,
    admitted_pods: dict[str, AdmittedPod],
    sources: RecoverySources,
    holdings: Holdings,
    now: float,
) -> dict[str, AdmittedPod]:
    """The pods that have not certainly left; a container that the kernel shows is there."""
    everybody, _ = AllocationState.over(empty.devices, admitted_pods.values())
    assigned = (
        None
        if sources.assignments is None
        else {assignment.pod_uid for assignment in sources.assignments}
    )
    left = collectable(everybody, sources.pods, sources.live_pods, assigned, now)
    dead = {uid for uid in left if not any(map(is_alive, holdings.get(uid, ())))}
    return {uid: admitted_pod for uid, admitted_pod in admitted_pods.items() if uid not in dead}


# ---------------------------------------------------------------- the ledger


def _adoptions(
    codec: SchemeCodec,
    empty: AllocationState,
    sources: RecoverySources,
    holdings: Holdings,
    now: float,
) -> Iterator[tuple[str, Adoption]]:
    """All pods with allocated devices of the scheme, by UID."""
    pods = {pod.kubelet_uid: pod for pod in sources.pods or ()}
    answers: dict[str, dict[str, bool]] = {}
    for assignment in sources.assignments or ():
        if assignment.name:
            answers.setdefault(assignment.pod_uid, {})[assignment.container] = (
                assignment.name in sources.written
            )
    for uid, held in holdings.items():
        pod, answered = pods.get(uid), answers.get(uid, {})
        granted = [holding for holding in held if holding.scheme is codec.scheme]
        if granted and is_granted(granted, pod, answered, sources.ledger.read):
            claims = claims_of(codec, pod, empty.named, sources.ledger.node)
            yield uid, adopted(granted, claims, answered, now)


def _unproven(sources: RecoverySources, scheme: Scheme) -> frozenset[str]:
    """UIDs of pods that may hold something, as far as is known without the API server.

    A missing cgroup is no proof: a pod that has not started has none yet.
    """
    if sources.pods is not None:
        return frozenset()
    assigned = {assignment.pod_uid for assignment in sources.assignments or ()}
    return frozenset(
        assigned
        | {statement.pod.uid for statement in sources.ledger.unproven if statement.scheme is scheme}
    )


def _using(
    admitted_pod: AdmittedPod, holdings: Sequence[Holding], allocation_state: AllocationState
) -> AdmittedPod:
    """The pod with the shares that it uses of devices not allocated to it, and with its name.

    The driver has to report the use: a region, which the tenant can write, takes no pod's room. If
    no source reports an amount, only the slot is held.
    """
    others = allocation_state.named.keys() - {share.device for share in admitted_pod.shares}
    used = (
        holding.share
        for holding in holdings
        if holding.alive and Source.PROCESS in holding.sources and holding.share.device in others
    )
    beside = (Share(share.device, share.memory_bytes or 0, share.cores_milli) for share in used)
    pod = next((holding.pod for holding in holdings if not admitted_pod.pod.name), admitted_pod.pod)
    return replace(admitted_pod, pod=pod, beside=tuple(beside))
