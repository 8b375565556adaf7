"""The API server's data: pods' claims as statements, their requests, a node's GPUs. Pure."""

from collections.abc import Iterable, Iterator

import msgspec

from vgpu.kube.objects import ContainerState, Node, Pod, holds_devices
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.statements import Malformed, Statement, Wanted
from vgpu.model import Claim, ContainerKind, Device, Phase, PodRef, Share, Source
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.mig import mig_slot
from vgpu.units import MOST_DEVICE_MEMORY, MOST_DEVICE_MILLI, percentage, size

MIG_SLOT = "MIG slot"
"""What Volcano's MIG slots are a resource of; the kubelet does not know them."""


class Reading(msgspec.Struct, frozen=True):
    """What one pod reports in all languages; ``claims`` are what the statements were made from."""

    claims: tuple[Claim, ...] = ()
    statements: tuple[Statement, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    malformed: tuple[Malformed, ...] = ()


def read_pod(pod: Pod, codecs: Iterable[SchemeCodec]) -> Reading:
    """The pod's claims and requests; what cannot be read is a value, too.

    A pod that has ended asks for nothing more, and nobody needs to repair what it contains.
    """
    claims: list[Claim] = []
    wanted: list[Wanted] = []
    malformed: dict[Malformed, None] = {}
    ref = node_ref(pod)
    over = not holds_devices(pod)
    asked = {
        name for container in pod.containers for name in (*container.limits, *container.broken)
    }
    for codec in codecs:
        resources = codec.resources
        asks = not over and not (resources and asked.isdisjoint(resources))
        try:
            wanted += _wanted(pod, ref, codec) if asks else ()
            claim = codec.claim(pod)
        except ClaimError as error:
            malformed[Malformed(ref, "", codec.scheme, error.detail)] = None
            continue
        if claim is not None:
            claims.append(claim)
            for remark in (*claim.remarks, *_too_large(claim)):
                malformed[Malformed(ref, "", claim.scheme, remark)] = None
    return Reading(
        tuple(claims),
        tuple(said for claim in claims for said in claim_statements(pod, claim)),
        tuple(wanted),
        () if over else tuple(malformed),
    )


def registered(
    node: Node, codecs: Iterable[SchemeCodec]
) -> tuple[list[tuple[SchemeCodec, tuple[Device, ...]]], list[Malformed]]:
    """The GPUs that the node reports it has, in each language that can be read."""
    told: list[tuple[SchemeCodec, tuple[Device, ...]]] = []
    malformed: list[Malformed] = []
    for codec in codecs:
        try:
            told.append((codec, codec.devices(node)))
        except ClaimError as error:
            malformed.append(Malformed(None, "", codec.scheme, str(error)))
    return told, malformed


def node_ref(pod: Pod) -> PodRef:
    """The pod by the UID that the node knows it by."""
    return PodRef(node_uid(pod), pod.ref.namespace, pod.ref.name)


def claim_statements(pod: Pod, claim: Claim) -> Iterator[Statement]:
    """A pod's claim in one language, container by container."""
    ref = node_ref(pod)
    for allocation in claim.allocations:
        assigned = allocation.phase is Phase.ASSIGNED
        slots = tuple(share.device for share in allocation.shares if mig_slot(share.device))
        yield Statement(
            source=Source.ANNOTATIONS,
            pod=ref,
            container=allocation.container or _only_container(pod),
            shares=tuple(map(_credible, allocation.shares)),
            scheme=claim.scheme,
            phase=allocation.phase,
            since=claim.assigned_at if assigned else claim.assumed_at,
            node=claim.node,
            slices=((MIG_SLOT, slots),) if slots else (),
            where=f"annotations of {ref.namespace}/{ref.name}",
        )


def _too_large(claim: Claim) -> Iterator[str]:
    """What the claim's shares have more of than any device, in words."""
    for allocation in claim.allocations:
        whose = allocation.container or "the pod"
        for share in allocation.shares:
            kept, device = _credible(share), share.device or "a device"
            if kept.memory_bytes != share.memory_bytes:
                told = size(share.memory_bytes or 0)
                yield f"{whose} has {told} of {device}, which no device has"
            if kept.cores_milli != share.cores_milli:
                told = percentage(share.cores_milli or 0)
                yield f"{whose} has {told} of the cores of {device}, which no device has"


def _credible(share: Share) -> Share:
    """The share, its amounts unknown where no device has so much."""
    memory, cores = share.memory_bytes, share.cores_milli
    if (memory or 0) <= MOST_DEVICE_MEMORY and (cores or 0) <= MOST_DEVICE_MILLI:
        return share
    return msgspec.structs.replace(
        share,
        memory_bytes=memory if memory is None or memory <= MOST_DEVICE_MEMORY else None,
        cores_milli=cores if cores is None or cores <= MOST_DEVICE_MILLI else None,
    )


def _only_container(pod: Pod) -> str:
    """Whose a share of the whole pod is; "" if several may use it."""
    return pod.containers[0].name if len(pod.containers) == 1 else ""


def _wanted(pod: Pod, ref: PodRef, codec: SchemeCodec) -> Iterator[Wanted]:
    """What the pod asks for; init containers aside, which get what the others get after them.

    Raises ClaimError.
    """
    requests = codec.requests(pod)
    if not requests:
        return
    running = {each.name for each in pod.statuses if each.state is ContainerState.RUNNING}
    served = {
        container.name: resource
        for container in pod.containers
        for resource in reversed(codec.resources)
        if resource in container.limits
    }
    for request in requests:
        if request.kind is not ContainerKind.INIT:
            name = request.container
            yield Wanted(ref, request, codec.scheme, served.get(name, ""), name in running)
