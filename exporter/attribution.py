"""The page's rows, from the ledger's usage of each container and device. Pure.

This module decides nothing: it gives rows the names and numbers that labels need.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from exporter.view import Attribution, ContainerRow, GpuRow, Orphan, ShareRow
from vgpu.facts import Gpu, GpuSample
from vgpu.ledger.container_usage import ContainerUsage, LeftoverRegion, NodeUsage
from vgpu.ledger.usage import DeviceUsage
from vgpu.model import Source
from vgpu.sources.samples import Observation

COLLECTORS: Final[Mapping[Source, str]] = {
    Source.SHIM: "shim",
    Source.LIMIT_FILE: "limits",
    Source.OWN_CHECKPOINT: "plugin",
}
"""The collectors of the sources whose data the ledger can refuse."""


def attribute(observation: Observation, usage: NodeUsage) -> Attribution:
    """The rows of one observation and its usage."""
    gpu = observation.gpu
    gpus = {device.uuid: device for device in gpu.gpus} if gpu else {}
    return Attribution(
        gpus=tuple(_gpu_rows(gpu, usage.devices)) if gpu else (),
        containers=tuple(map(_container_row, usage.containers)),
        shares=tuple(row for container in usage.containers for row in _share_rows(container, gpus)),
        orphans=_leftovers(usage.orphans),
        released=_leftovers(usage.released),
        statuses=observation.pods.statuses if observation.pods else None,
        rejected=tuple((COLLECTORS[source], rejection) for source, rejection in usage.refused),
    )


def _gpu_rows(gpu: GpuSample, used: Mapping[str, DeviceUsage]) -> Iterator[GpuRow]:
    for device in gpu.gpus:
        use = used.get(device.uuid)
        if use is None:
            yield GpuRow(device)
        else:
            yield GpuRow(
                device,
                unattributed_bytes=use.unattributed_bytes,
                unattributed_processes=use.unattributed_processes,
                attributed_bytes=use.attributed_bytes,
            )
    for uuid in gpu.lost:
        yield GpuRow(Gpu(uuid, -1, {}, {}), answers=False)


def _container_row(container: ContainerUsage) -> ContainerRow:
    pod = container.pod
    return ContainerRow(
        pod_uid=pod.uid,
        container=container.container,
        namespace=pod.namespace,
        pod=pod.name,
        scheme=container.scheme,
        source=container.source,
        layout=container.layout,
        phase=container.phase,
        blocked=container.blocked,
        priority=container.priority,
        last_kernel_time=container.last_kernel_time,
    )


def _share_rows(container: ContainerUsage, gpus: Mapping[str, Gpu]) -> Iterator[ShareRow]:
    pod = container.pod
    for share in container.shares.values():
        gpu = gpus.get(share.device)
        yield ShareRow(
            pod_uid=pod.uid,
            container=container.container,
            device=share.device,
            namespace=pod.namespace,
            pod=pod.name,
            scheme=container.scheme,
            vdevice=share.vdevice,
            device_index=gpu.index if gpu else None,
            limit_bytes=share.limit_bytes,
            unlimited=share.unlimited,
            core_limit_percent=share.core_limit_percent,
            core_request_percent=share.core_request_percent,
            used_bytes=share.used_bytes,
            processes=share.processes,
            sm_utilization=share.sm_utilization,
            accounted=share.accounted,
            last_kernel_time=None if share.vdevice is None else container.last_kernel_time,
            mig=gpu.info if gpu and gpu.parent else None,
        )


def _leftovers(regions: tuple[LeftoverRegion, ...] | None) -> tuple[Orphan, ...] | None:
    if regions is None:
        return None
    return tuple(
        Orphan(region.path, region.pod.uid, region.container, region.pod.namespace, region.pod.name)
        for region in regions
    )
