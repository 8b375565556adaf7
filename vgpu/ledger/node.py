"""One node's evidence, from all that was sampled there and the API server's objects. Pure.

Parts that have not changed since the samples before are cached.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain

import msgspec
from msgspec import structs

from vgpu.ledger.bounds import Bounds, bounds
from vgpu.ledger.device_ids import (
    pods_with_reused_ids,
    running_containers,
    started_containers,
)
from vgpu.ledger.from_api import Reading, node_ref, read_pod
from vgpu.ledger.from_dra import (
    ResourceClaimDetails,
    left_resource_claims,
    missing_specs,
    resource_claim_statements,
)
from vgpu.ledger.from_kai import node_groups
from vgpu.ledger.from_kubelet import (
    NO_CONTEXT,
    GrantContext,
    GrantReader,
    GrantStatements,
    by_container,
    identified,
)
from vgpu.ledger.from_node import device_users, devices_of, process_statements
from vgpu.ledger.limit_files import LimitReport, limit_reports
from vgpu.ledger.regions import RegionReport, region_reports
from vgpu.ledger.statements import Evidence, Malformed, Statement
from vgpu.ledger.virtual_gpus import holders, of_holders, of_share_pods, on_gpus
from vgpu.model.allocation import Device
from vgpu.model.facts import (
    CollectorSamples,
    ContainerName,
    GpuSample,
    Grant,
    HeldDevices,
    KubeletSample,
    LimitSample,
    ResourceClaimSample,
)
from vgpu.model.names import PodRef, Source
from vgpu.model.objects import Node, Pod
from vgpu.model.units import MIB
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.kai.keys import KAI
from vgpu.schemes.kubeshare.node import with_handles


class StatementCache:
    """The cache of one node, always for the same codecs. One thread uses it."""

    def __init__(self) -> None:
        self._pods: Mapping[str, tuple[Pod, Reading]] = {}
        self._context = NO_CONTEXT
        self._grants: dict[
            Source, Mapping[tuple[str, str], tuple[Mapping[str, Grant], GrantStatements]]
        ] = {}

    def readings(self, pods: Iterable[Pod], codecs: Sequence[SchemeCodec]) -> list[Reading]:
        """The reading of each pod."""
        readings = []
        current: dict[str, tuple[Pod, Reading]] = {}
        for pod in pods:
            known = self._pods.get(pod.ref.uid)
            if known is None or (known[0] is not pod and known[0] != pod):
                known = (pod, read_pod(pod, codecs, on_node=True))
            current[pod.ref.uid] = known
            readings.append(known[1])
        self._pods = current
        return readings

    def allocations(
        self,
        grants: Iterable[Grant],
        codecs: Sequence[SchemeCodec],
        source: Source,
        context: GrantContext = NO_CONTEXT,
    ) -> list[GrantStatements]:
        """The kubelet's allocations to each container, as ``source`` reports them."""
        if context != self._context:
            self._context, self._grants = context, {}
        reader = GrantReader(codecs, source, context)
        before = self._grants.get(source, {})
        current = {}
        for place, by_resource in by_container(grants).items():
            known = before.get(place)
            if known is None or known[0] != by_resource:
                known = (by_resource, reader.read(*place, by_resource))
            current[place] = known
        self._grants[source] = current
        return [reading for _, reading in current.values()]


class NodeSamples(CollectorSamples, frozen=True):
    """All that was sampled of one node; None for a source that is off, failed or stale.

    Attributes:
        node: the node's name; "" if the sources do not need it.
        held: the answer of pod-resources.
        own: our own checkpoint's statements, read only if it was written since the node started.
        pods: the node's that share GPUs, as the API server knows them.
        pods_complete: whether there are no others.
        registered: the devices as the node's plugins register them at the API server: with scaled
            memory or cores, that is more than the driver reports.
        incomplete: sources that were not read completely.
        resource_claims: what the API server has of the node's ResourceClaims.
        context: what distinguishes NVIDIA's grants from those of other systems.
        node_object: the node; None if it was not read.
    """

    node: str = ""
    held: Mapping[HeldDevices, frozenset[str]] | None = None
    own: Iterable[Statement] | None = None
    pods: Sequence[Pod] | None = None
    pods_complete: bool = True
    registered: Iterable[Device] = ()
    incomplete: Collection[Source] = ()
    resource_claims: ResourceClaimSample | None = None
    context: GrantContext = NO_CONTEXT
    node_object: Node | None = None


