"""The scheduler behind a real kube-scheduler, beside an extender that decides nothing; as root.

    python benchmarks/scheduler_cluster.py [--nodes 500] [--pods 2500] [--placed 300]

The cluster is a fleet of the test bed: etcd, an API server and kwok, with Volcano's GPUs. A run is
one extender and one kube-scheduler of its own, for pods that are there before it starts: its pods a
second are counted between the first binding and the last. The null extender returns every node and
answers a bind with a bare Binding. Then 64 binds at a time are sent to each extender, and as many
Bindings to the API server itself. Pods are deleted before the next measurement: ours takes no node
with pods that nobody has promised a GPU. Everything shares this machine's cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402
from tests.cluster.extending import Extender, kube_scheduler  # noqa: E402
from tests.support.bed import objects  # noqa: E402
from tests.support.bed.fleet import create, start_fleet  # noqa: E402
from tests.support.bed.population import Population  # noqa: E402
from tests.support.bed.tools import ToolsMissing, ensure  # noqa: E402
from tests.support.bed.workplace import Workplace  # noqa: E402
from vgpu.kube import bodies  # noqa: E402
from vgpu.kube.flags import connected  # noqa: E402
from vgpu.kube.kinds import PODS  # noqa: E402
from vgpu.kube.verbs import BIND  # noqa: E402
from vgpu.model import PodRef  # noqa: E402
from vgpu.web.message import HttpResponse  # noqa: E402
from vgpu.web.routes import Route  # noqa: E402
from vgpu.web.server import WebServer  # noqa: E402

NAMESPACE = "team-0"
LIMITS = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8000}
AT_ONCE, ROUNDS = 64, 5
MODES = {"null": None, "single": ("--single",), "leases": ()}
LEAST_PART = {"single": 0.8, "leases": 0.5}
"""Of the null extender's pods a second."""

MOST_BIND = 4.0
"""Times of a bare Binding, at the 99th percentile."""

MOST_START = 10.0
"""Seconds from the start of the process to its first answer."""


def serve_nothing(kubeconfig):
    """The null extender; prints its port."""

    def answer(content):
        return HttpResponse(
            200, (("Content-Type", "application/json"),), json.dumps(content).encode()
        )

    def find_nodes(request):
        names = json.loads(request.body)["NodeNames"]
        return answer({"NodeNames": names, "FailedNodes": {}, "Error": ""})

    def prioritize(_):
        return answer([])

    with connected(kubeconfig, "", None, waits=True) as api:

        def bind(request):
            sent = json.loads(request.body)
            ref = PodRef(sent["PodUID"], sent["PodNamespace"], sent["PodName"])
            body = bodies.binding(ref, "", sent["Node"], {})
            del body["metadata"]["resourceVersion"]
            api.send(BIND, PODS, ref.namespace, ref.name, body)
            return answer({"Error": ""})

        routes = {
            path: Route(handle, ("POST",), 32 * 2**20)
            for path, handle in (
                ("/filter", find_nodes),
                ("/prioritize", prioritize),
                ("/bind", bind),
            )
        }
        server = WebServer(
            routes,
            ["127.0.0.1:0"],
            max_requests=256,
            max_bodies=256,
            max_connections=512,
            max_per_address=512,
        )
        server.start()
        print(server.addresses[0].rpartition(":")[2], flush=True)
        sys.stdin.read()


@contextmanager
def extending(cluster, folder, mode):
    """The port of an extender, and the seconds of its start."""
    if mode != "null":
        extender = Extender(cluster, folder, *MODES[mode])
        started = time.perf_counter()
        with extender:
            yield extender.port, time.perf_counter() - started
            extender.daemon.stop()  # politely: the next one need not wait for its Lease
        return
    command = [sys.executable, __file__, f"--null={cluster.kubeconfig}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield int(process.stdout.readline()), 0.0
        process.stdin.close()


def pods(count, prefix, scheduler):
    return [
        objects.pod(f"{prefix}-{number}", NAMESPACE, limits=LIMITS, schedulerName=scheduler)
        for number in range(count)
    ]


def throughput(fleet, folder, mode, port, count):
    """Pods a second, between the first binding and the last."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    made = {pod["metadata"]["uid"] for pod in create(fleet.client, pods(count, mode, mode))}
    version = fleet.client.get(path, limit=1)["metadata"]["resourceVersion"]
    times = []
    with kube_scheduler(fleet.cluster, folder, mode, port):
        for _, pod in fleet.client.watch(path, resourceVersion=version, timeoutSeconds=300):
            if pod["metadata"]["uid"] in made and pod["spec"].get("nodeName"):
                made.remove(pod["metadata"]["uid"])
                times.append(time.perf_counter())
                if not made:
                    break
    remove(fleet, mode)
    return (len(times) - 1) / (times[-1] - times[0])


def remove(fleet, prefix):
    """Delete the pods of a measurement."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    gone = [pod for pod in fleet.client.list(path) if pod["metadata"]["name"].startswith(prefix)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda pod: fleet.client.delete(pod, grace_seconds=0), gone))


def at_once(calls):
    """Milliseconds of each call; all begin together."""
    barrier = threading.Barrier(len(calls))

    def timed(call):
        barrier.wait()
        started = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - started)

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(timed, calls))


