"""What gpu-manager's display tells of a node, made of one sample of the exporter. Pure.

Every scheme's shares count, not gaia's alone: a card that volcano has given away is not free.
What a container asked for is what its limit says. ``clusterName`` and ``SUBMITTER`` are known to
the API server only, which is not asked: they stay empty.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from exporter.view import ShareRow, View
from vgpu import __version__
from vgpu.display.messages import CardUse, ContainerUse, PodUse, State
from vgpu.facts import Gpu, GpuSample, KubeletSample, ProcessSample
from vgpu.ledger.from_node import container_name
from vgpu.model import PodRef, Scheme, Share, Source
from vgpu.reasons import Reason, SourceError
from vgpu.topology import Card, Level, grow
from vgpu.units import MILLI_PER_PERCENT, WHOLE_DEVICE_MILLI

Pair = tuple[str, str]
Pids = Mapping[tuple[str, str, str], tuple[int, ...]]
"""(pod UID, container, device) -> pids."""

Between = Callable[[Gpu, Gpu], Level | None]
"""How near two cards are; None is unknown."""


def by_links(links: Mapping[Pair, int]) -> Between:
    """As the driver says it: by the cards' UUIDs, the lower index first."""
    known = {level.value: level for level in Level}

    def between(first: Gpu, second: Gpu) -> Level | None:
        return known.get(links.get((first.uuid, second.uuid), -1))

    return between


def by_matrix(matrix: Sequence[Sequence[Level]], cards: Sequence[Gpu], subject: str) -> Between:
    """As ``nvidia-smi topo -m`` says it: by the cards' indices.

    Raises SourceError MALFORMED if the matrix has not as many cards as the node.
    """
    most = max((card.index for card in cards), default=-1)
    if len(cards) > len(matrix) or most >= len(matrix):
        detail = f"speaks of {len(matrix)} cards, but the node has {len(cards)}, up to GPU{most}"
        raise SourceError(Reason.MALFORMED, subject, detail)
    return lambda first, second: matrix[first.index][second.index]


def whole_cards(gpu: GpuSample) -> tuple[Gpu, ...]:
    """The cards by index, without their MIG instances."""
    return tuple(sorted((one for one in gpu.gpus if not one.parent), key=lambda one: one.index))


def state_of(
    view: View,
    gpu: GpuSample,
    process: ProcessSample | None,
    kubelet: KubeletSample | None,
    between: Between,
) -> State:
    """The state; a link that is unknown is taken for the farthest, so that no card seems near."""
    gpus = whole_cards(gpu)
    card_of = {one.uuid: one.parent or one.uuid for one in gpu.gpus}
    tree = grow(
        (_card(one, gpu, card_of) for one in gpus),
        lambda low, high: between(gpus[low], gpus[high]) or Level.SYS,
    )
    tree = tree.holding(_promised(view, gpu))
    cards = {card.uuid: card for card in tree.cards}
    pids = _pids(gpu, process, kubelet)
    pods: dict[str, list[ShareRow]] = {}
    for share in view.attribution.shares:
        if share.pod_uid and card_of.get(share.device) in cards:
            pods.setdefault(share.pod_uid, []).append(share)
    return State(
        tree,
        tuple(
            PodUse(
                PodRef(uid, shares[0].namespace, shares[0].pod),
                tuple(_containers(shares, cards, card_of, pids)),
            )
            for uid, shares in pods.items()
        ),
        __version__,
    )


def unknown(view: View, gpu: GpuSample, between: Between) -> Iterator[str]:
    """What the display cannot tell truthfully, in words."""
    for row in view.collectors:
        if not row.success:
            yield f"collector {row.name} fails: {row.last_error}"
    for uuid in gpu.lost:
        yield f"{uuid} no longer answers: it is left out"
    cards = whole_cards(gpu)
    for at, first in enumerate(cards):
        far = [two.index for two in cards[at + 1 :] if between(first, two) is None]
        if far:
            others = ", ".join(f"GPU{index}" for index in far)
            yield (
                f"how GPU{first.index} is joined to {others} is unknown: taken for SYS"
                " (--matrix FILE can tell, from 'nvidia-smi topo -m')"
            )
    for share in _held(view):
        if share.limit_bytes is None and not share.unlimited:
            who = f"{share.namespace or '?'}/{share.pod or share.pod_uid}/{share.container}"
            yield f"the memory limit of {who} is unknown: all of {share.device} counts as taken"


