"""One node's evidence, from all that was sampled there and what the API server says. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from vgpu.facts import (
    GpuSample,
    Grant,
    HeldDevices,
    KubeletSample,
    LimitSample,
    ProcessSample,
    ShimSample,
)
from vgpu.kube.objects import Pod
from vgpu.ledger.bounds import bounds
from vgpu.ledger.from_api import node_ref
from vgpu.ledger.from_kubelet import identified
from vgpu.ledger.from_node import (
    devices_of,
    limit_statements,
    process_statements,
    region_statements,
)
from vgpu.ledger.owners import pods_with_cgroups, regions_inside, regions_on_node
from vgpu.ledger.statement_cache import StatementCache
from vgpu.ledger.statements import Evidence, Statement
from vgpu.ledger.virtual_gpus import holders, of_holders, of_share_pods, on_cards
from vgpu.model import Device, Source
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.handles import with_handles


class NodeSamples(msgspec.Struct, frozen=True):
    """All that was sampled of one node; None is what is off, failed or stale.

    Attributes:
        node: the node's name; "" if the sources do not need it.
        gpu, process, shim, kubelet, limits: the collectors' samples.
        held: the answer of pod-resources.
        own: our own checkpoint's statements, read only if it was written since the node started.
        pods: the node's that share GPUs, as the API server knows them.
        pods_complete: whether there are no others.
        registered: the devices as the node's plugins register them at the API server: with memory
            or cores scaled, that is more to share than the driver sees.
        incomplete: sources that did not bring all that there is.
    """

    node: str = ""
    gpu: GpuSample | None = None
    process: ProcessSample | None = None
    shim: ShimSample | None = None
    kubelet: KubeletSample | None = None
    limits: LimitSample | None = None
    held: Mapping[HeldDevices, frozenset[str]] | None = None
    own: Iterable[Statement] | None = None
    pods: Sequence[Pod] | None = None
    pods_complete: bool = True
    registered: Iterable[Device] = ()
    incomplete: Collection[Source] = ()


def node_evidence(
    codecs: Iterable[SchemeCodec], samples: NodeSamples, memory: StatementCache | None = None
) -> Evidence:
    """The evidence that the samples make.

    ``memory`` spares reading again what has not changed since it was used last, with the same
    codecs.
    """
    gpu, process, shim = samples.gpu, samples.process, samples.shim
    kubelet, limits, pods = samples.kubelet, samples.limits, samples.pods
    speakers, cards = tuple(codecs), tuple(samples.registered)
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
    if samples.held is not None:
        grants[Source.POD_RESOURCES] = identified(
            samples.held, refs.values(), grants.get(Source.CHECKPOINT)
        )
    virtual = holders(refs.values(), samples.node)
    uuids = of_share_pods(pods or ()) | of_holders(
        virtual, (grant for granted in grants.values() for grant in granted)
    )
    if pods is not None:
        said[Source.ANNOTATIONS] = [
            one
            for pod, reading in zip(pods, readings, strict=True)
            for one in on_cards(pod, reading.statements, uuids)
        ]
    if samples.own is not None:
        said[Source.OWN_CHECKPOINT] = samples.own
    for source, granted in grants.items():
        real = (grant for grant in granted if grant.pod_uid not in virtual)
        given = memory.given(real, speakers, source)
        said[source] = [statement for one in given for statement in one.statements]
        malformed += (wrong for one in given for wrong in one.malformed)
    if gpu and owners is not None:
        known = (one for one in gpu.processes if one.device in gpu.processes_known)
        said[Source.PROCESS] = process_statements(known, owners, names)
    if shim or (process and process.bare):
        on_node = regions_on_node(shim)
        files = (*on_node.values(), *regions_inside(process, names, on_node))
        said[Source.SHIM] = region_statements(files, owners, bounded)
    if limits:
        living = pods_with_cgroups(refs.values(), process.live_pods if process else None)
        said[Source.LIMIT_FILE], refused = limit_statements(limits.limits, living, names, bounded)
        malformed += refused
    return Evidence(
        node=samples.node,
        devices=with_handles(_devices(gpu, cards), uuids),
        devices_complete=gpu is not None and gpu.complete,
        lost=frozenset(gpu.lost) if gpu else frozenset(),
        statements=tuple(one for statements in said.values() for one in statements),
        pods=tuple(pods or ()),
        pods_complete=pods is not None and samples.pods_complete,
        live_pods=process.live_pods if process else None,
        names=refs,
        wanted=tuple(one for reading in readings for one in reading.wanted),
        malformed=tuple(malformed),
        read=frozenset(said),
        incomplete=frozenset(samples.incomplete),
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
