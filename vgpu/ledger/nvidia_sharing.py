"""How NVIDIA's own device plugin shares the devices of containers, and what that limits. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from vgpu.ledger.container_usage import ContainerUsage
from vgpu.ledger.index import LedgerIndex
from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import Statement
from vgpu.ledger.usage import Place, Usage
from vgpu.model.facts import MpsClientLimits, MpsLimits
from vgpu.model.names import REPLICATED_SHARING, UNLIMITED_SHARING, Sharing
from vgpu.model.units import MILLI_PER_PERCENT


def registered_replicas(registered: Mapping[str, int], registry: Registry) -> dict[str, int]:
    """The replicas that the plugin has registered, by the UUID of the device."""
    by_uuid = ((registry.uuid(device), count) for device, count in registered.items())
    return {uuid: count for uuid, count in by_uuid if uuid}


def add_sharing(
    containers: Mapping[Place, ContainerUsage],
    index: LedgerIndex,
    replicas: Mapping[str, int],
    configured: Iterable[MpsLimits],
) -> None:
    """Set how the devices of the containers are shared, and what that limits.

    Only a MIG instance has a limit of its own: its memory. MPS limits each process; the daemon of
    the allocated resource decides. GKE's plugin sets the limits by its answer: there they are the
    amounts of the shares. Of a device with n replicas, of which the container has k,

        fair share = memory · k / max(n, k)
    """
    daemons = {limits.resource: limits for limits in configured}
    for statement, devices in index.grants:
        container = containers.get((statement.pod.uid, statement.container))
        if not statement.sharing or container is None:
            continue
        held = Counter(devices)
        resources = [resource for resource, _ in statement.slices]
        mps = daemons.get(resources[0]) if len(resources) == 1 else None
        for device, sharing in zip(devices, statement.sharing, strict=True):
            share, known = container.shares.get(device), index.registry.devices.get(device)
            if share is None:
                continue
            memory = known.memory_bytes if known else None
            share.sharing = sharing
            if sharing in UNLIMITED_SHARING:
                share.unlimited = share.limit_bytes is None
            elif sharing is Sharing.MIG:
                share.limit_bytes = memory
            if sharing in REPLICATED_SHARING and memory is not None and replicas.get(device):
                count = max(replicas[device], held[device])
                share.fair_share_bytes = memory * held[device] // count
            if sharing is Sharing.MPS and mps is not None and known is not None:
                number = -1 if known.index is None else known.index
                share.process_limit_bytes = mps.memory_bytes.get(number)
                share.process_core_limit_percent = mps.thread_percent
            elif sharing is Sharing.MPS and _has_amounts(statement):
                share.process_limit_bytes = _sum(each.memory_bytes for each in statement.shares)
                cores = _sum(each.cores_milli for each in statement.shares)
                share.process_core_limit_percent = cores and cores // MILLI_PER_PERCENT


def _has_amounts(statement: Statement) -> bool:
    """Whether the plugin's answer had limits of MPS, which then are those of one device."""
    return any(share.memory_bytes or share.cores_milli for share in statement.shares)


def _sum(amounts: Iterable[int | None]) -> int | None:
    return sum(amount or 0 for amount in amounts) or None


def lower_to_clients(
    containers: Mapping[Place, ContainerUsage],
    index: LedgerIndex,
    process_usages: Iterable[Usage],
    clients: Mapping[int, MpsClientLimits],
) -> None:
    """Lower what MPS lets each process have to what all of the container's processes have set.

    A process can lower its limit and not raise it, unless no daemon has it: a limit in the plugin's
    answer is only the environment that a process starts with. The largest limit of the processes
    counts, and none if the limit of one of them is unknown. The environment has no UUIDs, so it
    counts only for containers with one device of the plugin, which is number 0 there.
    """
    single = {
        (statement.pod.uid, statement.container): (set(devices).pop(), _has_amounts(statement))
        for statement, devices in index.grants
        if len(set(devices)) == 1 and Sharing.MPS in statement.sharing
    }
    for usage in process_usages:
        place = usage.pod_uid, usage.container
        container = containers.get(place)
        share = container.shares.get(usage.device) if container else None
        own = [clients[pid] for pid in usage.pids if pid in clients]
        device, of_answer = single.get(place, ("", False))
        if share is None or device != usage.device or len(own) < len(usage.pids):
            continue
        memory = [each.memory_bytes.get(0) for each in own]
        configured = None if of_answer else share.process_limit_bytes
        share.process_limit_bytes = _lowered(configured, memory)
        threads = [each.thread_percent for each in own]
        configured = None if of_answer else share.process_core_limit_percent
        share.process_core_limit_percent = _lowered(configured, threads)


def _lowered(configured: int | None, own: Iterable[int | None]) -> int | None:
    """The largest of the limits of processes, none above what is configured; None if unknown."""
    largest = 0
    for limit in own:
        known = [each for each in (configured, limit) if each is not None]
        if not known:
            return None
        largest = max(largest, min(known))
    return largest
