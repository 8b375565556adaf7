"""The page's rows, from the ledger's usage of each container and device. Pure.

This module decides nothing: it gives rows the names and numbers that labels need.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from exporter.view import Attribution, ContainerRow, GpuRow, Orphan, ShareRow, TokenRow
from vgpu.ledger.container_usage import ContainerUsage, LeftoverRegion, NodeUsage
from vgpu.ledger.usage import DeviceUsage
from vgpu.model.facts import Gpu, GpuSample, TokenSample
from vgpu.model.names import Scheme, Source
from vgpu.sources.samples import Observation

COLLECTORS: Final[Mapping[Source, str]] = {
    Source.SHIM: "shim",
    Source.LIMIT_FILE: "limits",
    Source.OWN_CHECKPOINT: "plugin",
}
"""The collectors of the sources whose data the ledger can refuse."""

Labels = Mapping[str, tuple[int | None, Mapping[str, str] | None]]
"""By UUID the index of a device, and what a MIG instance is."""


class _Rows(msgspec.Struct, frozen=True):
    """The rows of one container."""

    usage: ContainerUsage
    container: ContainerRow
    shares: tuple[ShareRow, ...]


class Attributor:
    """Makes the rows of one observation after another. One thread uses it.

    The rows of a container are those of the observation before while its usage is the same value.
    """

    def __init__(self) -> None:
        self._usage: NodeUsage | None = None
        self._labels: Labels = {}
        self._rows: dict[int, _Rows] = {}
        self._containers: tuple[ContainerRow, ...] = ()
        self._shares: tuple[ShareRow, ...] = ()
        self._orphans: tuple[Orphan, ...] | None = None
        self._released: tuple[Orphan, ...] | None = None

    def rows(self, observation: Observation, usage: NodeUsage) -> Attribution:
        """The rows of this observation and its usage."""
        gpus = observation.gpu.gpus if observation.gpu else ()
        labels = {gpu.uuid: (gpu.index, gpu.info if gpu.parent else None) for gpu in gpus}
        if self._usage is not usage or self._labels != labels:
            kept = self._rows if self._labels == labels else {}
            # By identity: each entry has the value itself, so that no other can be at its address.
            self._rows = {
                id(one): kept.get(id(one)) or _rows(one, labels) for one in usage.containers
            }
            self._containers = tuple(rows.container for rows in self._rows.values())
            self._shares = tuple(row for rows in self._rows.values() for row in rows.shares)
            self._orphans = _leftovers(usage.orphans)
            self._released = _leftovers(usage.released)
            self._usage, self._labels = usage, labels
        gpu = observation.gpu
        return Attribution(
            gpus=tuple(_gpu_rows(gpu, usage.devices, usage.replicas)) if gpu else (),
            containers=self._containers,
            shares=self._shares,
            orphans=self._orphans,
            released=self._released,
            statuses=observation.pods.statuses if observation.pods else None,
            rejected=tuple((COLLECTORS[source], rejection) for source, rejection in usage.refused),
            driver=gpu,
            usages=usage.processes,
            tokens=_token_rows(observation.tokens, self._shares) if observation.tokens else (),
        )


def _rows(container: ContainerUsage, labels: Labels) -> _Rows:
    return _Rows(container, _container_row(container), tuple(_share_rows(container, labels)))


def _gpu_rows(
    gpu: GpuSample, used: Mapping[str, DeviceUsage], replicas: Mapping[str, int]
) -> Iterator[GpuRow]:
    for device in gpu.gpus:
        use = used.get(device.uuid)
        if use is None:
            yield GpuRow(device, replicas=replicas.get(device.uuid))
        else:
            yield GpuRow(
                device,
                unattributed_bytes=use.unattributed_bytes,
                unattributed_processes=use.unattributed_processes,
                attributed_bytes=use.attributed_bytes,
                replicas=replicas.get(device.uuid),
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
            **msgspec.structs.asdict(share),
            pod_uid=pod.uid,
            container=container.container,
            namespace=pod.namespace,
            pod=pod.name,
            scheme=container.scheme,
            device_index=index,
            last_kernel_time=None if share.vdevice is None else container.last_kernel_time,
            mig=mig,
        )


def _token_rows(sample: TokenSample, shares: Iterable[ShareRow]) -> tuple[TokenRow, ...]:
    """The pods of the token daemon that have a share of its GPU by KubeShare.

    The daemon knows pods by their names. Two pods of one name, of which one replaces the other,
    cannot be distinguished, and have none.
    """
    holders: dict[tuple[str, str, str], list[ShareRow]] = {}
    for share in shares:
        if share.scheme is Scheme.KUBESHARE and share.pod:
            holders.setdefault((share.device, share.namespace, share.pod), []).append(share)
    rows: list[TokenRow] = []
    for tenant in sample.clients:
        own = holders.get((tenant.device, tenant.namespace, tenant.pod), [])
        if len({share.pod_uid for share in own}) == 1:
            container = own[0].container if len(own) == 1 else ""
            rows.append(TokenRow(own[0].pod_uid, container, tenant))
    return tuple(rows)


def _leftovers(regions: tuple[LeftoverRegion, ...] | None) -> tuple[Orphan, ...] | None:
    if regions is None:
        return None
    return tuple(
        Orphan(region.path, region.pod.uid, region.container, region.pod.namespace, region.pod.name)
        for region in regions
    )
