"""A cluster's shared GPUs as a person asks for them: who holds what, who waits and why, what fits.

Pure: the API server's objects in, values out. On top of the ledgers of all nodes this says for
each container that has no device, or none yet, the reason; and how much of what is free a further
share of the usual size could have.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.kube.objects import NODE_KIND, ContainerState, MalformedObject, Node, Pod
from vgpu.ledger import DeviceEntry, Holding, Ledger, Malformed, Wanted
from vgpu.ledger.cluster import ClusterLedgers, cluster
from vgpu.ledger.from_api import read_pod
from vgpu.ledger.liveness import pods_by_node_uid
from vgpu.model import Phase, PodRef, Request, Scheme
from vgpu.reasons import Explained
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.gaia import node as gaia_node
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare import node as gpushare_node
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.kubeshare.node import GPU_INFO
from vgpu.schemes.kubeshare.sharepod import join
from vgpu.schemes.volcano import legacy as volcano_legacy
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano
from vgpu.units import GIB, MIB

# ---------------------------------------------------------------- what comes out


class WaitingReason(Explained):
    """Why a container has no device; ``explanation`` says it in words."""

    UNREADABLE = "unreadable", "the pod's data about its device cannot be decoded"
    UNSCHEDULABLE = "unschedulable", "no node fits the pod"
    NOT_SCHEDULED = "not_scheduled", "no scheduler has tried to place the pod"
    NO_ANNOTATION = (
        "no_annotation",
        "the pod is bound to its node, but no scheduler chose a device for it",
    )
    RUNNING_WITHOUT = (
        "running_without",
        "the container runs, but no scheduler chose a device for it",
    )
    DEVICE_MISSING = "device_missing", "the container's device is not on the node"
    DEVICE_UNHEALTHY = "device_unhealthy", "the device is unhealthy"
    FAILED = "failed", "the device plugin could not serve the pod"
    NOT_BOUND = "not_bound", "a device is reserved, but the pod is not bound to the node"
    NOT_ASSIGNED = (
        "not_assigned",
        "a device is reserved, but was never allocated",
    )


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A container that has no device, or none yet.

    Attributes:
        pod: whose it is.
        container: its name; "" for the whole pod.
        scheme: in whose language it asks.
        node: where it is bound or promised to; "" if nowhere.
        reason: why.
        detail: the same in the words of who said so; "" if nobody did.
        device: which it was promised or given; "" if none.
        since: for how long it has been so, unix seconds; None if not told.
        request: what it asks for; None if that cannot be read.
    """

    pod: PodRef
    container: str
    scheme: Scheme
    node: str
    reason: WaitingReason
    detail: str = ""
    device: str = ""
    since: float | None = None
    request: Request | None = None


class NodeView(msgspec.Struct, frozen=True, gc=False):
    """A node, who shares its GPUs, and its ledger; ``known`` is false where only pods name it."""

    node: Node
    schemes: tuple[Scheme, ...]
    ledger: Ledger
    known: bool = True


class Probe(msgspec.Struct, frozen=True, gc=False):
    """The share of which it is asked how often it still fits.

    Attributes:
        memory_bytes: of one GPU; None with ``memory_percent`` None is all that the GPU has.
        memory_percent: of the GPU's memory, in place of bytes.
        cores_milli: thousandths of one GPU's cores.
        pending: whose it is: the largest pending request, or None for the most common share.
    """

    memory_bytes: int | None
    memory_percent: int | None
    cores_milli: int
    pending: PodRef | None = None


class FreeCapacity(msgspec.Struct, frozen=True, gc=False):
    """What is left of one scheme's GPUs, and how much of that is of use.

    Attributes:
        scheme: whose GPUs.
        GPUs: how many there are.
        memory_bytes, held_bytes, free_bytes: of all GPUs; free is what is not held.
        probe: the share that was asked about; None if there is nothing to go by.
        fits: how many more such shares there is room for, GPU by GPU.
        usable_bytes: what these would have together. GPUs that are unhealthy, of nodes that are
            not ready or cordoned, with no cores or no slot left, have no room.
    """

    scheme: Scheme
    cards: int
    memory_bytes: int
    held_bytes: int
    free_bytes: int
    probe: Probe | None = None
    fits: int = 0
    usable_bytes: int = 0


class Inventory(msgspec.Struct, frozen=True):
    """All of it.

    Attributes:
        nodes: those with GPUs to share or pods that share, by name.
        pending: by namespace and name of the pod.
        rooms: by scheme.
        notes: what a reader must know to trust the numbers, in words.
    """

    nodes: tuple[NodeView, ...]
    pending: tuple[Pending, ...]
    rooms: tuple[FreeCapacity, ...]
    notes: tuple[str, ...] = ()


