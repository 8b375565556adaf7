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

Labels = Mapping[str, tuple[int | None, Mapping[str, str] | None]]
"""By UUID the index of a device, and what a MIG instance is."""


class Attributor:
    """Makes the rows of one observation after another. One thread uses it.

    The rows of containers are those of the observation before while their usage is the same.
    """

    def __init__(self) -> None:
        self._made_of: tuple[NodeUsage, Labels] | None = None
        self._containers: tuple[ContainerRow, ...] = ()
        self._shares: tuple[ShareRow, ...] = ()

    def rows(self, observation: Observation, usage: NodeUsage) -> Attribution:
        """The rows of this observation and its usage."""
        gpus = observation.gpu.gpus if observation.gpu else ()
        labels = {gpu.uuid: (gpu.index, gpu.info if gpu.parent else None) for gpu in gpus}
        before = self._made_of
        if before is None or before[0] is not usage or before[1] != labels:
            self._containers = tuple(map(_container_row, usage.containers))
            self._shares = tuple(
                row for container in usage.containers for row in _share_rows(container, labels)
            )
            self._made_of = usage, labels
        return _attribution(observation, usage, self._containers, self._shares)


def _attribution(
    observation: Observation,
    usage: NodeUsage,
    containers: tuple[ContainerRow, ...],
    shares: tuple[ShareRow, ...],
) -> Attribution:
    gpu = observation.gpu
    return Attribution(
        gpus=tuple(_gpu_rows(gpu, usage.devices)) if gpu else (),
        containers=containers,
        shares=shares,
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


def _share_rows(container: ContainerUsage, labels: Labels) -> Iterator[ShareRow]:
    pod = container.pod
    for share in container.shares.values():
        index, mig = labels.get(share.device, (None, None))
        yield ShareRow(
            pod_uid=pod.uid,
            container=container.container,
            device=share.device,
            namespace=pod.namespace,
            pod=pod.name,
            scheme=container.scheme,
            vdevice=share.vdevice,
            device_index=index,
            limit_bytes=share.limit_bytes,
            unlimited=share.unlimited,
            core_limit_percent=share.core_limit_percent,
            core_request_percent=share.core_request_percent,
            used_bytes=share.used_bytes,
            processes=share.processes,
            sm_utilization=share.sm_utilization,
            accounted=share.accounted,
            last_kernel_time=None if share.vdevice is None else container.last_kernel_time,
            mig=mig,
        )


def _leftovers(regions: tuple[LeftoverRegion, ...] | None) -> tuple[Orphan, ...] | None:
    if regions is None:
        return None
    return tuple(
        Orphan(region.path, region.pod.uid, region.container, region.pod.namespace, region.pod.name)
        for region in regions
    )
