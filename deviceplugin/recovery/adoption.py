"""A pod that another plugin admitted, or whose admission is forgotten, as a tenant. Pure.

The ledger knows the devices of its containers and the amounts on them, but neither the order in
which they see their devices nor the size of each share of a device. The claim knows both. So a
container's shares are those of its claim if the ledger agrees. A container that we answered has the
claim's shares in any case, since we allocate nothing else.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from vgpu.ledger import Holding
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Allocation, Device, Share
from vgpu.model.names import Phase, Source, is_number
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
    """The tenant, and whether the devices of all its containers are known."""

    tenant: AdmittedPod
    complete: bool


def is_granted(
    holdings: Iterable[Holding], pod: Pod | None, answers: Answers, read: Collection[Source]
) -> bool:
    """Whether these holdings were allocated to the pod, and not only promised.

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
    tenant = AdmittedPod(holdings[0].pod, tuple(allocations), since=since, foreign=True)
    return Adoption(tenant, complete)


def _by_uuid(share: Share, named: Mapping[str, Device]) -> Share:
    device = named.get(share.device)
    return share if device is None else replace(share, device=device.uuid)


def _agree(claim: Allocation, holdings: Collection[Holding]) -> bool:
    """Whether the container's holdings are those of its claim, or there are none."""
    if not holdings:
        return True
    promised: dict[str, list[Share]] = {}
    for share in claim.shares:
        promised.setdefault(share.device, []).append(share)
    return {holding.share.device for holding in holdings} == promised.keys() and all(
        _is_sum_of(holding.share, promised[holding.share.device]) for holding in holdings
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
            whole.device, _part(whole.memory_bytes, at, count), _part(whole.cores_milli, at, count)
        )
        for at in range(count)
    )


def _part(amount: int | None, at: int, count: int) -> int | None:
    """The ``at``-th of ``count`` parts that add up to the amount."""
    return None if amount is None else amount // count + (at < amount % count)
