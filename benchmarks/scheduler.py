"""The scheduler's answers on a large cluster: filter, and the rejection of a pod again and again.

    python benchmarks/scheduler.py [--nodes 5000] [--pods 20000] [--requests 200] [--rounds 5]

A process has the cache of a cluster with 8 GPUs a node, in HAMi's form, and serves the verbs; 50
pods a second change in it meanwhile. The client sends one request after another over one
connection, as kube-scheduler does. Times are wall times of the client, from the first byte
of a request to the last of its answer. The first requests of a kind are not counted: they compute
what the later ones find. "Never seen" are pods of sizes that no node has answered yet, each once;
"300 sizes, rejected again" are as many waiting pods that no node takes, in turn. "Mixed" are pods
of eight sizes that are not bound yet when the next one comes, so that filter counts them. "Quota of
a model" are pods of a namespace with a limit of one GPU model, which depends on the GPUs of each
node.

A figure is of the median round: half of the rounds were at least as fast, and the fastest and the
slowest stand beside it. It is what a budget is compared with, so a machine with other work can
exceed it. There is no peer: HAMi's extender is in no package registry.
"""

import argparse
import http.client
import itertools
import json
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from msgspec import structs  # noqa: E402

from benchmarks.budgets import Budgets, load  # noqa: E402
from scheduler.cache.scheduler_cache import SchedulerCache  # noqa: E402
from scheduler.metrics import SchedulerMetrics  # noqa: E402
from scheduler.routes import extender_routes  # noqa: E402
from scheduler.verbs.extender import Extender, RejectionEvents  # noqa: E402
from scheduler.verbs.preemption import Preemptor  # noqa: E402
from vgpu.model.names import PodRef  # noqa: E402
from vgpu.model.objects import Container, Namespace, Node, Pod  # noqa: E402
from vgpu.placement.dialects import scheduler_schemes  # noqa: E402
from vgpu.web.server import WebServer  # noqa: E402

GPUS, SHARES, MEMORY_MIB = 8, 10, 16384
EVENTS_A_SECOND = 50
SIZES = tuple(range(1024, 8 * 1024 + 1, 1024))
WAITING = 300
BUDGETS_MS = {
    "500 names, p50": 1.0,
    "500 names, p99": 5.0,
    "mixed, 500 names, p99": 5.0,
    "5000 names, p99": 20.0,
    "mixed, 5000 names, p99": 20.0,
    "never seen, 5000 names, p50": 25.0,
    "300 sizes, rejected again, 5000 names, p50": 10.0,
    "rejected again, 500 names, p50": 1.0,
    "rejected again, 500 names, p99": 1.0,
    "quota of a model, 500 names, p50": 1.0,
}


def node(number):
    gpus = [
        {
            "id": f"GPU-{number}-{gpu}",
            "count": SHARES,
            "devmem": MEMORY_MIB,
            "devcore": 100,
            "type": "NVIDIA-Tesla T4",
            "mode": "hami-core",
            "health": True,
            "index": gpu,
        }
        for gpu in range(GPUS)
    ]
    register = {"hami.io/node-nvidia-register": json.dumps(gpus)}
    return Node(f"node-{number:05}", annotations=register)


