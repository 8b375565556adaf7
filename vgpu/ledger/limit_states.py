"""The evidence of each container's limit, gathered from one sample, and the verdicts. Pure.

It is read from the ledger, from the use of the node, and from what the collectors brought; the
meaning is in :mod:`vgpu.ledger.limit_verdict`.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from vgpu.ledger.conflicts import ConflictKind
from vgpu.ledger.container_usage import ContainerUsage, NodeUsage, ShareUsage
from vgpu.ledger.entries import Holding
from vgpu.ledger.from_api import node_ref
from vgpu.ledger.index import LedgerIndex
from vgpu.ledger.limit_verdict import (
    LimitedProcess,
    LimitEvidence,
    LimitReason,
    Linked,
    verdict,
    worst,
)
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.node import NodeFiles
from vgpu.ledger.statements import LIMITS
from vgpu.ledger.usage import Place, is_over
from vgpu.model.allocation import Share
from vgpu.model.facts import CollectorSamples, LinkedProcess, NodeLibrary
from vgpu.model.names import Phase, PodRef, Scheme, Sharing, Source
from vgpu.model.objects import Node, Pod
from vgpu.model.units import MIB, WHOLE_DEVICE_MILLI
from vgpu.schemes.kai.keys import KAI as KAI_SCHEME
from vgpu.schemes.kai.request import AskedFraction, label_mib
from vgpu.schemes.limit_ways import (
    GKE_MPS,
    HAMI_CORE,
    KAI,
    MIG,
    MPS,
    TIME_SLICING,
    UNREAD,
    WHOLE_GPU,
    LibraryFile,
    LimitKind,
    LimitWay,
)
from vgpu.schemes.other_schedulers import asked_fraction, unread_containers
from vgpu.schemes.registry import registry
from vgpu.schemes.volcano.env import is_controlled

OverCounts = Mapping[tuple[str, str, str], int]
"""(pod UID, container, device) -> number of consecutive samples over the limit, 2 for more."""

_OF_SHARING: Mapping[Sharing, LimitWay] = {
    Sharing.EXCLUSIVE: WHOLE_GPU,
    Sharing.TIME_SLICING: TIME_SLICING,
    Sharing.MIG_TIME_SLICING: TIME_SLICING,
    Sharing.MPS: MPS,
    Sharing.MIG: MIG,
    Sharing.UNKNOWN: UNREAD,
}

_PROCESS_ONLY = (Source.PROCESS,)

SIZE_CONFLICTS = frozenset({ConflictKind.SIZE_DIFFERS, ConflictKind.LIMIT_DIFFERS})
"""Conflicts of the ledger about how large a share or its limit is."""

CONTRADICTING = frozenset(
    {"nvml", "process", "shim", "kubelet", "limits", "own", "pods", "resource_claims"}
)
"""The collectors whose data may contradict any set-up."""


class LimitSources(msgspec.Struct, frozen=True):
    """What the verdicts need beside the ledger and the use.

    Attributes:
        incomplete: the collectors that are on and did not bring all of their data.
        disabled: the containers whose spec has CUDA_DISABLE_CONTROL.
        over: the counts of the sample before.
        fractions: UID on the node -> what a pod of KAI asks for.
        label_mib: the memory of each GPU by the label of the node, in MiB; None without one.
        unread: the containers with shares that vgpu does not read, and their pods.
        asking: the containers that request GPUs of a system that vgpu reads.
    """

    incomplete: AbstractSet[str] = frozenset()
    disabled: AbstractSet[Place] = frozenset()
    over: OverCounts = {}
    fractions: Mapping[str, AskedFraction] = {}
    label_mib: int | None = None
    unread: Mapping[Place, PodRef] = {}
    asking: AbstractSet[Place] = frozenset()


def limit_sources(
    pods: Iterable[Pod],
    incomplete: AbstractSet[str],
    over: OverCounts,
    node: Node | None = None,
) -> LimitSources:
    """What the verdicts need of the node and its pods, as the API server knows them."""
    disabled: set[Place] = set()
    fractions: dict[str, AskedFraction] = {}
    unread: dict[Place, PodRef] = {}
    asking: set[Place] = set()
    for pod in pods:
        uid = node_uid(pod)
        disabled.update(
            (uid, container.name)
            for container in pod.containers
            if container.env and not is_controlled(container.env)
        )
        asked = asked_fraction(pod)
        if asked is not None:
            fractions[uid] = asked
        if pod.phase == "Running":
            ref = node_ref(pod)
            unread.update(((uid, name), ref) for name in unread_containers(pod))
        asking.update(
            (uid, container.name)
            for container in pod.containers
            if container.broken or any(container.limits.values())
        )
    return LimitSources(incomplete, disabled, over, fractions, label_mib(node), unread, asking)


def _unreported(usage: NodeUsage, sources: LimitSources) -> Iterator[ContainerUsage]:
    """The containers with an unread share that have no GPU process yet."""
    names: dict[str, set[str]] = {}
    for one in usage.containers:
        names.setdefault(one.pod.uid, set()).add(one.container)
    for (uid, name), pod in sources.unread.items():
        if names.get(uid, set()).isdisjoint((name, "")):
            yield ContainerUsage(pod, name, Scheme.NONE, Source.ANNOTATIONS)


def with_limits(
    usage: NodeUsage,
    index: LedgerIndex,
    files: NodeFiles,
    samples: CollectorSamples,
    sources: LimitSources,
) -> tuple[NodeUsage, OverCounts]:
    """The usage with the verdict of each container that has a share, and the new counts."""
    gather = _Gatherer(usage, index, files, samples, sources)
    containers = [
        container
        if (reason := gather.reason(container)) is container.limit_reason
        else msgspec.structs.replace(container, limit_reason=reason)
        for container in (*usage.containers, *_unreported(usage, sources))
    ]
    judged = msgspec.structs.replace(
        usage, containers=tuple(containers), library_writers=gather.library_writers()
    )
    return judged, gather.over


class _Region(msgspec.Struct, frozen=True):
    """What the region of a container shows: the host pids of its live slots, and its devices."""

    pids: frozenset[int]
    devices: frozenset[str]


class _Gatherer:
    """Gathers the evidence of containers from one sample; ``over`` are the new counts."""

    def __init__(
        self,
        usage: NodeUsage,
        index: LedgerIndex,
        files: NodeFiles,
        samples: CollectorSamples,
        sources: LimitSources,
    ) -> None:
        self._index = index
        self._containers = usage.containers
        self._samples = samples
        self._sources = sources
        self._unread_pods = {uid for uid, _ in sources.unread}
        self._failed = not CONTRADICTING.isdisjoint(sources.incomplete)
        self.over: dict[tuple[str, str, str], int] = {}
        process, gpu = samples.process, samples.gpu
        self._sees = process.sees_host if process else "process" in sources.incomplete
        self._known = gpu.processes_known if gpu and process and self._sees else frozenset[str]()
        self._instances = {each.uuid for each in gpu.gpus if each.parent} if gpu else set[str]()
        self._pids = {
            (each.pod_uid, each.container, each.device): each.pids for each in usage.processes
        }
        self._regions = {
            (report.file.pod_uid, report.file.container): _Region(
                frozenset(filter(None, report.host_pids)),
                frozenset(device.uuid for device in report.file.region.devices),
            )
            for report in (*files.regions_inside, *files.regions)
            if report.statement is not None
        }
        answers = (*index.grants, *index.own)
        self._answered = {
            (statement.pod.uid, statement.container)
            for statement, _ in answers
            if any(statement.limits) or statement.source is Source.OWN_CHECKPOINT
        }
        self._differing = {
            (conflict.pod.uid, conflict.container, conflict.device)
            for conflict in index.ledger.conflicts
            if conflict.pod is not None and conflict.kind in SIZE_CONFLICTS
        }
        self._clients = (
            {(each.pid, each.device) for each in gpu.processes if each.mps} if gpu else set()
        )
        self._with_clients = {device for _, device in self._clients}

    def reason(self, container: ContainerUsage) -> LimitReason | None:
        """The verdict about a container; None for one without a share."""
        if container.phase is Phase.RELEASED:
            return None
        of_pod = self._index.holdings.get(container.pod.uid, {})
        by_device = of_pod.get(container.container) or of_pod.get("", {})
        holdings = [each for each in by_device.values() if each.sources != _PROCESS_ONLY]
        if not holdings and container.scheme is not Scheme.NONE:
            holdings = [_unheld(share, container) for share in container.shares.values()]
        if not holdings:
            return self._of_unread(container)
        return worst(verdict(self._evidence(container, holding)) for holding in holdings)

    def _of_unread(self, container: ContainerUsage) -> LimitReason | None:
        """The verdict about a container whose share is in no source; None if it has none."""
        uid = container.pod.uid
        asked = self._sources.fractions.get(uid)
        if asked is not None and container.shares:
            shares = container.shares.values()
            return worst(verdict(self._of_fraction(container, share, asked)) for share in shares)
        if asked is not None:
            way = self._fraction_way()
            unlimited = verdict(LimitEvidence(way, failed=self._failed))
            return LimitReason.NO_PROCESS if way is KAI else unlimited
        place = uid, container.container
        is_unread = uid in self._unread_pods or place in self._sources.asking
        return verdict(LimitEvidence(UNREAD, failed=self._failed)) if is_unread else None

    def library_writers(self) -> dict[str, tuple[tuple[PodRef, str], ...]] | None:
        """The containers that can change a library of the node; None if maps are not read."""
        process = self._samples.process
        if process is None or not process.reads_maps:
            return None
        places: dict[str, dict[tuple[PodRef, str], None]] = {
            file.library: {} for file in process.libraries or ()
        }
        own = {(file.device, file.inode): file.library for file in process.libraries or ()}
        pods = {usage.pod.uid: usage.pod for usage in self._containers}
        for (uid, container, _), pids in self._pids.items():
            for pid in pids:
                linked = process.linked.get(pid)
                for file in linked.files if linked else ():
                    library = own.get((file.device, file.inode))
                    if file.writable and library is not None and uid in pods:
                        places[library][pods[uid], container] = None
        return {library: tuple(sorted(found)) for library, found in places.items()}

    def _evidence(self, container: ContainerUsage, holding: Holding) -> LimitEvidence:
        device = holding.share.device
        place = container.pod.uid, container.container
        share = container.shares.get(device) or ShareUsage(device)
        asked = self._sources.fractions.get(container.pod.uid)
        if holding.scheme is KAI_SCHEME and asked is not None:
            return self._of_fraction(container, share, asked)
        way = self._way(container, holding, share)
        if way.kind in (LimitKind.NOBODY, LimitKind.DRIVER):
            has_instance = device in self._instances
            return LimitEvidence(way, has_instance=has_instance, failed=self._failed)
        process = self._samples.process
        known = device in self._known and (
            share.used_bytes is not None or device not in container.shares
        )
        pids = self._pids.get((*place, device), ()) if known else ()
        region = self._regions.get(place)
        limit = 0 if share.unlimited else share.limit_bytes
        if way.kind is LimitKind.DAEMON:
            limit = share.process_limit_bytes
        reserved = holding.share.memory_bytes
        return LimitEvidence(
            way,
            reads_maps=process is not None and process.reads_maps,
            sees_processes=self._sees,
            processes=tuple([self._process(pid, device, way, region) for pid in pids])
            if known
            else None,
            reserved_bytes=reserved,
            limit_bytes=limit,
            differs=(*place, device) in self._differing
            or (holding.pod.uid, holding.container, device) in self._differing,
            other_gpu=region is not None and not region.devices <= self._devices_of(place),
            answered=place in self._answered,
            region=None if region is None else bool(region.pids),
            over_samples=self._over(place, share, pids, limit or reserved, way) if known else 0,
            failed=self._failed,
            disabled=place in self._sources.disabled,
            has_module=process.has_cgpu if process else None,
        )

    def _fraction_way(self) -> LimitWay:
        """How KAI limits on this node: by its isolator, if that is installed."""
        sample = self._samples.process
        if sample is None or not sample.reads_maps or sample.libraries is None:
            return UNREAD
        installed = {file.library for file in sample.libraries}
        is_installed = KAI.library is not None and KAI.library.name in installed
        return KAI if is_installed else TIME_SLICING

    def _of_fraction(
        self, container: ContainerUsage, share: ShareUsage, asked: AskedFraction
    ) -> LimitEvidence:
        """The evidence of a container of KAI, which is limited only where the isolator is."""
        sample, place = self._samples.process, (container.pod.uid, container.container)
        known = share.device in self._known and share.used_bytes is not None
        pids = self._pids.get((*place, share.device), ()) if known else ()
        device = self._index.registry.devices.get(share.device)
        size = device.memory_bytes if device else None
        limit_mib = asked.limit_mib(self._sources.label_mib or (size // MIB if size else None))
        reserved = None if limit_mib is None else limit_mib * MIB
        way = self._fraction_way()
        if way is not KAI or sample is None:
            over = self._over(place, share, pids, reserved, way)
            return LimitEvidence(way, over_samples=over, failed=self._failed)
        found = [sample.linked[pid].limit_bytes for pid in pids if pid in sample.linked]
        limits = [limit for limit in found if limit is not None]
        limit = 0 if 0 in limits else max(limits) if limits and len(limits) == len(found) else None
        if limit and reserved and abs(limit - reserved) <= MIB:
            reserved = limit
        processes = tuple([self._process(pid, share.device, KAI, None) for pid in pids])
        return LimitEvidence(
            KAI,
            reads_maps=True,
            sees_processes=self._sees,
            processes=processes if known else None,
            reserved_bytes=reserved,
            limit_bytes=limit,
            over_samples=self._over(place, share, pids, limit or reserved, KAI),
            failed=self._failed,
            disabled=place in self._sources.disabled,
        )

    def _way(self, container: ContainerUsage, holding: Holding, share: ShareUsage) -> LimitWay:
        """How the system of the share limits."""
        if share.sharing is not None:
            way = _OF_SHARING[share.sharing]
            # Only GKE's plugin gives replicas of MPS an amount, and only by its answer.
            has_amount = holding.share.memory_bytes or holding.share.cores_milli
            return GKE_MPS if way is MPS and has_amount else way
        if self._index.registry.parent(share.device):
            return MIG
        if holding.resource_claim_shares:
            parts = holding.resource_claim_shares
            is_whole = not any(part.resource_claim_device.share_id for part in parts)
            return HAMI_CORE if container.layout else WHOLE_GPU if is_whole else UNREAD
        if holding.scheme is KAI_SCHEME:
            return self._fraction_way()
        row = registry().of(holding.scheme)
        way = row.limit_way if row else UNREAD
        return WHOLE_GPU if self._is_whole(holding, way) else way

    def _is_whole(self, holding: Holding, way: LimitWay) -> bool:
        """Whether the share is a whole GPU, by a source that no tenant writes.

        HAMi may keep its library out of containers that have whole GPUs (HAMi#2748).
        """
        if way.kind is not LimitKind.LIBRARY:
            return False
        cores, memory = holding.share.cores_milli or 0, holding.share.memory_bytes or 0
        device = self._index.registry.devices.get(holding.share.device)
        size = device.memory_bytes if device else None
        is_sized = holding.sized_by is not None and holding.sized_by not in LIMITS
        has_all_memory = bool(size) and is_sized and memory >= (size or 0)
        return has_all_memory or (way.whole_is_free and cores >= WHOLE_DEVICE_MILLI)

    def _devices_of(self, place: Place) -> AbstractSet[str]:
        of_pod = self._index.holdings.get(place[0], {})
        held = of_pod.get(place[1]) or of_pod.get("")
        return held.keys() if held else self._regions[place].devices

    def _over(
        self,
        place: Place,
        share: ShareUsage,
        pids: Iterable[int],
        limit: int | None,
        way: LimitWay,
    ) -> int:
        """The number of samples in which the use was over the limit, and keep it."""
        if not limit:
            return 0
        if way.kind is LimitKind.DAEMON:
            gpu, own = self._samples.gpu, set(pids)
            uses = [
                each.used_bytes or 0
                for each in (gpu.processes if gpu else ())
                if each.pid in own and each.device == share.device
            ]
        else:
            uses = [share.used_bytes or 0]
        if not any(is_over(used, limit) for used in uses):
            return 0
        key = (*place, share.device)
        self.over[key] = min(2, self._sources.over.get(key, 0) + 1)
        return self.over[key]

    def _process(
        self, pid: int, device: str, way: LimitWay, region: _Region | None
    ) -> LimitedProcess:
        """What is known of a GPU process."""
        if way.kind is LimitKind.DAEMON:
            is_client = (pid, device) in self._clients
            has_clients = device in self._with_clients
            return LimitedProcess(is_client=is_client if has_clients else None)
        sample = self._samples.process
        has_slot = region is not None and pid in region.pids
        linked = sample.linked.get(pid) if sample else None
        if sample is None or linked is None or way.library is None:
            is_static = sample is not None and pid in sample.static
            return LimitedProcess(Linked.STATIC if is_static else None, has_slot=has_slot)
        libraries = sample.libraries or ()
        return LimitedProcess(
            linkage(linked, way.library, libraries),
            linked.disabled,
            _preloads_other(linked, way.library, libraries),
            has_slot,
        )


def _unheld(share: ShareUsage, container: ContainerUsage) -> Holding:
    """A share that a file or an answer names, and of which nothing shows that its pod is alive."""
    return Holding(
        container.pod,
        container.container,
        Share(share.device),
        container.scheme,
        container.phase,
        container.source,
        (container.source,),
    )


def linkage(
    process: LinkedProcess, library: LibraryFile, libraries: Iterable[NodeLibrary]
) -> Linked:
    """What a process has loaded of the library; ``libraries`` are the node's files.

    Every file of the library's name counts: of two, the one that is loaded first has the calls.
    """
    own = [file for file in process.files if file.name.startswith(library.name)]
    if not own:
        return Linked.NOTHING if process.dynamic else Linked.STATIC
    of_node = _identities(library, libraries)
    if not of_node:
        return Linked.UNREAD
    others = [file for file in own if (file.device, file.inode) not in of_node]
    if not others:
        return Linked.LIBRARY
    devices = {device for device, _ in of_node}
    left = [file for file in others if not file.deleted]
    if any(file.device in devices for file in left):
        return Linked.COPY
    return Linked.UNCLEAR if left else Linked.REPLACED


def _identities(library: LibraryFile, libraries: Iterable[NodeLibrary]) -> set[tuple[str, int]]:
    return {(file.device, file.inode) for file in libraries if file.library == library.name}


def _preloads_other(
    process: LinkedProcess, library: LibraryFile, libraries: Iterable[NodeLibrary]
) -> bool | None:
    """Whether another file than the node's is preloaded; None if that was not read.

    Names prove nothing, so a file counts as the node's only by the path at which it is mapped.
    """
    if process.preload is None:
        return None
    of_node = _identities(library, libraries)
    own = {file.path for file in process.files if (file.device, file.inode) in of_node}
    return not own.issuperset(process.preload)
