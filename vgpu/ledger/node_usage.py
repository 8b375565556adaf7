"""Limits and use of each container on each device, beside what it holds by the ledger. Pure.

The ledger decides who holds what, of which scheme and in which phase. This module has what is
enforced and counted: the limit, what the shim's region accounts, and what the driver reports of the
processes. An unknown value is absent; nothing is distributed by size or order.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import repeat

from vgpu.ledger.container_usage import NodeUsage, UsageBuilder
from vgpu.ledger.from_node import bus_id
from vgpu.ledger.index import LedgerIndex, StatementDevices
from vgpu.ledger.liveness import Presence
from vgpu.ledger.owners import (
    OwnedLimit,
    Place,
    owned_limits,
    pods_with_cgroups,
    regions_inside,
    regions_on_node,
)
from vgpu.ledger.region_usage import RegionUsage
from vgpu.ledger.statements import Statement, tenant_writes
from vgpu.ledger.usage import (
    DeviceUsage,
    UnclearUse,
    Usage,
    device_usages,
    unclear_use,
    usages,
)
from vgpu.model.facts import (
    GpuSample,
    KubeletSample,
    LimitSample,
    MpsClientLimits,
    MpsLimits,
    ProcessOwner,
    ProcessSample,
    ShimSample,
)
from vgpu.model.names import REPLICATED_SHARING, UNLIMITED_SHARING, Scheme, Sharing, Source
from vgpu.model.reasons import Reason


def node_usage(
    index: LedgerIndex,
    *,
    gpu: GpuSample | None = None,
    process: ProcessSample | None = None,
    shim: ShimSample | None = None,
    kubelet: KubeletSample | None = None,
    limits: LimitSample | None = None,
    phases: Mapping[str, str] | None = None,
    finished: AbstractSet[Place] = frozenset(),
    at: float = 0.0,
) -> NodeUsage:
    """The use by the samples of which the ledger was made; None for one off, failed or stale.

    ``phases`` are the pods' by UID, ``finished`` the init containers that have succeeded, ``at`` is
    now in unix seconds.
    """
    presence = Presence(process.live_pods if process else None, phases)
    owners = process.owners if process and process.sees_host else None
    names = kubelet.containers if kubelet else {}
    pods = kubelet.pods if kubelet else {}
    builder = UsageBuilder(index, presence=presence, pods=pods, finished=finished, at=at)
    regions = RegionUsage(builder, process, names, index.allocated)
    on_node = regions_on_node(shim)
    for file in shim.files if shim else ():
        regions.add_on_node(file, on_node[file.pod_uid, file.container])
    replicas = _replicas(builder, kubelet.replicas if kubelet else {})
    _add_grants(builder, index.grants)
    _add_resource_claims(builder, index.resource_claims)
    _add_sharing(builder, index.grants, replicas)
    _add_mps(builder, index.grants, limits.mps if limits else ())
    _add_own(builder, index.own)
    living = pods_with_cgroups(index.names.values(), presence.live_pods)
    for owned in owned_limits(limits.limits if limits else (), living, names):
        _add_limit(builder, owned)
    for file in regions_inside(process, names, on_node):
        regions.add(file)
    devices: Mapping[str, DeviceUsage] = {}
    process_usages: tuple[Usage, ...] = ()
    if gpu is not None and process is not None and owners is not None:
        process_usages = usages(gpu, owners, regions.container_of)
        _add_mps_clients(builder, index.grants, process_usages, process.mps_clients)
        unclear = unclear_use(gpu, process, process_usages)
        _add_processes(builder, gpu, process_usages, unclear)
        devices = _device_usages(gpu, owners, process_usages, unclear)
    builder.add_promised()
    has_names = presence.known and shim is not None and kubelet is not None and kubelet.named
    return NodeUsage(
        tuple(builder.containers.values()),
        tuple(builder.shares()),
        devices,
        tuple(regions.orphans) if has_names else None,
        tuple(regions.released) if has_names else None,
        tuple(builder.refused),
        process_usages,
        replicas,
    )


# ---------------------------------------------------------------- allocations


def _add_grants(builder: UsageBuilder, grants: Iterable[StatementDevices]) -> None:
    """Add what the kubelet's checkpoint has; it proves no liveness: dead entries are normal."""
    for statement, devices in grants:
        if builder.is_there((statement.pod.uid, statement.container)):
            for device, limit in zip(devices, statement.limits or repeat(None), strict=False):
                if device:
                    _set_limit(builder, statement, device, limit)


