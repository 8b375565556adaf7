"""Pods a second on few nodes, where a device plugin serves one pod of a node at a time; as root.

    python benchmarks/scheduler_locks.py [--nodes 20] [--pods 300] [--modes null single locks]

The nodes have HAMi's GPUs and no kubelet. A simulated plugin of HAMi's watches the nodes, and
releases a lock as soon as the pod that it names is bound. "locks" is our ``--original-plugin``; the
other extenders take no locks. A figure is pods a second between the first binding and the last, of
pods that are there before kube-scheduler starts; binds that failed are those with ``node_locked``.
"""

import argparse
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks import extenders  # noqa: E402
from benchmarks.budgets import load  # noqa: E402
from tests.cluster.extending import kube_scheduler, make_node, remove_nodes  # noqa: E402
from tests.scheduler.scheduler_configs import WEIGHT  # noqa: E402
from tests.support.bed import objects  # noqa: E402
from tests.support.bed.client import Refused  # noqa: E402
from tests.support.bed.cluster import start_cluster  # noqa: E402
from tests.support.bed.fleet import create  # noqa: E402
from tests.support.bed.tools import ToolsMissing, ensure  # noqa: E402
from tests.support.bed.workplace import Workplace  # noqa: E402
from tests.support.registers import hami_register  # noqa: E402

GPUS = 8
LOCK = "hami.io/mutex.lock"
ASKED = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}
PATH = "/api/v1/namespaces/default/pods"
PLACE_SECONDS = 400
FAILED = 'vgpu_extender_bind_failures_total{reason="node_locked"'
FLAGS = {"kube-apiserver": ["--disable-admission-plugins=TaintNodesByCondition,ServiceAccount"]}


class SimulatedPlugin(threading.Thread):
    """Releases the lock of a node whose pod is bound, at once."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self._client = client
        self._served = set()
        self._is_ending = False

    def run(self):
        while not self._is_ending:
            page = self._client.get("/api/v1/nodes")
            for node in page["items"]:
                self._see(node)
            version = page["metadata"]["resourceVersion"]
            watch = self._client.watch("/api/v1/nodes", resourceVersion=version, timeoutSeconds=5)
            for _, node in watch:
                self._see(node)

    def _see(self, node):
        lock = (node["metadata"].get("annotations") or {}).get(LOCK)
        if lock and lock not in self._served:
            self._served.add(lock)
            path = f"/api/v1/nodes/{node['metadata']['name']}"
            threading.Thread(target=self._serve, args=(path, lock), daemon=True).start()

    def _serve(self, path, lock):
        _, namespace, name = lock.split(",")
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                pod = self._client.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
            except Refused:
                return
            if pod["spec"].get("nodeName"):
                self._client.patch(path, {"metadata": {"annotations": {LOCK: None}}})
                return
            time.sleep(0.002)

    def end(self):
        self._is_ending = True
        self.join()


@contextmanager
def plugin(client):
    simulated = SimulatedPlugin(client)
    simulated.start()
    yield
    simulated.end()


def measure(cluster, folder, mode, count):
    """Pods a second, and the binds that failed for a lock."""
    client = cluster.client
    pods = [
        objects.pod(f"p{number}", "default", limits=ASKED, schedulerName=mode)
        for number in range(count)
    ]
    create(client, pods)
    times, bound = [], set()
    until = time.monotonic() + PLACE_SECONDS
    with (
        extenders.extending(cluster, folder, mode) as extender,
        plugin(client),
        kube_scheduler(cluster, folder, mode, extender.port, weight=WEIGHT),
    ):
        while len(bound) < count and time.monotonic() < until:
            for pod in client.list(PATH):
                if pod["spec"].get("nodeName") and pod["metadata"]["name"] not in bound:
                    bound.add(pod["metadata"]["name"])
                    times.append(time.monotonic())
            time.sleep(0.05)
        failed = extender.counted(FAILED) if mode != "null" else 0
    for pod in client.list(PATH):
        client.delete(pod, grace_seconds=0)
    took = (times[-1] - times[0]) if len(times) > 1 else float("nan")
    return len(bound), (len(bound) - 1) / took if took else float("inf"), failed


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--modes", nargs="+", default=["null", "single", "leases", "locks"])
    args = parser.parse_args()
    names = [f"n{number}" for number in range(args.nodes)]
    try:
        with (
            Workplace() as workplace,
            tempfile.TemporaryDirectory() as folder,
            start_cluster(workplace, ensure(), controllers=False, flags=FLAGS) as cluster,
        ):
            print(f"{args.nodes} nodes with {GPUS} GPUs, {args.pods} pods; load {load()}")
            for mode in args.modes:
                for name in names:
                    uuids = [f"GPU-{name}-{index}" for index in range(GPUS)]
                    make_node(cluster, name, {"nvidia.com/gpu": 10 * GPUS}, hami_register(*uuids))
                done, rate, failed = measure(cluster, Path(folder), mode, args.pods)
                print(
                    f"  {mode:10}{rate:7.1f} pods/s  {done} bound,"
                    f" {failed:.0f} binds failed with node_locked; load {load()}",
                    flush=True,
                )
                remove_nodes(cluster, names)
    except ToolsMissing as missing:
        sys.exit(str(missing))


if __name__ == "__main__":
    main()
