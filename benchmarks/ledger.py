"""The costs of the ledger: one full node with every source, and a cluster from the API server.

    python benchmarks/ledger.py [--nodes 5000] [--pods 20000] [--runs 50]

The times are CPU times of this process, best and median of the runs; budgets are compared with the
best.

The node has 8 GPUs and 240 containers, half of Volcano and half of gpu-manager, so that each of the
seven sources has statements: 1,440. Making statements of decoded samples and merging them into the
ledger are timed separately, neither with decoding (files, JSON, gRPC). Statements are made without
a cache (once, when the exporter starts) and as in a running exporter, which caches them: one pod
changes in each run. The budget is for the merge alone; a sample with a change costs the exporter
the statements and the merge, a sample without a change has no merge. Every sample is joined with
the containers' usage.

The cluster's pods are Volcano's and gpushare's; the time is that of reading their annotations and
merging a ledger for every node.

There is no peer to compare with: no other program joins these sources.
"""

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

import msgspec  # noqa: E402

from benchmarks.budgets import Budgets  # noqa: E402
from vgpu.ledger import Statement, merge  # noqa: E402
from vgpu.ledger.cluster import cluster  # noqa: E402
from vgpu.ledger.index import LedgerIndex  # noqa: E402
from vgpu.ledger.node import (  # noqa: E402
    NodeSamples,
    StatementCache,
    read_samples,
)
from vgpu.ledger.node_usage import node_usage  # noqa: E402
from vgpu.model.allocation import Share  # noqa: E402
from vgpu.model.facts import (  # noqa: E402
    ContainerName,
    Gpu,
    GpuProcess,
    GpuSample,
    Grant,
    KubeletSample,
    LimitFile,
    LimitSample,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionDevice,
    RegionFile,
    RegionProcess,
    RegionUse,
    ShimSample,
)
from vgpu.model.names import PodRef, Scheme, Source  # noqa: E402
from vgpu.model.objects import Container, ContainerState, Node, Pod, Status  # noqa: E402
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB  # noqa: E402
from vgpu.schemes.gaia.codec import Gaia  # noqa: E402
from vgpu.schemes.gpushare.codec import Gpushare  # noqa: E402
from vgpu.schemes.volcano.codec import Volcano  # noqa: E402

NODE_BUDGET_MS, CLUSTER_BUDGET_MS = 5, 2000

GPUS, CONTAINERS = 8, 240
GPU_BYTES = 80 * GIB
CODECS = (Volcano(memory_factor=1024), Gaia(), Gpushare())
NO_USE = RegionUse(0, 0, 0, 0, 0, None)


class PodResourcesRow(msgspec.Struct, frozen=True):
    """A grant as pod-resources reports it."""

    namespace: str
    pod: str
    container: str
    resource: str


def uuid(node, gpu):
    return f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}"


def named(number):
    return PodRef(f"{number:08x}-1111-4222-8333-000000000000", "team", f"train-{number}")


def running(ref, node, limits, annotations):
    return Pod(
        ref=ref,
        node=node,
        annotations=annotations,
        containers=(Container("main", limits), Container("proxy")),
        phase="Running",
        statuses=(Status("main", ContainerState.RUNNING), Status("proxy", ContainerState.RUNNING)),
    )


# ---------------------------------------------------------------- one full node


def volcano_container(number, gpu):
    """Pod, grants, region and own checkpoint of a share of 2 GiB and 3 percent."""
    ref, device = named(number), uuid(0, gpu)
    memory, cores = 2, 3
    limits = {
        "volcano.sh/vgpu-number": 1,
        "volcano.sh/vgpu-memory": memory,
        "volcano.sh/vgpu-cores": cores,
    }
    devices = f"{device},NVIDIA,{memory},{cores}:"
    pod = running(
        ref,
        "node-0",
        limits,
        {
            "volcano.sh/vgpu-ids-new": devices,
            "volcano.sh/devices-to-allocate": ";",
            "volcano.sh/bind-phase": "success",
            "volcano.sh/bind-time": "1790000000",
            "volcano.sh/vgpu-node": "node-0",
            "volcano.sh/vgpu-time": str(2**64 - 1),
        },
    )
    env = {
        "NVIDIA_VISIBLE_DEVICES": device,
        "CUDA_DEVICE_MEMORY_LIMIT_0": f"{memory * 1024}m",
        "CUDA_DEVICE_SM_LIMIT": str(cores),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/vgpu/x.cache",
    }
    kinds = {"vgpu-number": "", "vgpu-memory": "-memory", "vgpu-cores": "-core"}
    grants = [
        Grant(
            ref.uid,
            "main",
            f"volcano.sh/{name}",
            tuple(f"{device}{kind}-{number * 40 + i}" for i in range(limits[f"volcano.sh/{name}"])),
            env if not kind else {},
        )
        for name, kind in kinds.items()
    ]
    slots = tuple(RegionProcess(pid, 10 * number + pid, 1, (NO_USE,)) for pid in (1, 2))
    region = Region(
        "v1.2", (RegionDevice(device, memory * GIB, cores),), slots, 2, 1, 2, 0, 0, 1, 2
    )
    file = RegionFile(f"/usr/local/vgpu/{number}.cache", ref.uid, "main", region)
    own = Statement(
        Source.OWN_CHECKPOINT,
        PodRef(ref.uid, "", ""),
        "main",
        (Share(device, memory * GIB, cores * 10),),
        Scheme.VOLCANO,
        since=1.79e9,
    )
    return pod, grants, file, None, own


