"""The costs of `vgpu explain` in a cluster of 5,000 nodes and 20,000 GPU pods.

    python benchmarks/explain.py [--nodes 5000] [--pods 20000] [--runs 3]

- objects that are read already: the dump is that of inspection.py, with one more pod that is not
  bound and fits on no node, so that every node is asked. The benchmark explains this pod, a pod
  that is bound, and a node, each time from the objects alone.
- the API server: the same objects, served page by page by paged_api.py from a process of its own.
  The benchmark reads what the explanation needs, explains, and prints the number of requests.

Wall time and this process's CPU time are those of the fastest run. The budgets are about wall
time: on a machine with other work compare the CPU time.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402
from benchmarks.inspection import node, pods, write  # noqa: E402
from benchmarks.paged_api import PagedApi  # noqa: E402
from vgpu.program.kube_flags import connected  # noqa: E402
from vgpucli.explain.evidence import ClusterEvidence  # noqa: E402
from vgpucli.explain.node import explain_node  # noqa: E402
from vgpucli.explain.pod import explain_pod  # noqa: E402
from vgpucli.explain.read import dumped, for_node, for_pod  # noqa: E402

READ_SECONDS, API_SECONDS = 2.0, 6.0
BOUND = "team-1", "model-server-5d4f6c7b8-000001"

WAITING = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "waits", "namespace": "ml", "uid": "waits"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "resources": {
                    "limits": {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "90000"}
                },
            }
        ]
    },
    "status": {"phase": "Pending"},
}


def explain_waiting(cluster):
    evidence = ClusterEvidence(cluster)
    explanation = explain_pod(evidence.of_pod(evidence.pod("ml", "waits")))
    assert sum(len(group.names) for group in explanation.nodes) == len(cluster.objects.nodes)
    return explanation


def explain_bound(cluster):
    evidence = ClusterEvidence(cluster)
    bound = evidence.pod(*BOUND)
    return explain_pod(evidence.of_pod(bound))


def explain_one_node(cluster):
    evidence = ClusterEvidence(cluster)
    return explain_node(evidence.of_node(evidence.node("node-1")))


QUESTIONS = (
    ("a pod that no node takes", explain_waiting, lambda api: for_pod(api, "ml", "waits")),
    ("a pod that is bound", explain_bound, lambda api: for_pod(api, *BOUND)),
    ("a node", explain_one_node, lambda api: for_node(api, "node-1")),
)
"""What is explained: from objects alone, and what it reads of an API server."""


def timed(run, *arguments):
    """Seconds of wall time and of CPU time, and the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run(*arguments)
    return time.perf_counter() - wall, time.process_time() - cpu, result


def report(budgets, what, runs, most, more=""):
    """Print the fastest of the runs beside its budget."""
    wall, cpu = min(runs)
    held = budgets.hold(f"vgpu explain, {what}", wall, most, "s")
    print(f"{what}: wall {wall:.2f} s, CPU {cpu:.2f} s{more} ({held})")


def from_api(api, budgets, runs):
    for what, explain, read in QUESTIONS:

        def whole(explain=explain, read=read):
            with connected(api.kubeconfig, "", None) as cluster:
                objects = read(cluster)
            return explain(objects)

        api.requests()
        measured = [timed(whole)[:2] for _ in range(runs)]
        requests = f", {api.requests() // runs} requests"
        report(budgets, f"from the API server, {what}", measured, API_SECONDS, requests)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3, help="the fastest counts")
    options = parser.parse_args()
    budgets = Budgets()
    with tempfile.TemporaryDirectory() as folder:

        def nodes_there():
            return [node(number) for number in range(options.nodes)]

        def pods_there():
            of_dump = map(json.loads, pods(options.pods, options.nodes))
            return [*itertools.chain(of_dump, [WAITING])]

        with PagedApi(Path(folder), nodes_there, pods_there) as api:
            from_api(api, budgets, options.runs)
        dump, more = Path(folder) / "dump.json", Path(folder) / "more.json"
        write(dump, options.nodes, options.pods)
        more.write_text(json.dumps(WAITING))
        wall, cpu, cluster = timed(dumped, (str(dump), str(more)))
    print(
        f"{options.nodes} nodes, {options.pods} GPU pods: the dump was read in wall {wall:.2f} s,"
        f" CPU {cpu:.2f} s"
    )
    for what, explain, _ in QUESTIONS:
        measured = [timed(explain, cluster)[:2] for _ in range(options.runs)]
        report(budgets, f"from objects, {what}", measured, READ_SECONDS)
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
