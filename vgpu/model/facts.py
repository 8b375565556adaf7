"""The data of the sources as frozen values: the only input of the pure part of the program.

Each source returns one of these for each sample. A value that could not be read is absent
(``None``, or missing from its mapping), never zero. Refused inputs are beside the data, as
:class:`~vgpu.model.reasons.Rejection`.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Final, Protocol

import msgspec

from vgpu.model.names import PodRef, Scheme
from vgpu.model.reasons import Rejection
from vgpu.model.resource_claims import ResourceClaim, ResourceClaimDevice

# ---------------------------------------------------------------- the driver


class Gpu(msgspec.Struct, frozen=True, dict=True):
    """One device: a GPU, or a MIG instance (then ``parent`` is the GPU's UUID).

    ``readings`` maps a reading's name and its label values to a number in base units, e.g.
    ``("temperature_celsius",): 41.0`` or ``("clock_hertz", "sm"): 1.98e9``. A reading that the
    device does not have, or that failed, has no entry. ``info`` holds what never changes while
    the driver runs (``name``, ``pci_bus_id``, ``driver_version``, ``mig_profile`` …).
    """

    uuid: str
    index: int
    info: Mapping[str, str]
    readings: Mapping[tuple[str, ...], float]
    parent: str = ""

    @cached_property
    def by_name(self) -> Mapping[str, Mapping[tuple[str, ...], float]]:
        """The readings by name, and of each name by label values."""
        named: dict[str, dict[tuple[str, ...], float]] = {}
        for key, value in self.readings.items():
            named.setdefault(key[0], {})[key[1:]] = value
        return named


class GpuProcess(msgspec.Struct, frozen=True, gc=False):
    """One process on one device, by host pid.

    ``used_bytes`` is None where the driver hides it. ``graphics`` is a process without a compute
    context, such as a display server: type G of ``nvidia-smi``. ``mps`` is a client of MPS.
    """

    pid: int
    device: str
    used_bytes: int | None
    graphics: bool = False
    mps: bool = False


class GpuSample(msgspec.Struct, frozen=True):
    """One pass over the driver.

    Attributes:
        gpus: the devices that answered, GPUs before their MIG instances, by index.
        lost: UUIDs of devices that are or were there and do not answer.
        counted: number of GPUs that the driver counts, whether they answer or not (MIG instances
            not counted); 0 if the source does not count.
        processes: the processes on each device, only for devices in ``processes_known``.
        processes_known: devices whose process list is complete and consistent.
        unplaced: processes on a GPU in MIG mode that the driver lists without a known instance;
            ``device`` is the GPU. What they use of an instance is unknown.
        utilization: (pid, device) -> SM utilisation, ratio 0-1, since the last pass.
        utilization_known: devices that report utilisation by process (idle ones included).
        generation: number of driver initialisations.
        complete: whether every GPU could be identified, so that a UUID that is in neither
            ``gpus`` nor ``lost`` is no device of this node.
        rejections: what was refused, and why.
    """

    gpus: tuple[Gpu, ...]
    lost: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    processes_known: frozenset[str] = frozenset()
    utilization: Mapping[tuple[int, str], float] = {}
    utilization_known: frozenset[str] = frozenset()
    unplaced: tuple[GpuProcess, ...] = ()
    generation: int = 1
    complete: bool = True
    rejections: tuple[Rejection, ...] = ()
    counted: int = 0


class XidCount(msgspec.Struct, frozen=True, gc=False):
    """Number of a device's reports of an XID since start, and the last one's unix seconds."""

    device: str
    xid: int
    count: int
    last_timestamp: float


class CallCost(msgspec.Struct, frozen=True, gc=False):
    """Number of calls of a driver function since start, and the seconds spent in them."""

    count: int
    seconds: float


class GpuSource(Protocol):
    """The driver, real or simulated. One thread calls ``sample``; another ``wait_xids``."""

    def sample(self, now: float) -> GpuSample:
        """Read everything once. Raises SourceError when the driver as a whole cannot answer."""
        ...

    def wait_xids(self, timeout: float) -> None:
        """Block for at most ``timeout`` seconds and record the XIDs that arrived meanwhile."""
        ...

    def xids(self) -> tuple[XidCount, ...]:
        """All XIDs recorded since start. Never blocks."""
        ...

    def xids_watched(self) -> frozenset[str]:
        """The GPUs whose XIDs are being recorded. Never blocks."""
        ...

    def calls(self) -> Mapping[str, CallCost]:
        """The cost of the driver calls so far, by call name. Never blocks."""
        ...

    def close(self) -> None:
        """Release the driver. Never call this while ``sample`` is stuck."""
        ...


# ---------------------------------------------------------------- shim regions


class RegionDevice(msgspec.Struct, frozen=True, gc=False):
    """One device of a region: a limit of 0 is no limit, None is a number that cannot be."""

    uuid: str
    memory_limit_bytes: int | None
    core_limit_percent: int | None


class RegionUse(msgspec.Struct, frozen=True, gc=False):
    """One process's accounts on one device, in bytes; ``sm_util`` in percent.

    None is a counter that cannot be: the library subtracts without a check, so it passes below 0
    and wraps. ``sm_util`` is None, too, in layouts without it.
    """

    context: int | None
    module: int | None
    data: int | None
    offset: int | None
    total: int | None
    sm_util: int | None


class RegionProcess(msgspec.Struct, frozen=True, gc=False):
    """One process slot; ``used`` has one entry per device of the region, in its order.

    ``pid`` is the process's own in its pid namespace. ``host_pid`` is what NVML names inside the
    container: the host's pid, or with NVIDIA's open kernel modules the container's; 0 is not found.
    """

    pid: int
    host_pid: int
    status: int
    used: tuple[RegionUse, ...]


SLOT_DEAD: Final = 0
"""The status of a slot whose process has ended: the shim clears it, but not what it accounted."""


class Region(msgspec.Struct, frozen=True, gc=False):
    """One shared region, as the shim of one container wrote it.

    ``last_kernel_time`` is unix seconds, None in layouts without it; ``processes`` holds the
    first ``proc_num`` slots, dead ones included.
    """

    layout: str
    devices: tuple[RegionDevice, ...]
    processes: tuple[RegionProcess, ...]
    proc_num: int
    utilization_switch: int
    recent_kernel: int
    priority: int
    last_kernel_time: int | None
    major_version: int | None
    minor_version: int | None


class RegionFile(msgspec.Struct, frozen=True, gc=False):
    """A region with its path; pod and container come from the folder's name.

    The folder of a ResourceClaim has its UID instead, ``resource_claim_uid``; pod and container are
    "" then.
    """

    path: str
    pod_uid: str
    container: str
    region: Region
    resource_claim_uid: str = ""


class ShimSample(msgspec.Struct, frozen=True, dict=True):
    """One pass over all region roots."""

    files: tuple[RegionFile, ...]
    rejections: tuple[Rejection, ...] = ()

    @cached_property
    def host_pids(self) -> frozenset[int]:
        """The host's pids of all processes in the regions."""
        return frozenset(
            slot.host_pid
            for file in self.files
            for slot in file.region.processes
            if slot.host_pid > 0
        )

    @cached_property
    def has_resource_claims(self) -> bool:
        """Whether a region is a ResourceClaim's."""
        return any(file.resource_claim_uid for file in self.files)


# ---------------------------------------------------------------- processes


class ProcessOwner(msgspec.Struct, frozen=True, gc=False):
    """The owner of a process, by its cgroup; ``pod_uid`` is "" outside Kubernetes."""

    container_id: str
    pod_uid: str
    runtime: str


class MpsClientLimits(msgspec.Struct, frozen=True, gc=False):
    """The limits of MPS that a process has set for itself in its environment.

    Attributes:
        memory_bytes: number of a device, as the process sees it -> bytes of its memory.
        thread_percent: percent of a device's threads; None if it has set no limit.
    """

    memory_bytes: Mapping[int, int] = {}
    thread_percent: int | None = None


class MappedFile(msgspec.Struct, frozen=True, gc=False):
    """A file in /proc/<pid>/maps: its name without folders, its device and its inode.

    ``device`` is ``<major>:<minor>``, decimal; ``deleted`` is whether it was removed since;
    ``writable`` is whether the process has it in a mount of its own that can be written;
    ``path`` is where the process sees it.
    """

    name: str
    device: str
    inode: int
    deleted: bool = False
    writable: bool = False
    path: str = ""


class LinkedProcess(msgspec.Struct, frozen=True):
    """What a process has loaded of the libraries that limit.

    Attributes:
        files: the mapped files whose names are those of such libraries.
        dynamic: whether a dynamic loader is mapped; a static binary has none.
        disabled: whether its environment has CUDA_DISABLE_CONTROL; None if that was not read.
        preload: the files in LD_PRELOAD and LD_AUDIT of its environment, as they are named there;
            None if that was not read.
        limit_bytes: the limit of its first GPU that HAMi-core reads in its environment; 0 is none,
            None if that was not read.
    """

    files: tuple[MappedFile, ...] = ()
    dynamic: bool = True
    disabled: bool | None = None
    preload: tuple[str, ...] | None = None
    limit_bytes: int | None = None


class NodeLibrary(msgspec.Struct, frozen=True, gc=False):
    """A file of a library that limits, as its system has installed it on the node.

    ``library`` is what its name begins with, ``device`` is ``<major>:<minor>``, decimal.
    """

    library: str
    device: str
    inode: int


class PodPids(msgspec.Struct, frozen=True):
    """The processes of a pod, by the pids that they have inside their containers.

    Attributes:
        containers: container id -> pid inside the container -> host pid.
        complete: whether the pod has no other processes.
    """

    containers: Mapping[str, Mapping[int, int]]
    complete: bool = True


class ProcessSample(msgspec.Struct, frozen=True):
    """One pass over the processes that the kernel lists.

    Attributes:
        owners: host pid -> owner; None is a live process that is in no container. A pid that
            is gone has no entry.
        sees_host: whether these are the host's pids; if not, a missing pid is no evidence.
        live_pods: UIDs of pods that have a cgroup, None where that could not be read.
        bare: region files found inside containers (``/tmp/cudevshr.cache``), already attributed.
        mps_clients: host pid -> the limits in its environment, of processes in containers whose
            environment was read.
        ended: host pids that were asked for, and whose processes lived at an earlier sample. A pid
            that is neither here nor in ``owners`` was never seen.
        pod_pids: the processes of the living pods for whose region slots the host pids were not
            enough, by pod UID.
        mps_servers: host pids of servers of MPS outside of containers.
        reads_maps: whether maps and environments of processes in containers are read.
        linked: host pid -> what the process has loaded, of those that could be read.
        libraries: the files of the libraries that limit, on the node; None if they are unknown.
        static: host pids of processes in containers whose program is a static binary, where maps
            are not read.
        has_cgpu: whether the kernel has the module of cGPU; None if that was not read.
    """

    owners: Mapping[int, ProcessOwner | None]
    sees_host: bool
    live_pods: frozenset[str] | None
    bare: tuple[tuple[ProcessOwner, str, Region], ...] = ()
    mps_clients: Mapping[int, MpsClientLimits] = {}
    rejections: tuple[Rejection, ...] = ()
    ended: frozenset[int] = frozenset()
    pod_pids: Mapping[str, PodPids] = {}
    mps_servers: frozenset[int] = frozenset()
    reads_maps: bool = False
    linked: Mapping[int, LinkedProcess] = {}
    libraries: tuple[NodeLibrary, ...] | None = None
    static: frozenset[int] = frozenset()
    has_cgpu: bool | None = None


# ---------------------------------------------------------------- the kubelet


class ContainerName(msgspec.Struct, frozen=True, gc=False):
    """The names that belong to a container id."""

    namespace: str
    pod: str
    container: str
    pod_uid: str = ""


class Grant(msgspec.Struct, frozen=True, gc=False):
    """One resource that the kubelet allocated to one container, from its checkpoint.

    ``answered`` is False where the plugin's answer could not be read: pod-resources has none.
    """

    pod_uid: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    env: Mapping[str, str]
    answered: bool = True


class HeldDevices(msgspec.Struct, frozen=True, gc=False):
    """Who holds devices of one resource, as pod-resources reports it: without a pod UID."""

    namespace: str
    pod: str
    container: str
    resource: str


class CdiDevice(msgspec.Struct, frozen=True, gc=False, order=True):
    """A CDI device that a DRA driver has named for a device of a ResourceClaim.

    The container runtime looks ``name``, ``<kind>=<device>``, up in the CDI specs of the node.
    """

    driver: str
    pool: str
    device: str
    name: str


class PreparedResourceClaim(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaim that the kubelet has asked drivers to prepare.

    ``pod_uids`` are its pods on this node; ``devices`` is empty until the drivers have answered.
    """

    uid: str
    namespace: str
    name: str
    pod_uids: tuple[str, ...]
    devices: tuple[ResourceClaimDevice, ...]
    cdi: tuple[CdiDevice, ...] = ()


class DriverResourceClaim(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaim that a DRA driver has prepared, by the driver's own checkpoint.

    ``uuids`` has the UUID of each device, by the driver's name of the device.
    """

    resource_claim: ResourceClaim
    driver: str
    uuids: Mapping[str, str]


class HeldResourceClaim(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaim of one container, as pod-resources reports it: without any UID.

    The kubelet lists all devices of the ResourceClaim, whichever request the container uses.
    """

    namespace: str
    pod: str
    container: str
    resource_claim: str
    devices: tuple[ResourceClaimDevice, ...]
    cdi: tuple[CdiDevice, ...] = ()


class HeldResources(msgspec.Struct, frozen=True):
    """The answer of pod-resources: holder -> device IDs, and the ResourceClaims of containers."""

    devices: Mapping[HeldDevices, frozenset[str]] = {}
    resource_claims: tuple[HeldResourceClaim, ...] = ()


class KubeletSample(msgspec.Struct, frozen=True):
    """One pass over the kubelet's data on the node. Each part is None if not readable.

    Attributes:
        pods: pod UID -> names, from log folders and pod-resources.
        containers: container id -> names, from log links.
        grants: the checkpoint's entries.
        held: pod-resources' answer: holder -> device IDs.
        held_resource_claims: pod-resources' answer: the ResourceClaims of containers.
        resource_claims: the prepared ResourceClaims; None if the kubelet keeps a list of them that
            could not be read.
        dra_state_known: whether ``resource_claims`` are all that the kubelet has; False without its
            state, which only some processes may read.
        driver_resource_claims: what DRA drivers have prepared, by their own checkpoints.
        missing_cdi: the CDI devices of ResourceClaims that no CDI spec of the node has; none where
            the specs are not read, or not all of them.
        named: whether a pod that is not in ``pods`` has no name here; False where the log folders
            could not be read.
        replicas: device -> how many replicas of it NVIDIA's plugin has registered.
    """

    pods: Mapping[str, PodRef]
    containers: Mapping[str, ContainerName]
    grants: tuple[Grant, ...] | None = None
    rejections: tuple[Rejection, ...] = ()
    held: Mapping[HeldDevices, frozenset[str]] | None = None
    named: bool = True
    held_resource_claims: tuple[HeldResourceClaim, ...] = ()
    resource_claims: tuple[PreparedResourceClaim, ...] | None = ()
    replicas: Mapping[str, int] = {}
    driver_resource_claims: tuple[DriverResourceClaim, ...] = ()
    dra_state_known: bool = True
    missing_cdi: frozenset[str] = frozenset()


# ---------------------------------------------------------------- the API server


class PodSummary(msgspec.Struct, frozen=True, gc=False):
    """A pod of the API server: its phase and reason, and whether it requests a GPU."""

    ref: PodRef
    phase: str
    reason: str
    wants_gpu: bool


class ResourceClaimSample(msgspec.Struct, frozen=True):
    """What the API server has of the ResourceClaims that a node uses.

    Attributes:
        resource_claims: the ResourceClaims with their status.
        gone: UIDs of ResourceClaims that a driver has prepared and the API server does not have.
        uuids: the UUID of each device of this node, by driver, pool and device.
        rejections: what was refused, and why.
    """

    resource_claims: tuple[ResourceClaim, ...] = ()
    gone: frozenset[str] = frozenset()
    uuids: Mapping[tuple[str, str, str], str] = {}
    rejections: tuple[Rejection, ...] = ()


# ---------------------------------------------------------------- limit files


class LimitFile(msgspec.Struct, frozen=True, gc=False):
    """A limit that a sharing system left on disk for one container and one device.

    The pod is named by ``pod_uid`` (gpu-manager) or by ``namespace`` and ``pod`` (kubeshare; a key
    for a long name has no namespace), the
    device by ``device`` (UUID) or ``pci_bus_id``. ``memory_bytes`` and ``cores_percent`` are
    None if there is no limit.
    """

    scheme: Scheme
    path: str
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    container_id: str = ""
    device: str = ""
    pci_bus_id: str = ""
    memory_bytes: int | None = None
    cores_percent: int | None = None
    cores_request_percent: int | None = None


class MpsLimits(msgspec.Struct, frozen=True):
    """What NVIDIA's device plugin lets one client process of MPS have, by resource.

    Attributes:
        resource: the shared resource of the control daemon.
        memory_bytes: NVML index of a GPU -> bytes of its memory.
        thread_percent: percent of the threads of a GPU; None if there is no limit.
        servers: pids of the daemon's servers, the host's from k8s-device-plugin 0.18 on.
    """

    resource: str
    memory_bytes: Mapping[int, int]
    thread_percent: int | None = None
    servers: frozenset[int] = frozenset()


class LimitSample(msgspec.Struct, frozen=True):
    """One pass over the limit files of all schemes, and what MPS is configured with."""

    limits: tuple[LimitFile, ...]
    rejections: tuple[Rejection, ...] = ()
    mps: tuple[MpsLimits, ...] = ()


# ---------------------------------------------------------------- the collectors


class CollectorSamples(msgspec.Struct, frozen=True):
    """What the collectors on the node sampled; None for one that is off, failed or stale."""

    gpu: GpuSample | None = None
    process: ProcessSample | None = None
    shim: ShimSample | None = None
    kubelet: KubeletSample | None = None
    limits: LimitSample | None = None


# ---------------------------------------------------------------- the token daemon


class TokenClient(msgspec.Struct, frozen=True, gc=False):
    """A pod that shares the time of a GPU by tokens, as the node's token daemon reports it.

    Ratios are of the GPU's time, each None if it is not reported; ``window_share_ratio`` is of the
    daemon's last window. ``wait_seconds`` is the time for which the pod has waited for tokens that
    it got, since the daemon began.
    """

    device: str
    namespace: str
    pod: str
    request_ratio: float | None = None
    limit_ratio: float | None = None
    window_share_ratio: float | None = None
    wait_seconds: float | None = None


class TokenSample(msgspec.Struct, frozen=True):
    """The pods of the token daemon of one node."""

    clients: tuple[TokenClient, ...]
    rejections: tuple[Rejection, ...] = ()
