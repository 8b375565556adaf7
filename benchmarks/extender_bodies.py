"""The scheduler's memory while many requests with whole nodes come at once.

    python benchmarks/extender_bodies.py [--clients 16] [--mib 24] [--nodes 1000]

A process has the cache of a cluster with 8 GPUs a node and serves the verbs. Clients send filter
requests with whole nodes (nodeCacheCapable false) at the same time, each over its own connection,
and repeat one that got the status 503. The figure is the peak of the process' resident memory above
that before the requests: by byte of one body, alone, and by byte of all bodies, together.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.scheduler import node  # noqa: E402

MIB = 2**20


def serve(nodes):
    """The process with the cache; prints its port, and ends with its input."""
    from scheduler.cache.scheduler_cache import SchedulerCache  # noqa: PLC0415
    from scheduler.main import CONNECTIONS, REQUESTS  # noqa: PLC0415
    from scheduler.metrics import SchedulerMetrics  # noqa: PLC0415
    from scheduler.routes import extender_routes  # noqa: PLC0415
    from scheduler.verbs.extender import Extender, RejectionEvents  # noqa: PLC0415
    from scheduler.verbs.preemption import Preemptor  # noqa: PLC0415
    from vgpu.placement.dialects import scheduler_schemes  # noqa: PLC0415
    from vgpu.web.server import WebServer  # noqa: PLC0415

    cache = SchedulerCache(scheduler_schemes({}), time.time)
    for number in range(nodes):
        cache.set_node(f"node-{number:05}", node(number))
    metrics = SchedulerMetrics()
    extender = Extender(cache, None, metrics, RejectionEvents(lambda _: None), lambda: "")
    routes = extender_routes(extender, Preemptor(None, cache, lambda: ""), metrics)
    server = WebServer(
        routes,
        ["127.0.0.1:0"],
        max_requests=REQUESTS,
        max_bodies=REQUESTS,
        max_connections=CONNECTIONS,
        max_per_address=CONNECTIONS,
    )
    server.start()
    print(server.addresses[0].rpartition(":")[2], flush=True)
    sys.stdin.read()


def request(nodes, size):
    """A filter request with whole nodes, of this size."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1}
    pod = {
        "metadata": {"name": "p", "namespace": "ml", "uid": "u"},
        "spec": {"containers": [{"name": "m", "resources": {"limits": limits}}]},
    }
    padding = "x" * (size // nodes - 90)
    items = [
        {"metadata": {"name": f"node-{number:05}", "annotations": {"padding": padding}}}
        for number in range(nodes)
    ]
    return json.dumps({"Pod": pod, "Nodes": {"items": items}, "NodeNames": None}).encode()


def memory_mib(pid, field):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


def ask(port, body, answers):
    """Send a body until it is answered with 200; adds up the statuses."""
    status = 503
    while status == 503:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            connection.request("POST", "/filter", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
            assert status == 503 or len(text) > len(body) // 2, text[:200]
        except (BrokenPipeError, ConnectionResetError):  # refused before the body was sent
            status = 503
        finally:
            connection.close()
        answers.append(status)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--mib", type=int, default=24)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    if options.serve:
        serve(options.nodes)
        return
    body = request(options.nodes, options.mib * MIB)
    for clients in (1, options.clients):
        command = [sys.executable, __file__, "--serve", f"--nodes={options.nodes}"]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},  # as the image has it
        ) as process:
            port = int(process.stdout.readline())
            before = memory_mib(process.pid, "VmRSS")
            answers = []
            threads = [
                threading.Thread(target=ask, args=(port, body, answers)) for _ in range(clients)
            ]
            started = time.monotonic()
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            seconds = time.monotonic() - started
            peak = memory_mib(process.pid, "VmHWM")
            process.stdin.close()
        sent = clients * len(body) / MIB
        print(
            f"{clients} clients, {sent:.0f} MiB of bodies: peak {peak:.0f} MiB, {before:.0f} MiB"
            f" before, {(peak - before) / sent:.2f} bytes by byte; {answers.count(200)} answers,"
            f" {answers.count(503)} times 503, {seconds:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
