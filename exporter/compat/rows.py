"""The common rows and numbers of the original monitors' metric sets."""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from exporter.view import ExporterView, GpuRow
from vgpu.ledger.container_usage import ShareUsage
from vgpu.metrics.family import Labelled, MetricType, Value

GAUGE = MetricType.GAUGE

ZONE = "vGPU"
"""The constant label zone of HAMi's and Volcano's monitors."""


class HostRow(msgspec.Struct, frozen=True, gc=False):
    """A GPU, for the host families."""

    gpu: GpuRow
    node: str

    @property
    def device_type(self) -> str:
        """As HAMi's monitor spells it."""
        return "NVIDIA-" + self.gpu.gpu.info.get("name", "")


class VDeviceRow(msgspec.Struct, frozen=True, gc=False):
    """A device of a region whose pod is known by name; ``now`` is 0 where no time is needed.

    ``last_kernel_time`` is its container's, ``mig`` what the driver reports of a MIG instance.
    """

    share: ShareUsage
    last_kernel_time: int | None = None
    now: float = 0.0
    mig: Mapping[str, str] | None = None


def hosts(view: ExporterView) -> Iterator[HostRow]:
    """GPUs that answer, without MIG instances."""
    for row in view.gpus:
        if row.answers and not row.gpu.parent:
            yield HostRow(row, view.node)


def vdevices(view: ExporterView) -> Iterator[VDeviceRow]:
    """Devices of regions: the original monitors know containers only by their regions."""
    for container in view.usage.containers:
        if container.pod.name:
            for share in container.shares.values():
                if share.accounted is not None:
                    yield VDeviceRow(share, container.last_kernel_time)


def timed_vdevices(view: ExporterView) -> Iterator[VDeviceRow]:
    """The same with the time: their numbers change although nothing happens."""
    return (VDeviceRow(row.share, row.last_kernel_time, view.timestamp) for row in vdevices(view))


def host_key(row: HostRow) -> tuple[str, ...]:
    """(index, uuid), which every host family has."""
    gpu = row.gpu.gpu
    return (str(gpu.index), gpu.uuid)


def vdevice_key(row: VDeviceRow) -> tuple[str, ...]:
    """The labels of every container family, and the zone."""
    share = row.share
    index = str(share.vdevice)
    return (share.pod.namespace, share.pod.name, share.container, index, share.device, ZONE)


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


def reported(field: str) -> Callable[[VDeviceRow], Value]:
    """A field of the region's accounted memory."""

    def pick(row: VDeviceRow) -> Value:
        value: Value = getattr(row.share.accounted, field)
        return value

    return pick


def limit(row: VDeviceRow) -> Value:
    """The region's limit, 0 for none, as the originals have it; None if it is unknown."""
    share = row.share
    return 0 if share.unlimited else share.limit_bytes


def utilization(row: VDeviceRow) -> Value:
    """Percent, summed over processes; can pass 100."""
    ratio = row.share.accounted.sm_utilization if row.share.accounted else None
    return None if ratio is None else round(ratio * 100, 6)


def last_kernel(row: VDeviceRow) -> Value:
    """Seconds since the container last launched a kernel."""
    then = row.last_kernel_time
    return max(0, int(row.now) - then) if then else None


def offset_breakdown(row: VDeviceRow) -> Labelled:
    """The total with its parts as labels, as the originals have it."""
    use = row.share.accounted
    if use is None or use.total is None or use.other is None:
        return {}
    return {(str(use.context), str(use.module), str(use.data), str(use.other)): use.total}


def mig_vdevices(view: ExporterView) -> Iterator[VDeviceRow]:
    """The vdevices that are MIG instances."""
    mig = {row.gpu.uuid: row.gpu.info for row in view.gpus if row.gpu.parent}
    for row in vdevices(view):
        if mig.get(row.share.device):
            yield msgspec.structs.replace(row, mig=mig[row.share.device])


def one(_: object) -> Value:
    """The value of an info metric."""
    return 1