def _replicas(builder: UsageBuilder, registered: Mapping[str, int]) -> dict[str, int]:
    """The registered replicas by the UUID of the device."""
    by_uuid = ((builder.registry.uuid(device), count) for device, count in registered.items())
    return {uuid: count for uuid, count in by_uuid if uuid}


def _add_sharing(
    builder: UsageBuilder, grants: Iterable[StatementDevices], replicas: Mapping[str, int]
) -> None:
    """Set how NVIDIA's own plugin shares each device, and what that limits.

    Only a MIG instance has a limit of its own: its memory.
    """
    for statement, devices in grants:
        place = statement.pod.uid, statement.container
        usage = builder.containers.get(place)
        if not statement.sharing or usage is None:
            continue
        held = Counter(devices)
        for device, sharing in zip(devices, statement.sharing, strict=True):
            share = usage.shares.get(device)
            if share is None:
                continue
            known = builder.registry.devices.get(device)
            memory = known.memory_bytes if known else None
            share.sharing = sharing
            if sharing in UNLIMITED_SHARING:
                share.unlimited = share.limit_bytes is None
            elif sharing is Sharing.MIG:
                share.limit_bytes = memory
            if sharing in REPLICATED_SHARING and memory is not None and replicas.get(device):
                share.fair_share_bytes = (
                    memory * held[device] // max(replicas[device], held[device])
                )


def _add_mps(
    builder: UsageBuilder, grants: Iterable[StatementDevices], configured: Iterable[MpsLimits]
) -> None:
    """Set what MPS lets each process have; the daemon of the allocated resource decides."""
    by_resource = {limits.resource: limits for limits in configured}
    for statement, devices in grants if by_resource else ():
        usage = builder.containers.get((statement.pod.uid, statement.container))
        daemons = [by_resource.get(resource) for resource, _ in statement.slices]
        if usage is None or len(daemons) != 1 or daemons[0] is None:
            continue
        limits = daemons[0]
        for device, sharing in zip(devices, statement.sharing, strict=False):
            share, known = usage.shares.get(device), builder.registry.devices.get(device)
            if sharing is Sharing.MPS and share is not None and known is not None:
                index = -1 if known.index is None else known.index
                share.process_limit_bytes = limits.memory_bytes.get(index)
                share.process_core_limit_percent = limits.thread_percent


def _add_mps_clients(
    builder: UsageBuilder,
    grants: Iterable[StatementDevices],
    process_usages: Iterable[Usage],
    clients: Mapping[int, MpsClientLimits],
) -> None:
    """Lower what MPS lets each process have to what all of the container's processes have set.

    A process can lower its limit and not raise it. The largest limit of the processes counts, and
    none if the limit of one of them is unknown. The environment has no UUIDs, so it counts only for
    containers with one device of the plugin, which is number 0 there.
    """
    if not clients:
        return
    single = {
        (statement.pod.uid, statement.container): set(devices).pop()
        for statement, devices in grants
        if len(set(devices)) == 1 and Sharing.MPS in statement.sharing
    }
    for usage in process_usages:
        place = usage.pod_uid, usage.container
        container = builder.containers.get(place)
        if container is None or single.get(place) != usage.device:
            continue
        share = container.shares.get(usage.device)
        if share is None or not all(pid in clients for pid in usage.pids):
            continue
        own = [clients[pid] for pid in usage.pids]
        memory = [_lower(share.process_limit_bytes, each.memory_bytes.get(0)) for each in own]
        share.process_limit_bytes = _largest(memory)
        threads = [_lower(share.process_core_limit_percent, each.thread_percent) for each in own]
        share.process_core_limit_percent = _largest(threads)


def _lower(configured: int | None, own: int | None) -> int | None:
    """The lower limit of those that are known."""
    return min((limit for limit in (configured, own) if limit is not None), default=None)


def _largest(limits: Iterable[int | None]) -> int | None:
    """The largest limit; None if one is unknown."""
    known: list[int] = []
    for limit in limits:
        if limit is None:
            return None
        known.append(limit)
    return max(known, default=None)


def _add_resource_claims(builder: UsageBuilder, pairs: Iterable[StatementDevices]) -> None:
    """Add the containers that use ResourceClaims; Kubernetes limits nothing of them."""
    for statement, devices in pairs:
        if builder.is_there((statement.pod.uid, statement.container)):
            for device in filter(None, devices):
                _set_limit(builder, statement, device, None)


def _add_own(builder: UsageBuilder, own: Iterable[StatementDevices]) -> None:
    """Add what our own checkpoint has: with CDI the kubelet's does not name the device."""
    for statement, _ in own:
        if not builder.is_there((statement.pod.uid, statement.container)):
            continue
        origin = statement.source, statement.where
        for share in statement.shares:
            if builder.is_missing(share.device):
                builder.reject(*origin, Reason.UNKNOWN_DEVICE, share.device)
            else:
                _set_limit(builder, statement, share.device, share.memory_bytes)


