"""The costs of the device plugin on a full node: 8 GPUs, 240 shares, each a pod of its own.

    python benchmarks/plugin.py [--factors 64,11] [--seconds 30] [--kubeconfig]

The plugin is a process of its own, as in its pod: it reaches the demo's API server over TLS by a
service account, with a stub kubelet, the fake driver and a scrape every 15 s. The kubelet asks for
240 pods of about 7 kB one after the other, and writes its checkpoint each time. With units of
memory of 11 MiB there are nearly as many as the kubelet takes. Memory is the resident set
afterwards, and after a restart with all pods. CPU is the scheduler's count for all threads, the
better of two runs: without changes, and with a change of a pod each second.

``--kubeconfig`` reads a kubeconfig instead, for which the Kubernetes client is imported; the
budgets are the pod's. There is no peer to measure beside: the originals need a GPU's driver.
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
from benchmarks.decode import pod  # noqa: E402
from benchmarks.exporter_minutes import cpu_ms, memory_mib  # noqa: E402
from tests.deviceplugin.live_plugin import GIB, NODE, PluginBench, volcano_annotations  # noqa: E402
from vgpu.kube.kinds import PODS  # noqa: E402

GPUS, SHARES = 8, 240
GPU_BYTES = 80 * GIB
RSS_BUDGET_MIB, IDLE_BUDGET_PERCENT = 72, 0.5
SCRAPE_SECONDS = 15
SETTLING_SECONDS = 5
RUNS = 2
NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"


def tenant(bench, number, units):
    """A pod as a real API server has it, with a claim by Volcano's scheduler."""
    asked = {NUMBER: 1, MEMORY: units, CORES: 3}
    gpu = bench.uuids[number % GPUS]
    limits = {name: str(count) for name, count in asked.items()}
    made = json.dumps(pod(limits, volcano_annotations(gpu, units, 3)))
    names = {
        "NAME": f"train-{number:03}",
        "NAMESPACE": f"team-{number % 10}",
        "UID": f"{number:08x}-0000-4000-8000-{number:012x}",
        "OWNER": f"{number:08x}-1111-4000-8000-000000000000",
        "NODE": NODE,
        "SHORT": f"{number:05x}",
        "VERSION": "",
    }
    for name, text in names.items():
        made = made.replace(f"@{name}@", text)
    whole = {"apiVersion": "v1", "kind": "Pod", **json.loads(made)}
    whole["metadata"].pop("resourceVersion", None)
    whole["status"] = {"phase": "Pending"}
    return whole, asked


def fill(bench, factor):
    """Admit all pods as the kubelet does, and let them run."""
    bench.kubelet.sums_up = False
    units = GPU_BYTES // 2**20 // factor // (SHARES // GPUS)
    for number in range(SHARES):
        whole, asked = tenant(bench, number, units)
        uid = bench.create(whole)
        container = whole["spec"]["containers"][0]["name"]
        bench.kubelet.admit(uid, container, asked)
        bench.kubelet.start_container(uid, container, NUMBER)
        running = {
            "name": container,
            "state": {"running": {}},
            "containerID": f"containerd://{uid}",
        }
        patch = {"status": {"phase": "Running", "containerStatuses": [running]}}
        bench.store.patch(PODS, *named(whole), patch)
    bench.kubelet.sums_up = True
    bench.kubelet.write()


def named(whole):
    return whole["metadata"]["namespace"], whole["metadata"]["name"]


def until_bound(bench):
    """Wait until all pods are admitted and their annotations are written."""
    bench.wait_until(
        lambda: bench.metrics().get('vgpu_plugin_tenants{kind="bound"}') == SHARES, "all bound"
    )
    time.sleep(SETTLING_SECONDS)


def idle_percent(bench, seconds, events):
    """The used part of a core, with ``rate`` changes of pods a second."""
    before, started, done = cpu_ms(bench.process.pid), time.monotonic(), 0
    scraped = started - SCRAPE_SECONDS / 2
    pods = [named(each) for each in bench.store.list(PODS).items]
    while (passed := time.monotonic() - started) < seconds:
        if time.monotonic() - scraped >= SCRAPE_SECONDS:
            bench.get("/metrics")
            scraped = time.monotonic()
        while done < passed * events:
            beat = {"type": "Beat", "status": "True", "reason": str(done)}
            patch = {"status": {"conditions": [beat]}}
            bench.store.patch(PODS, *pods[done % len(pods)], patch)
            done += 1
        time.sleep(0.05)
    return (cpu_ms(bench.process.pid) - before) / 10 / (time.monotonic() - started)


def best_idle(bench, seconds, events):
    return min(idle_percent(bench, seconds, events) for _ in range(RUNS))


def measure(folder, factor, args):
    flags = (f"--volcano.memory-factor={factor}", f"--volcano.split-count={SHARES // GPUS}")
    bench = PluginBench(
        folder, "volcano", *flags, gpus=GPUS, memory=GPU_BYTES, in_pod=not args.kubeconfig
    )
    found = {}
    with bench:
        bench.start()
        bench.wait_ready()
        pid = bench.process.pid
        found["empty"] = memory_mib(pid, "VmRSS")
        found["ids"] = sum(map(len, bench.kubelet.devices.values()))
        started = time.monotonic()
        fill(bench, factor)
        found["filled"] = time.monotonic() - started
        until_bound(bench)
        found["rss"], found["peak"] = memory_mib(pid, "VmRSS"), memory_mib(pid, "VmHWM")
        found["quiet"] = best_idle(bench, args.seconds, 0)
        found["busy"] = best_idle(bench, args.seconds, 1)
        bench.stop()
        started = time.monotonic()
        bench.start()
        bench.wait_ready()
        found["recovered"] = time.monotonic() - started
        until_bound(bench)
        pid = bench.process.pid
        found["again"], found["again_peak"] = memory_mib(pid, "VmRSS"), memory_mib(pid, "VmHWM")
        bench.stop()
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=30, help="of each measurement of CPU")
    parser.add_argument("--factors", default="64", help="MiB of a unit; 11 is the smallest")
    parser.add_argument("--kubeconfig", action="store_true", help="read one instead")
    args = parser.parse_args()
    budgets = Budgets()
    for factor in map(int, args.factors.split(",")):
        with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as folder:
            measurement = measure(folder, factor, args)
        node = f"{GPUS} GPUs, {SHARES} pods, {measurement['ids']:,} device IDs"
        for what, kept in (("RSS", "rss"), ("RSS after a new start", "again")):
            held = budgets.hold(f"{node}, {what}", measurement[kept], RSS_BUDGET_MIB, "MiB")
            peak = measurement["peak" if kept == "rss" else "again_peak"]
            print(f"{node}: {what} {measurement[kept]:.1f} MiB, peak {peak:.1f}; {held}")
        print(f"{node}: RSS before the first pod {measurement['empty']:.1f} MiB")
        print(
            f"{node}: admitted in {measurement['filled']:.1f} s, the stub kubelet's time included;"
            f" ready again {measurement['recovered']:.2f} s after a new start"
        )
        for what, kept in (("nothing happens", "quiet"), ("a pod changes every second", "busy")):
            name = f"idle CPU while {what}"
            held = budgets.hold(name, measurement[kept], IDLE_BUDGET_PERCENT, "% of a core")
            print(f"{node}: {name}: {measurement[kept]:.2f} % of a core; {held}")
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