# ---------------------------------------------------------------- what goes in


class Objects(msgspec.Struct, frozen=True):
    """What was read of the API server.

    ``pods`` are those that share GPUs; ``unhealthy`` is the text of gpushare's ConfigMaps by node;
    ``malformed`` are the objects that cannot be read.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    unhealthy: Mapping[str, str] = {}
    malformed: tuple[MalformedObject, ...] = ()


class Units(msgspec.Struct, frozen=True):
    """What the operators of the sharing systems have set.

    ``volcano_factor`` is MiB of one unit of Volcano's memory, ``gpushare_unit`` bytes of one unit
    of gpushare's; None is to be guessed by the GPUs.
    """

    volcano_factor: int = 1
    gpushare_unit: int | None = None


def of_node(objects: Objects, name: str) -> Objects:
    """What is on one node, and what is bound nowhere yet."""
    here = ("", name)
    return msgspec.structs.replace(
        objects,
        nodes=tuple(node for node in objects.nodes if node.name == name),
        pods=tuple(pod for pod in objects.pods if pod.node in here),
        share_pods=tuple(pod for pod in objects.share_pods if pod.node in here),
        malformed=tuple(
            each
            for each in objects.malformed
            if (each.name == name if each.kind == NODE_KIND else each.may_be_on(name))
        ),
    )


_SMALLEST_MIB: Final = 1024
"""A GPU of fewer MiB is in truth counted in another unit: no such GPU is shared."""

_HAMI_MARK: Final = "hami.io/"

_NAMED: Final = 3
"""Malformed objects that a note names."""


def inventory(objects: Objects, units: Units) -> Inventory:
    """Everything about the objects that a person asks for. Never raises."""
    said = detect_schemes(objects, units)
    found = cluster(objects.nodes, said.pods, said.codecs, objects.unhealthy)
    views = tuple(sorted(_views(objects.nodes, found), key=lambda view: view.node.name))
    pending = tuple(sorted(_pending(found, views, said.pods, said.codecs), key=_order))
    notes = [*_unread(objects.malformed), *said.notes, *_volcano_notes(views, units)]
    if said.nvidia:
        notes.append(
            "pods with whole GPUs or MIG instances of NVIDIA's own device plugin, which shares"
            f" none, are not shown: {len(said.nvidia)}"
        )
    return Inventory(views, pending, tuple(_rooms(views, pending)), tuple(notes))


def _unread(malformed: Sequence[MalformedObject]) -> Iterator[str]:
    """Which objects cannot be read, as far as there is room to name them."""
    if malformed:
        those = "; ".join(map(str, malformed[:_NAMED]))
        more = f"; and {len(malformed) - _NAMED} more" if len(malformed) > _NAMED else ""
        yield f"malformed objects, whose shares are not counted: {len(malformed)}: {those}{more}"


def only_scheme(found: Inventory, scheme: Scheme) -> Inventory:
    """Of one scheme: its nodes, what waits for it, its room."""
    return msgspec.structs.replace(
        found,
        nodes=tuple(view for view in found.nodes if scheme in view.schemes),
        pending=tuple(one for one in found.pending if one.scheme is scheme),
        rooms=tuple(room for room in found.rooms if room.scheme is scheme),
    )


def only_node(found: Inventory, name: str) -> Inventory:
    """Of one node: what is there, what waits there, and its room for what waits anywhere."""
    views = tuple(view for view in found.nodes if view.node.name == name)
    pending = tuple(one for one in found.pending if one.node == name)
    rooms = tuple(_rooms(views, found.pending))
    return msgspec.structs.replace(found, nodes=views, pending=pending, rooms=rooms)


# ---------------------------------------------------------------- languages and their units


class DetectedSchemes(msgspec.Struct, frozen=True):
    """Who of the objects shares GPUs, and how they are to be read.

    Attributes:
        pods: those that share, with what their SharePods know of them; SharePods without a pod too.
        languages: those that somebody here speaks, in their units.
        nvidia: UIDs of pods with whole GPUs or MIG instances of NVIDIA's own device plugin, which
            shares none.
        notes: what was assumed of the units, in words.
    """

    pods: tuple[Pod, ...]
    codecs: tuple[SchemeCodec, ...]
    nvidia: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def every_codec(volcano_factor: int = 1, gpushare_unit: int = GIB) -> tuple[SchemeCodec, ...]:
    """All languages, in these units (:class:`Units`)."""
    return (
        Volcano(VOLCANO, volcano_factor),
        Volcano(HAMI),
        Gpushare(gpushare_unit),
        Gaia(),
        KubeShare(),
    )


def detect_schemes(objects: Objects, units: Units) -> DetectedSchemes:
    """Who shares GPUs, and in which languages. Never raises."""
    joined = join(objects.pods, objects.share_pods)
    registered = {node.name for node in objects.nodes if HAMI.register in node.annotations}
    nvidia = frozenset(pod.ref.uid for pod in joined if _is_nvidias(pod, registered))
    pods = tuple(pod for pod in joined if pod.ref.uid not in nvidia)
    unit, notes = _gpushare_unit(objects.nodes, units)
    codecs = every_codec(units.volcano_factor, unit)
    return DetectedSchemes(pods, _spoken(objects.nodes, pods, codecs), nvidia, notes)


_MIG: Final = "nvidia.com/mig-"
"""How the names of MIG profiles begin, which nobody but NVIDIA's own plugin offers."""