class NodeFiles(msgspec.Struct, frozen=True):
    """What the sharing libraries enforce and account, read once; the evidence has its statements.

    It changes with every kernel, and the evidence does not.

    Attributes:
        regions: those that the plugin has created.
        regions_inside: those inside of containers that count.
        limits: the limit files.
    """

    regions: tuple[RegionReport, ...] = ()
    regions_inside: tuple[RegionReport, ...] = ()
    limits: tuple[LimitReport, ...] = ()

    def of_kai(self, pods: AbstractSet[str]) -> "NodeFiles":
        """The same, with the regions of these pods as KAI's: its isolator uses HAMi-core."""
        if not pods:
            return self
        on_node, inside = (
            tuple(_of_kai(each, pods) for each in regions)
            for regions in (self.regions, self.regions_inside)
        )
        return NodeFiles(on_node, inside, self.limits)


def _of_kai(region: RegionReport, pods: AbstractSet[str]) -> RegionReport:
    return structs.replace(region, scheme=KAI) if region.file.pod_uid in pods else region


def node_evidence(codecs: Iterable[SchemeCodec], samples: NodeSamples) -> Evidence:
    """The evidence in the samples."""
    return read_samples(codecs, samples)[0]


def read_samples(
    codecs: Iterable[SchemeCodec], samples: NodeSamples, memory: StatementCache | None = None
) -> tuple[Evidence, NodeFiles]:
    """The evidence in the samples, and the files of the sharing libraries.

    ``memory`` caches what has not changed since its last use with the same codecs.
    """
    gpu, process, shim = samples.gpu, samples.process, samples.shim
    kubelet, limits, pods = samples.kubelet, samples.limits, samples.pods
    all_codecs, registered = tuple(codecs), tuple(samples.registered)
    bounded = bounds(devices_of(gpu.gpus if gpu else ()), registered)
    memory = memory or StatementCache()
    readings = memory.readings(pods or (), all_codecs)
    names = kubelet.containers if kubelet else {}
    refs = dict(kubelet.pods if kubelet else {}) | {
        ref.uid: ref for ref in map(node_ref, pods or ())
    }
    owners = process.owners if process and process.sees_host else None
    by_source: dict[Source, Iterable[Statement]] = {}
    malformed = [error for reading in readings for error in reading.malformed]
    grants = _grants(samples, refs.values())
    unread: set[str] = set()
    virtual = holders(refs.values(), samples.node)
    uuids = of_share_pods(pods or ()) | of_holders(
        virtual, (grant for granted in grants.values() for grant in granted)
    )
    groups = node_groups(
        pods,
        refs.values(),
        (grant for granted in grants.values() for grant in granted),
        samples.node_object,
        partial(_mib, gpu),
        lists_all=samples.pods_complete,
    )
    if pods is not None:
        by_source[Source.ANNOTATIONS] = _of_annotations(pods, readings, uuids)
    if samples.own is not None:
        by_source[Source.OWN_CHECKPOINT] = samples.own
    frames = {*virtual, *groups.reservations}
    for source, granted in grants.items():
        real = (grant for grant in granted if grant.pod_uid not in frames)
        allocations = memory.allocations(real, all_codecs, source, samples.context)
        by_source[source] = [
            statement for container in allocations for statement in container.statements
        ]
        malformed += (error for container in allocations for error in container.malformed)
        unread.update(container.unread for container in allocations if container.unread)
    incomplete = set(samples.incomplete)
    if kubelet and kubelet.resource_claims is None:
        incomplete.add(Source.DRA_STATE)
    details = ResourceClaimDetails(
        kubelet.driver_resource_claims if kubelet else (), samples.resource_claims
    )
    on_devices = _on_devices(samples, names)
    if kubelet and (kubelet.resource_claims or kubelet.held_resource_claims):
        users = device_users(on_devices or ())
        by_source |= _of_resource_claims(kubelet, refs.values(), by_source, details, users)
    if on_devices is not None:
        by_source[Source.PROCESS] = on_devices
    files = _read_files(samples, refs.values(), bounded)
    if shim or (process and process.bare):
        reports = (*files.regions, *files.regions_inside)
        by_source[Source.SHIM] = [report.statement for report in reports if report.statement]
    if limits:
        of_limits = [report.statement for report in files.limits]
        by_source[Source.LIMIT_FILE] = [each for each in of_limits if isinstance(each, Statement)]
        malformed += (each for each in of_limits if isinstance(each, Malformed))
    stated = tuple(chain.from_iterable(by_source.values()))
    files = files.of_kai(groups.pods_of_regions(stated))
    statements = groups.statements(stated)
    reusing = pods_with_reused_ids(statements)
    evidence = Evidence(
        node=samples.node,
        devices=with_handles(_devices(gpu, registered), uuids),
        devices_complete=gpu is not None and gpu.complete,
        lost=frozenset(gpu.lost) if gpu else frozenset(),
        statements=statements,
        pods=tuple(pods or ()),
        pods_complete=pods is not None and samples.pods_complete,
        live_pods=process.live_pods if process else None,
        names=refs,
        wanted=tuple(request for reading in readings for request in reading.wanted),
        malformed=tuple(malformed),
        read=frozenset(by_source) | groups.read,
        incomplete=frozenset(incomplete),
        unread_grants=frozenset(unread),
        bounds=bounded,
        left_resource_claims=tuple(left_resource_claims(kubelet, samples.resource_claims))
        if kubelet
        else (),
        missing_specs=tuple(missing_specs(kubelet, details)) if kubelet else (),
        running=None if owners is None else running_containers(reusing, owners.values(), names),
        started=started_containers(reusing, refs, names),
        group_problems=groups.evidence.problems,
    )
    return evidence, files


