"""The metric sets of the original monitors, so that existing dashboards keep working.

Names, labels and units are the originals', wrong units included; the numbers come from the same
place (the driver for the host, the shim region for containers, live slots only). One deviation:
``Device_memory_desc_of_container`` is a gauge of total bytes without the breakdown as labels,
since each allocation would make a new series; ``breakdown=True`` brings the labels back.

A series whose pod name is unknown is left out, and counted.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

import msgspec

from exporter.view import Attribution, ContainerRow, GpuRow, ShareRow, View
from vgpu.metrics.family import Family, Kind, Labelled, Number, Table, Value
from vgpu.model import Scheme
from vgpu.units import MIB

GAUGE = Kind.GAUGE


class Compat(StrEnum):
    """The values of ``--compat``."""

    VOLCANO = "volcano"
    HAMI_LEGACY = "hami-legacy"
    HAMI = "hami"
    GAIA = "gaia"
    NONE = "none"


CONFLICTING = (Compat.VOLCANO, Compat.HAMI_LEGACY)
"""They use the same names with different labels."""

ZONE = "vGPU"
"""The constant label zone of HAMi's and Volcano's monitors."""


class HostRow(msgspec.Struct, frozen=True, gc=False):
    """A card, for the host families."""

    gpu: GpuRow
    node: str

    @property
    def device_type(self) -> str:
        """As HAMi's monitor spells it."""
        return "NVIDIA-" + self.gpu.gpu.info.get("name", "")


class VDeviceRow(msgspec.Struct, frozen=True, gc=False):
    """A device of a region whose pod is known by name."""

    share: ShareRow
    now: float


def hosts(view: View) -> Iterator[HostRow]:
    """Cards that answer, without MIG instances."""
    for row in view.attribution.gpus:
        if row.answers and not row.gpu.parent:
            yield HostRow(row, view.node)


def vdevices(view: View) -> Iterator[VDeviceRow]:
    """The original monitors know of containers by their regions only."""
    for share in view.attribution.shares:
        if share.accounted is not None and share.pod:
            yield VDeviceRow(share, view.timestamp)


def host_key(row: HostRow) -> tuple[str, ...]:
    """(index, uuid), which every host family has."""
    gpu = row.gpu.gpu
    return (str(gpu.index), gpu.uuid)


def vdevice_key(row: VDeviceRow) -> tuple[str, ...]:
    """The labels of every container family, and the zone."""
    share = row.share
    index = str(share.vdevice)
    return (share.namespace, share.pod, share.container, index, share.device, ZONE)


def host_used(row: HostRow) -> Value:
    """Memory in use as nvmlDeviceGetMemoryInfo version 1 has it: the reserve counts as used."""
    readings = row.gpu.gpu.readings
    used = readings.get(("memory_used_bytes",))
    return None if used is None else used + readings.get(("memory_reserved_bytes",), 0)


def percent(name: str) -> Callable[[HostRow], Value]:
    """A ratio reading as 0-100."""

    def pick(row: HostRow) -> Value:
        ratio = row.gpu.gpu.readings.get((name,))
        return None if ratio is None else round(ratio * 100, 6)

    return pick


def told(field: str) -> Callable[[VDeviceRow], Value]:
    """A field of what the region accounts."""

    def pick(row: VDeviceRow) -> Value:
        value: Value = getattr(row.share.accounted, field)
        return value

    return pick


def limit(row: VDeviceRow) -> Value:
    """The region's limit, 0 for none, as the originals have it."""
    return row.share.limit_bytes or 0


def utilization(row: VDeviceRow) -> Value:
    """Percent, summed over processes; can pass 100."""
    ratio = row.share.accounted.sm_utilization if row.share.accounted else None
    return None if ratio is None else round(ratio * 100, 6)


def last_kernel(row: VDeviceRow) -> Value:
    """Seconds since the container last launched a kernel."""
    then = row.share.last_kernel_time
    return max(0, int(row.now) - then) if then else None


def offset_breakdown(row: VDeviceRow) -> Labelled:
    """The total with its parts as labels, as the originals have it."""
    use = row.share.accounted
    if use is None:
        return {}
    return {(str(use.context), str(use.module), str(use.data), str(use.other)): use.total}