def _is_nvidias(pod: Pod, hami_nodes: set[str]) -> bool:
    """Whether the pod's GPUs, whole or MIG instances, are of NVIDIA's own plugin and not HAMi's.

    Both use the name ``nvidia.com/gpu``. HAMi writes annotations on its pods and registers its
    nodes.
    """
    asked = {name for container in pod.containers for name in container.limits}
    instances = any(name.startswith(_MIG) for name in asked)
    if asked & {*HAMI.implied_by, VOLCANO.number, *VOLCANO.implied_by}:
        return False
    if any(key.startswith(_HAMI_MARK) for key in pod.annotations):
        return False
    if HAMI.number not in asked:
        return instances
    return pod.node not in hami_nodes if pod.node else not hami_nodes


_KEYS: Final[Mapping[Scheme, tuple[str, ...]]] = {
    Scheme.VOLCANO: ("volcano.sh/",),
    Scheme.GPUSHARE: ("aliyun.com/", "ALIYUN_COM_", "scheduler.framework.gpushare."),
    Scheme.GAIA: ("tencent.com/",),
    Scheme.KUBESHARE: ("kubeshare/", "sharedgpu/"),
}
"""How the keys begin that only a scheme's own nodes and pods have."""

_HAMI_KEYS: Final = (_HAMI_MARK, *HAMI.implied_by)


def _spoken(
    nodes: Iterable[Node], pods: Iterable[Pod], codecs: Iterable[SchemeCodec]
) -> tuple[SchemeCodec, ...]:
    """The languages that somebody here uses; asking the others takes time and says nothing."""
    keys: set[str] = set()
    for node in nodes:
        keys.update(node.annotations, node.capacity)
    for pod in pods:
        keys.update(pod.annotations, pod.labels)
        for container in pod.containers:
            keys.update(container.limits, container.broken)
    said = tuple(keys)
    return tuple(
        codec for codec in codecs if any(key.startswith(_beginnings(codec)) for key in said)
    )


def _beginnings(codec: SchemeCodec) -> tuple[str, ...]:
    hami = isinstance(codec, Volcano) and codec.key_set is HAMI
    return _HAMI_KEYS if hami else _KEYS[codec.scheme]


def _gpushare_unit(nodes: Iterable[Node], units: Units) -> tuple[int, tuple[str, ...]]:
    """Bytes of one unit, and what was assumed.

    The original takes a GPU of more than 100 units to be counted in MiB, so that a GPU of 141
    GiB would have 141 MiB. GPUs of less than a GiB are not shared, nor are there any of a TiB.
    """
    if units.gpushare_unit is not None:
        return units.gpushare_unit, ()
    sizes: dict[str, int] = {}
    for node in nodes:
        count = node.capacity.get(gpushare_node.CARDS, 0)
        if count > 0 and node.capacity.get(gpushare_node.MEMORY, 0) > 0:
            sizes[node.name] = node.capacity[gpushare_node.MEMORY] // count
    if not sizes:
        return GIB, ()
    large, small = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
    unit, name = (MIB, "MiB") if sizes[large] >= _SMALLEST_MIB else (GIB, "GiB")
    said = (
        f"one unit of {gpushare_node.MEMORY} is taken for 1 {name}, since {large} has"
        f" {sizes[large]} of them a GPU; --gpushare.memory-unit settles it"
    )
    if unit == MIB and sizes[small] < _SMALLEST_MIB:
        said += f". Beware: {small} has only {sizes[small]} a GPU, so one of them is wrong"
    return unit, (said,)


