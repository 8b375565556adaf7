"""The ledger of each sample, from all that the collectors brought. Pure, with a memory.

What did not change since the sample before is neither read nor merged again: most of a node's
books are the same from one sample to the next.
"""

from collections.abc import Iterable, Sequence

import msgspec

from exporter.attribution import Observation
from vgpu.facts import Grant, ProcessSample
from vgpu.kube import Pod
from vgpu.ledger import Evidence, Ledger, Malformed, Statement, merge
from vgpu.ledger.from_api import Reading, read_pod
from vgpu.ledger.from_kubelet import grant_statements, identified
from vgpu.ledger.life import node_uid
from vgpu.ledger.node import node_evidence
from vgpu.model import Source
from vgpu.schemes.language import Language
from vgpu.sources.pods import PodSample

Granted = tuple[list[Statement], list[Malformed]]


class Bookkeeper:
    """Keeps one node's books. One thread calls ``ledger``."""

    def __init__(self, languages: Iterable[Language], node: str) -> None:
        """``languages`` are all that are spoken on ``node``."""
        self._languages = tuple(languages)
        self._node = node
        self._grants: tuple[Grant, ...] = ()
        self._granted: Granted = ([], [])
        self._readings: dict[str, tuple[Pod, Reading]] = {}
        self._evidence = Evidence()
        self._ledger = merge(self._evidence)

    def ledger(self, seen: Observation) -> Ledger:
        """Who holds what, as of this observation."""
        evidence = self._gathered(seen)
        if evidence != self._evidence:
            self._evidence, self._ledger = evidence, merge(evidence)
        return self._ledger

    def _gathered(self, seen: Observation) -> Evidence:
        """What changes with every sample, and what is remembered of the rest."""
        kubelet = seen.kubelet
        grants = kubelet.grants if kubelet else None
        rest = kubelet and msgspec.structs.replace(kubelet, grants=None)
        evidence = node_evidence(
            (),
            node=self._node,
            gpu=seen.gpu,
            process=seen.process,
            shim=seen.shim,
            kubelet=rest,
            limits=seen.limits,
        )
        statements = list(evidence.statements)
        malformed = list(evidence.malformed)
        read = set(evidence.read)
        if grants is not None:
            granted, refused = self._granted_by(grants)
            statements += granted
            malformed += refused
            read.add(Source.CHECKPOINT)
        if kubelet and kubelet.held is not None:
            found = identified(kubelet.held, kubelet.pods.values(), grants)
            held, refused = grant_statements(found, self._languages, Source.POD_RESOURCES)
            statements += held
            malformed += refused
            read.add(Source.POD_RESOURCES)
        pods: tuple[Pod, ...] = ()
        readings: list[Reading] = []
        if seen.pods is not None:
            pods = believed(seen.pods, seen.process)
            readings = self._readings_of(pods)
            statements += (said for one in readings for said in one.statements)
            malformed += (wrong for one in readings for wrong in one.malformed)
            read.add(Source.ANNOTATIONS)
        return msgspec.structs.replace(
            evidence,
            statements=tuple(statements),
            malformed=tuple(malformed),
            pods=pods,
            pods_complete=seen.pods is not None and seen.pods.complete,
            wanted=tuple(wanted for one in readings for wanted in one.wanted),
            read=frozenset(read),
        )

    def _granted_by(self, grants: tuple[Grant, ...]) -> Granted:
        if grants is not self._grants:
            self._grants, self._granted = grants, grant_statements(grants, self._languages)
        return self._granted

    def _readings_of(self, pods: Sequence[Pod]) -> list[Reading]:
        before, self._readings = self._readings, {}
        for pod in pods:
            known = before.get(pod.ref.uid)
            if known is None or known[0] is not pod:
                known = (pod, read_pod(pod, self._languages))
            self._readings[pod.ref.uid] = known
        return [reading for _, reading in self._readings.values()]


def believed(sample: PodSample, process: ProcessSample | None) -> tuple[Pod, ...]:
    """The pods, without those that only an old dump takes to be running: they have no cgroup."""
    live = process.live_pods if process else None
    if sample.complete or live is None:
        return sample.pods
    return tuple(pod for pod in sample.pods if pod.phase != "Running" or node_uid(pod) in live)