def pod(number, nodes):
    place = number % nodes
    device = f"GPU-{place}-{number // nodes % GPUS}"
    memory = random.Random(number).randrange(4096, 12288)  # so that no two GPUs are alike
    return Pod(
        PodRef(f"uid-{number}", "ml", f"pod-{number}"),
        node=f"node-{place:05}",
        annotations={"hami.io/vgpu-devices-allocated": f"{device},NVIDIA,{memory},30:;"},
        containers=(Container("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}),),
        phase="Running",
    )


def serve(nodes, pods):
    """The process with the cache; prints its port, and its memory at the end."""
    cache = SchedulerCache(scheduler_schemes({}), time.time)
    for number in range(nodes):
        cache.set_node(f"node-{number:05}", node(number))
    bound = [pod(number, nodes) for number in range(pods)]
    for each in bound:
        cache.set_pod(f"ml/{each.ref.name}", each)
    limits = {"vgpu.dev/quota-memory": "Tesla T4=1Ti"}
    cache.set_namespace("limited", Namespace("limited", annotations=limits))
    extender = Extender(
        cache, None, SchedulerMetrics(), RejectionEvents(lambda _: None), lambda: ""
    )
    preemptor = Preemptor(None, cache, lambda: "")
    server = WebServer(extender_routes(extender, preemptor, SchedulerMetrics()), ["127.0.0.1:0"])
    server.start()
    print(server.addresses[0].rpartition(":")[2], flush=True)

    def change():
        draw = random.Random(1)
        while True:
            time.sleep(1 / EVENTS_A_SECOND)
            each = draw.choice(bound)
            changed = structs.replace(each, labels={"vgpu.dev/changed": str(time.time())})
            cache.set_pod(f"ml/{each.ref.name}", changed)

    threading.Thread(target=change, daemon=True).start()
    sys.stdin.read()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, flush=True)


def body(names, memory, uid="new", namespace="ml"):
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory)}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    metadata = {"name": uid, "namespace": namespace, "uid": uid}
    sent = {"metadata": metadata, "spec": {"containers": containers}, "status": {}}
    whole = {"Pod": sent, "Nodes": None, "NodeNames": names}
    return json.dumps(whole, separators=(",", ":")).encode()  # as kube-scheduler sends it


UNSEEN = itertools.count(500)

KINDS = {
    "": lambda offer, _: body(offer, 4096),
    "never seen, ": lambda offer, _: body(offer, next(UNSEEN)),
    "rejected again, ": lambda offer, _: body(offer, MEMORY_MIB + 1),
    "300 sizes, rejected again, ": lambda offer, number: body(
        offer, MEMORY_MIB + 1 + number % WAITING, f"waits-{number % WAITING}"
    ),
    "quota of a model, ": lambda offer, _: body(offer, 4096, namespace="limited"),
    "quota of a model, never seen, ": lambda offer, _: body(
        offer, next(UNSEEN), namespace="limited"
    ),
    "mixed, ": lambda offer, number: body(offer, SIZES[number % len(SIZES)], f"new-{number}"),
}
"""The body of a request by its kind, from the offered names and the number of the request."""


def bodies(kind, offers):
    return [KINDS[kind](offer, number) for number, offer in enumerate(offers)]


def measured(connection, bodies):
    """Milliseconds of each request."""
    times = []
    for sent in bodies:
        started = time.perf_counter()
        connection.request("POST", "/filter", sent, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        times.append(1000 * (time.perf_counter() - started))
        assert b'"Error":""' in answer, answer[:200]
    return times


def quantile(times, part):
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    if args.serve:
        serve(args.nodes, args.pods)
        return
    command = [
        *(sys.executable, __file__, "--serve"),
        f"--nodes={args.nodes}",
        f"--pods={args.pods}",
    ]
    started = time.perf_counter()
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    print(
        f"{args.nodes} nodes with {GPUS} GPUs, {args.pods} pods:"
        f" cache made in {time.perf_counter() - started:.1f} s; load {load()}"
    )
    names = [f"node-{number:05}" for number in range(args.nodes)]
    connection = http.client.HTTPConnection("127.0.0.1", port)
    budgets = Budgets()
    for count in (500, args.nodes):
        # kube-scheduler begins where the last pod ended
        offers = [
            (names * 2)[start : start + count]
            for start in (number * count % args.nodes for number in range(args.requests))
        ]
        for kind in KINDS:
            measured(connection, bodies(kind, offers))
            rounds = [measured(connection, bodies(kind, offers)) for _ in range(args.rounds)]
            for part, label in ((0.5, "p50"), (0.99, "p99")):
                of_rounds = [quantile(times, part) for times in rounds]
                took = statistics.median(of_rounds)
                name = f"{kind}{count} names, {label}"
                spread = f"rounds {min(of_rounds):.2f} to {max(of_rounds):.2f}"
                print(f"  {name:48} {took:8.2f} ms   ({spread})")
                if name in BUDGETS_MS:
                    print(f"    {budgets.hold(name, took, BUDGETS_MS[name], 'ms')}")
    server.stdin.close()
    print(f"  resident memory {server.stdout.readline().strip()} MiB")
    server.wait()
    sys.exit(budgets.status())


if __name__ == "__main__":
    main()
