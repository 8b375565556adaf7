"""How much of a pod's annotations counts: the one place that decides it. Pure.

Any user may write annotations on a pod, so an annotation alone holds nothing. With ``asks`` and
``unnamed`` of :mod:`vgpu.schemes.pod_requests`:

    counts(p, s, n)  = the claim, at least the request,     if p is bound and asks(p, s, n)
                     = the claim, at most the request,      if p asks, is not bound, is not gated
                     = the claim on ≤ unnamed(p, n) GPUs,   if p does not ask and is not gated
                     = nothing,                             if p is gated
    missing(p, s, n) = what a bound pod that asks requests, and no readable claim of it places on a
                       GPU of the node

The claims of a system without resources count as they are, and so does the claim of a pod of
renamed resources.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import structs

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share, mig_slot, physical
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Pod
from vgpu.model.reasons import Explained
from vgpu.model.units import MOST_DEVICE_MEMORY, WHOLE_DEVICE_PERCENT, count
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.pod_requests import (
    Basis,
    basis_of,
    known_requests,
    requested_share,
    unnamed_units,
)


class ClaimProblem(Explained):
    """Why a claim that can be read does not count as it is; ``explanation`` is the text for people.

    ``CLAIMS_MORE`` counts as less than it has, ``CLAIMS_LESS`` as more. Of ``OTHER_NODE``, a bound
    pod's claim, no GPU of its own node is known.
    """

    REQUESTS_NOTHING = (
        "requests_nothing",
        "the annotations claim GPUs, but no container requests a GPU",
    )
    CLAIMS_MORE = "claims_more", "the annotations claim more than the containers request"
    CLAIMS_LESS = "claims_less", "the annotations claim less than the containers request"
    FEWER_GPUS = (
        "fewer_gpus",
        "the annotations claim fewer GPUs of the node than the containers request",
    )
    OTHER_NODE = "other_node", "the annotations claim GPUs of another node"


OTHER_AMOUNT: Final = frozenset({ClaimProblem.CLAIMS_MORE, ClaimProblem.CLAIMS_LESS})
"""The problems of a claim that counts as more or less than it has."""

_NO_DEVICES: Final[Mapping[str, Device]] = {}


class CountedClaim(msgspec.Struct, frozen=True, gc=False):
    """What counts of a pod in one system.

    Attributes:
        basis: how the pod requests the system.
        claim: the part of the claim that counts; None if nothing does.
        missing: what a bound pod requests, and of which no GPU is known.
        problem: why the claim does not count as it is; None if it does.
        error: another problem, as text: it cannot be read, or has too many GPUs; "" without one.
        unread: whether the claim cannot be read.
    """

    basis: Basis
    claim: Claim | None = None
    missing: tuple[Request, ...] = ()
    problem: ClaimProblem | None = None
    error: str = ""
    unread: bool = False

    @property
    def detail(self) -> str:
        """Why the annotations do not count as they are, as text; "" if they do."""
        return self.error if self.problem is None else self.problem.explanation


NOTHING: Final = CountedClaim(Basis.NOTHING)


def counted_claim(
    pod: Pod,
    codec: SchemeCodec,
    devices: Mapping[str, Device] = _NO_DEVICES,
    advertised: Collection[str] | None = None,
    *,
    resolves_defaults: bool = True,
    requests: Sequence[Request] | None = None,
) -> CountedClaim:
    """What counts of the pod in the system.

    ``devices`` are those of the node under every name that a share may have; {} if they are not
    known, and then every GPU of the claim counts. ``advertised`` are as for :func:`basis_of`.
    Without ``resolves_defaults`` an amount that the request leaves to the system counts as it was
    claimed, if that is more than nothing: no object of the API server has HAMi's ``defaultMemory``.
    ``requests`` are those of the pod in the system, None if they are to be read.
    """
    claim, error, unread = _claim(pod, codec, devices)
    basis = basis_of(pod, codec, advertised)
    nothing = CountedClaim(basis, error=error, unread=unread)
    if basis is Basis.NOTHING:
        is_claiming = claim is not None or unread
        problem = ClaimProblem.REQUESTS_NOTHING
        return CountedClaim(basis, problem=problem, unread=unread) if is_claiming else NOTHING
    if pod.gated and not pod.node:
        return CountedClaim(basis)
    if basis is Basis.NAMED and pod.node:
        if claim is not None and claim.node not in ("", pod.node):
            claim, nothing = None, CountedClaim(basis, problem=ClaimProblem.OTHER_NODE)
        rule = _Amounts(codec, devices, resolves_defaults=resolves_defaults)
        requests = known_requests(pod, codec) if requests is None else requests
        return _at_least(pod, rule, claim, requests, nothing)
    if claim is None:
        return nothing
    if basis is Basis.NAMED:
        requests = known_requests(pod, codec) if requests is None else requests
        return _at_most(_Amounts(codec, devices), claim, requests)
    if basis is Basis.UNNAMED:
        claim, error = _on_few_gpus(claim, unnamed_units(pod, advertised))
    return CountedClaim(basis, claim, error=error)


def empty_claim(
    pod: Pod,
    codec: SchemeCodec,
    advertised: Collection[str] | None = None,
    *,
    is_here: bool = True,
) -> tuple[str, ...]:
    """What a bound pod has of the system although it requests nothing of it, and so claims nothing.

    () if there is nothing. ``advertised`` are as for :func:`basis_of`, and ``is_here`` is whether
    all GPUs of the node are the system's: on other nodes the system's names show nothing. The
    resources that only schedulers count bring a bound pod no device.
    """
    if not pod.node or basis_of(pod, codec, advertised) is not Basis.NOTHING:
        return ()
    counted = dict.fromkeys(
        f"{container.name} asks for {name} alone, which no device plugin advertises"
        for container in pod.containers
        for name in codec.only_counted
        if is_here and (container.limits.get(name) or name in container.broken)
    )
    claim, _, is_unread = _claim(pod, codec, _NO_DEVICES)
    is_claiming = claim is not None or is_unread
    remark = ClaimProblem.REQUESTS_NOTHING.explanation
    return (*counted, *((remark,) if is_claiming else ()))


def _claim(
    pod: Pod, codec: SchemeCodec, devices: Mapping[str, Device]
) -> tuple[Claim | None, str, bool]:
    """The claim, what is wrong with it, and whether it is there and cannot be read."""
    try:
        claim = codec.claim(pod)
        if claim is None and pod.node and devices:
            claim = codec.sole_gpu(pod, tuple(dict.fromkeys(devices.values())))
    except ClaimError as error:
        return None, error.detail, True
    return claim, "", False


class _Amounts(msgspec.Struct, frozen=True):
    """What a request comes to beside a claimed share."""

    codec: SchemeCodec
    devices: Mapping[str, Device]
    resolves_defaults: bool = True

    def device(self, share: Share) -> Device | None:
        """The device of a share; None if the node has none of this name, or is not known."""
        return self.devices.get(physical(share.device))

    def is_missing(self, share: Share) -> bool:
        """Whether the node is known, and has no such device."""
        return bool(self.devices) and self.device(share) is None

    def requested(self, request: Request, share: Share) -> Share:
        """The request on the device of the share."""
        device = self.device(share)
        if device is None:
            return Share(share.device, request.memory_bytes, request.cores_milli or None)
        return requested_share(request, device, self.codec.unit_bytes)

    def is_enough(self, request: Request, share: Share) -> bool:
        """Whether amounts alone show that the share is as large as the request: the usual case."""
        asked, claimed = request.memory_bytes, share.memory_bytes
        if asked is None or claimed is None or claimed < asked:
            return False
        return (share.cores_milli or 0) >= request.cores_milli

    def raised(self, request: Request, share: Share) -> Share:
        """The share, at least as large as the request; a MIG slot has its own size."""
        if mig_slot(share.device):
            return share
        least = self.requested(request, share)
        memory, cores = share.memory_bytes, share.cores_milli
        if memory is not None and not self._is_left(request, share):
            if least.memory_bytes is not None:
                memory = max(memory, least.memory_bytes)
            elif not memory:  # all of the GPU, or a part of it that is not known
                memory = None
        if least.cores_milli:
            cores = max(cores or 0, least.cores_milli)
        return Share(share.device, memory, cores)

    def lowered(self, request: Request, share: Share) -> Share:
        """The share, no larger than the request."""
        most = self.requested(request, share)
        memory = most.memory_bytes
        if share.memory_bytes is not None:
            memory = share.memory_bytes if memory is None else min(share.memory_bytes, memory)
        cores = share.cores_milli
        if cores is not None:
            cores = min(cores, most.cores_milli or 0)
        return Share(share.device, memory, cores)

    def is_more(self, request: Request, shares: Sequence[Share]) -> bool:
        """Whether shares on more GPUs than requested come to more than a whole GPU for each.

        Where the node is not known, they may if they come to more than what is requested.
        """
        if len({physical(share.device) for share in shares}) <= request.count:
            return False
        memory, cores = _sums(shares)
        most_memory, most_cores = request.memory_bytes or 0, request.cores_milli
        if self.devices:
            gpus = self.devices.values()
            most_memory = max(gpu.memory_bytes or MOST_DEVICE_MEMORY for gpu in gpus)
            most_cores = max(gpu.cores_milli for gpu in gpus)
        return memory > request.count * most_memory or cores > request.count * most_cores

    def cut(self, request: Request, shares: tuple[Share, ...]) -> tuple[Share, ...]:
        """The shares on the first GPUs of the node, as many as are requested."""
        here = [share for share in shares if not self.is_missing(share)]
        gpus = list(dict.fromkeys(physical(share.device) for share in here or shares))
        counted = frozenset(gpus[: request.count] if self.devices else gpus)
        return tuple(share for share in shares if physical(share.device) in counted)

    def _is_left(self, request: Request, share: Share) -> bool:
        """Whether the claimed memory counts, since the request leaves the memory to the system."""
        is_default = request.memory_bytes is None and request.memory_percent in (
            None,
            WHOLE_DEVICE_PERCENT,
        )
        return is_default and not self.resolves_defaults and bool(share.memory_bytes)


def _at_least(
    pod: Pod,
    rule: _Amounts,
    claim: Claim | None,
    requests: Sequence[Request],
    nothing: CountedClaim,
) -> CountedClaim:
    """What a bound pod counts: its claim, raised to its request; what no GPU is known of."""
    if claim is None:
        return structs.replace(nothing, missing=_running(pod, requests))
    asked = {request.container: request for request in requests}
    allocations: list[Allocation] = []
    missing: list[Request] = []
    is_raised = is_cut = False
    for allocation in claim.allocations:
        request = asked.pop(allocation.container, None)
        shares = allocation.shares
        if request is not None:
            shares = _raised(rule, request, shares)
            is_raised |= shares is not allocation.shares
            if len(shares) > request.count and rule.is_more(request, shares):
                is_cut = True
                shares = rule.cut(request, shares)
            placed = {physical(each.device) for each in shares if not rule.is_missing(each)}
            if len(placed) < request.count:
                missing.append(structs.replace(request, count=request.count - len(placed)))
        if shares is not allocation.shares:
            allocation = structs.replace(allocation, shares=shares)  # noqa: PLW2901
        allocations.append(allocation)
    if asked:
        apps = [request for request in requests if request.kind is not ContainerKind.INIT]
        missing += (
            request
            for request in _running(pod, asked.values())
            if request.kind is not ContainerKind.INIT
            or not any(_covers(app, request) for app in apps)
        )
    is_changed = is_raised or is_cut
    counted = structs.replace(claim, allocations=tuple(allocations)) if is_changed else claim
    problem = None
    if is_changed:
        problem = ClaimProblem.CLAIMS_LESS if is_raised else ClaimProblem.CLAIMS_MORE
    elif missing:
        problem = ClaimProblem.FEWER_GPUS
    return CountedClaim(nothing.basis, counted, tuple(missing), problem)


def _raised(rule: _Amounts, request: Request, shares: tuple[Share, ...]) -> tuple[Share, ...]:
    """The shares of a container, at least as large as its request.

    A claim on more GPUs than requested may have parts of what is requested of one.
    """
    for share in shares:
        if not rule.is_enough(request, share):
            break
    else:
        return shares
    raised = tuple([rule.raised(request, share) for share in shares])
    if raised == shares:
        return shares
    if len(shares) > request.count:
        least = rule.requested(request, shares[0])
        memory, cores = _sums(shares)
        is_enough_memory = memory >= request.count * (least.memory_bytes or 0)
        if is_enough_memory and cores >= request.count * (least.cores_milli or 0):
            return shares
    return raised


def _running(pod: Pod, requests: Iterable[Request]) -> tuple[Request, ...]:
    """The requests without those of init containers that have succeeded."""
    is_initialized = pod.initialized()
    return tuple(
        request
        for request in requests
        if not (is_initialized and request.kind is ContainerKind.INIT)
    )


def _covers(app: Request, init: Request) -> bool:
    """Whether an init container can use the devices of a container that runs after it."""

    def memory(request: Request) -> tuple[int, int]:
        if request.memory_bytes is not None:
            return 0, request.memory_bytes
        return 1, WHOLE_DEVICE_PERCENT if request.memory_percent is None else request.memory_percent

    return (
        app.count >= init.count
        and app.cores_milli >= init.cores_milli
        and memory(app) >= memory(init)
    )


def _at_most(rule: _Amounts, claim: Claim, requests: Iterable[Request]) -> CountedClaim:
    """The claim of a pod that is not bound, no larger than what the pod requests."""
    asked = {request.container: request for request in requests}
    allocations = []
    for allocation in claim.allocations:
        request = asked.pop(allocation.container, None)
        if request is not None:
            own = allocation.shares[: request.count]
            shares = tuple(rule.lowered(request, share) for share in own)
            allocations.append(structs.replace(allocation, shares=shares))
    is_more = _total(claim.allocations) > _total(allocations) or any(
        map(_exceeds, claim.allocations, allocations)
    )
    counted = structs.replace(claim, allocations=tuple(allocations))
    problem = ClaimProblem.CLAIMS_MORE if is_more else None
    return CountedClaim(Basis.NAMED, counted, problem=problem)


def _exceeds(claimed: Allocation, counted: Allocation) -> bool:
    """Whether a share has a larger amount than what counts of it."""
    return any(
        (before.memory_bytes or 0) > (after.memory_bytes or 0)
        or (before.cores_milli or 0) > (after.cores_milli or 0)
        for before, after in zip(claimed.shares, counted.shares, strict=False)
    )


def _on_few_gpus(claim: Claim, most: int) -> tuple[Claim, str]:
    """The claim on its first GPUs, at most so many."""
    named = dict.fromkeys(
        physical(share.device) for each in claim.allocations for share in each.shares
    )
    if len(named) <= most:
        return claim, ""
    counted = frozenset(list(named)[:most])
    allocations = tuple(
        structs.replace(
            each,
            shares=tuple(share for share in each.shares if physical(share.device) in counted),
        )
        for each in claim.allocations
    )
    detail = (
        f"the annotations claim {count(len(named), 'GPU')},"
        f" and {count(most, 'unit')} {'is' if most == 1 else 'are'} requested"
    )
    return structs.replace(claim, allocations=allocations), detail


def _sums(shares: Iterable[Share]) -> tuple[int, int]:
    """Bytes of memory and thousandths of cores of all the shares; what is not known is nothing."""
    pairs = [(share.memory_bytes or 0, share.cores_milli or 0) for share in shares]
    return sum(memory for memory, _ in pairs), sum(cores for _, cores in pairs)


def _total(allocations: Iterable[Allocation]) -> int:
    return sum(len(each.shares) for each in allocations)
