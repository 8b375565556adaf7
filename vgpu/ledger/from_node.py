"""What the driver, the kernel and the files on the node report, as statements. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from vgpu.ledger.bounds import UNREGISTERED, Bounds
from vgpu.ledger.owners import container_name, owned_limits
from vgpu.ledger.slots import Slots
from vgpu.ledger.statements import Malformed, Statement
from vgpu.model.allocation import Device, Share
from vgpu.model.facts import ContainerName, Gpu, GpuProcess, LimitFile, ProcessOwner, RegionFile
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.units import MILLI_PER_PERCENT, WHOLE_DEVICE_PERCENT
from vgpu.schemes.nvidia.grant import legacy_instance

_MEMORY = ("memory_total_bytes",)


def devices_of(gpus: Iterable[Gpu]) -> Iterator[Device]:
    """The driver's devices; a GPU is also found by index, device node and PCI bus id."""
    for gpu in gpus:
        memory = gpu.readings.get(_MEMORY)
        bus = bus_id(gpu.info.get("pci_bus_id", ""))
        handles = (bus,) if bus and not gpu.parent else ()
        yield Device(
            uuid=gpu.uuid,
            index=None if gpu.parent else gpu.index,
            memory_bytes=None if memory is None else int(memory),
            model=gpu.info.get("name", ""),
            handles=(*handles, *_legacy_name(gpu)),
            parent=gpu.parent,
            minor=minor_number(gpu),
        )


def minor_number(gpu: Gpu) -> int | None:
    """The N of the GPU's ``/dev/nvidia<N>``; None if the driver does not report it."""
    text = gpu.info.get("minor", "")
    return int(text) if text.isdecimal() and not gpu.parent else None


def _legacy_name(gpu: Gpu) -> Iterator[str]:
    """The name of a MIG instance in device IDs of older drivers, which no newer UUID is."""
    ids = gpu.info.get("gpu_instance_id"), gpu.info.get("compute_instance_id")
    if gpu.parent and ids[0] is not None and ids[1] is not None:
        name = legacy_instance(gpu.parent, ids[0], ids[1])
        if name != gpu.uuid:
            yield name


def bus_id(text: str) -> str:
    """A PCI bus id with a four-digit domain in lower case, as gpu-manager writes it; "" if none."""
    domain, colon, rest = text.strip().lower().partition(":")
    return domain[-4:].rjust(4, "0") + colon + rest if colon else ""


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


def region_statements(
    files: Iterable[RegionFile],
    slots: Slots,
    bounds: Bounds = UNREGISTERED,
) -> Iterator[Statement]:
    """A statement for each region of HAMi-core; alive if a process of its pod is in the region.

    A limit that is impossible by ``bounds`` is unknown.
    """
    for file in files:
        yield Statement(
            source=Source.SHIM,
            pod=PodRef(file.pod_uid, "", ""),
            container=file.container,
            shares=tuple(
                Share(
                    device.uuid,
                    _memory(bounds, device.uuid, device.memory_limit_bytes or None),
                    _core_limit(device.core_limit_percent),
                )
                for device in file.region.devices
            ),
            scheme=Scheme.VOLCANO,
            alive=any(slots.host_pid(slot, file) for slot in file.region.processes),
            where=file.path,
        )


def _core_limit(percent: int | None) -> int | None:
    """The limit in thousandths; None for 0 and for 100 %, which HAMi-core does not enforce."""
    return percent * MILLI_PER_PERCENT if percent and percent < WHOLE_DEVICE_PERCENT else None


def limit_statements(
    limits: Iterable[LimitFile],
    pods: Iterable[PodRef],
    names: Mapping[str, ContainerName],
    bounds: Bounds = UNREGISTERED,
) -> tuple[list[Statement], list[Malformed]]:
    """A statement for each limit file whose pod is known.

    ``pods`` are those that a name may mean, ``names`` is by container id. A container that its pod
    does not have is refused, and memory that is impossible by ``bounds`` is unknown: a tenant can
    write the file.
    """
    statements: list[Statement] = []
    malformed: list[Malformed] = []
    for owned in owned_limits(limits, pods, names):
        limit = owned.limit
        pod = PodRef(owned.pod_uid, limit.namespace, limit.pod) if owned.pod_uid else None
        if pod is None or owned.error:
            detail = f"{limit.path}: {owned.error}"
            malformed.append(Malformed(pod, owned.container, limit.scheme, detail))
        else:
            statements.append(_limit(limit, pod, owned.container, bounds))
    return statements, malformed


def _memory(bounds: Bounds, device: str, limit: int | None) -> int | None:
    return None if bounds.limit_error(device, limit) else limit


def _limit(limit: LimitFile, pod: PodRef, container: str, bounds: Bounds) -> Statement:
    """The statement has the requested cores: up to the limit a container may use free ones."""
    asked = limit.cores_request_percent
    percent = limit.cores_percent if asked is None else asked
    return Statement(
        source=Source.LIMIT_FILE,
        pod=pod,
        container=container,
        shares=(
            Share(
                limit.device or bus_id(limit.pci_bus_id),
                _memory(bounds, limit.device, limit.memory_bytes),
                None if percent is None else percent * MILLI_PER_PERCENT,
            ),
        ),
        scheme=limit.scheme,
        where=limit.path,
    )
