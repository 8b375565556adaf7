"""The content of gpu-manager's display of a node, from one sample of the exporter. Pure.

The ledger decides who holds what: every scheme's shares count, not only gpu-manager's, and a
reserved share counts like one in use, since a reserved GPU is not free. The attribution decides who
uses what. Only the API server, which is not asked, knows ``clusterName`` and ``SUBMITTER``: they
stay empty.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from exporter.allocations import AllocationTotals
from exporter.view import ExporterView
from vgpu import __version__
from vgpu.ledger.container_usage import ShareUsage
from vgpu.ledger.from_node import minor_number
from vgpu.ledger.usage import container_name
from vgpu.model.allocation import Share
from vgpu.model.facts import Gpu, GpuSample, KubeletSample, ProcessSample
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.topology import LEVELS, PCIE, LinkLevel, TopologyGpu, TopologyTree, grow
from vgpu.model.units import WHOLE_DEVICE_MILLI, count
from vgpucli.topology.messages import ContainerUse, DisplayState, GpuUse, PodUse

Pair = tuple[str, str]
_Place = tuple[str, str, str]
"""Pod UID, container, device."""

_Held = tuple[int, int]
"""Bytes of memory, thousandths of cores."""

Between = Callable[[Gpu, Gpu], LinkLevel | None]
"""The link level of two GPUs; None is unknown."""


def by_links(links: Mapping[Pair, int]) -> Between:
    """The links that the driver reports, by the GPUs' UUIDs, the lower index first."""
    known = {level.value: level for level in LinkLevel}

    def between(first: Gpu, second: Gpu) -> LinkLevel | None:
        return known.get(links.get((first.uuid, second.uuid), -1))

    return between


def with_nvlink(between: Between, nvlinks: Mapping[Pair, bool]) -> Between:
    """The same levels, but NVLINK for the pairs of UUIDs that are joined by it."""

    def nearest(first: Gpu, second: Gpu) -> LinkLevel | None:
        joined = nvlinks.get((first.uuid, second.uuid))
        return LinkLevel.NVLINK if joined else between(first, second)

    return nearest


def by_matrix(
    matrix: Sequence[Sequence[LinkLevel]], gpus: Sequence[Gpu], object_name: str
) -> Between:
    """The links that ``nvidia-smi topo -m`` reports, by the GPUs' indices.

    Raises SourceError MALFORMED if the matrix has not as many GPUs as the node.
    """
    most = max((gpu.index for gpu in gpus), default=-1)
    if len(gpus) > len(matrix) or most >= len(matrix):
        detail = f"has {count(len(matrix), 'GPU')}, but the node has {len(gpus)}, up to GPU{most}"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    return lambda first, second: matrix[first.index][second.index]


def whole_gpus(gpu: GpuSample) -> tuple[Gpu, ...]:
    """The GPUs by index, without their MIG instances."""
    return tuple(
        sorted(
            (device for device in gpu.gpus if not device.parent), key=lambda device: device.index
        )
    )


def state_of(
    view: ExporterView,
    gpu: GpuSample,
    process: ProcessSample | None,
    kubelet: KubeletSample | None,
    between: Between,
    *,
    nearest: Between | None = None,
) -> DisplayState:
    """The state; an unknown link counts as the farthest, so that no GPU seems near.

    ``nearest`` has NVLink, too, which the drawing of ``between`` has not.

    Raises SourceError INTERNAL if the sample has no ledger: then the free capacity is unknown.
    """
    totals = view.allocations
    if totals is None:
        raise SourceError(Reason.INTERNAL, "ledger")
    gpus = whole_gpus(gpu)
    gpu_of = {device.uuid: device.parent or device.uuid for device in gpu.gpus}
    held = _held(totals, gpu)

    def linked(reach: Between, levels: Iterable[LinkLevel]) -> TopologyTree:
        return grow(
            (_gpu(device, gpu, gpu_of, held) for device in gpus),
            lambda low, high: reach(gpus[low], gpus[high]) or LinkLevel.SYS,
            levels,
        )

    tree = linked(between, PCIE)
    by_uuid = {node.uuid: node for node in tree.gpus}
    by_device = {uuid: by_uuid[parent] for uuid, parent in gpu_of.items() if parent in by_uuid}
    return DisplayState(
        tree,
        tuple(_pods(totals, view, by_device, _pids(gpu, process, kubelet))),
        __version__,
        linked(nearest, LEVELS) if nearest else None,
    )


def unknown(view: ExporterView, gpu: GpuSample, between: Between) -> Iterator[str]:
    """The facts that the display cannot show correctly, as text."""
    for row in view.collectors:
        if not row.success:
            yield f"collector {row.name} fails: {row.last_error}"
    for uuid in gpu.lost:
        yield f"{uuid} does not answer: the GPU is skipped"
    gpus = whole_gpus(gpu)
    missing = gpu.counted - len(gpus) - len(gpu.lost)
    if missing > 0:
        yield f"{missing} of {count(gpu.counted, 'GPU')} cannot be identified: skipped"
    for position, first in enumerate(gpus):
        far = [two.index for two in gpus[position + 1 :] if between(first, two) is None]
        if far:
            others = ", ".join(f"GPU{index}" for index in far)
            yield (
                f"the connection of GPU{first.index} to {others} is unknown: SYS is assumed"
                " (--matrix FILE supplies it, from 'nvidia-smi topo -m')"
            )
    uses, here = _uses(view), {device.uuid for device in gpu.gpus}
    for holding in view.allocations.holdings if view.allocations else ():
        pod, share = holding.pod, holding.share
        names = (pod.namespace or "?", pod.name or pod.uid, holding.container)
        who = "/".join(filter(None, names))
        use = uses.get((pod.uid, holding.container, share.device))
        if share.device not in here:
            named = f" ({share.device})" if share.device else ""
            yield f"{who} holds a share of a GPU that is not known here{named}: it is not drawn"
        elif share.memory_bytes is None and not (use and use.unlimited):
            yield f"the memory of {who} is unknown: all of {share.device} counts as taken"


