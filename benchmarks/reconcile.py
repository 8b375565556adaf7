"""The costs of the reconciler: a plan, a whole view of a cluster, an event of its watch.

    python benchmarks/reconcile.py [--pods 100000] [--sample 1000] [--runs 3]

- plan: a plan over ``--pods`` pods in memory, all of them sharing GPUs, one in a hundred refused.
  The ledgers are not part of it: they are kept from view to view.
- look: a process of its own reads the API server's pages of nodes and pods (see decode.py: 7 kB a
  pod, every fourth shares GPUs), keeps what it needs, makes the ledgers and a plan. CPU is that
  process's own; memory is its peak resident set. The official client's models decode the first
  ``--sample`` pods of the same pages.
- event: one line of a watch of pods, decoded and stored.

The input is the same in every run, and the least CPU time counts.
"""

import argparse
import json
import struct
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from budgets import Budgets  # noqa: E402
from decode import compact, measure, memory, pages  # noqa: E402

from reconciler.ledger_cache import LedgerCache  # noqa: E402
from reconciler.model import Coverage, Scope, Snapshot  # noqa: E402
from reconciler.plan import make_plan  # noqa: E402
from reconciler.policy import Policy  # noqa: E402
from reconciler.reconciler_state import ReconcilerState  # noqa: E402
from vgpu.inventory import Objects, Units, detect_schemes  # noqa: E402
from vgpu.kube.kinds import NODES, PODS  # noqa: E402
from vgpu.model.objects import Node, Pod  # noqa: E402

PODS_A_NODE = 20
SICK_EVERY = 100
NOW = 1_800_000_000.0

PLAN_SECONDS, LOOK_SECONDS, LOOK_MIB, EVENT_MICROSECONDS = 0.5, 5.0, 150, 20


