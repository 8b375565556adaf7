"""The ledger of each sample, from the data of all collectors. Pure, with a cache.

The results of the sample before are used while the data has not changed: most of a node's
allocation records are the same from one sample to the next.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from vgpu.ledger import Evidence, Ledger, Malformed, merge
from vgpu.ledger.container_usage import NodeUsage
from vgpu.ledger.from_api import registered
from vgpu.ledger.from_kubelet import GrantContext
from vgpu.ledger.from_node import devices_of
from vgpu.ledger.index import LedgerIndex
from vgpu.ledger.limit_states import OverCounts, limit_sources, with_limits
from vgpu.ledger.liveness import node_uid
from vgpu.ledger.merge import ResolutionCache
from vgpu.ledger.node import NodeFiles, NodeSamples, StatementCache, read_samples
from vgpu.ledger.node_usage import node_usage
from vgpu.ledger.usage import MEMORY_USED
from vgpu.model.allocation import Device
from vgpu.model.facts import GpuSample, ProcessSample
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.registry import registry
from vgpu.sources.samples import NodeSample, Observation, PodSample, incomplete_sources

Gpus = tuple[tuple[Device, ...], tuple[Malformed, ...]]


class LedgerBuilder:
    """Keeps one node's allocation records. One thread calls ``ledger``."""

    def __init__(self, codecs: Iterable[SchemeCodec], node: str) -> None:
        """``codecs`` are those of all schemes on ``node``."""
        self._codecs = tuple(codecs)
        self._node = node
        self._memory = StatementCache()
        self._resolutions = ResolutionCache()
        self._object: Node | None = None
        self._registered_gpus: Gpus = ((), ())
        self._ledger_inputs: Any = None
        self._usage_inputs: Any = None
        self._usage = NodeUsage()
        self._over: OverCounts = {}
        self._limited = NodeUsage()
        self._limit_inputs: Any = None
        self._evidence, self._files = Evidence(), NodeFiles()
        self._ledger = merge(self._evidence)
        self._index = LedgerIndex(self._evidence, self._ledger)

    def ledger(self, observation: Observation) -> Ledger:
        """Who holds what, as of this observation."""
        inputs = _ledger_inputs(observation)
        if inputs != self._ledger_inputs:
            self._ledger_inputs = None
            evidence, self._files = self._gather(observation)
            if evidence != self._evidence:
                self._evidence, self._ledger = evidence, merge(evidence, self._resolutions)
            self._ledger_inputs = inputs
        return self._ledger

    def usage(self, observation: Observation) -> NodeUsage:
        """What containers may use and use, as of the observation of the newest ledger.

        It is the usage of the sample before if nothing has changed, and has its containers that
        have not changed: do not change them.
        """
        if self._index.ledger is not self._ledger:
            self._index = LedgerIndex(self._evidence, self._ledger)
        inputs = (self._ledger_inputs, _used(observation.gpu))
        if inputs != self._usage_inputs or self._usage.refused:  # what is refused may be over time
            self._usage_inputs = None
            self._usage = _kept(self._usage, self._node_usage(observation))
            self._usage_inputs = inputs
        return self._with_limits(observation)

    def _with_limits(self, observation: Observation) -> NodeUsage:
        """The usage with the verdict of each limit; a use that is over it is judged again."""
        inputs = self._usage, self._ledger
        kept = self._limit_inputs
        is_same = kept is not None and all(a is b for a, b in zip(inputs, kept, strict=True))
        if not is_same or 1 in self._over.values():
            self._limit_inputs = None
            pods = observation.pods
            sources = limit_sources(
                pods.pods if pods else (),
                observation.incomplete,
                self._over,
                pods.node if isinstance(pods, NodeSample) else None,
            )
            judged, self._over = with_limits(
                self._usage, self._index, self._files, observation, sources
            )
            self._limited = _kept(self._limited, judged)
            self._limit_inputs = inputs
        return self._limited

    def _node_usage(self, observation: Observation) -> NodeUsage:
        pods = observation.pods
        return node_usage(
            self._index,
            self._files,
            observation,
            phases=None if pods is None else {pod.ref.uid: pod.phase for pod in pods.statuses},
            finished=self._index.ended | (frozenset() if pods is None else pods.finished),
            at=observation.at,
        )

    def _gather(self, observation: Observation) -> tuple[Evidence, NodeFiles]:
        kubelet, pods = observation.kubelet, observation.pods
        node = pods.node if isinstance(pods, NodeSample) else None
        gpus, illegible = self._registered(node)
        evidence, files = read_samples(
            self._codecs,
            NodeSamples(
                node=self._node,
                gpu=observation.gpu,
                process=observation.process,
                shim=observation.shim,
                kubelet=kubelet,
                limits=observation.limits,
                held=kubelet.held if kubelet else None,
                own=observation.own.statements if observation.own else None,
                pods=None if pods is None else possibly_running(pods, observation.process),
                pods_complete=pods is not None and pods.complete,
                registered=gpus,
                incomplete=incomplete_sources(observation),
                resource_claims=observation.resource_claims,
                context=GrantContext(None if node is None else registry().schemes_of(node)),
                node_object=node,
            ),
            memory=self._memory,
        )
        malformed = (*evidence.malformed, *illegible)
        return msgspec.structs.replace(evidence, malformed=malformed), files

    def _registered(self, node: Node | None) -> Gpus:
        """The GPUs that the node's plugins registered at the API server, and what is unreadable."""
        if node is None:
            return ((), ())
        if node is not self._object:
            by_scheme, illegible = registered(node, self._codecs)
            gpus = tuple(gpu for _, scheme_gpus in by_scheme for gpu in scheme_gpus)
            self._object, self._registered_gpus = node, (gpus, tuple(illegible))
        return self._registered_gpus


def _ledger_inputs(observation: Observation) -> tuple[Any, ...]:
    """All that a ledger is made of."""
    gpu, pods = observation.gpu, observation.pods
    return (
        observation.shim,
        observation.process,
        observation.kubelet,
        observation.limits,
        observation.own,
        None if pods is None else msgspec.structs.replace(pods, heard_at=None),
        observation.incomplete,
        observation.resource_claims,
        None
        if gpu is None
        else (
            tuple(devices_of(gpu.gpus)),
            gpu.lost,
            gpu.complete,
            gpu.processes_known,
            [(process.pid, process.device) for process in gpu.processes],
        ),
    )


def _used(gpu: GpuSample | None) -> tuple[Any, ...] | None:
    """What a usage needs of the driver beside that."""
    if gpu is None:
        return None
    return (
        gpu.processes,
        gpu.unplaced,
        gpu.utilization,
        gpu.utilization_known,
        [device.readings.get(MEMORY_USED) for device in gpu.gpus],
    )


def _kept(before: NodeUsage, usage: NodeUsage) -> NodeUsage:
    """The usage, with the containers of the one before that are equal."""
    known = {(one.pod.uid, one.container): one for one in before.containers}
    containers = tuple(
        same if (same := known.get((one.pod.uid, one.container))) == one else one
        for one in usage.containers
    )
    return msgspec.structs.replace(usage, containers=containers)


def possibly_running(sample: PodSample, process: ProcessSample | None) -> tuple[Pod, ...]:
    """The pods, without those that run only in an old dump: they have no cgroup."""
    live = process.live_pods if process else None
    if sample.complete or live is None:
        return sample.pods
    return tuple(pod for pod in sample.pods if pod.phase != "Running" or node_uid(pod) in live)
