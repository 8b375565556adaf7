"""Simulated nodes behind one simulated API server, with controllers and kubelets.

The API server's objects are the truth about pods. A node's story follows them: a pod that is
evicted ends on its node, and one that a controller makes in its place begins there.
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from simulator.objects import node_object, pod_objects, pods_file
from simulator.scenario import Process, Scenario, SimulatedPod
from simulator.store import Json, ObjectStore
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.installation_kinds import INSTALLATION_KINDS
from vgpu.kube.kinds import KINDS, NODES, PODS
from vgpu.kube.merge_patches import merged


class Story(msgspec.Struct, frozen=True):
    """A cluster's state at the beginning, and its later changes.

    Attributes:
        nodes: each with its pods.
        deviations: by ``<node>`` or ``<namespace>/<pod>``, where an object is not as its scenario
            has it: a patch (RFC 7386).
        heirs: by ``<namespace>/<pod>``, the pod that its controller makes when it is evicted.
        installed: further objects, of any kind.
    """

    nodes: tuple[Scenario, ...]
    deviations: Mapping[str, Json] = {}
    heirs: Mapping[str, SimulatedPod] = {}
    installed: tuple[Json, ...] = ()


class SimulatedCluster:
    """A running story. Safe to use from several threads."""

    def __init__(self, story: Story, start: float) -> None:
        """``start`` is the unix time of second 0."""
        self.store = ObjectStore()
        self._start = start
        self._heirs = story.heirs
        self._deviations = story.deviations
        self._nodes = {node.node: node for node in story.nodes}
        for node in story.nodes:
            self._create(NODES, node_object(node))
            for pod in pod_objects(node, start):
                self._create(PODS, pod)
        by_name = {kind.name: kind for kind in (*KINDS, *INSTALLATION_KINDS)}
        for document in story.installed:
            self._create(by_name[document["kind"]], document)
        self.store.on_gone = self._gone

    def node(self, name: str) -> Scenario:
        """The node as it is now."""
        return self._nodes[name]

    def pods(self) -> bytes:
        """What ``kubectl get pods -A -o json`` prints now."""
        return pods_file(self.store.list(PODS).items)

    def _create(self, kind: ApiKind[Any], document: Json) -> None:
        meta = document["metadata"]
        name = "/".join(filter(None, (meta.get("namespace"), meta["name"])))
        self.store.create(kind, merged(document, self._deviations.get(name, {})))

    def _gone(self, document: Json) -> None:
        """The kubelet ends the pod, and its controller makes another one on the same node."""
        t = time.time() - self._start
        meta = document["metadata"]
        heir = self._heirs.get(f"{meta['namespace']}/{meta['name']}")
        for name, node in self._nodes.items():
            if not any(pod.ref.uid == meta["uid"] for pod in node.pods):
                continue
            pods = tuple(_ended(pod, t) if pod.ref.uid == meta["uid"] else pod for pod in node.pods)
            if heir is not None:
                pods += (_begun(heir, t),)
            self._nodes[name] = structs.replace(node, pods=pods)
            if heir is not None:
                *_, made = pod_objects(self._nodes[name], self._start)
                self._create(PODS, made)


def _ended(pod: SimulatedPod, t: float) -> SimulatedPod:
    """A removed pod: its processes and its object are gone."""
    return structs.replace(_with_processes(pod, until=t), deleted=True)


def _begun(pod: SimulatedPod, t: float) -> SimulatedPod:
    """A pod that was just made."""
    return structs.replace(_with_processes(pod, since=t), created=t)


def _with_processes(
    pod: SimulatedPod, since: float | None = None, until: float | None = None
) -> SimulatedPod:
    def lived(process: Process) -> Process:
        return structs.replace(
            process,
            since=process.since if since is None else max(process.since, since),
            until=process.until if until is None else min(process.until, until),
        )

    containers = tuple(
        structs.replace(container, processes=tuple(map(lived, container.processes)))
        for container in pod.containers
    )
    return structs.replace(pod, containers=containers)
