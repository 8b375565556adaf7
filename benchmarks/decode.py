"""The costs of keeping a cluster's GPU pods: 100,000 pods from the API server's pages.

    python benchmarks/decode.py [--pods 100000] [--sample 2000] [--runs 3]

Each measurement is a process of its own that reads page after page, 500 pods of about 7 kB each
with their managedFields, every fourth a GPU pod of one of the four sharing systems, and keeps the
GPU pods. CPU is that process's own time in the decoder; memory is its peak resident set, with the
interpreter. The official client's models are measured on the first ``--sample`` pods of the same
input. The input is the same in every run.
"""

import argparse
import json
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402

PAGE = 500
BUDGET_SECONDS, BUDGET_MIB = 2.0, 120

UUID = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b7"

# what makes a pod a GPU pod: its extended resources and annotations, for each sharing system
SHARING = (
    (
        {
            "volcano.sh/vgpu-number": "1",
            "volcano.sh/vgpu-memory": "8k",
            "volcano.sh/vgpu-cores": "50",
        },
        {
            "volcano.sh/bind-phase": "success",
            "volcano.sh/bind-time": "1700000000",
            "volcano.sh/devices-to-allocate": ";",
            "volcano.sh/vgpu-ids-new": f"{UUID}1,NVIDIA-NVIDIA L40S,8000,50:",
            "volcano.sh/vgpu-node": "@NODE@",
            "volcano.sh/vgpu-time": "18446744073709551615",
        },
    ),
    (
        {"aliyun.com/gpu-mem": "4"},
        {
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000123456789",
            "ALIYUN_COM_GPU_MEM_DEV": "15",
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_POD": "4",
        },
    ),
    (
        {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "30"},
        {
            "tencent.com/gpu-assigned": "true",
            "tencent.com/predicate-gpu-idx-0": "3",
            "tencent.com/predicate-node": "@NODE@",
            "tencent.com/predicate-time": "1700000000123456789",
        },
    ),
    (
        {},
        {
            "kubeshare/GPUID": "zxcvb",
            "kubeshare/gpu_limit": "1.0",
            "kubeshare/gpu_mem": "3145728000",
            "kubeshare/gpu_request": "0.5",
        },
    ),
)


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def pod(resources, annotations):
    """A pod as the API server has it; texts between @ differ from pod to pod."""
    document = json.loads((Path(__file__).parent / "pod.json").read_text())
    document["metadata"]["annotations"] |= annotations
    for quantities in document["spec"]["containers"][0]["resources"].values():
        quantities.update(resources)
    return document


def pages(count):
    """The pages of a list of ``count`` pods, as bytes; pod by pod the same every time."""
    gpu = [compact(pod(*sharing)) for sharing in SHARING]
    plain = compact(pod({}, {}))
    for first in range(0, count, PAGE):
        numbers = range(first, min(first + PAGE, count))
        items = []
        for number in numbers:
            own = {
                "NAME": f"model-server-5d4f6c7b8-{number:06x}",
                "NAMESPACE": f"team-{number % 97}",
                "UID": f"{number:08x}-0000-4000-8000-{number:012x}",
                "VERSION": str(1_000_000 + number),
                "OWNER": f"{number // 20:08x}-1111-4000-8000-000000000000",
                "NODE": f"node-{number // 20:04}.example.com",
                "SHORT": f"{number % 0xFFFFF:05x}",
            }
            text = gpu[number // 4 % len(gpu)] if number % 4 == 0 else plain
            items.append(re.sub("@([A-Z]+)@", lambda found: own[found[1]], text))  # noqa: B023
        meta = {"resourceVersion": "2000000"}
        if numbers.stop < count:
            meta |= {
                "continue": f"token-{numbers.stop}",
                "remainingItemCount": count - numbers.stop,
            }
        head = compact({"kind": "PodList", "apiVersion": "v1", "metadata": meta})
        yield f'{head[:-1]},"items":[{",".join(items)}]}}'.encode()


# ---------------------------------------------------------------- the measured processes


def ours(kept):
    from vgpu.kube.kinds import PODS  # noqa: PLC0415

    return lambda page: kept.extend(PODS.page(page).objects)


def official(kept):
    from kubernetes.client import ApiClient  # noqa: PLC0415

    client = ApiClient()
    return lambda page: kept.extend(
        one
        for one in client.deserialize(page.decode(), "V1PodList", "application/json").items
        if int(one.metadata.name[-6:], 16) % 4 == 0
    )


DECODERS = {"ours": ours, "official": official}


def memory(name):
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1024


def worker(name):
    kept = []
    decode = DECODERS[name](kept)
    before, spent = memory("VmRSS"), 0.0
    while header := sys.stdin.buffer.read(8):
        page = sys.stdin.buffer.read(struct.unpack("<Q", header)[0])
        started = time.process_time()
        decode(page)
        spent += time.process_time() - started
        del page
        sys.stdout.write("\n")  # so that nobody makes the next page meanwhile, on the same core
        sys.stdout.flush()
    result = {"cpu": spent, "before": before, "after": memory("VmRSS"), "peak": memory("VmHWM")}
    print(json.dumps({**result, "kept": len(kept)}))


def measure(name, count):
    command = [sys.executable, __file__, "--worker", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        size = 0
        for page in pages(count):
            process.stdin.write(struct.pack("<Q", len(page)))
            process.stdin.write(page)
            process.stdin.flush()
            size += len(page)
            process.stdout.readline()
        process.stdin.close()
        document = json.loads(process.stdout.read())
    return {"name": name, "pods": count, "size": size, **document}


def show(found):
    per_pod = found["cpu"] / found["pods"] * 1e6
    print(
        f"{found['name']:>10} {found['pods']:>8} {found['size'] / found['pods'] / 1000:>8.1f}"
        f" {found['kept']:>7} {found['cpu']:>8.2f} {per_pod:>9.1f}"
        f" {found['before']:>13.0f} {found['after']:>5.0f} {found['peak']:>5.0f}"
    )
    return per_pod


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--sample", type=int, default=2000, help="pods for the official client")
    parser.add_argument("--runs", type=int, default=3, help="of ours; the least CPU time counts")
    parser.add_argument("--worker", choices=DECODERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return 0
    titles = ("decoder", "pods", "kB/pod", "kept", "CPU s", "µs/pod", "MiB at start", "end", "peak")
    print("{:>10} {:>8} {:>8} {:>7} {:>8} {:>9} {:>13} {:>5} {:>5}".format(*titles))
    runs = [measure("ours", args.pods) for _ in range(args.runs)]
    for run in runs:
        show(run)
    best = min(runs, key=lambda run: run["cpu"])
    per_pod = best["cpu"] / best["pods"]
    theirs = measure("official", args.sample)
    ratio = show(theirs) / 1e6 / per_pod
    print(f"the official client's models cost {ratio:.0f} times as much CPU a pod")
    budgets = Budgets()
    print(
        f"{args.pods} pods: {best['cpu']:.2f} s of CPU"
        f" ({budgets.hold('decoding, CPU', best['cpu'], BUDGET_SECONDS, 's')}),"
        f" {best['peak']:.0f} MiB at the peak"
        f" ({budgets.hold('decoding, peak', best['peak'], BUDGET_MIB, 'MiB')})"
    )
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