def _volcano_notes(views: Iterable[NodeView], units: Units) -> Iterator[str]:
    """GPUs so small that the unit must be larger."""
    for view in views:
        for entry in view.ledger.devices if Scheme.VOLCANO in view.schemes else ():
            memory = entry.device.memory_bytes
            if memory and memory < GIB:
                yield (
                    f"{view.node.name} has a GPU of {memory // MIB} MiB: with what"
                    f" gpu-memory-factor does Volcano's plugin run? It was read with"
                    f" --volcano.memory-factor {units.volcano_factor}"
                )
                return


# ---------------------------------------------------------------- nodes


def _views(nodes: Iterable[Node], found: ClusterLedgers) -> Iterator[NodeView]:
    known = {node.name: node for node in nodes}
    for name, ledger in found.ledgers.items():
        node = known.get(name, Node(name))
        schemes = set(_schemes(node))
        schemes.update(holding.scheme for holding in ledger.holdings)
        schemes.update(wanted.scheme for wanted in ledger.waiting)
        schemes.update(malformed.scheme for malformed in ledger.malformed)
        if ledger.devices or schemes:
            ordered = tuple(scheme for scheme in Scheme if scheme in schemes)
            yield NodeView(node, ordered, ledger, known=name in known)


def _schemes(node: Node) -> Iterator[Scheme]:
    """Whose GPUs the node says it has."""
    has = {
        Scheme.VOLCANO: node.annotations.get(VOLCANO.register)
        or node.annotations.get(HAMI.register)
        or node.capacity.get(volcano_legacy.NUMBER)
        or node.capacity.get(VOLCANO.number),
        Scheme.GPUSHARE: node.capacity.get(gpushare_node.CARDS),
        Scheme.GAIA: node.capacity.get(gaia_node.CORE),
        Scheme.KUBESHARE: node.annotations.get(GPU_INFO),
    }
    return (scheme for scheme, said in has.items() if said)


# ---------------------------------------------------------------- who waits


def _pending(
    found: ClusterLedgers,
    views: Iterable[NodeView],
    pods: Iterable[Pod],
    codecs: Sequence[SchemeCodec],
) -> Iterator[Pending]:
    by_uid = pods_by_node_uid(pods)
    yield from _asking("", found.unbound, found.malformed, by_uid)
    for view in views:
        yield from _asking(view.node.name, view.ledger.waiting, view.ledger.malformed, by_uid)
        for entry in (*view.ledger.devices, None):
            holdings = view.ledger.unplaced if entry is None else entry.holdings
            for holding in holdings:
                pod = by_uid.get(holding.pod.uid)
                if pod is not None and not _runs(pod, holding.container):
                    yield from _promised(view, entry, holding, pod, codecs)


def _runs(pod: Pod, container: str) -> bool:
    """Whether it runs or has run; without a container any of the pod's."""
    return any(
        status.state is not ContainerState.WAITING or status.restarts
        for status in pod.statuses
        if container in ("", status.name)
    )


def _asking(
    node: str, wanted: Iterable[Wanted], malformed: Iterable[Malformed], pods: Mapping[str, Pod]
) -> Iterator[Pending]:
    """Those that hold nothing."""
    unreadable: dict[tuple[str, Scheme], list[str]] = {}
    for one in malformed:
        if one.pod is not None:
            unreadable.setdefault((one.pod.uid, one.scheme), []).append(one.detail)
    asked: set[tuple[str, Scheme]] = set()
    for one_wanted in wanted:
        pod = pods[one_wanted.pod.uid]
        key = (one_wanted.pod.uid, one_wanted.scheme)
        asked.add(key)
        reason, detail = _why(pod, "; ".join(unreadable.get(key, ())), running=one_wanted.running)
        since = pod.scheduled_at if pod.scheduled_at is not None else pod.created_at
        yield Pending(
            one_wanted.pod,
            one_wanted.request.container,
            one_wanted.scheme,
            node,
            reason,
            detail,
            since=since,
            request=one_wanted.request,
        )
    for (uid, scheme), details in unreadable.items():
        pod = pods[uid]
        if (uid, scheme) not in asked and not _runs(pod, ""):
            ref = PodRef(uid, pod.ref.namespace, pod.ref.name)
            detail = "; ".join(details)
            since = pod.created_at
            yield Pending(ref, "", scheme, node, WaitingReason.UNREADABLE, detail, since=since)