def node_page(count):
    """The nodes of ``count`` pods, as one page of the API server."""
    resources = {
        "volcano.sh/vgpu-number": "80",
        "volcano.sh/vgpu-memory": "640k",
        "volcano.sh/vgpu-cores": "800",
        "aliyun.com/gpu-mem": "120",
        "aliyun.com/gpu-count": "8",
        "tencent.com/vcuda-core": "800",
        "tencent.com/vcuda-memory": "2560",
    }
    entry = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b7{},80,80000,NVIDIA-NVIDIA L40S,true,hami-core:"
    register = "".join(entry.format(number) for number in range(8))
    items = [
        {
            "metadata": {
                "name": f"node-{number:04}.example.com",
                "uid": f"{number:08x}-2222-4000-8000-000000000000",
                "resourceVersion": "1000000",
                "annotations": {"volcano.sh/node-vgpu-register": register},
            },
            "status": {
                "capacity": resources,
                "allocatable": resources,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for number in range(count // PODS_A_NODE)
    ]
    return compact({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": items})


def sick(pod: Pod) -> Pod:
    """The pod, refused by its kubelet."""
    return Pod(
        **{
            **{field: getattr(pod, field) for field in Pod.__struct_fields__},
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": "Pod was rejected: Allocate failed due to no healthy devices present",
            "statuses": (),
        }
    )


def snapshot(nodes: tuple[Node, ...], pods: tuple[Pod, ...], ledgers=None) -> Snapshot:
    return Snapshot(
        now=NOW,
        scope=Scope.CLUSTER,
        complete=frozenset({Coverage.NODES, Coverage.PODS, Coverage.SHARE_PODS}),
        nodes=nodes,
        pods=pods,
        ledgers=ledgers or {},
    )


def spent(call):
    """CPU seconds of a call, and its result."""
    started = time.process_time()
    result = call()
    return time.process_time() - started, result


# ---------------------------------------------------------------- a plan in memory


def plan_in_memory(count, runs):
    """The least CPU seconds of a plan over ``count`` sharing pods."""
    nodes = NODES.page(node_page(count).encode()).objects
    shared = [pod for page in pages(4 * count) for pod in PODS.page(page).objects]
    pods = tuple(
        sick(pod) if number % SICK_EVERY == 0 else pod for number, pod in enumerate(shared)
    )
    schemes = detect_schemes(Objects(nodes, pods), Units())
    times = []
    for _ in range(runs):
        seen = snapshot(nodes, pods)
        seconds, (plan, _) = spent(
            lambda seen=seen: make_plan(seen, Policy(), ReconcilerState(), schemes.codecs)
        )
        times.append(seconds)
    print(
        f"plan: {len(pods)} pods, {len(nodes)} nodes: {min(times):.2f} s;"
        f" {len(plan.actions)} actions, {len(plan.skipped)} skipped"
    )
    return min(times)


# ---------------------------------------------------------------- a whole view, in its own process


def probe():
    """Reads pages from standard input; writes its costs to standard output."""
    begun = time.process_time()
    pods, nodes = [], []
    decoders = {b"n": lambda page: nodes.extend(NODES.page(page).objects)}
    decoders[b"p"] = lambda page: pods.extend(PODS.page(page).objects)
    reading = 0.0
    while header := sys.stdin.buffer.read(9):
        started = time.process_time()
        page = sys.stdin.buffer.read(struct.unpack("<Q", header[1:])[0])
        reading += time.process_time() - started
        decoders[header[:1]](page)
        del page
        sys.stdout.write("\n")
        sys.stdout.flush()
    decoded = time.process_time() - begun - reading
    objects = Objects(tuple(nodes), tuple(pods))
    schemes = detect_schemes(objects, Units())
    ledger_cache = LedgerCache()
    ledger, ledgers = spent(lambda: ledger_cache.ledgers(nodes, schemes.pods, schemes.codecs, {}))
    again, _ = spent(lambda: ledger_cache.ledgers(nodes, schemes.pods, schemes.codecs, {}))
    seen = snapshot(objects.nodes, schemes.pods, ledgers)
    planned, (plan, _) = spent(lambda: make_plan(seen, Policy(), ReconcilerState(), schemes.codecs))
    result = {"decode": decoded, "ledger": ledger, "again": again, "plan": planned}
    result |= {"peak": memory("VmHWM"), "kept": len(pods), "skipped": len(plan.skipped)}
    print(json.dumps(result))


def look(count):
    """One view of a cluster, in a process of its own."""
    command = [sys.executable, __file__, "--probe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for kind, page in ((b"n", node_page(count).encode()), *((b"p", p) for p in pages(count))):
            process.stdin.write(kind + struct.pack("<Q", len(page)))
            process.stdin.write(page)
            process.stdin.flush()
            process.stdout.readline()
        process.stdin.close()
        costs = json.loads(process.stdout.read())
    costs["cpu"] = costs["decode"] + costs["ledger"] + costs["plan"]
    print(
        f"look: {count} pods, {costs['kept']} of them share GPUs: {costs['cpu']:.2f} s of CPU"
        f" (decode {costs['decode']:.2f}, ledgers {costs['ledger']:.2f}, plan {costs['plan']:.2f};"
        f" the ledgers of an unchanged cluster {costs['again']:.2f}), {costs['peak']:.0f} MiB"
    )
    return costs


# ---------------------------------------------------------------- an event of a watch


def event(count=20_000):
    """The least CPU time of one event, in microseconds: decoding and storing the pod."""
    page = json.loads(next(islice(pages(500), 1)))
    lines = [
        compact(
            {"type": "MODIFIED", "object": {"kind": "Pod", "apiVersion": "v1", **item}}
        ).encode()
        for item in page["items"]
    ]
    kept = {}

    def take():
        for number in range(count):
            change = PODS.event(lines[number % len(lines)])
            kept[change.object.ref.uid] = change.object

    return min(spent(take)[0] for _ in range(3)) / count * 1e6


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--sample", type=int, default=1000, help="pods for the official client")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        probe()
        return 0
    budgets = Budgets()
    best = plan_in_memory(args.pods, args.runs)
    print("     ", budgets.hold("a plan", best, PLAN_SECONDS, "s"))
    looks = [look(args.pods) for _ in range(args.runs)]
    cpu, peak = min(one["cpu"] for one in looks), min(one["peak"] for one in looks)
    print("     ", budgets.hold("a look's CPU", cpu, LOOK_SECONDS, "s"))
    print("     ", budgets.hold("a look's memory", peak, LOOK_MIB, "MiB"))
    theirs = measure("official", args.sample)["cpu"] / args.sample
    ratio = theirs * args.pods / cpu
    print(f"      the official client's models take {ratio:.0f} times as long to decode alone")
    micro = event()
    print(f"event: {micro:.1f} µs")
    print("     ", budgets.hold("an event", micro, EVENT_MICROSECONDS, "µs"))
    return budgets.status()


if __name__ == "__main__":
    raise SystemExit(main())
