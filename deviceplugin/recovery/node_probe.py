"""Reads the node for the recovery, and every few seconds the pods that are still alive.

The readers of exporter and reconciler read all sources in parallel and with a deadline, so that
only the data of a hanging source is missing. The devices are those that the plugin shares, with the
numbers of its scheme.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from vgpu.ledger import Ledger, merge
from vgpu.ledger.from_node import own_statements
from vgpu.ledger.node import NodeSamples, node_evidence
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Device
from vgpu.model.facts import GpuSample
from vgpu.model.objects import Pod
from vgpu.model.own_checkpoint import Checkpoint
from vgpu.model.reasons import SourceError
from vgpu.schemes.codec import SchemeCodec
from vgpu.sources.node_sources import ALL, PLUGIN, NodePaths, NodeSources
from vgpu.sources.observation import observe
from vgpu.sources.runtime import read_live_pods
from vgpu.sources.samples import Observation, incomplete_sources, pod_sample, with_names

TIMEOUT_SECONDS: Final = 10.0
"""Maximum time for each source of a look, in seconds."""

OWN: Final = "our own checkpoint"


class NodeSnapshot(msgspec.Struct, frozen=True):
    """The result of a look: the ledger, UIDs with a cgroup, and the errors of failed sources."""

    ledger: Ledger
    live_pods: frozenset[str] | None
    failures: tuple[str, ...] = ()


class NodeProbe:
    """Reads one node. Used by one thread."""

    def __init__(
        self, codec: SchemeCodec, node: str, places: NodePaths, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        """Raises SourceError NOT_INSTALLED if pod-resources is to be asked and cannot be."""
        self._codec = codec
        self._node = node
        self._timeout = timeout
        self._gpu: GpuSample | None = None
        sources = NodeSources.open(places, ALL - {PLUGIN})  # our checkpoint is an argument
        self._on = sources.collectors(lambda _: self._gpu)

    def close(self) -> None:
        """Close the sources, and free the observations: those of a full node take many MiB."""
        for collector in self._on.all():
            collector.close()

    def probe(
        self,
        gpu: GpuSample | None,
        devices: Iterable[Device],
        own: Iterable[AdmittedPod],
        pods: Iterable[Pod] | None,
        now: float,
    ) -> NodeSnapshot:
        """The node's snapshot; takes at most two time-outs.

        ``gpu`` is the driver's sample of now, None if it has none, and ``devices`` are its GPUs as
        they are shared. ``own`` are the admitted pods of our checkpoint. ``pods`` are all pods of
        the node, None while the API server does not answer. ``now`` is unix seconds.
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
    """The ledger of an observation; other arguments as of :meth:`NodeProbe.probe`. Pure."""
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
    """UIDs of the pods that have a cgroup; None if they are not known.

    A tree without any pod may not be this node's tree, since our own pod has a cgroup.
    """
    return pods_with_cgroup(cgroupfs) or None


def pods_with_cgroup(cgroupfs: str) -> frozenset[str] | None:
    """The same UIDs, perhaps none; None if no tree of a kubelet can be read."""
    try:
        return read_live_pods(cgroupfs)
    except SourceError:
        return None


def _numbered(devices: Iterable[Device], shared: Iterable[Device]) -> Iterator[Device]:
    """The devices with the numbers that claims use; devices that are not shared have no number.

    Schemes count differently: all GPUs, the shared GPUs, or the device nodes.
    """
    index = {device.uuid: device.index for device in shared}
    for device in devices:
        yield replace(device, index=index.get(device.uuid))
