"""A cluster of many nodes that are only played: its own etcd and API server, and kwok.

    with start_fleet(workplace, tools, Population(nodes=1000, pods=5000)) as fleet:
        fleet.client.list("/api/v1/pods", limit=500)
        fleet.add(fleet.population.pod(5000, life=Life.UNEXPECTED_ADMISSION_ERROR))

The nodes are Ready and the pods Running when it starts, for it starts from etcd's data of the
first time, which the user's cache keeps. It goes on living: new pods come to what their label says
(see stages.py), deleted ones go. There are no leases and no heartbeats; with ``controllers`` the
nodes have a day to send one.
"""

import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from tests.support.bed import population as people
from tests.support.bed import stages
from tests.support.bed.cache import cached
from tests.support.bed.client import Client, Object, Objects
from tests.support.bed.cluster import NOT_YET, Cluster, start_cluster
from tests.support.bed.objects import condition
from tests.support.bed.population import Population
from tests.support.bed.processes import Daemon
from tests.support.bed.tools import Tools
from tests.support.bed.workplace import Workplace

DATA = "etcd"
"""The folder in a snapshot."""
CONNECTIONS, PAGE = 16, 500
PLAY_SECONDS = 900.0
"""How long kwok may take for a whole fleet, on a busy machine."""

SOURCES = (__file__, people.__file__, stages.__file__)
"""What makes a snapshot what it is, beside the programs."""

FLAGS = {
    # It taints every new node until a controller, which there may be none of, finds it Ready.
    "kube-apiserver": ["--disable-admission-plugins=TaintNodesByCondition"],
    "kube-controller-manager": [
        "--node-monitor-grace-period=24h",
        "--node-startup-grace-period=24h",
    ],
}


class Fleet:
    """A running fleet in a cluster that has its nodes and pods. ``client`` is the admin's."""

    def __init__(self, cluster: Cluster, population: Population) -> None:
        self.cluster, self.population, self.client = cluster, population, cluster.client

    def __enter__(self) -> Self:
        config = self.cluster.folder / "kwok.yaml"
        stages.write(config)
        command = [
            self.cluster.tools.path("kwok"),
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--config={config}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={stages.MANAGED}={stages.PLAYED}",
            "--node-lease-duration-seconds=0",
            "--server-address=",
            "--v=WARN",
        ]
        log, home = self.cluster.folder / "kwok.log", {"HOME": str(self.cluster.folder)}
        self.kwok = Daemon("kwok", command, log, env=home)
        return self

    def __exit__(self, *_: object) -> None:
        self.kwok.kill()

    def add(self, *pods: Object) -> Objects:
        """Create pods; how they are when each has come to what its label says."""
        made = create(self.client, pods)
        self.settle()
        return [self.client.get(pod) for pod in made]

    def settle(self) -> None:
        """Wait until kwok has played every node, and every pod that is bound to one."""
        self._wait(self._nodes_played, "nodes played")
        while pod := self._unplayed_pod():
            self._wait(lambda pod=pod: _played(self.client.find(pod)), f"{pod} played")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        self.kwok.wait_until(done, what, seconds=PLAY_SECONDS, failures=NOT_YET)

    def _nodes_played(self) -> bool:
        return all(condition(node, "Ready") for node in self.client.list("/api/v1/nodes"))

    def _unplayed_pod(self) -> str:
        """The path of one of the last pods that kwok has not played, if there is one."""
        waiting = {"fieldSelector": "status.phase=Pending,spec.nodeName!=", "limit": PAGE}
        more = None
        while True:
            page = self.client.raw("GET", "/api/v1/pods", **waiting, **{"continue": more}).json()
            unplayed = [pod for pod in page["items"] if not _played(pod)]
            if unplayed:
                return self.client.path({"kind": "Pod", "apiVersion": "v1", **unplayed[-1]})
            more = page["metadata"].get("continue")
            if not more:
                return ""


def _played(pod: Object | None) -> bool:
    return pod is None or "startTime" in pod["status"]


def create(client: Client, objects: Iterable[Object]) -> Objects:
    """Create objects over many connections; what the API server made of them, in their order."""
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        return list(threads.map(client.create, objects))


@contextmanager
def start_fleet(
    workplace: Workplace,
    tools: Tools,
    population: Population,
    *,
    controllers: bool = False,
    snapshot: Path | None = None,
) -> Iterator[Fleet]:
    """A fleet until the block ends.

    ``snapshot`` is what ``take_snapshot`` has written; the cache's, if there is none. The first
    one of its kind takes about a minute for 5,000 pods.
    """
    if snapshot is None:
        snapshot = cached(
            f"fleets/{population.scheme}-{population.nodes}-{population.pods}.tgz",
            [*(Path(file).read_text() for file in SOURCES), _versions(tools)],
            lambda file: take_snapshot(workplace, tools, population, file),
        )
    unpacked = workplace.subfolder("fleet-data")
    with tarfile.open(snapshot) as archive:
        archive.extractall(unpacked, filter="data")
    with (
        start_cluster(
            workplace,
            tools,
            name="fleet",
            controllers=controllers,
            etcd_data=unpacked / DATA,
            flags=FLAGS,
        ) as cluster,
        Fleet(cluster, population) as fleet,
    ):
        yield fleet


def take_snapshot(
    workplace: Workplace, tools: Tools, population: Population, file: Path
) -> dict[str, float]:
    """Write the data of an etcd whose cluster is populated; how many seconds each part took."""
    took: dict[str, float] = {}
    with ExitStack() as stack:
        with _timed(took, "control plane"):
            starting = start_cluster(
                workplace, tools, name="fleet-birth", controllers=False, flags=FLAGS
            )
            cluster = stack.enter_context(starting)
            fleet = stack.enter_context(Fleet(cluster, population))
        with _timed(took, "create nodes"):
            create(cluster.client, map(population.node, range(population.nodes)))
        with _timed(took, "create pods"):
            for objects in population.furniture():  # an account needs its namespace
                create(cluster.client, objects)
            sets = create(cluster.client, population.replica_sets())
            create(cluster.client, population.owned_pods(sets, int(time.time())))
        with _timed(took, "all Ready and Running"):
            fleet.settle()
        with _timed(took, "pack"):
            fleet.kwok.kill()
            cluster.stop()
            with tarfile.open(file, "w:gz", compresslevel=1) as archive:
                archive.add(cluster.etcd_data, DATA)
    return took


@contextmanager
def _timed(took: dict[str, float], what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    took[what] = time.monotonic() - begun


def _versions(tools: Tools) -> str:
    """What the programs that wrote the data say they are."""
    programs = ("etcd", "kube-apiserver", "kwok")
    commands = [[tools.path(program), "--version"] for program in programs]
    return "".join(subprocess.check_output(command, text=True) for command in commands)
