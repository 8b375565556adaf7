"""The free capacity of each scheme's GPUs, and the part that further shares could use."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from vgpu.inventory.model import (
    FreeCapacity,
    NodeView,
    Pending,
    Probe,
    UnavailableMemory,
    UnavailableReason,
)
from vgpu.ledger import DeviceEntry
from vgpu.model.allocation import Request
from vgpu.model.names import Scheme
from vgpu.schemes.registry import registry

_SHORT: Final = 12
"""Length of a UUID that identifies a GPU for people: GPU-8dcd427f."""


def free_capacities(
    views: Sequence[NodeView], pending: Sequence[Pending]
) -> Iterator[FreeCapacity]:
    """The free capacity of each scheme's GPUs on these nodes, for all pending containers."""
    for scheme in registry().schemes:
        of_scheme = [view for view in views if scheme in registry().schemes_of(view.node)]
        entries = [entry for view in of_scheme for entry in view.ledger.devices]
        if not entries:
            continue
        probe = _probe(scheme, entries, pending)
        capacity = FreeCapacity(
            scheme,
            gpus=len(entries),
            memory_bytes=sum(entry.device.memory_bytes or 0 for entry in entries),
            held_bytes=sum(entry.held.memory_bytes for entry in entries),
            free_bytes=sum(
                view.free_memory_bytes(entry) or 0
                for view in of_scheme
                for entry in view.ledger.devices
            ),
            probe=probe,
            apart=tuple(_apart(of_scheme)),
            kept_bytes=sum(view.kept_bytes for view in of_scheme),
        )
        if probe is not None:
            schedulable = (
                (view, entry)
                for view in of_scheme
                if view.node.ready and not view.node.unschedulable
                for entry in view.ledger.devices
            )
            fitting = [_fitting(view, entry, probe) for view, entry in schedulable]
            capacity = msgspec.structs.replace(
                capacity,
                fits=sum(count for count, _ in fitting),
                usable_bytes=sum(usable for _, usable in fitting),
            )
        yield capacity


def unavailable(view: NodeView, entry: DeviceEntry) -> UnavailableReason | None:
    """Why no new share can have the free memory of this GPU; None if it can."""
    if not view.node.ready:
        return UnavailableReason.NOT_READY
    if view.node.unschedulable:
        return UnavailableReason.CORDONED
    is_bad = not entry.device.healthy or entry.lost
    return UnavailableReason.UNHEALTHY if is_bad else None


def available_bytes(view: NodeView) -> int:
    """The free memory of a node that new shares can have."""
    return sum(
        view.free_memory_bytes(entry) or 0
        for entry in view.ledger.devices
        if unavailable(view, entry) is None
    )


def _apart(views: Iterable[NodeView]) -> Iterator[UnavailableMemory]:
    """Free memory of unhealthy GPUs, and of nodes that take no pods, each GPU once."""
    sums: dict[UnavailableReason, tuple[int, dict[str, None]]] = {}
    for view in views:
        for entry in view.ledger.devices:
            reason = unavailable(view, entry)
            free = view.free_memory_bytes(entry)
            if reason is None or not free:
                continue
            memory, names = sums.get(reason, (0, {}))
            name = view.node.name
            if reason is UnavailableReason.UNHEALTHY:
                name += f" {entry.device.name[:_SHORT]}"
            sums[reason] = memory + free, {**names, name: None}
    for reason in UnavailableReason:
        if reason in sums:
            yield UnavailableMemory(reason, sums[reason][0], tuple(sums[reason][1]))


def _probe(
    scheme: Scheme, entries: Iterable[DeviceEntry], pending: Iterable[Pending]
) -> Probe | None:
    """The largest request without a node, else the most common share (of equals the larger)."""
    requests = [
        (waiting.request, waiting.pod)
        for waiting in pending
        if waiting.scheme is scheme and not waiting.node and waiting.request is not None
    ]
    if requests:
        request, pod = max(requests, key=lambda item: _size(item[0]))
        return Probe(request.memory_bytes, request.memory_percent, request.cores_milli, pod)
    shares = Counter(
        (holding.share.memory_bytes, holding.share.cores_milli or 0)
        for entry in entries
        for holding in entry.holdings
        if holding.scheme is scheme and holding.share.memory_bytes
    )
    if not shares:
        return None
    (memory, cores), _ = max(shares.items(), key=lambda item: (item[1], item[0]))
    return Probe(memory, None, cores)


def _size(request: Request) -> tuple[int, int, int, int]:
    """The order of requests: a whole GPU is more than a part of it, a part more than any bytes."""
    whole = request.memory_bytes is None and request.memory_percent is None
    return whole, request.memory_percent or 0, request.memory_bytes or 0, request.cores_milli


def _fitting(view: NodeView, entry: DeviceEntry, probe: Probe) -> tuple[int, int]:
    """The number of such shares that still fit on the GPU, and their bytes."""
    device, free = entry.device, view.free_memory_bytes(entry)
    if not device.healthy or entry.lost or free is None or device.memory_bytes is None:
        return 0, 0
    if probe.memory_bytes is not None:
        memory = probe.memory_bytes
    else:
        memory = device.memory_bytes * (probe.memory_percent or 100) // 100
    bounds = [free // memory] if memory else []
    if probe.cores_milli:
        bounds.append(view.free_cores_milli(entry) // probe.cores_milli)
    if device.slots is not None:
        used = entry.held.slots + view.kept_of(entry).slots
        bounds.append(max(0, device.slots - used))
    count = min(bounds, default=0)
    return count, count * memory
