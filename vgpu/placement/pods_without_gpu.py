"""What is kept free of a node for bound pods of which no GPU is known. Pure.

The kubelet has bound such a pod to GPUs that we do not see: its annotation is missing or cannot be
read. For :data:`UNKNOWN_GPU_SECONDS` after it was bound its plugin may still report them, so its
request is taken off what is free of *every* GPU that could hold it. Later its request is taken off
the GPUs with the most free memory, as many as it requests: an annotation that stays unreadable
costs its own pod's request, and never the node.

    kept(g) ≤ free(g) for each GPU g: nothing of what pods hold is counted a second time.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import structs

from vgpu.model.allocation import Allocation, Device, Request, Share, effective_shares, physical
from vgpu.model.names import ContainerKind, Phase, PodRef
from vgpu.model.objects import Pod
from vgpu.placement.candidate import UsedGpu
from vgpu.schemes.counted_claims import ClaimProblem, CountedClaim
from vgpu.schemes.pod_requests import requested_share

UNKNOWN_GPU_SECONDS: Final = 300.0
"""Maximum time after the binding for which a request counts on every GPU, in seconds."""

_MOST_NAMED: Final = 4
"""Maximum number of GPUs that a text names."""

_LONGEST: Final = 64
"""Maximum length of the name of a GPU in a text: anybody may write an annotation."""


class PodWithoutGpu(msgspec.Struct, frozen=True):
    """A bound pod of which not all GPUs are known.

    Attributes:
        pod: the pod.
        requests: what it requests of GPUs that are not known.
        bound_at: when it was bound, by the API server, in unix seconds; None if that is unknown.
        is_unread: whether it has annotations that cannot be read.
        named: what its annotations name instead, for people; "" if they name nothing.
    """

    pod: PodRef
    requests: tuple[Request, ...]
    bound_at: float | None = None
    is_unread: bool = False
    named: str = ""

    def until(self, seen: float | None, now: float) -> float:
        """When its request no longer counts on every GPU, in unix seconds.

        ``seen`` is when it was first seen. A time that is later than that is of another clock.
        """
        first_seen = now if seen is None else seen
        bound_at = first_seen if self.bound_at is None else min(self.bound_at, first_seen)
        return bound_at + UNKNOWN_GPU_SECONDS


def pod_without_gpu(
    pod: Pod, counted: CountedClaim, devices: Mapping[str, Device] | None = None
) -> PodWithoutGpu | None:
    """The bound pod, if not all GPUs that it requests are known by what counts of it.

    ``devices`` are the node's under every name that a share may have.
    """
    if not counted.missing:
        return None
    times = [seconds for seconds in (pod.scheduled_at, pod.started_at) if seconds is not None]
    return PodWithoutGpu(
        pod.ref, counted.missing, min(times, default=None), counted.unread, _named(counted, devices)
    )


def _named(counted: CountedClaim, devices: Mapping[str, Device] | None) -> str:
    """What the annotations name of which the node has nothing."""
    if counted.problem is ClaimProblem.OTHER_NODE:
        return counted.problem.explanation
    if not devices or counted.claim is None:
        return ""
    names = dict.fromkeys(
        physical(share.device)
        for allocation in counted.claim.allocations
        for share in allocation.shares
        if share.device and physical(share.device) not in devices
    )
    if not names:
        return ""
    listed = ", ".join(
        "".join(filter(str.isprintable, name))[:_LONGEST] for name in list(names)[:_MOST_NAMED]
    )
    more = f" and {len(names) - _MOST_NAMED} more" * (len(names) > _MOST_NAMED)
    return f"the annotations name GPU {listed}{more}, which the node does not have"


def kept_free(
    gpus: Sequence[UsedGpu],
    pods: Iterable[PodWithoutGpu],
    now: float,
    seen: Mapping[str, float],
    unit_bytes: int = 1,
) -> tuple[tuple[UsedGpu, ...], float | None]:
    """The GPUs with what is kept free of them in use; and when that changes by itself.

    ``seen`` is when pods were first seen as bound, by UID; ``unit_bytes`` are those of
    :func:`requested_share`.
    """
    kept = list(gpus)
    until: float | None = None
    for pod in sorted(pods, key=lambda each: each.pod):
        end = pod.until(seen.get(pod.pod.uid), now)
        if end > now:
            until = end if until is None else min(until, end)
            places = _everywhere(kept, pod.requests, unit_bytes)
        else:
            places = _on_the_freest(kept, pod.requests, unit_bytes)
        for place, allocations in places.items():
            kept[place] = _taken(kept[place], effective_shares(allocations))
    return tuple(kept), until


def _everywhere(
    gpus: Sequence[UsedGpu], requests: Iterable[Request], unit_bytes: int
) -> dict[int, list[Allocation]]:
    """Each request on every GPU that is large enough; on all GPUs if none is."""
    places: dict[int, list[Allocation]] = {}
    for request in requests:
        large = [place for place, gpu in enumerate(gpus) if _is_large(gpu, request)]
        for place in large or range(len(gpus)):
            share = requested_share(request, gpus[place].device, unit_bytes)
            places.setdefault(place, []).append(_of(request, share))
    return places


def _on_the_freest(
    gpus: Sequence[UsedGpu], requests: Sequence[Request], unit_bytes: int
) -> dict[int, list[Allocation]]:
    """Each request on the GPUs with the most free memory, one container after another.

    An init container uses the GPUs of the others first: it runs before them.
    """
    left = list(gpus)
    places: dict[int, list[Allocation]] = {}
    for request in sorted(requests, key=lambda each: each.kind is ContainerKind.INIT):
        is_init = request.kind is ContainerKind.INIT

        def rank(place: int, is_init: bool = is_init) -> tuple[bool, int, int]:
            gpu = left[place]
            return (is_init and place in places, gpu.free_bytes, gpu.free_milli)

        for place in sorted(range(len(left)), key=rank, reverse=True)[: request.count]:
            share = requested_share(request, gpus[place].device, unit_bytes)
            places.setdefault(place, []).append(_of(request, share))
            if not is_init:
                left[place] = _taken(left[place], (share,))
    for allocations in places.values():  # as they start: init containers run before the others
        allocations.sort(key=lambda each: each.kind is not ContainerKind.INIT)
    return places


def _is_large(gpu: UsedGpu, request: Request) -> bool:
    """Whether the whole GPU is enough for the request."""
    return (request.memory_bytes or 0) <= gpu.capacity_bytes


def _of(request: Request, share: Share) -> Allocation:
    return Allocation(request.container, (share,), Phase.ASSUMED, request.kind)


def _taken(gpu: UsedGpu, shares: Iterable[Share]) -> UsedGpu:
    """The GPU with these shares in use, as far as they are free."""
    for share in shares:
        memory = gpu.capacity_bytes if share.memory_bytes is None else share.memory_bytes
        gpu = gpu.with_share(
            structs.replace(
                share,
                memory_bytes=min(memory, gpu.free_bytes),
                cores_milli=min(share.cores_milli or 0, gpu.free_milli),
            )
        )
    return gpu
