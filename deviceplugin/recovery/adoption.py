"""A pod that another plugin admitted, or whose admission is forgotten, as a tenant. Pure.

The ledger knows where its containers are and how much they have there, but neither the order in
which they see their devices nor how much of a device is which share. The claim knows both. So what
a container has is as its claim reports, if the ledger reports the same; if it was answered by us,
it is as the claim has it in any case, for we give nothing else.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from vgpu.admitted import AdmittedPod
from vgpu.kube.objects import ContainerState, Pod
from vgpu.ledger import Holding
from vgpu.model import Allocation, Device, Phase, Share, Source
from vgpu.schemes.codec import ClaimError, SchemeCodec

Claims = Mapping[str, Allocation]
"""Container -> what its pod's annotations say that it is to have, devices by UUID."""

Answers = Mapping[str, bool]
"""Container that the kubelet has an answer of ours for -> whether it is known to be bound."""

_KUBELET: Final = frozenset({Source.CHECKPOINT, Source.POD_RESOURCES})

_CREATED: Final = frozenset({Source.PROCESS, Source.OWN_CHECKPOINT, Source.SHIM, Source.LIMIT_FILE})
"""They speak only of what has been given, be it to an init container of which no claim speaks."""


class Adoption(msgspec.Struct, frozen=True):
    """The tenant, and whether it is known of all its containers where they are."""

    tenant: AdmittedPod
    complete: bool


def is_granted(
    holdings: Iterable[Holding], pod: Pod | None, answers: Answers, read: Collection[Source]
) -> bool:
    """Whether these were given to the pod, and are not only promised as yet.

    What we have answered is given once it is bound: a container that was refused has its answer,
    too. Where the kubelet cannot be asked, a pod that has ever started has been given them.
    """
    started = {
        one.name
        for one in (pod.statuses if pod else ())
        if one.state is not ContainerState.WAITING or one.restarts
    }
    if any(answers.values()) or started & answers.keys():
        return True
    if started and _KUBELET.isdisjoint(read):
        return True
    return any(
        one.alive
        or not _CREATED.isdisjoint(one.sources)
        or (one.phase is Phase.ASSIGNED and one.container not in answers)
        for one in holdings
    )


def is_alive(holding: Holding) -> bool:
    """Whether a process of it is known, be it in one of its pod's containers that has no name."""
    return holding.alive or Source.PROCESS in holding.sources


def claims_of(
    codec: SchemeCodec, pod: Pod | None, named: Mapping[str, Device], node: str
) -> Claims:
    """What the annotations say; nothing where they cannot be read, have failed or are not for us.

    ``named`` are the devices of ``node`` by every name. A GPU that is lost is still known by its
    UUID; the number of one may be another's by now.
    """
    try:
        claim = codec.claim(pod) if pod is not None else None
    except ClaimError:
        return {}
    if claim is None or claim.failed or (claim.node and node and claim.node != node):
        return {}
    return {
        each.container: Allocation(
            each.container, tuple(_by_uuid(share, named) for share in each.shares), Phase.ASSIGNED
        )
        for each in claim.allocations
        if all(share.device in named or not share.device.isdecimal() for share in each.shares)
    }


def adopted(holdings: Sequence[Holding], claims: Claims, answers: Answers, now: float) -> Adoption:
    """The pod whose holdings these are, at least one.

    ``now`` is unix seconds, for those of which no source reports since when they hold it.
    """
    told: dict[str, list[Holding]] = {}
    for holding in holdings:
        told.setdefault(holding.container, []).append(holding)
    allocations = []
    complete = True
    for container in dict.fromkeys((*claims, *told)):
        here = told.get(container, [])
        claim = claims.get(container)
        if claims and claim is None and container in answers:
            continue  # an init container of ours: it uses what another one is promised
        if claim is not None and (container in answers or _agree(claim, here)):
            allocations.append(claim)
            continue
        placed = tuple(s for holding in here if holding.share.device for s in _shares(holding))
        if placed:
            allocations.append(Allocation(container, placed, Phase.ASSIGNED))
        complete = complete and all(holding.share.device for holding in here)
    since = min((one.since for one in holdings if one.since is not None), default=now)
    tenant = AdmittedPod(holdings[0].pod, tuple(allocations), since=since, foreign=True)
    return Adoption(tenant, complete)


def _by_uuid(share: Share, named: Mapping[str, Device]) -> Share:
    device = named.get(share.device)
    return share if device is None else replace(share, device=device.uuid)


def _agree(claim: Allocation, told: Collection[Holding]) -> bool:
    """Whether the ledger reports nothing else of the container than its claim."""
    if not told:
        return True
    promised: dict[str, list[Share]] = {}
    for share in claim.shares:
        promised.setdefault(share.device, []).append(share)
    return {holding.share.device for holding in told} == promised.keys() and all(
        _is_sum_of(holding.share, promised[holding.share.device]) for holding in told
    )


def _is_sum_of(whole: Share, parts: Collection[Share]) -> bool:
    """Whether the shares of one device come to this much; what is unknown is no contradiction."""
    amounts = (
        (whole.memory_bytes, [part.memory_bytes for part in parts]),
        (whole.cores_milli, [part.cores_milli for part in parts]),
    )
    return all(
        total is None or None in each or total == sum(one or 0 for one in each)
        for total, each in amounts
    )


def _shares(holding: Holding) -> tuple[Share, ...]:
    """As many shares as the ledger has counted; equal ones, since their sizes are unknown."""
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
