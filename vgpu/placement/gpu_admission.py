"""gpu-admission's predicate: which node and which GPUs a pod of gpu-manager gets, before it is
bound.

The fullest node that can serve all containers of the pod is the only one returned. Its GPUs are
reserved in the pod's annotations, and counted from there when the next pod comes. The original is
gpu-admission's ``pkg/predicate`` and ``pkg/algorithm``.

The original refuses a pod that already has a reservation, so a pod whose binding failed waits
for ever. Here a possible reservation is kept, and an impossible one is recreated.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from vgpu.kube.objects import Node, Pod, holds_devices
from vgpu.model import Allocation, Claim, ContainerKind, Phase, Request, Scheme, Share
from vgpu.placement.gaia import fits, least_free, share
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.gaia.codec import PREDICATE_NODE, Gaia
from vgpu.topology import TopologyGpu, holding
from vgpu.units import WHOLE_DEVICE_MILLI

NO_GPUS = "no GPU device"
PLACED_ELSEWHERE = "pod {uid} has already been matched to another node"
DOES_NOT_FIT = "pod {uid} does not match with this node"
PREDICATED = "pod {name} had been predicated!"

Gpus = tuple[TopologyGpu, ...]


class AdmissionVerdict(msgspec.Struct, frozen=True):
    """The scheduler's answer.

    Attributes:
        nodes: where the pod may go; one at most if it asks for GPUs.
        refused: node -> why not there.
        claim: the reservation, to be written as annotations; None without one.
        error: why there is no answer at all; "" if there is one.
    """

    nodes: tuple[str, ...] = ()
    refused: Mapping[str, str] = {}
    claim: Claim | None = None
    error: str = ""


def predicate(
    pod: Pod,
    nodes: Sequence[Node],
    pods: Iterable[Pod],
    now: float,
    *,
    once_only: bool = False,
) -> AdmissionVerdict:
    """The nodes for the pod. ``pods`` are all pods there are, ``now`` is unix seconds.

    ``once_only`` refuses a pod with a reservation, as the original does. A node is
    refused while the claim of a pod on it cannot be read: its free GPUs are unknown then.
    """
    gaia = Gaia()
    try:
        requests = [r for r in gaia.requests(pod) if r.kind is ContainerKind.APP]
    except ClaimError as error:
        return AdmissionVerdict(error=str(error))
    if not requests:
        return AdmissionVerdict(nodes=tuple(node.name for node in nodes))
    promise = _promise(gaia, pod)
    if promise is not None and once_only:
        return AdmissionVerdict(error=PREDICATED.format(name=pod.ref.name))
    free, refused = _free(gaia, nodes, (one for one in pods if one.ref.uid != pod.ref.uid))
    claim = _kept(promise, free, requests) or _new(pod, free, requests, now)
    chosen = claim.node if claim else ""
    words = (PLACED_ELSEWHERE if claim else DOES_NOT_FIT).format(uid=pod.ref.uid)
    refused |= {name: words for name in free if name != chosen}
    return AdmissionVerdict((chosen,) if claim else (), refused, claim)


def _promise(gaia: Gaia, pod: Pod) -> Claim | None:
    """The pod's reservation; None if it cannot be read."""
    try:
        return gaia.claim(pod)
    except ClaimError:
        return None


def _free(
    gaia: Gaia, nodes: Sequence[Node], pods: Iterable[Pod]
) -> tuple[dict[str, Gpus], dict[str, str]]:
    """Each node's GPUs with what is taken of them; and why other nodes are refused."""
    tenants: dict[str, list[Pod]] = {}
    for pod in filter(holds_devices, pods):
        where = pod.node or pod.annotations.get(PREDICATE_NODE, "")
        tenants.setdefault(where, []).append(pod)
    free, refused = {}, {}
    for node in nodes:
        try:
            gpus = _gpus(gaia, node, tenants.get(node.name, ()))
        except ClaimError as error:
            refused[node.name] = str(error)
            continue
        if gpus:
            free[node.name] = gpus
        else:
            refused[node.name] = NO_GPUS
    return free, refused


def _gpus(gaia: Gaia, node: Node, tenants: Iterable[Pod]) -> Gpus:
    """Raises ClaimError."""
    gpus = [
        TopologyGpu(index, index, memory_bytes=device.memory_bytes or 0)
        for index, device in enumerate(gaia.devices(node))
        if device.healthy
    ]
    claims = [claim for tenant in tenants if (claim := gaia.claim(tenant))]
    allocations = [allocation for claim in claims for allocation in claim.allocations]
    return holding(gpus, (share for allocation in allocations for share in allocation.shares))


def _kept(
    promise: Claim | None, free: Mapping[str, Gpus], requests: Sequence[Request]
) -> Claim | None:
    """The reservation, if all of it is still free and fits exactly these requests."""
    if promise is None or promise.node not in free:
        return None
    gpus = free[promise.node]
    shares = {allocation.container: allocation.shares for allocation in promise.allocations}
    for request in requests:
        asked = shares.get(request.container, ())
        names = {part.device for part in asked}
        chosen = [gpu for gpu in gpus if str(gpu.minor) in names and fits(gpu, request)]
        if not len(chosen) == len(asked) == request.count:
            return None
        gpus = holding(gpus, asked)
    return promise


def _new(
    pod: Pod, free: Mapping[str, Gpus], requests: Sequence[Request], now: float
) -> Claim | None:
    """A reservation on the fullest node that can serve all requests; None if there is none."""
    for name in sorted(free, key=lambda name: (*_left(free[name]), name)):
        allocations = _placed(free[name], requests)
        if allocations is not None:
            return Claim(Scheme.GAIA, pod.ref, name, allocations, assumed_at=now)
    return None


def _left(gpus: Gpus) -> tuple[int, int]:
    return sum(gpu.free_milli for gpu in gpus), sum(gpu.free_bytes for gpu in gpus)


def _placed(gpus: Gpus, requests: Sequence[Request]) -> tuple[Allocation, ...] | None:
    """GPUs for all requests, one after another; None if one cannot be served."""
    allocations = []
    for request in requests:
        if request.cores_milli >= WHOLE_DEVICE_MILLI:
            whole = [gpu for gpu in least_free(gpus) if gpu.untouched][: request.count]
            chosen = whole if len(whole) == request.count else []
        else:
            chosen = list(share(gpus, request.cores_milli, request.memory_bytes or 0))
        if not chosen:
            return None
        shares = tuple(
            Share(str(gpu.minor), request.memory_bytes, request.cores_milli) for gpu in chosen
        )
        allocations.append(Allocation(request.container, shares, Phase.ASSUMED))
        gpus = holding(gpus, shares)
    return tuple(allocations)
