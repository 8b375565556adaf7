"""What gpu-manager's display tells of a node, made of one sample of the exporter. Pure.

Who holds what is the ledger's to say: every scheme's shares count, not gpu-manager's alone, and a
promised share as much as one in use, for a GPU that is promised away is not free. Who uses what is
the attribution's. ``clusterName`` and ``SUBMITTER`` are known to the API server only, which is not
asked: they stay empty.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from exporter.allocations import AllocationTotals
from exporter.view import ExporterView, ShareRow
from vgpu import __version__
from vgpu.display.messages import CardUse, ContainerUse, DisplayState, PodUse
from vgpu.facts import Gpu, GpuSample, KubeletSample, ProcessSample
from vgpu.ledger.owners import container_name
from vgpu.model import PodRef, Share
from vgpu.reasons import Reason, SourceError
from vgpu.topology import LinkLevel, TopologyGpu, grow
from vgpu.units import WHOLE_DEVICE_MILLI

Pair = tuple[str, str]
_Place = tuple[str, str, str]
"""Pod UID, container, device."""

_Held = tuple[int, int]
"""Bytes of memory, thousandths of cores."""

Between = Callable[[Gpu, Gpu], LinkLevel | None]
"""How near two GPUs are; None is unknown."""


def by_links(links: Mapping[Pair, int]) -> Between:
    """As the driver reports it: by the GPUs' UUIDs, the lower index first."""
    known = {level.value: level for level in LinkLevel}

    def between(first: Gpu, second: Gpu) -> LinkLevel | None:
        return known.get(links.get((first.uuid, second.uuid), -1))

    return between


def by_matrix(matrix: Sequence[Sequence[LinkLevel]], cards: Sequence[Gpu], subject: str) -> Between:
    """As ``nvidia-smi topo -m`` reports it: by the GPUs' indices.

    Raises SourceError MALFORMED if the matrix has not as many GPUs as the node.
    """
    most = max((card.index for card in cards), default=-1)
    if len(cards) > len(matrix) or most >= len(matrix):
        detail = f"speaks of {len(matrix)} GPUs, but the node has {len(cards)}, up to GPU{most}"
        raise SourceError(Reason.MALFORMED, subject, detail)
    return lambda first, second: matrix[first.index][second.index]


def whole_cards(gpu: GpuSample) -> tuple[Gpu, ...]:
    """The GPUs by index, without their MIG instances."""
    return tuple(sorted((one for one in gpu.gpus if not one.parent), key=lambda one: one.index))


def state_of(
    view: ExporterView,
    gpu: GpuSample,
    process: ProcessSample | None,
    kubelet: KubeletSample | None,
    between: Between,
) -> DisplayState:
    """The state; a link that is unknown is taken for the farthest, so that no GPU seems near.

    Raises SourceError INTERNAL if the sample has no ledger: then nobody knows what is free.
    """
    books = view.books
    if books is None:
        raise SourceError(Reason.INTERNAL, "ledger")
    gpus = whole_cards(gpu)
    card_of = {one.uuid: one.parent or one.uuid for one in gpu.gpus}
    held = _held(books, gpu)
    tree = grow(
        (_card(one, gpu, card_of, held) for one in gpus),
        lambda low, high: between(gpus[low], gpus[high]) or LinkLevel.SYS,
    )
    named = {card.uuid: card for card in tree.cards}
    cards = {uuid: named[card] for uuid, card in card_of.items() if card in named}
    return DisplayState(
        tree, tuple(_pods(books, view, cards, _pids(gpu, process, kubelet))), __version__
    )


def unknown(view: ExporterView, gpu: GpuSample, between: Between) -> Iterator[str]:
    """What the display cannot show truthfully, as text."""
    for row in view.collectors:
        if not row.success:
            yield f"collector {row.name} fails: {row.last_error}"
    for uuid in gpu.lost:
        yield f"{uuid} no longer answers: the GPU is skipped"
    cards = whole_cards(gpu)
    for at, first in enumerate(cards):
        far = [two.index for two in cards[at + 1 :] if between(first, two) is None]
        if far:
            others = ", ".join(f"GPU{index}" for index in far)
            yield (
                f"the connection of GPU{first.index} to {others} is unknown: SYS is assumed"
                " (--matrix FILE supplies it, from 'nvidia-smi topo -m')"
            )
    uses, here = _uses(view), {one.uuid for one in gpu.gpus}
    for holding in view.books.holdings if view.books else ():
        pod, share = holding.pod, holding.share
        names = (pod.namespace or "?", pod.name or pod.uid, holding.container)
        who = "/".join(filter(None, names))
        use = uses.get((pod.uid, holding.container, share.device))
        if share.device not in here:
            told = f" ({share.device})" if share.device else ""
            yield f"{who} holds a share of a GPU that is not known here{told}: it is not drawn"
        elif share.memory_bytes is None and not (use and use.unlimited):
            yield f"the memory of {who} is unknown: all of {share.device} counts as taken"