# ---------------------------------------------------------------- Volcano and HAMi before 2.9

LEGACY_VDEVICE_LABELS = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone")


def _legacy_hosts(labels: tuple[str, ...], key: Callable[[HostRow], tuple[str, ...]]) -> Table:
    return Table(
        title="Cards",
        rows=hosts,
        labels=labels,
        key=key,
        families=(
            Family("HostGPUMemoryUsage", GAUGE, "GPU device memory usage in bytes.", host_used),
            Family(
                "HostCoreUtilization",
                GAUGE,
                "GPU core utilization, 0-100.",
                percent("utilization_ratio"),
            ),
        ),
    )


def _legacy_vdevices(breakdown: bool) -> Table:
    description = "Container device memory as the shim accounts it, in bytes."
    memory = (
        Family(
            "Device_memory_desc_of_container",
            GAUGE,
            description,
            offset_breakdown,
            ("context", "module", "data", "offset"),
        )
        if breakdown
        else Family("Device_memory_desc_of_container", GAUGE, description, told("total"))
    )
    return Table(
        title="Containers",
        rows=vdevices,
        labels=LEGACY_VDEVICE_LABELS,
        key=vdevice_key,
        families=(
            Family(
                "vGPU_device_memory_usage_in_bytes",
                GAUGE,
                "vGPU device memory usage as the shim accounts it, in bytes.",
                told("total"),
            ),
            Family(
                "vGPU_device_memory_limit_in_bytes",
                GAUGE,
                "vGPU device memory limit in bytes, 0 is none.",
                limit,
            ),
            memory,
            Family(
                "Device_utilization_desc_of_container",
                GAUGE,
                "Container device utilization, 0-100 summed over processes.",
                utilization,
            ),
            Family(
                "Device_last_kernel_of_container",
                GAUGE,
                "Seconds since the container last launched a kernel.",
                last_kernel,
            ),
        ),
    )


def volcano(breakdown: bool = False) -> tuple[Table, ...]:
    """The set of volcano-vgpu-device-plugin's monitor."""
    labels = ("deviceidx", "deviceuuid", "zone")
    return (
        _legacy_hosts(labels, lambda row: (*host_key(row), ZONE)),
        _legacy_vdevices(breakdown),
    )


def hami_legacy(breakdown: bool = False) -> tuple[Table, ...]:
    """The set of HAMi's vGPUmonitor before 2.9, or with --legacy-metrics."""
    labels = ("nodeid", "deviceidx", "deviceuuid", "devicetype", "zone")
    mig = Table(
        title="MIG instances",
        rows=mig_vdevices,
        labels=(*LEGACY_VDEVICE_LABELS, "instanceid"),
        key=lambda row: (*vdevice_key(row), (row.share.mig or {}).get("gpu_instance_id", "")),
        families=(Family("MigInfo", GAUGE, "Always 1; a MIG instance in a container.", one),),
    )
    return (
        _legacy_hosts(labels, lambda row: (row.node, *host_key(row), row.device_type, ZONE)),
        _legacy_vdevices(breakdown),
        mig,
    )


def mig_vdevices(view: View) -> Iterator[VDeviceRow]:
    """Those vdevices that are MIG instances."""
    return (row for row in vdevices(view) if row.share.mig)


def one(_: object) -> Value:
    """The value of an info metric."""
    return 1


# ---------------------------------------------------------------- HAMi 2.9 and later

HAMI_VDEVICE_LABELS = ("namespace", "pod", "container", "vdevice_index", "device_uuid", "zone")


def _mig_labels(row: VDeviceRow) -> Labelled:
    info = row.share.mig or {}
    names = ("mig_profile", "gpu_instance_id", "compute_instance_id")
    return {(row.share.device, *(info.get(name, "") for name in names)): 1}