def gaia_container(number, gpu):
    """The same for gpu-manager: 8 blocks and 3 percent."""
    ref, device = named(number), uuid(0, gpu)
    blocks, cores = 8, 3
    limits = {"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": blocks}
    pod = running(
        ref,
        "node-0",
        limits,
        {
            "tencent.com/predicate-gpu-idx-0": str(gpu),
            "tencent.com/predicate-node": "node-0",
            "tencent.com/predicate-time": "1790000000000000000",
            "tencent.com/gpu-assigned": "true",
        },
    )
    grants = [
        Grant(
            ref.uid,
            "main",
            "tencent.com/vcuda-core",
            tuple(f"tencent.com/vcuda-core-{number * cores + i}" for i in range(cores)),
            {"NVIDIA_VISIBLE_DEVICES": device},
        ),
        Grant(
            ref.uid,
            "main",
            "tencent.com/vcuda-memory",
            tuple(
                f"tencent.com/vcuda-memory-{GAIA_MEMORY_BLOCK}-{number * blocks + i}"
                for i in range(blocks)
            ),
            {},
        ),
    ]
    limit = LimitFile(
        scheme=Scheme.GAIA,
        path=f"/etc/gpu-manager/vm/{number}/vcuda.config",
        pod_uid=ref.uid,
        container_id=f"{number:064x}",
        pci_bus_id=f"0000:{gpu:02x}:00.0",
        memory_bytes=blocks * GAIA_MEMORY_BLOCK,
        cores_percent=cores,
        cores_request_percent=cores,
    )
    own = Statement(
        Source.OWN_CHECKPOINT,
        PodRef(ref.uid, "", ""),
        "main",
        (Share(device, blocks * GAIA_MEMORY_BLOCK, cores * 10),),
        Scheme.GAIA,
        since=1.79e9,
    )
    return pod, grants, None, limit, own


def full_node():
    """All samples of the node, as ``read_samples`` takes them."""
    made = []
    for number in range(CONTAINERS):
        gpu_index = number % GPUS
        make = volcano_container if gpu_index < GPUS // 2 else gaia_container
        made.append(make(number, gpu_index))
    pods, grants, files, limits, own = zip(*made, strict=True)
    gpus = tuple(
        Gpu(
            uuid(0, gpu_index),
            gpu_index,
            {"pci_bus_id": f"00000000:{gpu_index:02x}:00.0", "name": "H200"},
            {("memory_total_bytes",): float(GPU_BYTES)},
        )
        for gpu_index in range(GPUS)
    )
    everything = tuple(grant for one in grants for grant in one)
    return {
        "node": "node-0",
        "gpu": GpuSample(
            gpus,
            processes=tuple(
                GpuProcess(10 * number + pid, uuid(0, number % GPUS), GIB)
                for number in range(CONTAINERS)
                for pid in (1, 2)
            ),
            processes_known=frozenset(gpu.uuid for gpu in gpus),
        ),
        "process": ProcessSample(
            owners={
                10 * number + pid: ProcessOwner(f"{number:064x}", pod.ref.uid, "containerd")
                for number, pod in enumerate(pods)
                for pid in (1, 2)
            },
            sees_host=True,
            live_pods=frozenset(pod.ref.uid for pod in pods),
        ),
        "shim": ShimSample(tuple(file for file in files if file)),
        "kubelet": KubeletSample(
            pods={pod.ref.uid: pod.ref for pod in pods},
            containers={
                f"{number:064x}": ContainerName("team", pod.ref.name, "main", pod.ref.uid)
                for number, pod in enumerate(pods)
            },
            grants=everything,
        ),
        "limits": LimitSample(tuple(limit for limit in limits if limit)),
        "held": {
            PodResourcesRow("team", pod.ref.name, "main", grant.resource): frozenset(
                grant.device_ids
            )
            for pod, of_pod in zip(pods, grants, strict=True)
            for grant in of_pod
        },
        "own": own,
        "pods": pods,
    }


