"""The costs of `vgpu inspect --by queue --from`: 5,000 workloads of Kueue, and what they run on.

    python benchmarks/queues.py [--nodes 1000] [--pods 20000] [--workloads 5000] [--queues 200]
                                [--by queue] [--runs 3] [--keep FILE]

Nodes and pods are those of `benchmarks/inspection.py`, without managedFields, which kubectl has
left out since 1.21. Four fifths of the workloads have quota, and all pods are theirs; the others
wait. The ClusterQueues are in ten cohorts of one root. Printed are wall time, CPU time and peak
resident memory of the fastest run in a process of its own; the file is in memory while it is read.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks import inspection  # noqa: E402
from benchmarks.budgets import Budgets  # noqa: E402

BUDGET_SECONDS, BUDGET_MIB = 4.0, 250

COHORTS = 10
RESOURCES = ("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "aliyun.com/gpu-mem")
VERSION = "kueue.x-k8s.io/v1beta2"
SINCE = "2026-11-28T12:00:00Z"


def kueue_object(kind, name, namespace="", spec=None, status=None):
    meta = {"name": name, "uid": f"uid-{kind}-{namespace}-{name}", "creationTimestamp": SINCE}
    if namespace:
        meta["namespace"] = namespace
    return {
        "apiVersion": VERSION,
        "kind": kind,
        "metadata": meta,
        "spec": spec or {},
        "status": status or {},
    }


def queue_names(number, queues):
    """ClusterQueue, namespace and LocalQueue of a workload."""
    queue = number % queues
    return f"queue-{queue}", f"team-{queue % 97}", f"local-{queue}"


def is_admitted(number, workloads):
    return number < workloads * 4 // 5


def workload(number, workloads, queues, pods_each):
    queue, namespace, local = queue_names(number, queues)
    limits, _ = inspection.sharing(1, number, 0)
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    pod_set = {
        "name": "main",
        "count": pods_each,
        "template": {"spec": {"containers": [container]}},
    }
    admitted = is_admitted(number, workloads)
    condition = {
        "type": "QuotaReserved",
        "status": "True" if admitted else "False",
        "reason": "QuotaReserved" if admitted else "Pending",
        "message": "couldn't assign flavors to pod set main: insufficient unused quota",
        "lastTransitionTime": SINCE,
    }
    status = {"conditions": [condition]}
    if admitted:
        usage = {name: str(int(each) * pods_each) for name, each in limits.items()}
        assigned = {
            "name": "main",
            "count": pods_each,
            "flavors": dict.fromkeys(limits, "default"),
            "resourceUsage": usage,
        }
        status["admission"] = {"clusterQueue": queue, "podSetAssignments": [assigned]}
        status["conditions"].append({**condition, "type": "Admitted", "reason": "Admitted"})
    item = kueue_object(
        "Workload",
        f"job-train-{number}",
        namespace,
        {"queueName": local, "podSets": [pod_set], "priority": number % 3},
        status,
    )
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"train-{number}"}
    item["metadata"]["ownerReferences"] = [{**owner, "uid": f"job-{number}", "controller": True}]
    return item


def queue_objects(workloads, queues, pods_each):
    yield kueue_object("ResourceFlavor", "default")
    yield kueue_object("Cohort", "root")
    for number in range(COHORTS):
        yield kueue_object("Cohort", f"cohort-{number}", spec={"parentName": "root"})
    used = {}
    for number in range(workloads):
        of_one, _ = inspection.sharing(1, number, 0)
        for name, amount in of_one.items() if is_admitted(number, workloads) else ():
            cell = number % queues, name
            used[cell] = used.get(cell, 0) + int(amount) * pods_each
    for number in range(queues):
        queue, namespace, local = queue_names(number, queues)
        totals = [
            {"name": name, "total": str(used.get((number, name), 0)), "borrowed": "0"}
            for name in RESOURCES
        ]
        nominal = [{"name": each["name"], "nominalQuota": each["total"]} for each in totals]
        group = {
            "coveredResources": [*RESOURCES],
            "flavors": [{"name": "default", "resources": nominal}],
        }
        status = {"flavorsReservation": [{"name": "default", "resources": totals}]}
        spec = {"cohortName": f"cohort-{number % COHORTS}", "resourceGroups": [group]}
        yield kueue_object("ClusterQueue", queue, spec=spec, status=status)
        yield kueue_object("LocalQueue", local, namespace, {"clusterQueue": queue}, status)
    for number in range(workloads):
        yield workload(number, workloads, queues, pods_each)
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kueue-manager-config", "namespace": "kueue-system"},
        "data": {"controller_manager_config.yaml": "kind: Configuration"},
    }


def queued_pods(pods, nodes, workloads, queues):
    """The pods of the other benchmark, each as one of a workload's job."""
    for number, text in enumerate(inspection.pods(pods, nodes)):
        of_job = number % (workloads * 4 // 5)
        queue, namespace, local = queue_names(of_job, queues)
        pod = json.loads(text)
        pod["metadata"].pop("managedFields", None)
        pod["metadata"]["namespace"] = namespace
        pod["metadata"]["labels"] |= {
            "kueue.x-k8s.io/queue-name": local,
            "kueue.x-k8s.io/cluster-queue-name": queue,
            "kueue.x-k8s.io/local-queue-name": local,
            "kueue.x-k8s.io/managed": "true",
        }
        (owner,) = pod["metadata"]["ownerReferences"]
        owner |= {"apiVersion": "batch/v1", "kind": "Job", "uid": f"job-{of_job}"}
        yield json.dumps(pod, indent=4)


def write(path, options):
    pods_each = max(1, options.pods // (options.workloads * 4 // 5))
    objects = queue_objects(options.workloads, options.queues, pods_each)
    nodes = (json.dumps(inspection.node(number), indent=4) for number in range(options.nodes))
    texts = itertools.chain(
        nodes,
        queued_pods(options.pods, options.nodes, options.workloads, options.queues),
        (json.dumps(each, indent=4) for each in objects),
    )
    with path.open("w") as file:
        file.write('{\n    "apiVersion": "v1",\n    "items": [\n')
        for number, item in enumerate(texts):
            file.write(f",\n{item}" if number else item)
        file.write('\n    ],\n    "kind": "List",\n    "metadata": {"resourceVersion": ""}\n}\n')


def inspect(dump, group):
    """Wall and CPU seconds of the command, and the lines that it prints."""
    before, started = inspection.children_cpu(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "vgpu", "inspect", "--by", group, "--from", str(dump)],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    wall, cpu = time.perf_counter() - started, inspection.children_cpu() - before
    return wall, cpu, done.stdout.count(b"\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--workloads", type=int, default=5000)
    parser.add_argument("--queues", type=int, default=200)
    parser.add_argument("--by", default="queue", choices=("queue", "namespace"))
    parser.add_argument("--runs", type=int, default=3, help="the fastest counts")
    parser.add_argument("--keep", type=Path, help="write the dump there, and leave it")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        dump = options.keep or Path(folder) / "dump.json"
        write(dump, options)
        print(
            f"{options.nodes} nodes, {options.pods} pods, {options.workloads} workloads,"
            f" {options.queues} ClusterQueues: a dump of {dump.stat().st_size / 1e6:.0f} MB"
        )
        wall, cpu, lines = min(inspect(dump, options.by) for _ in range(options.runs))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    budgets, what = Budgets(), f"vgpu inspect --by {options.by}"
    print(
        f"{what}, {lines} lines: {wall:.2f} s wall"
        f" ({budgets.hold(f'{what}, wall time', wall, BUDGET_SECONDS, 's')}), {cpu:.2f} s CPU,"
        f" {peak:.0f} MiB at the peak"
        f" ({budgets.hold(f'{what}, memory', peak, BUDGET_MIB, 'MiB')})"
    )
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