def _card(gpu: Gpu, sample: GpuSample, card_of: Mapping[str, str]) -> Card:
    pids = {one.pid for one in sample.processes if card_of.get(one.device) == gpu.uuid}
    minor = gpu.info.get("minor", "")
    return Card(
        index=gpu.index,
        minor=int(minor) if minor.isdecimal() else gpu.index,
        uuid=gpu.uuid,
        bus_id=gpu.info.get("pci_bus_id", ""),
        memory_bytes=int(gpu.readings.get(("memory_total_bytes",), 0)),
        used_bytes=int(gpu.readings.get(("memory_used_bytes",), 0)),
        pids=tuple(sorted(pids)),
    )


def _held(view: View) -> Iterator[ShareRow]:
    """The shares that were promised; to processes that just run somewhere nobody promised any."""
    seen = view.attribution
    squatters = {
        (row.pod_uid, row.container) for row in seen.containers if row.source is Source.PROCESS
    }
    return (share for share in seen.shares if (share.pod_uid, share.container) not in squatters)


def _promised(view: View, gpu: GpuSample) -> Iterator[Share]:
    """The shares on cards; of a MIG instance its memory, for nobody tells its part of the cores."""
    devices = {one.uuid: one for one in gpu.gpus}
    for share in _held(view):
        device = devices.get(share.device)
        if device is None:
            continue
        if device.parent:
            memory = device.readings.get(("memory_total_bytes",), 0)
            yield Share(device.parent, int(memory), cores_milli=0)
        else:
            yield Share(device.uuid, share.limit_bytes, _cores(share))


def _cores(share: ShareRow) -> int:
    """What was promised of the cores; a scheme that does not speak of them promises none."""
    percent = share.core_request_percent
    if percent is None:
        percent = share.core_limit_percent
    if percent is None:
        return WHOLE_DEVICE_MILLI if share.scheme is Scheme.NONE else 0
    return percent * MILLI_PER_PERCENT


def _pids(
    gpu: GpuSample, process: ProcessSample | None, kubelet: KubeletSample | None
) -> dict[tuple[str, str, str], tuple[int, ...]]:
    owners = process.owners if process and process.sees_host else {}
    names = kubelet.containers if kubelet else {}
    found: dict[tuple[str, str, str], tuple[int, ...]] = {}
    for one in sorted(gpu.processes, key=lambda one: one.pid):
        owner = owners.get(one.pid)
        if owner is not None:
            key = owner.pod_uid, container_name(owner, names), one.device
            found[key] = (*found.get(key, ()), one.pid)
    return found


def _containers(
    shares: Sequence[ShareRow],
    cards: Mapping[str, Card],
    card_of: Mapping[str, str],
    pids: Pids,
) -> Iterator[ContainerUse]:
    """A pod's containers; a limit that is unknown is left out, as the original leaves out zeros."""
    by_container: dict[str, list[ShareRow]] = {}
    for share in shares:
        by_container.setdefault(share.container, []).append(share)
    for name, own in by_container.items():
        everything = any(share.unlimited for share in own)
        yield ContainerUse(
            name=name,
            cores_milli=sum(map(_cores, own)),
            memory_bytes=None if everything else sum(share.limit_bytes or 0 for share in own),
            cards=tuple(
                CardUse(
                    card=cards[card_of[share.device]],
                    sm_percent=round(100 * (share.sm_utilization or 0.0)),
                    used_bytes=share.used_bytes or 0,
                    pids=pids.get((share.pod_uid, share.container, share.device), ()),
                )
                for share in own
            ),
        )
