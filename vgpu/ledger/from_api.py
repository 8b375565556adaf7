"""The API server's data: pods' claims as statements, their requests, a node's GPUs. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.ledger.liveness import node_uid
from vgpu.ledger.statements import Malformed, Statement, Wanted
from vgpu.model.allocation import Claim, Device, Request, Share, mig_slot
from vgpu.model.names import ContainerKind, Phase, PodRef, Source
from vgpu.model.objects import ContainerState, Node, Pod, holds_devices
from vgpu.model.units import MOST_DEVICE_MEMORY, MOST_DEVICE_MILLI, exact_size, percentage
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.counted_claims import OTHER_AMOUNT, ClaimProblem, CountedClaim, counted_claim
from vgpu.schemes.other_schedulers import other_scheduler
from vgpu.schemes.pod_requests import Basis

MIG_SLOT = "MIG slot"
"""Our resource name for Volcano's MIG slots, which the kubelet does not know."""


_NO_DEVICE: Final[Mapping[str, Device]] = {}
NO_DEVICES: Final[Mapping[str, Mapping[str, Device]]] = {}
"""The devices of a node that is not known."""


class Reading(msgspec.Struct, frozen=True):
    """One pod's data in all schemes; the statements were made from the ``claims``."""

    claims: tuple[Claim, ...] = ()
    statements: tuple[Statement, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    malformed: tuple[Malformed, ...] = ()


def read_pod(
    pod: Pod,
    codecs: Iterable[SchemeCodec],
    advertised: Collection[str] | None = None,
    devices: Mapping[str, Mapping[str, Device]] = NO_DEVICES,
    *,
    on_node: bool = False,
) -> Reading:
    """The pod's claims, as far as they count, and its requests; unreadable texts are values, too.

    ``advertised`` are the extended resources of the pod's node, None if they are not known
    (:func:`~vgpu.schemes.pod_requests.basis_of`), and ``devices`` those of the node by the name of
    the codec and their own names, as far as they are known. A pod that has ended has no requests,
    and its annotations need no repair. ``on_node`` has better sources of amounts than requests: a
    claim of less than is requested counts as it is there, unless it has no limit. What a pod of
    another GPU scheduler requests is not served by the sharing systems.
    """
    claims: list[Claim] = []
    named = 0
    wanted: list[Wanted] = []
    malformed: dict[Malformed, None] = {}
    ref = node_ref(pod)
    ended = not holds_devices(pod)
    is_others = bool(pod.group_gpus) or other_scheduler(pod) is not None
    resources_asked = {
        name for container in pod.containers for name in (*container.limits, *container.broken)
    }
    for codec in codecs:
        resources = codec.resources
        own = devices.get(codec.name, _NO_DEVICE)
        is_asking = not resources or not resources_asked.isdisjoint(resources)
        if not (is_asking or own or _names_it(pod, codec, resources_asked)):
            continue
        requests = None
        if is_asking and not (ended or is_others):
            try:
                requests = codec.requests(pod)
            except ClaimError as error:
                malformed[Malformed(ref, "", codec.scheme, error.detail)] = None
                continue
            wanted += _wanted(pod, ref, codec, requests)
        counted = counted_claim(
            pod, codec, own, advertised, resolves_defaults=False, requests=requests
        )
        unlimited = "; ".join(_without_limit(counted, pod, codec))
        if on_node and counted.problem in OTHER_AMOUNT and not unlimited:
            counted = CountedClaim(counted.basis, codec.claim(pod))
        claim = counted.claim
        if counted.problem is ClaimProblem.OTHER_NODE:
            claim = codec.claim(pod)  # the ledger reports that it is for another node
        elif unlimited or counted.detail:
            detail = unlimited or counted.detail
            malformed[Malformed(ref, "", codec.scheme, detail, counted.problem)] = None
        if claim is not None:
            if counted.basis is Basis.NAMED:  # it decides on which node a reservation is
                claims.insert(named, claim)
                named += 1
            else:
                claims.append(claim)
            for remark in (*claim.remarks, *_too_large(claim)):
                malformed[Malformed(ref, "", claim.scheme, remark)] = None
    return Reading(
        tuple(claims),
        tuple(statement for claim in claims for statement in claim_statements(pod, claim)),
        tuple(wanted),
        () if ended else tuple(malformed),
    )


def _names_it(pod: Pod, codec: SchemeCodec, requested: Collection[str]) -> bool:
    """Whether the pod requests a resource of the system, or has an annotation of its claims.

    Where it does neither, and the GPUs of the node are not known, nothing counts in the system.
    """
    if any(name in requested for name in (*codec.advertised, *codec.only_counted)):
        return True
    return bool(codec.claim_keys(pod))


def registered(
    node: Node, codecs: Iterable[SchemeCodec]
) -> tuple[list[tuple[SchemeCodec, tuple[Device, ...]]], list[Malformed]]:
    """The GPUs that the node's annotations register, by each codec that can read them."""
    registrations: list[tuple[SchemeCodec, tuple[Device, ...]]] = []
    malformed: list[Malformed] = []
    for codec in codecs:
        try:
            registrations.append((codec, codec.devices(node)))
        except ClaimError as error:
            malformed.append(Malformed(None, "", codec.scheme, str(error)))
    return registrations, malformed


def node_ref(pod: Pod) -> PodRef:
    """The pod by the UID that the node knows it by."""
    return PodRef(node_uid(pod), pod.ref.namespace, pod.ref.name)


def claim_statements(pod: Pod, claim: Claim) -> Iterator[Statement]:
    """The statements of a pod's claim, container by container."""
    ref = node_ref(pod)
    for allocation in claim.allocations:
        assigned = allocation.phase is Phase.ASSIGNED
        slots = tuple(share.device for share in allocation.shares if mig_slot(share.device))
        yield Statement(
            source=Source.ANNOTATIONS,
            pod=ref,
            container=allocation.container or only_container(pod),
            shares=tuple(map(_credible, allocation.shares)),
            scheme=claim.scheme,
            phase=allocation.phase,
            since=claim.assigned_at if assigned else claim.assumed_at,
            node=claim.node,
            slices=((MIG_SLOT, slots),) if slots else (),
            where=f"annotations of {ref.namespace}/{ref.name}",
        )


def _too_large(claim: Claim) -> Iterator[str]:
    """The amounts of the claim's shares that exceed any device, as text."""
    for allocation in claim.allocations:
        holder = allocation.container or "the pod"
        for share in allocation.shares:
            kept, device = _credible(share), share.device or "a device"
            if kept.memory_bytes != share.memory_bytes:
                amount = exact_size(share.memory_bytes or 0)
                yield f"{holder} has {amount} of {device}, which no device has"
            if kept.cores_milli != share.cores_milli:
                amount = percentage(share.cores_milli or 0)
                yield f"{holder} has {amount} of the cores of {device}, which no device has"


def _without_limit(counted: CountedClaim, pod: Pod, codec: SchemeCodec) -> Iterator[str]:
    """The shares in the pod's annotations that have no limit of their memory, as text."""
    is_raised = counted.problem is ClaimProblem.CLAIMS_LESS
    claim = codec.claim(pod) if is_raised else counted.claim
    for container, device in codec.without_limit(pod, claim) if claim else ():
        yield f"{container} has no limit of the memory of {device}: its scheduler reserved 0 bytes"


def _credible(share: Share) -> Share:
    """The share, with amounts unknown where no device has so much."""
    memory, cores = share.memory_bytes, share.cores_milli
    if (memory or 0) <= MOST_DEVICE_MEMORY and (cores or 0) <= MOST_DEVICE_MILLI:
        return share
    return msgspec.structs.replace(
        share,
        memory_bytes=memory if memory is None or memory <= MOST_DEVICE_MEMORY else None,
        cores_milli=cores if cores is None or cores <= MOST_DEVICE_MILLI else None,
    )


def only_container(pod: Pod) -> str:
    """The container that a share of the whole pod belongs to; "" if several may use it."""
    return pod.containers[0].name if len(pod.containers) == 1 else ""


def _wanted(
    pod: Pod, ref: PodRef, codec: SchemeCodec, requests: Sequence[Request]
) -> Iterator[Wanted]:
    """The requests as what the pod wants, without init containers, whose devices others reuse.

    A container that runs, and requests only what a scheduler counts, may have its device by a
    resource whose name is not known: that it has none is no evidence.
    """
    if not requests:
        return
    running = {status.name for status in pod.statuses if status.state is ContainerState.RUNNING}
    served = {
        container.name: resource
        for container in pod.containers
        for resource in reversed(codec.resources)
        if resource in container.limits
    }
    allocated = {
        container.name
        for container in pod.containers
        if not container.limits.keys().isdisjoint(codec.advertised)
    }
    for request in requests:
        name = request.container
        is_renamed = bool(codec.resources) and name not in allocated
        if request.kind is not ContainerKind.INIT and not (is_renamed and name in running):
            yield Wanted(ref, request, codec.scheme, served.get(name, ""), name in running)