def _why(pod: Pod, unreadable: str, *, running: bool) -> tuple[WaitingReason, str]:
    if unreadable:
        return WaitingReason.UNREADABLE, unreadable
    if running:
        return WaitingReason.RUNNING_WITHOUT, ""
    if pod.node:
        return WaitingReason.NO_ANNOTATION, ""
    if pod.unschedulable:
        return WaitingReason.UNSCHEDULABLE, pod.unschedulable
    return WaitingReason.NOT_SCHEDULED, ""


def _promised(
    view: NodeView,
    entry: DeviceEntry | None,
    holding: Holding,
    pod: Pod,
    codecs: Sequence[SchemeCodec],
) -> Iterator[Pending]:
    """A holding that does not run: what is in its way, if it is the device."""
    device = holding.share.device
    detail = ""
    if entry is None and device and _tells_its_cards(view):
        reason = WaitingReason.DEVICE_MISSING
    elif entry is not None and not entry.device.healthy:
        reason = WaitingReason.DEVICE_UNHEALTHY
    elif holding.phase is not Phase.ASSUMED:
        return
    elif any(claim.failed for claim in read_pod(pod, codecs).claims):
        reason = WaitingReason.FAILED
    elif not pod.node:
        reason, detail = WaitingReason.NOT_BOUND, pod.unschedulable
    else:
        reason = WaitingReason.NOT_ASSIGNED
    share = holding.share
    yield Pending(
        holding.pod,
        holding.container,
        holding.scheme,
        view.node.name,
        reason,
        detail,
        device,
        holding.since if holding.since is not None else pod.scheduled_at,
        Request(holding.container, 1, share.memory_bytes, cores_milli=share.cores_milli or 0),
    )


def _tells_its_cards(view: NodeView) -> bool:
    """Whether a GPU that is not among its GPUs is not there; not if what it says is illegible."""
    return view.known and all(one.pod is not None for one in view.ledger.malformed)


def _order(one: Pending) -> tuple[str, str, str, str]:
    return one.pod.namespace, one.pod.name, one.pod.uid, one.container


# ---------------------------------------------------------------- what fits


def _rooms(views: Sequence[NodeView], pending: Sequence[Pending]) -> Iterator[FreeCapacity]:
    for scheme in Scheme:
        of_scheme = [view for view in views if scheme in _schemes(view.node)]
        entries = [entry for view in of_scheme for entry in view.ledger.devices]
        if not entries:
            continue
        probe = _probe(scheme, entries, pending)
        room = FreeCapacity(
            scheme,
            cards=len(entries),
            memory_bytes=sum(entry.device.memory_bytes or 0 for entry in entries),
            held_bytes=sum(entry.held.memory_bytes for entry in entries),
            free_bytes=sum(entry.free_memory_bytes or 0 for entry in entries),
            probe=probe,
        )
        if probe is not None:
            open_to_all = (
                entry
                for view in of_scheme
                if view.node.ready and not view.node.unschedulable
                for entry in view.ledger.devices
            )
            fitting = [_fitting(entry, probe) for entry in open_to_all]
            room = msgspec.structs.replace(
                room,
                fits=sum(count for count, _ in fitting),
                usable_bytes=sum(usable for _, usable in fitting),
            )
        yield room


def _probe(
    scheme: Scheme, entries: Iterable[DeviceEntry], pending: Iterable[Pending]
) -> Probe | None:
    """The largest request that no node takes, else the most common share; of equals the larger."""
    asked = [
        (one.request, one.pod)
        for one in pending
        if one.scheme is scheme and not one.node and one.request is not None
    ]
    if asked:
        request, pod = max(asked, key=lambda one: _size(one[0]))
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
    """All of a GPU is more than a part of it, and that is more than any bytes."""
    whole = request.memory_bytes is None and request.memory_percent is None
    return whole, request.memory_percent or 0, request.memory_bytes or 0, request.cores_milli


def _fitting(entry: DeviceEntry, probe: Probe) -> tuple[int, int]:
    """How many such shares still fit on the GPU, and their bytes."""
    device, free = entry.device, entry.free_memory_bytes
    if not device.healthy or entry.lost or free is None or device.memory_bytes is None:
        return 0, 0
    if probe.memory_bytes is not None:
        memory = probe.memory_bytes
    else:
        memory = device.memory_bytes * (probe.memory_percent or 100) // 100
    bounds = [free // memory] if memory else []
    if probe.cores_milli:
        bounds.append(entry.free_cores_milli // probe.cores_milli)
    if device.slots is not None:
        bounds.append(max(0, device.slots - entry.held.slots))
    count = min(bounds, default=0)
    return count, count * memory
