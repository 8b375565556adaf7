"""What `vgpu inspect --from` costs: the dump of a cluster of 5,000 nodes and 20,000 GPU pods.

    python benchmarks/inspection.py [--nodes 5000] [--pods 20000] [--output table] [--keep FILE]

Makes the dump, as large as kubectl's own (pods of about 7 kB with their managedFields, nodes with
the images that a kubelet reports), runs the command on it in a process of its own, and prints wall
time, CPU time and peak resident memory. Two thirds of the nodes are Volcano's, the rest gpushare's;
one pod in a hundred waits.
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
BUDGET_SECONDS = 5.0

CARDS, CARD_MIB = 8, 81920
BOUND = 1_790_000_000
IMAGES = [
    {
        "names": [f"registry.example.com/team/image-{n}@sha256:{n:064x}", f"image-{n}:v1.{n}"],
        "sizeBytes": 100_000_000 + n,
    }
    for n in range(40)
]


def uuid(node, card):
    return f"GPU-{node:08x}-0000-4000-8000-{card:012x}"


def node(number):
    capacity = {"cpu": "128", "memory": "1056469568Ki", "pods": "110"}
    annotations = {"node.alpha.kubernetes.io/ttl": "0"}
    if number % 3:
        capacity |= {"volcano.sh/vgpu-number": "80"}
        annotations["volcano.sh/node-vgpu-register"] = "".join(
            f"{uuid(number, card)},10,{CARD_MIB},NVIDIA-H100,true,hami-core:"
            for card in range(CARDS)
        )
    else:
        capacity |= {"aliyun.com/gpu-mem": str(CARDS * 80), "aliyun.com/gpu-count": str(CARDS)}
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


def sharing(number, on, card):
    """Limits and annotations of a pod; one that waits has no annotations."""
    if on % 3:
        limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "10240"}
        told = {
            "volcano.sh/vgpu-ids-new": f"{uuid(on, card)},NVIDIA,10240,0:",
            "volcano.sh/devices-to-allocate": ";",
            "volcano.sh/bind-phase": "success",
            "volcano.sh/bind-time": str(BOUND),
            "volcano.sh/vgpu-node": f"node-{on}",
            "volcano.sh/vgpu-time": str(2**64 - 1),
        }
    else:
        limits = {"aliyun.com/gpu-mem": "10"}
        told = {
            "ALIYUN_COM_GPU_MEM_IDX": str(card),
            "ALIYUN_COM_GPU_MEM_POD": "10",
            "ALIYUN_COM_GPU_MEM_DEV": "80",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(BOUND * 10**9),
        }
    return limits, {} if number % 100 == 0 else told


def pods(count, nodes):
    """Objects as text."""
    template = json.loads((Path(__file__).parent / "pod.json").read_text())
    for number in range(count):
        on, card = number % nodes, number // nodes % CARDS
        limits, told = sharing(number, on, card)
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
                "annotations": {**meta["annotations"], **told},
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
    """As kubectl prints it, with its blanks."""
    with path.open("w") as file:
        file.write('{\n    "apiVersion": "v1",\n    "items": [\n')
        nodes = (json.dumps(node(number), indent=4) for number in range(node_count))
        for number, item in enumerate(itertools.chain(nodes, pods(pod_count, node_count))):
            file.write(f",\n{item}" if number else item)
        file.write('\n    ],\n    "kind": "List",\n    "metadata": {"resourceVersion": ""}\n}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--output", default="table", choices=("table", "wide", "json", "yaml"))
    parser.add_argument("--keep", type=Path, help="write the dump there, and leave it")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        dump = options.keep or Path(folder) / "dump.json"
        write(dump, options.nodes, options.pods)
        megabytes = dump.stat().st_size / 1e6
        print(f"{options.nodes} nodes, {options.pods} GPU pods: a dump of {megabytes:.0f} MB")
        command = [sys.executable, "-m", "vgpu", "inspect", "--from", str(dump)]
        started = time.perf_counter()
        done = subprocess.run(
            [*command, "--output", options.output],
            check=True,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        wall = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = done.stdout.count(b"\n")
    print(
        f"{options.output} of {lines} lines: {wall:.2f} s wall, {used.ru_utime + used.ru_stime:.2f}"
        f" s CPU, {used.ru_maxrss / 1024:.0f} MiB at the peak"
        f" (budget {BUDGET_SECONDS:.0f} s: {'kept' if wall <= BUDGET_SECONDS else 'PASSED OVER'})"
    )


if __name__ == "__main__":
    main()