def unknown_nvlinks(gpu: GpuSample, nvlinks: Mapping[Pair, bool]) -> Iterator[str]:
    """The GPUs of which the driver does not report whether NVLink joins them, as text."""
    gpus = whole_gpus(gpu)
    for position, first in enumerate(gpus):
        others = [
            f"GPU{two.index}"
            for two in gpus[position + 1 :]
            if (first.uuid, two.uuid) not in nvlinks
        ]
        if others:
            yield f"whether NVLink joins GPU{first.index} and {', '.join(others)} is unknown"


def _gpu(
    gpu: Gpu, sample: GpuSample, gpu_of: Mapping[str, str], held: Mapping[str, _Held]
) -> TopologyGpu:
    held_bytes, held_milli = held.get(gpu.uuid, (0, 0))
    pids = {process.pid for process in sample.processes if gpu_of.get(process.device) == gpu.uuid}
    return TopologyGpu(
        index=gpu.index,
        minor=minor_number(gpu),
        uuid=gpu.uuid,
        bus_id=gpu.info.get("pci_bus_id", ""),
        memory_bytes=_memory(gpu),
        held_milli=held_milli,
        held_bytes=held_bytes,
        used_bytes=int(gpu.readings.get(("memory_used_bytes",), 0)),
        pids=tuple(sorted(pids)),
    )


def _memory(gpu: Gpu) -> int:
    return int(gpu.readings.get(("memory_total_bytes",), 0))


def _held(totals: AllocationTotals, gpu: GpuSample) -> dict[str, _Held]:
    """The held memory and cores of each GPU.

    All memory is held if the size of a share is unknown, or if a share has all cores. A GPU in MIG
    mode has the memory of its held instances; no source reports their part of its cores.
    """
    whole = {
        holding.share.device
        for holding in totals.holdings
        if (holding.share.cores_milli or 0) >= WHOLE_DEVICE_MILLI
    }
    in_use = {entry.device.uuid: entry for entry in totals.devices if entry.shares}
    held: dict[str, _Held] = {}
    for device in gpu.gpus:
        allocated = in_use.get(device.uuid)
        if allocated is None:
            continue
        known = None if device.parent or device.uuid in whole else allocated.memory_bytes
        memory, cores = held.get(device.parent or device.uuid, (0, 0))
        held[device.parent or device.uuid] = (
            memory + (_memory(device) if known is None else known),
            cores + (0 if device.parent else allocated.cores_milli),
        )
    return held


def _pids(
    gpu: GpuSample, process: ProcessSample | None, kubelet: KubeletSample | None
) -> dict[_Place, tuple[int, ...]]:
    owners = process.owners if process and process.sees_host else {}
    names = kubelet.containers if kubelet else {}
    pids: dict[_Place, tuple[int, ...]] = {}
    for used in sorted(gpu.processes, key=lambda used: used.pid):
        owner = owners.get(used.pid)
        if owner is not None:
            key = owner.pod_uid, container_name(owner, names), used.device
            pids[key] = (*pids.get(key, ()), used.pid)
    return pids


def _uses(view: ExporterView) -> dict[_Place, ShareUsage]:
    return {(row.pod.uid, row.container, row.device): row for row in view.usage.shares}


class _Part(msgspec.Struct, frozen=True):
    """A container on one GPU: its share, its use and its processes."""

    gpu: TopologyGpu
    share: Share | None
    use: ShareUsage | None
    pids: tuple[int, ...]


def _pods(
    totals: AllocationTotals,
    view: ExporterView,
    gpus: Mapping[str, TopologyGpu],
    pids: Mapping[_Place, tuple[int, ...]],
) -> Iterator[PodUse]:
    """Holders of a GPU, and containers that use one that was not allocated to them."""
    uses = _uses(view)
    held = {
        (holding.pod.uid, holding.container, holding.share.device): holding
        for holding in totals.holdings
    }
    refs = {row.pod.uid: row.pod for row in uses.values()}
    refs |= {holding.pod.uid: holding.pod for holding in held.values()}
    pods: dict[str, dict[str, list[_Part]]] = {}
    for place in dict.fromkeys((*held, *uses)):
        uid, container, device = place
        if uid and device in gpus:
            share = held[place].share if place in held else None
            part = _Part(gpus[device], share, uses.get(place), pids.get(place, ()))
            pods.setdefault(uid, {}).setdefault(container, []).append(part)
    for uid, containers in pods.items():
        yield PodUse(
            refs[uid], tuple(_container(name, parts) for name, parts in containers.items())
        )


def _container(name: str, parts: Sequence[_Part]) -> ContainerUse:
    """One container, without unknown memory, as the original leaves out zeros."""
    shares = [part.share for part in parts if part.share]
    everything = any(part.use.unlimited for part in parts if part.use)
    return ContainerUse(
        name=name,
        cores_milli=sum(share.cores_milli or 0 for share in shares),
        memory_bytes=None if everything else sum(share.memory_bytes or 0 for share in shares),
        gpus=tuple(map(_gpu_use, parts)),
    )


def _gpu_use(part: _Part) -> GpuUse:
    if part.use is None:
        return GpuUse(part.gpu, pids=part.pids)
    busy = round(100 * (part.use.sm_utilization or 0.0))
    return GpuUse(part.gpu, busy, part.use.used_bytes or 0, part.pids)