def hami(breakdown: bool = False) -> tuple[Table, ...]:  # noqa: ARG001  # one shape for all sets
    """The set of HAMi's vGPUmonitor since 2.9. Its ``_ratio`` families are 0-100."""
    labels = ("node", "device_index", "device_uuid", "device_type", "zone")
    return (
        Table(
            title="Cards",
            rows=hosts,
            labels=labels,
            key=lambda row: (row.node, *host_key(row), row.device_type, ZONE),
            families=(
                Family(
                    "hami_host_gpu_memory_used_bytes",
                    GAUGE,
                    "GPU device memory usage in bytes.",
                    host_used,
                ),
                Family(
                    "hami_host_gpu_utilization_ratio",
                    GAUGE,
                    "GPU utilization, 0-100 despite its name.",
                    percent("utilization_ratio"),
                ),
            ),
        ),
        Table(
            title="Cards, without the node label",
            rows=hosts,
            labels=labels[1:],
            key=lambda row: (*host_key(row), row.device_type, ZONE),
            families=(
                Family(
                    "hami_host_gpu_memory_controller_utilization_ratio",
                    GAUGE,
                    "GPU memory controller utilization, 0-100 despite its name.",
                    percent("memory_utilization_ratio"),
                ),
            ),
        ),
        Table(
            title="Containers",
            rows=vdevices,
            labels=HAMI_VDEVICE_LABELS,
            key=vdevice_key,
            families=(
                Family(
                    "hami_vgpu_memory_used_bytes",
                    GAUGE,
                    "vGPU memory usage as the shim accounts it, in bytes.",
                    told("total"),
                ),
                Family(
                    "hami_vgpu_memory_limit_bytes",
                    GAUGE,
                    "vGPU memory limit in bytes, 0 is none.",
                    limit,
                ),
                Family(
                    "hami_container_device_memory_bytes",
                    GAUGE,
                    "The same as hami_vgpu_memory_used_bytes.",
                    told("total"),
                ),
                Family(
                    "hami_vgpu_memory_context_bytes",
                    GAUGE,
                    "vGPU memory of contexts in bytes.",
                    told("context"),
                ),
                Family(
                    "hami_vgpu_memory_module_bytes",
                    GAUGE,
                    "vGPU memory of modules in bytes.",
                    told("module"),
                ),
                Family(
                    "hami_vgpu_memory_buffer_bytes",
                    GAUGE,
                    "vGPU memory of buffers in bytes.",
                    told("data"),
                ),
                Family(
                    "hami_container_device_utilization_ratio",
                    GAUGE,
                    "Container device utilization, 0-100 summed over processes.",
                    utilization,
                ),
                Family(
                    "hami_container_last_kernel_elapsed_seconds",
                    GAUGE,
                    "Seconds since the container last launched a kernel.",
                    last_kernel,
                ),
            ),
        ),
        Table(
            title="MIG instances",
            rows=mig_vdevices,
            labels=HAMI_VDEVICE_LABELS,
            key=vdevice_key,
            families=(
                Family(
                    "hami_mig_device_info",
                    GAUGE,
                    "Always 1; a MIG instance in a container.",
                    _mig_labels,
                    ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id"),
                ),
            ),
        ),
        Table(
            title="Build",
            rows=lambda view: (view.build,),
            labels=("version", "revision", "build_date", "go_version", "compiler", "platform"),
            key=lambda build: (
                build.get("version", ""),
                build.get("revision", ""),
                "",
                "",
                "python" + build.get("python_version", ""),
                build.get("platform", ""),
            ),
            families=(
                Family("hami_build_info", GAUGE, "Always 1; vgpu's build in HAMi's place.", one),
            ),
        ),
    )


# ---------------------------------------------------------------- Tencent gpu-manager


class GaiaRow(msgspec.Struct, frozen=True, gc=False):
    """A container of the gaia scheme with its shares."""

    container: ContainerRow
    shares: tuple[ShareRow, ...]
    card_bytes: Number
    node: str


def gaia_rows(view: View) -> Iterator[GaiaRow]:
    """Containers of the gaia scheme, idle ones included."""
    shares: dict[tuple[str, str], list[ShareRow]] = {}
    for share in view.attribution.shares:
        shares.setdefault((share.pod_uid, share.container), []).append(share)
    memory = {
        row.gpu.uuid: row.gpu.readings.get(("memory_total_bytes",), 0)
        for row in view.attribution.gpus
    }
    for row in view.attribution.containers:
        if row.scheme is Scheme.GAIA and row.pod:
            own = tuple(shares.get((row.pod_uid, row.container), ()))
            yield GaiaRow(row, own, sum(memory.get(s.device, 0) for s in own), view.node)


