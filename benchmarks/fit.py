"""The cost of `vgpu fit` after the cluster was read: 5,000 nodes with 8 GPUs and 20,000 GPU pods.

    python benchmarks/fit.py [--nodes 5000] [--pods 20000] [--runs 3]

The time is that of the whole answer from decoded objects: the scheduler's cache is filled, each
node is read, and the pods of each node are counted or placed. A figure is that of the fastest run.
There is no peer.
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from msgspec import structs  # noqa: E402

from benchmarks.budgets import Budgets  # noqa: E402
from benchmarks.scheduler import node, pod  # noqa: E402
from scheduler.read_once import filled_cache  # noqa: E402
from vgpu.commands.fit import objects_of, schemes_in_units  # noqa: E402
from vgpu.commands.fit_answer import answer, exclusions, move  # noqa: E402
from vgpu.commands.fit_manifest import pod_of_requests  # noqa: E402
from vgpu.commands.inspect_read import Read  # noqa: E402
from vgpu.inventory import Objects, Units  # noqa: E402
from vgpu.placement.dialects import PlacementPolicies, demand_of  # noqa: E402

MOST_SECONDS = 2.0

QUESTIONS = {
    "one GPU, 1 GiB": ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}, None, ()),
    "two GPUs, 2 GiB each": ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 2048}, None, ()),
    "100 pods placed": ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}, 100, ()),
    "a node drained": ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}, None, ("node-00001",)),
}
"""What a pod requests, how many pods are wanted, and the drained nodes."""


def ask(objects, requests, wanted, drained):
    read = Read(objects, 1_790_000_000.0)
    schemes, _ = schemes_in_units(read, Units(), PlacementPolicies())
    cache = filled_cache(schemes, objects_of(read))
    excluded = exclusions(objects.nodes, drained)
    names = [each.name for each in objects.nodes if each.name not in excluded]
    moved = move(cache, objects.pods, frozenset(drained), names)
    demanded = demand_of(pod_of_requests(requests, "default"), schemes)
    return answer(cache, demanded, names, wanted), moved


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    budgets = Budgets()
    objects = Objects(
        tuple(structs.replace(node(number), ready=True) for number in range(args.nodes)),
        tuple(pod(number, args.nodes) for number in range(args.pods)),
    )
    for question, (requests, wanted, drained) in QUESTIONS.items():
        times = []
        for _ in range(args.runs):
            started = time.perf_counter()
            fit, moved = ask(objects, requests, wanted, drained)
            times.append(time.perf_counter() - started)
        held = budgets.hold(f"fit, {question}", min(times), MOST_SECONDS, "s")
        print(f"{question}: {fit.pods} pods, {len(moved)} moved, {min(times):.2f} s  {held}")
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