# ---------------------------------------------------------------- a whole cluster


def whole_cluster(node_count, pod_count):
    """Nodes with 8 GPUs, two thirds of Volcano and one third of gpushare, and their pods."""
    nodes, pods = [], []
    for n in range(node_count):
        if n % 3:
            register = "".join(
                f"{uuid(n, gpu)},10,81920,NVIDIA-H200,true,hami-core:" for gpu in range(GPUS)
            )
            nodes.append(Node(f"node-{n}", annotations={"volcano.sh/node-vgpu-register": register}))
        else:
            capacity = {"aliyun.com/gpu-mem": GPUS * 80, "aliyun.com/gpu-count": GPUS}
            nodes.append(Node(f"node-{n}", capacity=capacity, allocatable=capacity))
    for number in range(pod_count):
        n, gpu = number % node_count, (number // node_count) % GPUS
        if n % 3:
            limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 10240}
            annotations = {
                "volcano.sh/vgpu-ids-new": f"{uuid(n, gpu)},NVIDIA,10240,0:",
                "volcano.sh/devices-to-allocate": ";",
                "volcano.sh/bind-phase": "success",
                "volcano.sh/bind-time": "1790000000",
                "volcano.sh/vgpu-node": f"node-{n}",
                "volcano.sh/vgpu-time": str(2**64 - 1),
            }
        else:
            limits = {"aliyun.com/gpu-mem": 10}
            annotations = {
                "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
                "ALIYUN_COM_GPU_MEM_POD": "10",
                "ALIYUN_COM_GPU_MEM_DEV": "80",
                "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
                "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1790000000000000000",
            }
        pods.append(running(named(number), f"node-{n}", limits, annotations))
    return nodes, pods


# ---------------------------------------------------------------- the clock


def cpu_seconds(work, runs):
    """CPU seconds of each run, and the last result."""
    taken = []
    for _ in range(runs):
        started = time.process_time()
        result = work()
        taken.append(time.process_time() - started)
    return taken, result


def again(sampled):
    """Endless samples; in each, one pod has changed since the sample before."""
    first, *rest = sampled["pods"]
    for number in itertools.count():
        changed = msgspec.structs.replace(first, resource_version=str(number))
        yield sampled | {"pods": (changed, *rest)}


class LedgerReport:
    """The lines of the table."""

    def __init__(self):
        self.budgets = Budgets()
        print(f"{'':<58} {'best':>12} {'median':>12}")

    def line(self, what, taken, most=None):
        best, median = min(taken) * 1000, statistics.median(taken) * 1000
        held = "" if most is None else f"   {self.budgets.hold(what, best, most, 'ms')}"
        print(f"{what:<58} {best:>9.1f} ms {median:>9.1f} ms{held}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20000)
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()

    report = LedgerReport()
    sampled = full_node()
    taken, (evidence, files) = cpu_seconds(
        lambda: read_samples(CODECS, NodeSamples(**sampled)), options.runs
    )
    report.line(f"node: samples to {len(evidence.statements)} statements", taken)
    memory, changing = StatementCache(), again(sampled)
    read_samples(CODECS, NodeSamples(**sampled), memory=memory)
    taken, _ = cpu_seconds(
        lambda: read_samples(CODECS, NodeSamples(**next(changing)), memory=memory), options.runs
    )
    report.line("node: the same, one pod of them changed", taken)
    taken, ledger = cpu_seconds(lambda: merge(evidence), options.runs)
    report.line(f"node: {GPUS} GPUs, {CONTAINERS} containers merged", taken, NODE_BUDGET_MS)
    assert sum(len(entry.holdings) for entry in ledger.devices) == CONTAINERS, ledger.unplaced
    assert not ledger.conflicts, ledger.conflicts[:3]

    index = LedgerIndex(evidence, ledger)
    samples = NodeSamples(**sampled)
    taken, usage = cpu_seconds(lambda: node_usage(index, files, samples), options.runs)
    report.line("node: what its containers may use and use", taken)
    assert len(usage.containers) == CONTAINERS, len(usage.containers)

    nodes, pods = whole_cluster(options.nodes, options.pods)
    codecs = (Volcano(memory_factor=1), Gpushare())
    taken, result = cpu_seconds(lambda: cluster(nodes, pods, codecs), 3)
    what = f"cluster: {options.nodes} nodes, {options.pods} pods"
    report.line(what, taken, CLUSTER_BUDGET_MS)
    held = sum(len(e.holdings) for one in result.ledgers.values() for e in one.devices)
    assert held == options.pods, held
    return report.budgets.status()


if __name__ == "__main__":
    sys.exit(main())