def _on_devices(samples: NodeSamples, names: Mapping[str, ContainerName]) -> list[Statement] | None:
    """What the driver reports of processes; None if their owners are not known."""
    gpu, process = samples.gpu, samples.process
    if gpu is None or process is None or not process.sees_host:
        return None
    servers = _mps_servers(samples.limits) | process.mps_servers
    known = (
        found
        for found in gpu.processes
        if found.device in gpu.processes_known and found.pid not in servers
    )
    return process_statements(known, process.owners, names)


def _read_files(samples: NodeSamples, pods: Iterable[PodRef], bounded: Bounds) -> NodeFiles:
    process, limits = samples.process, samples.limits
    names = samples.kubelet.containers if samples.kubelet else {}
    regions, inside = region_reports(samples.shim, process, names, bounded)
    live = process.live_pods if process else None
    # A name in a file may mean the pods that have a cgroup, where that is known.
    living = (pod for pod in pods if live is None or pod.uid in live)
    stated = limit_reports(limits.limits, living, names, bounded) if limits else ()
    return NodeFiles(regions, inside, tuple(stated))


def _of_resource_claims(
    kubelet: KubeletSample,
    pods: Iterable[PodRef],
    by_source: Mapping[Source, Iterable[Statement]],
    details: ResourceClaimDetails,
    users: Mapping[tuple[str, str], frozenset[str]],
) -> dict[Source, Iterable[Statement]]:
    """The statements about ResourceClaims by source, after those that pod-resources has already."""
    found: dict[Source, Iterable[Statement]] = {}
    prepared = kubelet.resource_claims or ()
    for statement in resource_claim_statements(
        prepared, kubelet.held_resource_claims, pods, details, users
    ):
        found[statement.source] = (
            *found.get(statement.source, by_source.get(statement.source, ())),
            statement,
        )
    return found


def _grants(samples: NodeSamples, pods: Iterable[PodRef]) -> dict[Source, Sequence[Grant]]:
    """What the kubelet has allocated, by the source that reports it."""
    grants: dict[Source, Sequence[Grant]] = {}
    if samples.kubelet and samples.kubelet.grants is not None:
        grants[Source.CHECKPOINT] = samples.kubelet.grants
    if samples.held is not None:
        checkpoint = grants.get(Source.CHECKPOINT)
        grants[Source.POD_RESOURCES] = identified(samples.held, pods, checkpoint)
    return grants


def _of_annotations(
    pods: Iterable[Pod], readings: Iterable[Reading], uuids: Mapping[str, str]
) -> list[Statement]:
    """The statements of the pods' annotations; ``uuids`` are those of KubeShare's virtual GPUs."""
    return [
        statement
        for pod, reading in zip(pods, readings, strict=True)
        for statement in on_gpus(pod, reading.statements, uuids)
    ]


def _mib(gpu: GpuSample | None) -> dict[str, int]:
    """The MiB of each GPU, as the driver reports it."""
    devices = devices_of(gpu.gpus) if gpu else ()
    return {each.uuid: each.memory_bytes // MIB for each in devices if each.memory_bytes}


def _mps_servers(limits: LimitSample | None) -> frozenset[int]:
    """The pids of MPS servers, which are on each GPU of their resource and hold none of it."""
    daemons = limits.mps if limits else ()
    return frozenset[int]().union(*(daemon.servers for daemon in daemons))


def _devices(gpu: GpuSample | None, registered: Iterable[Device]) -> Iterator[Device]:
    """The driver's devices, with the amounts that are registered for them.

    Only devices registered by UUID count: other sizes are averages of all GPUs of the node, and
    without the driver an index names no known GPU. If two plugins register one GPU, the first
    counts.
    """
    plugins = {device.uuid: device for device in reversed(tuple(registered)) if device.uuid}
    if gpu is None:
        yield from plugins.values()
        return
    for device in devices_of(gpu.gpus):
        registration = plugins.get(device.uuid)
        if registration is None:
            yield device
        else:
            yield structs.replace(
                device,
                memory_bytes=registration.memory_bytes or device.memory_bytes,
                cores_milli=registration.cores_milli,
                slots=registration.slots,
                healthy=registration.healthy,
            )
