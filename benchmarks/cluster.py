"""The costs of large simulated clusters on this machine, as root; never in CI.

    python benchmarks/cluster.py [--nodes 5000] [--pods 10000] [--scheme volcano] [--sick 1000]

The benchmark populates an empty fleet of the test bed (etcd, an API server and kwok), packs it, and
starts it again from the package, as the tests do. Then it lists all objects, in pages of 500 as the
product does and in one piece, and reads the programs' memory. The time of a list is the server's
and the network's: the answer is read and dropped.

Then it adds failed pods, of four kinds, and runs ``vgpu reconcile`` on the cluster: a plan, and
applied plans until no action is left, each in a process of its own.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.bed.fleet import start_fleet, take_snapshot  # noqa: E402
from tests.support.bed.population import SCHEMES, Population, node_name  # noqa: E402
from tests.support.bed.stages import Life  # noqa: E402
from tests.support.bed.tools import ToolsMissing, ensure  # noqa: E402
from tests.support.bed.workplace import Workplace  # noqa: E402

MIB = 2**20
PAGE = 500
MEMORY = {"VmRSS": "now", "VmHWM": "peak"}

SICK = (
    Life.UNEXPECTED_ADMISSION_ERROR,
    Life.OUT_OF_RESOURCE,
    Life.PRESTART_FAILED,
    Life.NO_GPU_TO_RUN,
)
NO_WAITING = {  # for pods that are seconds old; and as much in a cycle as there is
    "ages": dict.fromkeys(("failed", "assumed", "clock_skew"), "0s"),
    "limits": {"per_cycle": 2000, "per_node": 100, "per_namespace": 2000, "per_owner": 1.0},
}
MOST_CYCLES = 5


def listing(client, path, **query):
    """(bytes, seconds) of a whole list, page by page if ``limit`` is given."""
    size, seconds, more = 0, 0.0, None
    while True:
        started = time.monotonic()
        page = client.raw("GET", path, **query, **{"continue": more})
        seconds += time.monotonic() - started
        size += len(page.data)
        more = page.json()["metadata"].get("continue")
        if not more:
            return size, seconds


def memory(daemon):
    """Memory now and at the peak, in MiB."""
    status = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status)
    return [int(fields[name].split()[0]) / 1024 for name in MEMORY]


def measure(population, tools, sick):
    with Workplace() as workplace, tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder, "fleet.tgz")
        print("made from nothing")
        for what, seconds in take_snapshot(workplace, tools, population, snapshot).items():
            print(f"  {what:<36}{seconds:>9.1f} s")
        print(f"  {'packed':<36}{snapshot.stat().st_size / MIB:>9.1f} MiB")
        print("started again")
        started = time.monotonic()
        with start_fleet(workplace, tools, population, snapshot=snapshot) as fleet:
            print(f"  {'until it serves':<36}{time.monotonic() - started:>9.1f} s")
            show_lists(fleet)
            show_memory(fleet)
            if sick:
                show_reconciler(fleet, sick, Path(folder))


def show_lists(fleet):
    on_one = {"fieldSelector": f"spec.nodeName={node_name(0)}"}
    lists = {
        "nodes": ("/api/v1/nodes", {}),
        f"nodes, {PAGE} a page": ("/api/v1/nodes", {"limit": PAGE}),
        "pods": ("/api/v1/pods", {}),
        f"pods, {PAGE} a page": ("/api/v1/pods", {"limit": PAGE}),
        "pods of one node": ("/api/v1/pods", on_one),
    }
    print("listed")
    for what, (path, query) in lists.items():
        size, seconds = listing(fleet.client, path, **query)
        print(f"  {what:<36}{seconds:>9.2f} s{size / MIB:>9.1f} MiB")


def show_memory(fleet):
    print("resident memory, MiB" + " " * 23 + "".join(f"{name:>9}" for name in MEMORY.values()))
    for name, daemon in {**fleet.cluster.daemons, "kwok": fleet.kwok}.items():
        print(f"  {name:<36}" + "".join(f"{mib:>9.0f}" for mib in memory(daemon)))


def make_sick(fleet, count):
    """Adds ``count`` pods, each of a ReplicaSet, failed in four ways in turn."""
    sets = fleet.client.list("/apis/apps/v1/replicasets", limit=count)
    now, first = int(time.time()), fleet.population.pods
    lives = islice(cycle(SICK), count)
    fleet.add(
        *(
            fleet.population.pod(
                first + number, owner=sets[number % len(sets)], bound=now, life=life
            )
            for number, life in enumerate(lives)
        )
    )


# A child inherits the peak memory of whoever forked it; so a small process does that.
MEASURED = """
import resource, subprocess, sys
subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)
"""


def reconcile(fleet, folder, *command):
    """Run the command; its output, wall seconds, CPU seconds and peak MiB."""
    config = folder / "reconcile.json"
    config.write_text(json.dumps(NO_WAITING))
    line = [sys.executable, "-c", MEASURED, sys.executable, "-m", "vgpu", "reconcile", *command]
    line += ["--config", str(config), "--kubeconfig", str(fleet.client.kubeconfig)]
    started = time.monotonic()
    ran = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    wall = time.monotonic() - started
    return ran.stdout, wall, *map(float, ran.stderr.splitlines()[-1].split())


def show_reconciler(fleet, sick, folder):
    make_sick(fleet, sick)
    print(f"vgpu reconcile, {sick} pods more, all of them sick" + " " * 5 + "wall s  CPU s  MiB")
    output, *used = reconcile(fleet, folder, "plan", "-o", "json")
    actions = len(json.loads(output)["actions"])
    print(f"  plan, {actions} actions" + " " * 20 + "{:>9.1f}{:>7.1f}{:>5.0f}".format(*used))
    for number in range(1, MOST_CYCLES + 1):
        audit = str(folder / "audit.jsonl")
        apply = ("apply", "--yes", "--audit", audit, "-o", "prometheus")
        output, *used = reconcile(fleet, folder, *apply)
        done = sum(map(int, re.findall(r'_actions_total\{.*outcome="done".*\} (\d+)', output)))
        asked = sum(map(int, re.findall(r"_api_requests_total\{.*\} (\d+)", output)))
        numbers = "{:>9.1f}{:>7.1f}{:>5.0f}".format(*used)
        print(f"  cycle {number}: {done} done, {asked} requests".ljust(40) + numbers)
        if not done:
            return


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=10000)
    parser.add_argument("--scheme", choices=SCHEMES, default="volcano")
    parser.add_argument("--sick", type=int, default=1000, help="0: leave the reconciler out")
    args = parser.parse_args()
    try:
        tools = ensure()
    except ToolsMissing as error:
        sys.exit(str(error))
    print(f"{args.nodes} nodes, {args.pods} pods, {args.scheme}")
    measure(Population(args.nodes, args.pods, args.scheme), tools, args.sick)


if __name__ == "__main__":
    main()
