"""How fast a node admits many containers at once: our plugin, beside one that only answers.

    with Contest(node, folder) as contest:
        ours, theirs = contest.ours(namespace), contest.theirs(namespace)
        ours.throughput / theirs.throughput

Both are processes of the same node all the time, each with resources of its own. What the kubelet
itself measured is of its own histograms, as far as they grew meanwhile.
"""

import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.plugin_node import PluginNode, volcano_pod
from tests.support.bed import objects
from tests.support.bed.client import Client, Object
from tests.support.bed.node import Node
from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from tests.support.waiting import wait_until

GPUS, CONTAINERS = 8, 80
GPU_GIB = 80
FACTOR = 1024  # MiB of a unit
LIKE = {
    "volcano.sh/vgpu-number": "example.com/number",
    "volcano.sh/vgpu-memory": "example.com/memory",
    "volcano.sh/vgpu-cores": "example.com/cores",
}
"""Ours -> of what the other one offers as many, and its pods ask for as many.

The kubelet keeps all IDs in its checkpoint, and writes it again for every answer: with shorter
lists it would be faster with any plugin.
"""

NOTHING = Path(__file__).with_name("nothing_plugin.py")

CREATORS = 8
SECONDS = 600

ALLOCATE = "kubelet_device_plugin_alloc_duration_seconds"
"""By resource; one observation for each container."""

START = "kubelet_pod_start_sli_duration_seconds"

_TENANTS = "vgpu_plugin_tenants"

_Histograms = Mapping[tuple[str, str], tuple[float, float]]


class Round(msgspec.Struct, frozen=True):
    """What one round took.

    Attributes:
        pods: how many.
        seconds: from the first creation until the last container had started.
        allocate_ms: the kubelet's mean of a pod's calls of Allocate, all its resources together.
        start_ms: the kubelet's mean of a pod's way from its creation to all its containers started.
        running: the pods as they are then.
    """

    pods: int
    seconds: float
    allocate_ms: float
    start_ms: float
    running: tuple[Object, ...]

    @property
    def throughput(self) -> float:
        """Containers a second."""
        return self.pods / self.seconds


class Contest:
    """Both plugins on a node; see the module."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.client = node, node.cluster.client
        split = CONTAINERS // GPUS
        flags = [f"--volcano.split-count={split}", f"--volcano.memory-factor={FACTOR}"]
        self.plugin = PluginNode(
            node, "volcano", folder, gpus=GPUS, memory=GPU_GIB * 2**30, flags=flags
        )
        self.other: Daemon | None = None
        self.bystander: Object | None = None
        self._rounds = itertools.count()

    def __enter__(self) -> Self:
        self.plugin.lay_out_shim()
        self.plugin.__enter__()
        self.plugin.wait_ready()
        counts = self.plugin.wait_offering(LIKE)
        offered = [f"{theirs}={counts[ours]}" for ours, theirs in LIKE.items()]
        command = [sys.executable, NOTHING, *offered]
        self.other = self.node.start("nothing", command, env={"PYTHONPATH": str(ROOT)})
        for ours, theirs in LIKE.items():
            self.plugin.wait_offered(theirs, counts[ours])
        # Where there is a pod at all, the node's cgroups show which pods live.
        bystander = objects.pod("bystander", "default", nodeName=self.node.name)
        self.bystander = self.plugin.start(bystander)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bystander:
            self.client.delete(self.bystander, grace_seconds=0)
        if self.other:
            self.other.stop()
        self.plugin.__exit__()

    def ours(self, namespace: str) -> "Round":
        """A round of pods that share the GPUs evenly, no two with the same limits on a GPU."""
        self.wait_empty()
        return admit(self.client, self.node, self._pods("ours", namespace))

    def theirs(self, namespace: str) -> "Round":
        """A round of the same pods, but for what they ask for."""
        pods = self._pods("theirs", namespace)
        for pod in pods:
            (container,) = pod["spec"]["containers"]
            container["resources"]["limits"] = {
                LIKE[name]: amount for name, amount in container["resources"]["limits"].items()
            }
        return admit(self.client, self.node, pods)

    def _pods(self, who: str, namespace: str) -> list[Object]:
        each = GPU_GIB * GPUS // CONTAINERS
        number = next(self._rounds)
        return [
            volcano_pod(
                f"{who}-{number}-{at}",
                namespace,
                self.plugin,
                {"main": [(at % GPUS, each - at // GPUS % 3, 1 + at // GPUS)]},
            )
            for at in range(CONTAINERS)
        ]

    def wait_empty(self) -> None:
        """Until our plugin has seen that nobody holds anything."""

        def empty() -> bool:
            return not sum(
                value for key, value in self.plugin.metrics().items() if key[0] == _TENANTS
            )

        wait_until(empty, "the GPUs are free", seconds=SECONDS)


def admit(client: Client, node: Node, pods: Sequence[Object]) -> Round:
    """Create them all at once, and wait until every one runs."""
    before = _histograms(client, node)
    namespace = pods[0]["metadata"]["namespace"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    started = time.monotonic()
    with ThreadPoolExecutor(CREATORS) as creators:
        list(creators.map(client.create, pods))

    def running() -> list[Object]:
        there = [pod for pod in client.list(path) if objects.ready(pod)]
        return there if len(there) == len(pods) else []

    there = wait_until(running, f"{len(pods)} pods run", seconds=SECONDS)
    taken = time.monotonic() - started
    after = _histograms(client, node)
    grown = {key: _less(histogram, before.get(key, (0.0, 0.0))) for key, histogram in after.items()}
    allocate = [histogram for (name, _), histogram in grown.items() if name == ALLOCATE]
    start = [histogram for (name, _), histogram in grown.items() if name == START]
    return Round(
        pods=len(pods),
        seconds=taken,
        allocate_ms=1000 * sum(total for _, total in allocate) / len(pods),
        start_ms=1000 * sum(total for _, total in start) / max(1.0, sum(n for n, _ in start)),
        running=tuple(there),
    )


def remove(client: Client, round_: Round) -> None:
    """Delete its pods, and wait until the kubelet reports that their containers are gone."""
    with ThreadPoolExecutor(CREATORS) as deleting:
        list(deleting.map(client.delete, round_.running))
        list(deleting.map(lambda pod: client.wait_gone(pod, seconds=SECONDS), round_.running))


def _histograms(client: Client, node: Node) -> _Histograms:
    """(name, resource) -> (count, sum), of the node's kubelet."""
    text = client.raw("GET", f"/api/v1/nodes/{node.name}/proxy/metrics").data.decode()
    found: dict[tuple[str, str], list[float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name not in (ALLOCATE, START):
            continue
        for sample in family.samples:
            for at, ending in enumerate(("_count", "_sum")):
                if sample.name.endswith(ending):
                    key = family.name, sample.labels.get("resource_name", "")
                    found.setdefault(key, [0.0, 0.0])[at] = sample.value
    return {key: (count, total) for key, (count, total) in found.items()}


def _less(now: tuple[float, float], before: tuple[float, float]) -> tuple[float, float]:
    return now[0] - before[0], now[1] - before[1]
