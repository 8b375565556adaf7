"""Limits and use of each container on each device, beside what it holds by the ledger. Pure.

The ledger decides who holds what, of which scheme and in which phase. This module adds what is
enforced and counted: the limit, what the shim's region accounts, and what the driver reports of the
processes. An unknown value is absent; nothing is distributed by size or order. What a tenant has
written counts only on devices for which no other source contradicts it.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import repeat
from typing import Final

from vgpu.ledger.container_usage import ContainerUsage, NodeUsage
from vgpu.ledger.index import LedgerIndex, StatementDevices
from vgpu.ledger.limit_files import LimitReport
from vgpu.ledger.liveness import Presence
from vgpu.ledger.node import NodeFiles
from vgpu.ledger.nvidia_sharing import add_sharing, lower_to_clients, registered_replicas
from vgpu.ledger.regions import RegionReport, account
from vgpu.ledger.statements import tenant_writes
from vgpu.ledger.usage import (
    DeviceUsage,
    Place,
    UnclearUse,
    Usage,
    container_name,
    device_usages,
    unclear_use,
    usages,
)
from vgpu.model.facts import CollectorSamples, GpuSample, KubeletSample, ProcessOwner, RegionFile
from vgpu.model.names import Phase, PodRef, Scheme, Source
from vgpu.model.reasons import Reason, Rejection

CLOCK_SLACK_SECONDS: Final = 86_400
"""Maximum lead of the library's time over ours, in seconds: a clock may have been set."""


def node_usage(
    index: LedgerIndex,
    files: NodeFiles,
    samples: CollectorSamples,
    *,
    phases: Mapping[str, str] | None = None,
    finished: AbstractSet[Place] = frozenset(),
    at: float = 0.0,
) -> NodeUsage:
    """The use by the samples of which the ledger was made.

    ``files`` are those of the ledger's evidence, ``phases`` the pods' by UID, ``finished`` the init
    containers that have succeeded, ``at`` is now in unix seconds.
    """
    gpu, process, limits = samples.gpu, samples.process, samples.limits
    kubelet = samples.kubelet or KubeletSample({}, {}, named=False)
    presence = Presence(process.live_pods if process else None, phases)
    builder = _UsageBuilder(index, presence, kubelet, finished, at)
    containers = builder.containers
    for region in files.regions:
        builder.add_region_on_node(region)
    builder.add_allocations((*index.grants, *index.resource_claims))
    replicas = registered_replicas(kubelet.replicas, index.registry)
    add_sharing(containers, index, replicas, limits.mps if limits else ())
    builder.add_allocations(index.own)
    for limit in files.limits:
        builder.add_limit(limit)
    for region in files.regions_inside:
        builder.add_region(region)
    devices: Mapping[str, DeviceUsage] = {}
    process_usages: tuple[Usage, ...] = ()
    if gpu is not None and process is not None and process.sees_host:
        process_usages = usages(gpu, process.owners, builder.container_of)
        if process.mps_clients:
            lower_to_clients(containers, index, process_usages, process.mps_clients)
        unclear = unclear_use(gpu, process, process_usages)
        builder.add_processes(gpu, process_usages, unclear)
        devices = device_usages(gpu, process.owners, process_usages, unclear)
    builder.add_reserved()
    has_names = presence.known and samples.shim is not None and kubelet.named
    return NodeUsage(
        tuple(containers.values()),
        devices,
        tuple(builder.orphans) if has_names else None,
        tuple(builder.released) if has_names else None,
        tuple(builder.refused),
        process_usages,
        replicas,
    )