def _set_limit(builder: UsageBuilder, statement: Statement, device: str, limit: int | None) -> None:
    """Set the limit of a share, unless the container's region has set one."""
    place = statement.pod.uid, statement.container
    share = builder.container(place, statement.scheme, statement.source).share(device)
    if share.limit_bytes is None and not share.unlimited:
        share.limit_bytes = limit


# ---------------------------------------------------------------- limit files


def _add_limit(builder: UsageBuilder, owned: OwnedLimit) -> None:
    limit, place = owned.limit, (owned.pod_uid, owned.container)
    file, named = (Source.LIMIT_FILE, limit.path), bool(owned.pod_uid)
    if named and builder.presence.of(owned.pod_uid) is False:
        return
    device = builder.registry.uuid(limit.device) or builder.registry.find(bus_id(limit.pci_bus_id))
    if named and builder.is_missing(device):
        builder.reject(*file, Reason.UNKNOWN_DEVICE, device or limit.pci_bus_id)
    elif owned.reason is not None and (device or not named):
        builder.reject(*file, owned.reason, owned.error)
    elif device and not builder.has_ended(place) and _may_limit(builder, owned, device):
        share = builder.container(place, limit.scheme, Source.LIMIT_FILE).share(device)
        share.limit_bytes = limit.memory_bytes
        share.unlimited = limit.memory_bytes is None
        share.core_limit_percent = limit.cores_percent
        share.core_request_percent = limit.cores_request_percent


def _may_limit(builder: UsageBuilder, owned: OwnedLimit, device: str) -> bool:
    """Whether the limit in the file is possible."""
    limit, place = owned.limit, (owned.pod_uid, owned.container)
    source, memory = Source.LIMIT_FILE, limit.memory_bytes
    file, credible = (source, limit.path), builder.credible
    if tenant_writes(source, limit.scheme) and credible.is_forged(file, place, device):
        return False
    return not memory or credible.limit(file, device, memory) is not None


# ---------------------------------------------------------------- the driver's processes


def _add_processes(
    builder: UsageBuilder,
    gpu: GpuSample,
    process_usages: tuple[Usage, ...],
    unclear: UnclearUse,
) -> None:
    """Set the use; it is 0 without processes, unknown if one may be the container's.

    The utilisation of a container is that of its processes, so it is known only where they are.
    """
    for share in builder.shares():
        if share.device in gpu.processes_known:
            share.used_bytes = share.processes = 0
            if share.device in gpu.utilization_known:
                share.sm_utilization = 0.0
    for usage in process_usages:
        place = usage.pod_uid, usage.container
        share = builder.container(place, Scheme.NONE, Source.PROCESS).share(usage.device)
        share.used_bytes, share.processes = usage.used_bytes, len(usage.pids)
        if usage.device in gpu.utilization_known:
            busy = (gpu.utilization.get((pid, usage.device), 0.0) for pid in usage.pids)
            share.sm_utilization = sum(busy)
    of_named = {(usage.pod_uid, usage.device) for usage in process_usages if usage.container}
    doubtful = unclear != UnclearUse()
    for (uid, name), container in builder.containers.items():
        for share in container.shares.values() if doubtful or not name else ():
            if name:
                is_unclear = unclear.has(uid, share.device)
            else:  # a holder that may be any of its pod's containers
                idle = not share.processes and (uid, share.device) in of_named
                is_unclear = idle or share.device in unclear.devices
            if is_unclear:
                share.used_bytes = share.processes = share.sm_utilization = None


def _device_usages(
    gpu: GpuSample,
    owners: Mapping[int, ProcessOwner | None],
    process_usages: Iterable[Usage],
    unclear: UnclearUse,
) -> dict[str, DeviceUsage]:
    """The attribution gap of each device where the use of all its containers is known, by UUID."""
    attributed: Counter[str] = Counter()
    unsized: set[str] = set()
    for usage in process_usages:
        attributed[usage.device] += usage.used_bytes or 0
        is_unclear = usage.container and unclear.has(usage.pod_uid, usage.device)
        if usage.used_bytes is None or is_unclear:
            unsized.add(usage.device)
    unplaced = {found.device for found in gpu.unplaced if owners.get(found.pid) is not None}
    unsized.update(device.uuid for device in gpu.gpus if device.parent in unplaced)
    return device_usages(gpu, owners, attributed, unsized)