def gaia_key(row: GaiaRow) -> tuple[str, ...]:
    """(pod_name, namespace, node, container_name)."""
    container = row.container
    return (container.pod, container.namespace, row.node, container.container)


def by_card(pick: Callable[[ShareRow], Value]) -> Callable[[GaiaRow], Labelled]:
    """One number a card under ``gpu<index>``, and their ``total``."""

    def values(row: GaiaRow) -> Labelled:
        numbers: dict[tuple[str, ...], Number] = {}
        for share in row.shares:
            value = pick(share)
            if value is None or share.device_index is None:
                return {}
            numbers[(f"gpu{share.device_index}",)] = value
        numbers[("total",)] = sum(numbers.values())
        return numbers

    return values


def gaia_request_cores(row: GaiaRow) -> Labelled:
    """The requested fraction of a card, summed."""
    cores = [share.core_request_percent for share in row.shares]
    known = [core for core in cores if core is not None]
    return {("total",): sum(known) / 100} if known and len(known) == len(cores) else {}


def gaia_request_memory(row: GaiaRow) -> Labelled:
    """The requested memory in MiB; no request means the whole card, as the original has it."""
    asked = sum(share.limit_bytes or 0 for share in row.shares)
    return {("total",): int(asked or row.card_bytes) // MIB} if row.shares else {}


def gaia(breakdown: bool = False) -> tuple[Table, ...]:  # noqa: ARG001  # one shape for all sets
    """The set of gpu-manager, which it serves on /metric."""
    return (
        Table(
            title="Containers",
            rows=gaia_rows,
            labels=("pod_name", "namespace", "node", "container_name"),
            key=gaia_key,
            families=(
                Family(
                    "container_gpu_utilization",
                    GAUGE,
                    "GPU utilization, 0-100.",
                    by_card(_sm_percent),
                    ("gpu",),
                ),
                Family(
                    "container_gpu_memory_total",
                    GAUGE,
                    "GPU memory usage in MiB.",
                    by_card(lambda s: None if s.used_bytes is None else s.used_bytes // MIB),
                    ("gpu_memory",),
                ),
                Family(
                    "container_request_gpu_utilization",
                    GAUGE,
                    "Requested share of a card, 1 is a whole one.",
                    gaia_request_cores,
                    ("req_of_gpu",),
                ),
                Family(
                    "container_request_gpu_memory",
                    GAUGE,
                    "Requested GPU memory in MiB.",
                    gaia_request_memory,
                    ("req_of_gpu_memory",),
                ),
            ),
        ),
    )


def _sm_percent(share: ShareRow) -> Value:
    return None if share.sm_utilization is None else round(share.sm_utilization * 100, 6)


# ---------------------------------------------------------------- choosing

SETS: dict[Compat, Callable[[bool], tuple[Table, ...]]] = {
    Compat.VOLCANO: volcano,
    Compat.HAMI_LEGACY: hami_legacy,
    Compat.HAMI: hami,
    Compat.GAIA: gaia,
}


def tables(sets: Iterable[Compat], breakdown: bool = False) -> tuple[Table, ...]:
    """The tables of the chosen sets, in the order of :class:`Compat`."""
    chosen = set(sets)
    return tuple(t for name, make in SETS.items() if name in chosen for t in make(breakdown))


def nameless(attribution: Attribution, sets: Iterable[Compat]) -> int:
    """How many rows the chosen sets leave out because the pod's name is unknown."""
    chosen = set(sets)
    count = 0
    if chosen & {Compat.VOLCANO, Compat.HAMI_LEGACY, Compat.HAMI}:
        count += sum(s.accounted is not None and not s.pod for s in attribution.shares)
    if Compat.GAIA in chosen:
        count += sum(c.scheme is Scheme.GAIA and not c.pod for c in attribution.containers)
    return count
