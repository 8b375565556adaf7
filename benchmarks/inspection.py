"""The costs of `vgpu inspect --from`: the dump of a cluster of 5,000 nodes and 20,000 GPU pods.

    python benchmarks/inspection.py [--nodes 5000] [--pods 20000] [--output table] [--runs 3]
                                    [--sample 500] [--keep FILE]

The benchmark writes the dump, as large as kubectl's own (pods of about 7 kB with managedFields,
nodes with the images that a kubelet reports), runs the command on it in a process of its own, and
prints wall time, CPU time and peak resident memory of the fastest run. Two thirds of the nodes are
Volcano's, the rest gpushare's; one pod in a hundred waits.

The peer is the official client's models, which decode the first ``--sample`` nodes and pods of the
same dump; their CPU time is extrapolated to the whole dump. It is the time of decoding alone, ours
is the time of the whole command from start to table.
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

from kubernetes.client import ApiClient

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402

BUDGET_SECONDS = 5.0

GPUS, GPU_MIB = 8, 81920
BOUND = 1_790_000_000
IMAGES = [
    {
        "names": [f"registry.example.com/team/image-{n}@sha256:{n:064x}", f"image-{n}:v1.{n}"],
        "sizeBytes": 100_000_000 + n,
    }
    for n in range(40)
]


def uuid(node, gpu):
    return f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}"


def node(number):
    capacity = {"cpu": "128", "memory": "1056469568Ki", "pods": "110"}
    annotations = {"node.alpha.kubernetes.io/ttl": "0"}
    if number % 3:
        capacity |= {"volcano.sh/vgpu-number": "80"}
        annotations["volcano.sh/node-vgpu-register"] = "".join(
            f"{uuid(number, gpu)},10,{GPU_MIB},NVIDIA-H100,true,hami-core:" for gpu in range(GPUS)
        )
    else:
        capacity |= {"aliyun.com/gpu-mem": str(GPUS * 80), "aliyun.com/gpu-count": str(GPUS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "annotations": annotations, "uid": f"n{number}"},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
            "images": IMAGES,
        },
    }


def sharing(number, on, gpu):
    """Limits and annotations of a pod; one that waits has no annotations."""
    if on % 3:
        limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "10240"}
        annotations = {
            "volcano.sh/vgpu-ids-new": f"{uuid(on, gpu)},NVIDIA,10240,0:",
            "volcano.sh/devices-to-allocate": ";",
            "volcano.sh/bind-phase": "success",
            "volcano.sh/bind-time": str(BOUND),
            "volcano.sh/vgpu-node": f"node-{on}",
            "volcano.sh/vgpu-time": str(2**64 - 1),
        }
    else:
        limits = {"aliyun.com/gpu-mem": "10"}
        annotations = {
            "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
            "ALIYUN_COM_GPU_MEM_POD": "10",
            "ALIYUN_COM_GPU_MEM_DEV": "80",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(BOUND * 10**9),
        }
    return limits, {} if number % 100 == 0 else annotations


def pods(count, nodes):
    """Objects as text."""
    template = json.loads((Path(__file__).parent / "pod.json").read_text())
    for number in range(count):
        on, gpu = number % nodes, number // nodes % GPUS
        limits, annotations = sharing(number, on, gpu)
        meta, spec = template["metadata"], template["spec"]
        container = spec["containers"][0]
        pod = {
            **template,
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **meta,
                "name": f"model-server-5d4f6c7b8-{number:06x}",
                "namespace": f"team-{number % 97}",
                "uid": f"{number:08x}-0000-4000-8000-000000000000",
                "annotations": {**meta["annotations"], **annotations},
            },
            "spec": {
                **spec,
                "nodeName": f"node-{on}",
                "containers": [
                    {**container, "resources": {"limits": limits, "requests": limits}},
                    *spec["containers"][1:],
                ],
            },
        }
        yield json.dumps(pod, indent=4)


def write(path, node_count, pod_count):
    """Write the dump as kubectl prints it, with its blanks."""
    with path.open("w") as file:
        file.write('{\n    "apiVersion": "v1",\n    "items": [\n')
        nodes = (json.dumps(node(number), indent=4) for number in range(node_count))
        for number, item in enumerate(itertools.chain(nodes, pods(pod_count, node_count))):
            file.write(f",\n{item}" if number else item)
        file.write('\n    ],\n    "kind": "List",\n    "metadata": {"resourceVersion": ""}\n}\n')


def official_seconds(node_count, pod_count, sample, runs):
    """CPU seconds in which the official client's models decode these nodes and pods.

    Extrapolated from the first ``sample`` of each.
    """
    client = ApiClient()
    total = 0.0
    nodes = (json.dumps(node(number), indent=4) for number in range(node_count))
    for kind, texts, count in (
        ("V1NodeList", nodes, node_count),
        ("V1PodList", pods(pod_count, node_count), pod_count),
    ):
        items = list(itertools.islice(texts, sample))
        page = f'{{"items": [{",".join(items)}]}}'
        taken = []
        for _ in range(runs):
            started = time.process_time()
            decoded = client.deserialize(page, kind, "application/json")
            taken.append(time.process_time() - started)
            assert len(decoded.items) == len(items)
        total += min(taken) * count / len(items)
    return total


def inspect(dump, output):
    """Wall and CPU seconds of the command, and the lines that it prints."""
    before, started = children_cpu(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "vgpu", "inspect", "--from", str(dump), "--output", output],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    return time.perf_counter() - started, children_cpu() - before, done.stdout.count(b"\n")


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--output", default="table", choices=("table", "wide", "json", "yaml"))
    parser.add_argument("--runs", type=int, default=3, help="the fastest counts")
    parser.add_argument("--sample", type=int, default=500, help="objects for the official client")
    parser.add_argument("--keep", type=Path, help="write the dump there, and leave it")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        dump = options.keep or Path(folder) / "dump.json"
        write(dump, options.nodes, options.pods)
        megabytes = dump.stat().st_size / 1e6
        print(f"{options.nodes} nodes, {options.pods} GPU pods: a dump of {megabytes:.0f} MB")
        wall, cpu, lines = min(inspect(dump, options.output) for _ in range(options.runs))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    budgets = Budgets()
    print(
        f"{options.output} of {lines} lines: {wall:.2f} s wall"
        f" ({budgets.hold('vgpu inspect, wall time', wall, BUDGET_SECONDS, 's')}),"
        f" {cpu:.2f} s CPU, {peak:.0f} MiB at the peak"
    )
    theirs = official_seconds(options.nodes, options.pods, options.sample, options.runs)
    print(
        f"the official client's models would take {theirs:.1f} s of CPU to decode the dump, from"
        f" the first {options.sample} nodes and pods of it: {theirs / cpu:.1f} times as much as"
        " the whole command"
    )
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
