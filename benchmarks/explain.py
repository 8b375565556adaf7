"""The costs of `vgpu explain` on the dump of a cluster of 5,000 nodes and 20,000 GPU pods.

    python benchmarks/explain.py [--nodes 5000] [--pods 20000] [--runs 3]

The dump is that of inspection.py, with one more pod that is not bound and fits on no node, so that
every node is asked. The benchmark reads the dump once. Then it explains this pod, a pod that is
bound, and a node, each time from the objects alone, and prints the wall time of the fastest run.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402
from benchmarks.inspection import write  # noqa: E402
from vgpu.commands.explain_read import dumped  # noqa: E402
from vgpu.explain.evidence import ClusterEvidence  # noqa: E402
from vgpu.explain.node import explain_node  # noqa: E402
from vgpu.explain.pod import explain_pod  # noqa: E402

BUDGET_SECONDS = 2.0

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
    bound = evidence.pod("team-1", "model-server-5d4f6c7b8-000001")
    return explain_pod(evidence.of_pod(bound))


def explain_one_node(cluster):
    evidence = ClusterEvidence(cluster)
    return explain_node(evidence.of_node(evidence.node("node-1")))


def timed(run, *arguments):
    started = time.perf_counter()
    result = run(*arguments)
    return time.perf_counter() - started, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3, help="the fastest counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dump, more = Path(folder) / "dump.json", Path(folder) / "more.json"
        write(dump, options.nodes, options.pods)
        more.write_text(json.dumps(WAITING))
        seconds, cluster = timed(dumped, (str(dump), str(more)))
    print(f"{options.nodes} nodes, {options.pods} GPU pods: the dump was read in {seconds:.2f} s")
    budgets = Budgets()
    for what, run in (
        ("a pod that no node takes", explain_waiting),
        ("a pod that is bound", explain_bound),
        ("a node", explain_one_node),
    ):
        best = min(timed(run, cluster)[0] for _ in range(options.runs))
        held = budgets.hold(f"vgpu explain, {what}", best, BUDGET_SECONDS, "s")
        print(f"{what}: {best:.2f} s ({held})")
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