class _UsageBuilder:
    """The containers of one node under construction, source by source in the order of their trust.

    Attributes:
        containers: the containers that are known so far.
        refused: what was refused so far.
        orphans: regions of unknown pods.
        released: the container of each region whose container has ended.
    """

    def __init__(
        self,
        index: LedgerIndex,
        presence: Presence,
        kubelet: KubeletSample,
        finished: AbstractSet[Place],
        at: float,
    ) -> None:
        self.containers: dict[Place, ContainerUsage] = {}
        self.refused: list[tuple[Source, Rejection]] = []
        self.orphans: list[RegionFile] = []
        self.released: list[ContainerUsage] = []
        self._index = index
        self._presence = presence
        self._kubelet = kubelet
        self._finished = finished
        self._at = at
        self._claims: dict[tuple[str, int], set[str]] = {}  # (pod UID, host pid) -> containers

    def _container(self, place: Place, scheme: Scheme, source: Source) -> ContainerUsage:
        """The container; its ``source`` is the first source that reports it."""
        usage = self.containers.get(place)
        if usage is None:
            uid, name = place
            of_pod = self._index.holdings.get(uid, {})
            pod = self._kubelet.pods.get(uid) or PodRef(uid, "", "")
            usage = self.containers[place] = ContainerUsage(pod, name, scheme, source)
            by_device = of_pod.get(name) or of_pod.get("") or {}
            first = next(iter(by_device.values()), None)
            if first is not None:
                usage.phase = first.phase
                usage.scheme = scheme if first.scheme is Scheme.NONE else first.scheme
        elif usage.scheme is Scheme.NONE is not scheme:
            usage.scheme = scheme
            for share in usage.shares.values():
                share.scheme = scheme
        return usage

    def _has_ended(self, place: Place) -> bool:
        """Whether the container's pod, or the init container itself, has ended."""
        return self._presence.of(place[0]) is False or place in self._finished

    def _reject(self, source: Source, object_name: str, reason: Reason, detail: str) -> None:
        """Refuse what ``source`` reports in a file or about a pod, if there is a ``detail``."""
        if detail:
            self.refused.append((source, Rejection(object_name, reason, detail)))

    def _is_missing(self, source: Source, path: str, device: str, name: str = "") -> bool:
        """Whether the node lacks the device; False while the driver's list is incomplete."""
        registry = self._index.registry
        is_missing = registry.complete and device not in registry.devices
        if is_missing:
            self._reject(source, path, Reason.UNKNOWN_DEVICE, device or name)
        return is_missing

    def _is_forged(self, source: Source, path: str, place: Place, device: str) -> bool:
        """Whether the file names a device for which other sources contradict it."""
        contradiction = self._index.contradiction(place, device)
        if contradiction:
            self._reject(source, path, Reason.FORGED, f"{device}, but {contradiction}")
        return bool(contradiction)

    # ------------------------------------------------------------ allocations

    def add_allocations(self, allocations: Iterable[StatementDevices]) -> None:
        """Add what a checkpoint or a ResourceClaim has, with the limits that follow from it.

        It proves no liveness, since dead entries are normal. Kubernetes limits nothing of
        ResourceClaims; our own plugin limits each share to its memory. A limit in a region counts
        before it.
        """
        for statement, devices in allocations:
            place, source = (statement.pod.uid, statement.container), statement.source
            if not self._presence.of(place[0]) or place in self._finished:
                continue
            is_own = source is Source.OWN_CHECKPOINT
            memory = (share.memory_bytes for share in statement.shares)
            limits = memory if is_own else statement.limits or repeat(None)
            for device, limit in zip(devices, limits, strict=False):
                if is_own and self._is_missing(source, statement.where, device):
                    continue
                if device:
                    share = self._container(place, statement.scheme, source).share(device)
                    if share.limit_bytes is None and not share.unlimited:
                        share.limit_bytes = limit or None
                        share.unlimited = limit == 0

    def add_reserved(self) -> None:
        """Add the holders in the ledger that no source on the node reports yet."""
        names_by_pod: dict[str, set[str]] = {}
        for uid, name in self.containers:
            names_by_pod.setdefault(uid, set()).add(name)
        for uid, held in self._index.holdings.items():
            names = names_by_pod.get(uid, set())
            for name, by_device in held.items():
                absent = name not in names if name else not names
                if absent and (uid, name) not in self._finished:
                    holding = next(iter(by_device.values()))
                    container = self._container((uid, name), holding.scheme, holding.source)
                    container.pod = holding.pod

    # ------------------------------------------------------------ files of the sharing libraries

    def add_limit(self, report: LimitReport) -> None:
        """Add a limit file, if it can be true."""
        limit, place = report.limit, (report.pod_uid, report.container)
        source, path, is_named = Source.LIMIT_FILE, limit.path, bool(report.pod_uid)
        if is_named and self._presence.of(report.pod_uid) is False:
            return
        device = self._index.registry.uuid(report.device)
        if is_named and self._is_missing(source, path, device, limit.pci_bus_id):
            return
        if report.reason is not None and (device or not is_named):
            self._reject(source, path, report.reason, report.error)
        elif device and place not in self._finished:
            tenants = tenant_writes(source, limit.scheme)
            if tenants and self._is_forged(source, path, place, device):
                return
            if report.limit_error:
                self._reject(source, path, Reason.IMPLAUSIBLE, report.limit_error)
                return
            share = self._container(place, limit.scheme, source).share(device)
            share.limit_bytes = limit.memory_bytes
            share.unlimited = limit.memory_bytes is None
            share.core_limit_percent = limit.cores_percent
            share.core_request_percent = limit.cores_request_percent

    def add_region_on_node(self, report: RegionReport) -> None:
        """Add a region that the plugin created."""
        file, place = report.file, (report.file.pod_uid, report.file.container)
        if self._has_ended(place):
            self._add_leftover(report, place)
        elif report.first:
            detail = f"this container already has {report.first}"
            self._reject(Source.SHIM, file.path, Reason.AMBIGUOUS, detail)
        else:
            self.add_region(report)

    def _add_leftover(self, report: RegionReport, place: Place) -> None:
        file = report.file
        if file.pod_uid in self._kubelet.pods or file.pod_uid in (self._presence.phases or {}):
            container = self._container(place, report.scheme, Source.SHIM)
            container.layout, container.phase = file.region.layout, Phase.RELEASED
            self.released.append(container)
        else:
            self.orphans.append(file)

    def add_region(self, report: RegionReport) -> None:
        """Add a region of a container that has not ended."""
        file, statement, region = report.file, report.statement, report.file.region
        container = self._container((file.pod_uid, file.container), report.scheme, Source.SHIM)
        if container.layout or statement is None:  # of another container without a name
            return
        container.layout = region.layout
        container.blocked = region.recent_kernel < 0
        # The library accepts any priority, HAMi's monitor none below 0.
        if region.priority >= 0:
            container.priority = region.priority
        else:
            self._reject_number(file, f"priority {region.priority}")
        last = region.last_kernel_time
        if last is not None and last > self._at + CLOCK_SLACK_SECONDS:
            self._reject_number(file, f"a last kernel at {last}, unix time")
        else:
            container.last_kernel_time = last
        for host_pid in filter(None, report.host_pids):
            self._claims.setdefault((file.pod_uid, host_pid), set()).add(file.container)
        for position, (device, stated) in enumerate(
            zip(region.devices, statement.shares, strict=True)
        ):
            if self._may_have(file, device.uuid):
                share = container.share(device.uuid)
                share.vdevice = position
                share.unlimited = device.memory_limit_bytes == 0
                share.limit_bytes = stated.memory_bytes
                share.core_limit_percent = device.core_limit_percent or None
                bounds = self._index.ledger.bounds
                share.accounted, errors = account(report, position, bounds)
                for error in filter(None, errors):
                    self._reject_number(file, error)

    def _reject_number(self, file: RegionFile, detail: str) -> None:
        self._reject(Source.SHIM, file.path, Reason.IMPLAUSIBLE, detail)

    def _may_have(self, file: RegionFile, device: str) -> bool:
        """Whether nothing contradicts that the region's container has the device."""
        place = file.pod_uid, file.container
        allocated = self._index.allocated.get(place)
        if self._is_missing(Source.SHIM, file.path, device):
            return False
        if allocated is None:
            return not self._is_forged(Source.SHIM, file.path, place, device)
        if device not in allocated:
            self._reject(Source.SHIM, file.path, Reason.DEVICE_NOT_ALLOCATED, device)
        return device in allocated

    # ------------------------------------------------------------ the driver's processes

    def container_of(self, owner: ProcessOwner, pid: int) -> str:
        """The container of a process; a region that claims it names an unnamed one in a pod.

        Several regions that claim the same process are no evidence.
        """
        name = container_name(owner, self._kubelet.containers)
        if name or not owner.pod_uid:
            return name
        containers = sorted(self._claims.get((owner.pod_uid, pid), ()))
        if len(containers) > 1:
            detail = f"pid {pid} is claimed by {', '.join(containers)}"
            self._reject(Source.SHIM, owner.pod_uid, Reason.FORGED, detail)
        return containers[0] if len(containers) == 1 else ""

    def add_processes(
        self, gpu: GpuSample, process_usages: tuple[Usage, ...], unclear: UnclearUse
    ) -> None:
        """Set the use; it is 0 without processes, unknown if one may be the container's.

        The utilisation of a container is that of its processes, so it is known only where they are.
        """
        for container in self.containers.values():
            for share in container.shares.values():
                if share.device in gpu.processes_known:
                    share.used_bytes = share.processes = 0
                    share.sm_utilization = 0.0 if share.device in gpu.utilization_known else None
        for usage in process_usages:
            place = usage.pod_uid, usage.container
            share = self._container(place, Scheme.NONE, Source.PROCESS).share(usage.device)
            share.used_bytes, share.processes = usage.used_bytes, len(usage.pids)
            if usage.device in gpu.utilization_known:
                busy = (gpu.utilization.get((pid, usage.device), 0.0) for pid in usage.pids)
                share.sm_utilization = sum(busy)
        of_named = {(usage.pod_uid, usage.device) for usage in process_usages if usage.container}
        doubtful = unclear != UnclearUse()
        for (uid, name), container in self.containers.items():
            for share in container.shares.values() if doubtful or not name else ():
                if name:
                    is_unclear = unclear.has(uid, share.device)
                else:  # a holder that may be any of its pod's containers
                    idle = not share.processes and (uid, share.device) in of_named
                    is_unclear = idle or share.device in unclear.devices
                if is_unclear:
                    share.used_bytes = share.processes = share.sm_utilization = None
