"""One node's evidence, from all that was sampled there and what the API server says. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from vgpu.facts import (
    ContainerName,
    GpuSample,
    Grant,
    HeldDevices,
    KubeletSample,
    LimitSample,
    ProcessSample,
    RegionFile,
    ShimSample,
)
from vgpu.kube.objects import Pod
from vgpu.ledger.bounds import bounds
from vgpu.ledger.from_api import node_ref
from vgpu.ledger.from_kubelet import identified
from vgpu.ledger.from_node import (
    container_name,
    devices_of,
    limit_statements,
    process_statements,
    region_statements,
)
from vgpu.ledger.statement_cache import StatementCache
from vgpu.ledger.statements import Evidence, Statement
from vgpu.ledger.virtual_gpus import holders, of_holders, of_share_pods, on_cards
from vgpu.model import Device, PodRef, Scheme, Source
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.kubeshare.node import with_handles


def node_evidence(
    codecs: Iterable[SchemeCodec],
    *,
    node: str = "",
    gpu: GpuSample | None = None,
    process: ProcessSample | None = None,
    shim: ShimSample | None = None,
    kubelet: KubeletSample | None = None,
    limits: LimitSample | None = None,
    held: Mapping[HeldDevices, frozenset[str]] | None = None,
    own: Iterable[Statement] | None = None,
    pods: Sequence[Pod] | None = None,
    pods_complete: bool = True,
    registered: Iterable[Device] = (),
    bound_by_id: Collection[Scheme] = (),
    incomplete: Collection[Source] = (),
    memory: StatementCache | None = None,
) -> Evidence:
    """All of it; None is what is off, failed or stale.

    ``held`` is pod-resources' answer, ``own`` our own checkpoint's, read only if it was written
    since the node started; ``pods`` are the node's that share GPUs, as the API server knows them,
    and ``pods_complete`` whether there are no others. ``registered`` are the devices as the node's
    plugins tell the API server: with memory or cores scaled, that is more to share than the driver
    sees. ``incomplete`` are the sources that did not bring all that there is. ``memory`` spares
    reading again what has not changed since it was used last, with the same languages.
    """
    speakers, cards = tuple(codecs), tuple(registered)
    bounded = bounds(devices_of(gpu.gpus if gpu else ()), cards)
    memory = memory or StatementCache()
    readings = memory.readings(pods or (), speakers)
    names = kubelet.containers if kubelet else {}
    refs = dict(kubelet.pods if kubelet else {}) | {
        ref.uid: ref for ref in map(node_ref, pods or ())
    }
    owners = process.owners if process and process.sees_host else None
    said: dict[Source, Iterable[Statement]] = {}
    malformed = [one for reading in readings for one in reading.malformed]
    grants: dict[Source, Sequence[Grant]] = {}
    if kubelet and kubelet.grants is not None:
        grants[Source.CHECKPOINT] = kubelet.grants
    if held is not None:
        grants[Source.POD_RESOURCES] = identified(
            held, refs.values(), grants.get(Source.CHECKPOINT)
        )
    virtual = holders(refs.values(), node)
    uuids = of_share_pods(pods or ()) | of_holders(
        virtual, (grant for granted in grants.values() for grant in granted)
    )
    if pods is not None:
        said[Source.ANNOTATIONS] = [
            one
            for pod, reading in zip(pods, readings, strict=True)
            for one in on_cards(pod, reading.statements, uuids)
        ]
    if own is not None:
        said[Source.OWN_CHECKPOINT] = own
    for source, granted in grants.items():
        real = (grant for grant in granted if grant.pod_uid not in virtual)
        given = memory.given(real, speakers, source, bound_by_id)
        said[source] = [statement for one in given for statement in one.statements]
        malformed += (wrong for one in given for wrong in one.malformed)
    if gpu and owners is not None:
        known = (one for one in gpu.processes if one.device in gpu.processes_known)
        said[Source.PROCESS] = process_statements(known, owners, names)
    if shim or (process and process.bare):
        said[Source.SHIM] = region_statements(_regions(shim, process, names), owners, bounded)
    if limits:
        living = _living(refs.values(), process)
        said[Source.LIMIT_FILE], refused = limit_statements(limits.limits, living, names, bounded)
        malformed += refused
    return Evidence(
        node=node,
        devices=with_handles(_devices(gpu, cards), uuids),
        devices_complete=gpu is not None and gpu.complete,
        lost=frozenset(gpu.lost) if gpu else frozenset(),
        statements=tuple(one for statements in said.values() for one in statements),
        pods=tuple(pods or ()),
        pods_complete=pods is not None and pods_complete,
        live_pods=process.live_pods if process else None,
        names=refs,
        wanted=tuple(one for reading in readings for one in reading.wanted),
        malformed=tuple(malformed),
        read=frozenset(said),
        incomplete=frozenset(incomplete),
        bounds=bounded,
    )


def _devices(gpu: GpuSample | None, registered: Iterable[Device]) -> Iterator[Device]:
    """The driver's devices, with as much to share as is registered of them.

    Only of what is registered by UUID: else the sizes are averages of all GPUs of the node, and
    without the driver nobody knows which GPU an index is. Of two plugins' words on one GPU the
    first counts.
    """
    plugins = {one.uuid: one for one in reversed(tuple(registered)) if one.uuid}
    if gpu is None:
        yield from plugins.values()
        return
    for device in devices_of(gpu.gpus):
        told = plugins.get(device.uuid)
        if told is None:
            yield device
        else:
            yield msgspec.structs.replace(
                device,
                memory_bytes=told.memory_bytes or device.memory_bytes,
                cores_milli=told.cores_milli,
                slots=told.slots,
                healthy=told.healthy,
            )


def _regions(
    shim: ShimSample | None, process: ProcessSample | None, names: Mapping[str, ContainerName]
) -> list[RegionFile]:
    """The regions on the node, then those inside of containers that have none there."""
    files = list(shim.files) if shim else []
    placed = {(file.pod_uid, file.container) for file in files}
    for owner, path, region in process.bare if process else ():
        name = container_name(owner, names)
        if (owner.pod_uid, name) not in placed:
            files.append(RegionFile(path, owner.pod_uid, name, region))
    return files


def _living(pods: Iterable[PodRef], process: ProcessSample | None) -> Iterable[PodRef]:
    """Without those that have no cgroup, where that is known."""
    live = process.live_pods if process else None
    return [pod for pod in pods if live is None or pod.uid in live]
