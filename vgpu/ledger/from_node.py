"""What the driver, the kernel and our own plugin report, as statements. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from vgpu.ledger.limit_files import bus_id
from vgpu.ledger.statements import Statement
from vgpu.ledger.usage import container_name
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Device, Share
from vgpu.model.facts import ContainerName, Gpu, GpuProcess, ProcessOwner
from vgpu.model.names import ContainerKind, Phase, PodRef, Source, device_node
from vgpu.model.own_checkpoint import Checkpoint
from vgpu.schemes.nvidia.gke import instance_name
from vgpu.schemes.nvidia.grant import legacy_instance

_MEMORY = ("memory_total_bytes",)


def devices_of(gpus: Iterable[Gpu]) -> Iterator[Device]:
    """The driver's devices; a GPU is also found by index, device node and PCI bus id.

    A MIG instance is also found by its GPU's UUID or device node, with its IDs.
    """
    gpus = tuple(gpus)
    minors = {gpu.uuid: minor_number(gpu) for gpu in gpus if not gpu.parent}
    for gpu in gpus:
        memory = gpu.readings.get(_MEMORY)
        bus = bus_id(gpu.info.get("pci_bus_id", ""))
        handles = (bus,) if bus and not gpu.parent else ()
        yield Device(
            uuid=gpu.uuid,
            index=None if gpu.parent else gpu.index,
            memory_bytes=None if memory is None else int(memory),
            model=gpu.info.get("name", ""),
            handles=(*handles, *_instance_names(gpu, minors.get(gpu.parent))),
            parent=gpu.parent,
            minor=minor_number(gpu),
        )


def minor_number(gpu: Gpu) -> int | None:
    """The N of the GPU's ``/dev/nvidia<N>``; None if the driver does not report it."""
    text = gpu.info.get("minor", "")
    return int(text) if text.isdecimal() and not gpu.parent else None


def _instance_names(gpu: Gpu, minor: int | None) -> Iterator[str]:
    """The names of a MIG instance in device IDs: that of older drivers, and that of GKE's plugin.

    ``minor`` is its GPU's. No newer UUID is the name of an older driver.
    """
    ids = gpu.info.get("gpu_instance_id"), gpu.info.get("compute_instance_id")
    if gpu.parent and ids[0] is not None and ids[1] is not None:
        name = legacy_instance(gpu.parent, ids[0], ids[1])
        if name != gpu.uuid:
            yield name
        if minor is not None:
            yield instance_name(device_node(minor), ids[0], ids[1])


def process_statements(
    processes: Iterable[GpuProcess],
    owners: Mapping[int, ProcessOwner | None],
    names: Mapping[str, ContainerName],
) -> list[Statement]:
    """A statement for each container with processes on devices, and for each process in none.

    Of the processes in no pod, those that only draw (a display server) are no work of somebody who
    needs an allocation. ``owners`` has all processes that live; ``names`` is by container id.
    """
    pids: dict[tuple[str, str], dict[str, list[int]]] = {}
    statements = []
    for process in processes:
        if process.pid not in owners:
            continue
        owner = owners[process.pid]
        if process.graphics and (owner is None or not owner.pod_uid):
            continue
        if owner is None:
            statements.append(_process(PodRef("", "", ""), "", {process.device: [process.pid]}))
        else:
            place = owner.pod_uid, container_name(owner, names)
            pids.setdefault(place, {}).setdefault(process.device, []).append(process.pid)
    for (uid, container), devices in pids.items():
        statements.append(_process(PodRef(uid, "", ""), container, devices))
    return statements


def device_users(statements: Iterable[Statement]) -> dict[tuple[str, str], frozenset[str]]:
    """The named containers of a pod with processes on a device, by pod UID and device."""
    users: dict[tuple[str, str], frozenset[str]] = {}
    for statement in statements:
        for share in statement.shares if statement.container else ():
            place = statement.pod.uid, share.device
            users[place] = users.get(place, frozenset()) | {statement.container}
    return users


def _process(pod: PodRef, container: str, devices: Mapping[str, Iterable[int]]) -> Statement:
    pids = sorted({pid for device_pids in devices.values() for pid in device_pids})
    return Statement(
        source=Source.PROCESS,
        pod=pod,
        container=container,
        shares=tuple(Share(device) for device in sorted(devices)),
        alive=bool(pod.uid or container),
        where=f"pid {', '.join(map(str, pids))}",
    )


def own_statements(kept: Checkpoint, where: str) -> list[Statement]:
    """A statement for each container in a checkpoint of this boot; ``where`` is its path.

    Devices that a pod was seen to use beyond that are not repeated: other sources report them.
    """
    return [
        Statement(
            source=Source.OWN_CHECKPOINT,
            pod=pod.pod,
            container=container,
            shares=shares,
            scheme=kept.scheme,
            phase=_phase(pod, kind),
            since=since or None,
            where=where,
            kind=kind,
        )
        for pod in kept.admitted_pods
        for container, kind, shares, since in _held(pod)
    ]


def _phase(pod: AdmittedPod, kind: ContainerKind) -> Phase:
    succeeded = pod.initialized and kind is ContainerKind.INIT
    return Phase.RELEASED if succeeded else Phase.ASSIGNED


def _held(pod: AdmittedPod) -> Iterator[tuple[str, ContainerKind, tuple[Share, ...], float]]:
    """Container, kind, shares and unix seconds: as bound, else as the pod was admitted with.

    The containers are in the order in which they start. Only an init container may be bound without
    an allocation of its own: it uses what an app container will use.
    """
    allocated = {own.container for own in pod.allocations}
    for binding in pod.bindings:
        if binding.container not in allocated:
            yield binding.container, ContainerKind.INIT, binding.shares, binding.at
    for allocation in pod.allocations:
        bound = pod.binding(allocation.container)
        shares, since = (bound.shares, bound.at) if bound else (allocation.shares, pod.since)
        yield allocation.container, allocation.kind, shares, since