def bind_p99(fleet, mode, port):
    """Milliseconds of a bind by the extender, at the 99th percentile; port 0 is the API server."""
    times = []
    for number in range(ROUNDS):
        made = create(fleet.client, pods(AT_ONCE, f"{mode}-b{number}", "nobody"))
        nodes = [node["metadata"]["name"] for node in fleet.nodes[:AT_ONCE]]
        send = bare_binding if port == 0 else extender_binding
        times += at_once([send(fleet, port, *each) for each in zip(made, nodes, strict=True)])
        remove(fleet, mode)
    return sorted(times)[int(0.99 * len(times))]


def bare_binding(fleet, _, pod, node):
    meta = pod["metadata"]
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": meta["name"], "namespace": NAMESPACE, "uid": meta["uid"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    return lambda: fleet.client.raw("POST", fleet.client.path(pod, "binding"), body)


def extender_binding(_, port, pod, node):
    meta = pod["metadata"]
    body = {
        "PodName": meta["name"],
        "PodNamespace": NAMESPACE,
        "PodUID": meta["uid"],
        "Node": node,
    }

    def send():
        url = f"http://127.0.0.1:{port}/bind"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
            error = json.loads(answer.read())["Error"]
        assert not error, error

    return send


def measure(population, tools, placed):
    budgets = Budgets()
    rates, binds = {}, {}
    with (
        Workplace() as workplace,
        tempfile.TemporaryDirectory() as name,
        start_fleet(workplace, tools, population) as fleet,
    ):
        folder = Path(name)
        fleet.nodes = fleet.client.list("/api/v1/nodes")
        print(f"{population.nodes} nodes, {population.pods} bound pods; {placed} pods are placed")
        binds["bare"] = bind_p99(fleet, "bare", 0)
        print(f"  {'bare Binding, ' + str(AT_ONCE) + ' at once, p99':44}{binds['bare']:9.1f} ms")
        for mode in MODES:
            with extending(fleet.cluster, folder, mode) as (port, start):
                if mode != "null":
                    print(f"  {mode + ': ready after':44}{start:9.1f} s")
                    print(f"    {budgets.hold(f'{mode}, start', start, MOST_START, 's')}")
                rates[mode] = throughput(fleet, folder, mode, port, placed)
                part = rates[mode] / rates["null"]
                print(f"  {mode + ': pods a second':44}{rates[mode]:9.1f}     ({part:.2f} of null)")
                if mode in LEAST_PART:
                    most = 1 / LEAST_PART[mode]
                    print(f"    {budgets.hold(f'{mode}, null / own', 1 / part, most, 'times')}")
                binds[mode] = bind_p99(fleet, mode, port)
                times = binds[mode] / binds["bare"]
                print(f"  {mode + ': bind, p99':44}{binds[mode]:9.1f} ms  ({times:.1f} of bare)")
                if mode != "null":
                    print(f"    {budgets.hold(f'{mode}, bind', times, MOST_BIND, 'times')}")
    return budgets.status()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=2500)
    parser.add_argument("--placed", type=int, default=300)
    parser.add_argument("--null", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.null:
        serve_nothing(args.null)
        return
    try:
        tools = ensure()
    except ToolsMissing as missing:
        sys.exit(str(missing))
    sys.exit(measure(Population(args.nodes, args.pods), tools, args.placed))


if __name__ == "__main__":
    main()
