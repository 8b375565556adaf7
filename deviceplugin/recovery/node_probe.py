"""Looks at the node for what recovery needs, and every few seconds at who is still alive.

Everything is read by the readers of exporter and reconciler, side by side and with a deadline, so
that what hangs costs only what it knows. The devices are those that the plugin shares, under the
numbers that its scheme gives them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from vgpu.admitted import AdmittedPod
from vgpu.facts import GpuSample
from vgpu.kube.objects import Pod
from vgpu.ledger import Ledger, merge
from vgpu.ledger.from_own import own_statements
from vgpu.ledger.node import NodeSamples, node_evidence
from vgpu.model import Device
from vgpu.own_checkpoint import Checkpoint
from vgpu.reasons import SourceError
from vgpu.schemes.codec import SchemeCodec
from vgpu.sources.node_sources import ALL, PLUGIN, NodePaths, NodeSources
from vgpu.sources.observation import observe
from vgpu.sources.runtime import read_live_pods
from vgpu.sources.samples import Observation, incomplete_sources, pod_sample, with_names

TIMEOUT_SECONDS: Final = 10.0
"""What each source may take of a look."""

OWN: Final = "our own checkpoint"


class NodeSnapshot(msgspec.Struct, frozen=True):
    """What was seen: the ledger, the UIDs that have a cgroup, and which source failed, and why."""

    ledger: Ledger
    live_pods: frozenset[str] | None
    failures: tuple[str, ...] = ()


class NodeProbe:
    """Looks at one node. One thread asks."""

    def __init__(
        self, codec: SchemeCodec, node: str, places: NodePaths, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        """Raises SourceError NOT_INSTALLED if pod-resources is to be asked and cannot be."""
        self._codec = codec
        self._node = node
        self._timeout = timeout
        self._gpu: GpuSample | None = None
        sources = NodeSources.open(places, ALL - {PLUGIN})  # our checkpoint is handed in
        self._on = sources.collectors(lambda _: self._gpu)

    def close(self) -> None:
        """Look no more, and forget what was seen: of a full node that is many MiB."""
        for collector in self._on.all():
            collector.close()

    def look(
        self,
        gpu: GpuSample | None,
        devices: Iterable[Device],
        own: Iterable[AdmittedPod],
        pods: Iterable[Pod] | None,
        now: float,
    ) -> NodeSnapshot:
        """What is there; takes at most two time-outs.

        ``gpu`` is what the driver reports now, None if it does not, and ``devices`` are its GPUs as
        they are shared. ``own`` are the tenants of our checkpoint, ``pods`` all of the node's,
        None while the API server is not heard; ``now`` is unix seconds.
        """
        self._gpu = gpu
        seen = observe(self._on, now, self._timeout, stale=2 * self._timeout)
        if seen.process is not None and not seen.process.live_pods:
            blind = replace(seen.process, live_pods=None)  # our own pod has a cgroup
            seen = replace(seen, process=blind)
        known = None if pods is None else tuple(pods)
        ledger = ledger_of(self._codec, self._node, seen, devices, own=own, pods=known)
        live_pods = seen.process.live_pods if seen.process else None
        return NodeSnapshot(ledger, live_pods, tuple(self._failures()))

    def _failures(self) -> Iterator[str]:
        for collector in self._on.all():
            health = collector.health()
            if not health.success:
                yield f"{health.name}: {health.last_error}"


def ledger_of(
    codec: SchemeCodec,
    node: str,
    seen: Observation,
    devices: Iterable[Device],
    *,
    own: Iterable[AdmittedPod],
    pods: Sequence[Pod] | None,
) -> Ledger:
    """Who holds what, by all that was seen; the rest as of :meth:`NodeProbe.look`. Pure."""
    shared = tuple(devices)
    kept = Checkpoint(node, codec.scheme, "", 0.0, tuple(own))
    names = None if pods is None else pod_sample(pods, complete=True)
    kubelet = with_names(seen.kubelet, names)
    evidence = node_evidence(
        (codec,),
        NodeSamples(
            node=node,
            gpu=seen.gpu,
            process=seen.process,
            shim=seen.shim,
            kubelet=kubelet,
            limits=seen.limits,
            held=kubelet.held if kubelet else None,
            own=own_statements(kept, OWN),
            pods=pods,
            registered=shared,
            incomplete=incomplete_sources(seen),
        ),
    )
    return merge(replace(evidence, devices=tuple(_numbered(evidence.devices, shared))))


def live_pods(cgroupfs: str) -> frozenset[str] | None:
    """UIDs of the pods that have a cgroup; None where that is not known.

    If there is none at all it may not be the node's tree that is in sight: our own pod has one.
    """
    return pods_with_cgroup(cgroupfs) or None


def pods_with_cgroup(cgroupfs: str) -> frozenset[str] | None:
    """The same, be there none; None where no tree of a kubelet's can be read."""
    try:
        return read_live_pods(cgroupfs)
    except SourceError:
        return None


def _numbered(devices: Iterable[Device], shared: Iterable[Device]) -> Iterator[Device]:
    """The devices under the numbers that claims call them by; those that are not shared have none.

    Schemes count differently: all GPUs, or those that are shared, or the device nodes.
    """
    index = {device.uuid: device.index for device in shared}
    for device in devices:
        yield replace(device, index=index.get(device.uuid))
