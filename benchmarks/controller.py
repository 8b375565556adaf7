"""The costs of the reconciler without problems: `vgpu reconcile run` beside a busy API server.

    python benchmarks/controller.py [--pods 5000] [--events 50] [--seconds 125]

The API server is the demo's, in this process; the controller is a process of its own with its
defaults, which include a plan every two minutes. The cluster has ``--pods`` pods of about 7 kB,
every fourth sharing GPUs; the controller's watch gets ``--events`` changes of them a second. CPU is
the kernel's count for the controller's process, after its first plan.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from budgets import Budgets  # noqa: E402
from decode import pages  # noqa: E402

from simulator.apiserver import ApiServer  # noqa: E402
from simulator.store import ObjectStore  # noqa: E402
from vgpu.kube.kinds import PODS  # noqa: E402

BUDGET_PERCENT = 1.0
TICKS = os.sysconf("SC_CLK_TCK")
FIRST_PLAN_SECONDS = 20


def cpu_seconds(pid):
    """CPU seconds of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


def populate(store, count):
    """The pods, as they are in the list of a real server."""
    made = []
    for page in pages(count):
        for pod in json.loads(page)["items"]:
            pod["metadata"].pop("resourceVersion", None)
            made.append(store.create(PODS, {"kind": "Pod", "apiVersion": "v1", **pod}))
    return [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in made]


def keep_changing(store, pods, rate, seconds):
    """Make ``rate`` changes a second, evenly."""
    started = time.monotonic()
    done = 0
    while (passed := time.monotonic() - started) < seconds:
        while done < passed * rate:
            namespace, name = pods[done % len(pods)]
            patch = {"metadata": {"annotations": {"example.com/beat": str(done)}}}
            store.patch(PODS, namespace, name, patch)
            done += 1
        time.sleep(0.01)
    return done


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--events", type=int, default=50, help="a second")
    parser.add_argument("--seconds", type=int, default=125)
    args = parser.parse_args()
    store = ObjectStore()
    pods = populate(store, args.pods)
    budgets = Budgets()
    with tempfile.TemporaryDirectory() as folder, ApiServer(store) as server:
        kubeconfig = Path(folder, "kubeconfig")
        kubeconfig.write_text(server.kubeconfig())
        command = [sys.executable, "-m", "vgpu", "reconcile", "run", "--mode", "apply"]
        command += ["--kubeconfig", str(kubeconfig), "--web.listen-address", "127.0.0.1:0"]
        command += ["--audit", str(Path(folder, "audit.jsonl"))]
        with subprocess.Popen(command, cwd=ROOT) as process:
            time.sleep(FIRST_PLAN_SECONDS)
            before = cpu_seconds(process.pid)
            started = time.monotonic()
            events = keep_changing(store, pods, args.events, args.seconds)
            wall = time.monotonic() - started
            used = cpu_seconds(process.pid) - before
            resident = resident_mib(process.pid)
            process.terminate()
    percent = 100 * used / wall
    print(
        f"{args.pods} pods, {events / wall:.0f} events a second for {wall:.0f} s:"
        f" {percent:.2f} % of a core, {resident:.0f} MiB resident;"
        f" {budgets.hold('an idle controller', percent, BUDGET_PERCENT, '% of a core')}"
    )
    return budgets.status()


if __name__ == "__main__":
    raise SystemExit(main())
