"""A pod's share of a device at its peak: init containers run one by one, before the others.

Kubernetes calls this the effective request of a pod. The device plugin, the ledger and the exporter
count by this one function. An original scheduler that counts less or more is wrong.
"""

from collections.abc import Iterable, Sequence

from vgpu.model.allocation import Allocation, Share
from vgpu.model.names import ContainerKind


def effective(amounts: Iterable[tuple[ContainerKind, int]]) -> int:
    """The most that the containers of a pod have together at any time.

    ``amounts`` are by container, init containers and sidecars in the order of the pod's spec:

        max(max over init containers i: amount(i) + Σ sidecars before i,  Σ sidecars + Σ others)

    An init container that has succeeded is to be left out.
    """
    largest = sidecars = others = 0
    for kind, amount in amounts:
        if kind is ContainerKind.INIT:
            largest = max(largest, sidecars + amount)
        elif kind is ContainerKind.SIDECAR:
            sidecars += amount
        else:
            others += amount
    return max(largest, sidecars + others)


def effective_shares(allocations: Sequence[Allocation]) -> tuple[Share, ...]:
    """Shares that come to the pod's peak of each device, in memory, cores and number.

    ``allocations`` are as for :func:`effective`. They are the containers' own shares where all run
    at the same time. Else the first share of a device has the peaks, and the rest only slots.
    """
    own = tuple(share for allocation in allocations for share in allocation.shares)
    if not any(allocation.kind is ContainerKind.INIT for allocation in allocations):
        return own
    return tuple(
        share
        for device in dict.fromkeys(share.device for share in own)
        for share in _peak(device, allocations)
    )


def _peak(device: str, allocations: Iterable[Allocation]) -> Iterable[Share]:
    here = [
        (allocation.kind, [share for share in allocation.shares if share.device == device])
        for allocation in allocations
    ]
    whole = any(share.memory_bytes is None for _, shares in here for share in shares)
    memory = effective((kind, sum(s.memory_bytes or 0 for s in shares)) for kind, shares in here)
    cores = effective((kind, sum(s.cores_milli or 0 for s in shares)) for kind, shares in here)
    yield Share(device, None if whole else memory, cores)
    for _ in range(effective((kind, len(shares)) for kind, shares in here) - 1):
        yield Share(device, 0, 0)