def _card(
    gpu: Gpu, sample: GpuSample, card_of: Mapping[str, str], held: Mapping[str, _Held]
) -> TopologyGpu:
    held_bytes, held_milli = held.get(gpu.uuid, (0, 0))
    pids = {one.pid for one in sample.processes if card_of.get(one.device) == gpu.uuid}
    minor = gpu.info.get("minor", "")
    return TopologyGpu(
        index=gpu.index,
        minor=int(minor) if minor.isdecimal() else gpu.index,
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


def _held(books: AllocationTotals, gpu: GpuSample) -> dict[str, _Held]:
    """What is taken of each GPU.

    All its memory, if the size of one of its shares is unknown, or if one has all its cores. Of a
    GPU in MIG mode the memory of the instances that are taken; no source reports their part of its
    cores.
    """
    whole = {
        holding.share.device
        for holding in books.holdings
        if (holding.share.cores_milli or 0) >= WHOLE_DEVICE_MILLI
    }
    taken = {one.device.uuid: one for one in books.devices if one.shares}
    held: dict[str, _Held] = {}
    for device in gpu.gpus:
        allocated = taken.get(device.uuid)
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
    found: dict[_Place, tuple[int, ...]] = {}
    for one in sorted(gpu.processes, key=lambda one: one.pid):
        owner = owners.get(one.pid)
        if owner is not None:
            key = owner.pod_uid, container_name(owner, names), one.device
            found[key] = (*found.get(key, ()), one.pid)
    return found


def _uses(view: ExporterView) -> dict[_Place, ShareRow]:
    return {(row.pod_uid, row.container, row.device): row for row in view.attribution.shares}


class _Part(msgspec.Struct, frozen=True):
    """A container on one GPU: what it holds of it, and what it uses."""

    card: TopologyGpu
    share: Share | None
    use: ShareRow | None
    pids: tuple[int, ...]


def _pods(
    books: AllocationTotals,
    view: ExporterView,
    cards: Mapping[str, TopologyGpu],
    pids: Mapping[_Place, tuple[int, ...]],
) -> Iterator[PodUse]:
    """Holders of a GPU, and containers that use one that was not allocated to them."""
    uses = _uses(view)
    held = {(one.pod.uid, one.container, one.share.device): one for one in books.holdings}
    refs = {row.pod_uid: PodRef(row.pod_uid, row.namespace, row.pod) for row in uses.values()}
    refs |= {holding.pod.uid: holding.pod for holding in held.values()}
    pods: dict[str, dict[str, list[_Part]]] = {}
    for place in dict.fromkeys((*held, *uses)):
        uid, container, device = place
        if uid and device in cards:
            share = held[place].share if place in held else None
            part = _Part(cards[device], share, uses.get(place), pids.get(place, ()))
            pods.setdefault(uid, {}).setdefault(container, []).append(part)
    for uid, containers in pods.items():
        yield PodUse(refs[uid], tuple(_container(name, its) for name, its in containers.items()))


def _container(name: str, parts: Sequence[_Part]) -> ContainerUse:
    """One container; memory that is unknown is left out, as the original leaves out zeros."""
    shares = [part.share for part in parts if part.share]
    everything = any(part.use.unlimited for part in parts if part.use)
    return ContainerUse(
        name=name,
        cores_milli=sum(share.cores_milli or 0 for share in shares),
        memory_bytes=None if everything else sum(share.memory_bytes or 0 for share in shares),
        cards=tuple(map(_card_use, parts)),
    )


def _card_use(part: _Part) -> CardUse:
    if part.use is None:
        return CardUse(part.card, pids=part.pids)
    busy = round(100 * (part.use.sm_utilization or 0.0))
    return CardUse(part.card, busy, part.use.used_bytes or 0, part.pids)
