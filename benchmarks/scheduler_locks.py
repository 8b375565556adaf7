"""Pods a second on few nodes, where a device plugin serves one pod of a node at a time; as root.

    python benchmarks/scheduler_locks.py [--nodes 20] [--pods 300] [--rounds 3]
        [--modes null single locks] [--other FILE ...]

The nodes have HAMi's GPUs and no kubelet. A simulated plugin of HAMi's watches the nodes, and
releases a lock as soon as the pod that it names is bound. "locks" is our ``--original-plugin`` with
Leases, "single-locks" with ``--single``; "null", "single" and "leases" take no locks.

Another project's extender runs beside them: its file of YAML has the ``command`` as a list, in
which {port} is the port of the extender, and the fields of ``extender`` that kube-scheduler's
configuration has for it. It gets the API server by KUBECONFIG; its name is the file's.

Every round measures each extender once, in another order. A figure is pods a second between the
first binding and the last, of pods that are there before kube-scheduler starts; the extender's CPU
time of a pod; and the tries of kube-scheduler that ended in an error, such as a failed bind.
"""

import argparse
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from urllib3.exceptions import HTTPError

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import load  # noqa: E402
from benchmarks.extenders import FLAGS, extending, extending_other, read_other  # noqa: E402
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
HTTP_TIMEOUT = "30s"
"""As HAMi's chart has it; ours knows it by a flag."""

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
PLACE_SECONDS = 400
FAILED = "Error scheduling pod"
"""kube-scheduler's log line of a try that ended in an error; one that fits nowhere has none."""

SERVER = {"kube-apiserver": ["--disable-admission-plugins=TaintNodesByCondition,ServiceAccount"]}


class SimulatedPlugin:
    """Releases the lock of a node once the pod that it names is bound.

    Attributes:
        bound: when each pod was seen bound first, by its name, in monotonic seconds.
    """

    def __init__(self, client):
        self.bound = {}
        self._client = client
        self._guard = threading.Lock()
        self._locks = {}
        self._served = set()
        self._is_ending = False
        self._releases = ThreadPoolExecutor(8)
        follow = ((NODES, self._see_node), (PODS, self._see_pod))
        self._threads = [threading.Thread(target=self._follow, args=each) for each in follow]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._is_ending = True
        for thread in self._threads:
            thread.join()
        self._releases.shutdown()

    def _follow(self, path, see):
        while not self._is_ending:
            with suppress(HTTPError, Refused):  # on a busy machine an answer may come too late
                page = self._client.get(path)
                for each in page["items"]:
                    see(each)
                version = page["metadata"]["resourceVersion"]
                for _, each in self._client.watch(path, resourceVersion=version, timeoutSeconds=5):
                    see(each)

    def _see_node(self, node):
        lock = (node["metadata"].get("annotations") or {}).get(LOCK)
        if lock:
            with self._guard:
                self._locks[lock.rpartition(",")[2]] = node["metadata"]["name"], lock
            self._serve(lock.rpartition(",")[2])

    def _see_pod(self, pod):
        if pod["spec"].get("nodeName"):
            self.bound.setdefault(pod["metadata"]["name"], time.monotonic())
            self._serve(pod["metadata"]["name"])

    def _serve(self, pod):
        with self._guard:
            node, lock = self._locks.get(pod, ("", ""))
            if not lock or lock in self._served or pod not in self.bound:
                return
            self._served.add(lock)
        change = {"metadata": {"annotations": {LOCK: None}}}
        self._releases.submit(self._client.patch, f"{NODES}/{node}", change)


class Figures(NamedTuple):
    """Of one burst: pods bound, pods a second, ms of CPU time of a pod, and tries that failed."""

    bound: int
    rate: float
    cpu: float
    failed: int


def measure(cluster, folder, mode, other, count):
    """The figures of an extender; ``other`` is that of another project, or None."""
    client = cluster.client
    pods = [
        objects.pod(f"p{number}", "default", limits=ASKED, schedulerName=mode)
        for number in range(count)
    ]
    create(client, pods)
    running = extending_other(cluster, folder, other) if other else extending(cluster, folder, mode)
    stanza = {"weight": WEIGHT, "httpTimeout": HTTP_TIMEOUT, **(other.stanza if other else {})}
    until = time.monotonic() + PLACE_SECONDS
    with (
        running as extender,
        SimulatedPlugin(client) as plugin,
        kube_scheduler(cluster, folder, mode, extender.port, **stanza) as scheduler,
    ):
        before = extender.cpu()
        while len(plugin.bound) < count and time.monotonic() < until:
            time.sleep(0.05)
        cpu = 1000 * (extender.cpu() - before) / max(1, len(plugin.bound))
        failed = scheduler.log().count(FAILED)
    for pod in client.list(PODS):
        client.delete(pod, grace_seconds=0)
    times = sorted(plugin.bound.values())
    took = times[-1] - times[0] if len(times) > 1 else float("nan")
    return Figures(len(times), (len(times) - 1) / took, cpu, failed)


def prepare(cluster, names, mode, other):
    """Nodes whose GPUs our plugin has registered, or HAMi's, which needs the locks."""
    plugin_name = None if other or mode.endswith("locks") else "vgpu"
    for name in names:
        uuids = [f"GPU-{name}-{index}" for index in range(GPUS)]
        register = hami_register(*uuids, plugin=plugin_name)
        make_node(cluster, name, {"nvidia.com/gpu": 10 * GPUS}, register)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--modes", nargs="*", choices=FLAGS, default=["null", "single", "leases", "locks"]
    )
    parser.add_argument("--other", nargs="+", type=Path, default=[], metavar="FILE")
    args = parser.parse_args()
    names = [f"n{number}" for number in range(args.nodes)]
    others = {path.stem: read_other(path) for path in args.other}
    modes = [*args.modes, *others]
    figures = {mode: [] for mode in modes}
    try:
        with (
            Workplace() as workplace,
            tempfile.TemporaryDirectory() as name,
            start_cluster(workplace, ensure(), controllers=False, flags=SERVER) as cluster,
        ):
            print(f"{args.nodes} nodes with {GPUS} GPUs, {args.pods} pods; load {load()}")
            for number in range(args.rounds):
                first = number % len(modes)
                for mode in modes[first:] + modes[:first]:
                    folder = Path(name) / f"{mode}-{number}"
                    folder.mkdir()
                    prepare(cluster, names, mode, others.get(mode))
                    took = measure(cluster, folder, mode, others.get(mode), args.pods)
                    figures[mode].append(took)
                    show(mode, took)
                    remove_nodes(cluster, names)
    except ToolsMissing as missing:
        sys.exit(str(missing))
    if args.rounds > 1:
        print("medians")
        for mode in modes:
            show(mode, Figures(*map(median, zip(*figures[mode], strict=True))))


def show(mode, figures):
    print(
        f"  {mode:14}{figures.rate:7.1f} pods/s  {figures.cpu:6.1f} ms CPU of a pod"
        f"  {figures.bound:.0f} bound, {figures.failed:.0f} tries failed; load {load()}",
        flush=True,
    )


if __name__ == "__main__":
    main()
