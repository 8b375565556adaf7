"""The costs of the exporter at 8, 80 and 240 containers, beside nvitop-exporter in the same run.

    python benchmarks/exporter.py [--sizes 8,80,240] [--scrapes 500] [--samples 60] [--no-peer]
                                  [--minutes 2] [--scheme nvidia]

Both read the same fake driver with 8 GPUs and two processes in each container. CPU times are the
kernel's count for the whole process. `CPU/min` is 4 samples (with the page rendered before the
scrape in the format in use) and 4 scrapes, the costs of a 15 s interval; nvitop samples once a
second, its own default. With `--minutes` only the CPU time of so many real minutes is measured, by
`exporter_minutes.py`: with real processes, idle threads and cold caches. With `--scheme nvidia`
the containers have a replica of NVIDIA's own plugin each (time-slicing, ten replicas of a GPU).
"""

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402
from benchmarks.exporter_minutes import LIKE_PROMETHEUS, memory_mib, report, run  # noqa: E402
from benchmarks.real_node import GPUS  # noqa: E402
from simulator.scheme_objects import grants  # noqa: E402
from tests.support import nvml_fake  # noqa: E402
from tests.support.fleet_node import fleet_node, of_nvidias_plugin  # noqa: E402
from tests.support.kubelet_server import Kubelet, one_entry_per_device  # noqa: E402
from tests.support.live import LiveExporter, fake_devices, fake_processes  # noqa: E402
from vgpu.schemes.nvidia.grant import NVIDIA  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")

BUDGETS = (
    ("p50", "scrape, median", 1.0, "ms"),
    ("delay", "scrape, median, with 1 ms a driver call", 1.0, "ms"),
    ("cpu_minute", "CPU a minute", 300.0, "ms"),
    ("rss", "RSS", 64.0, "MiB"),
)
"""Budgets of every size: half a percent of a core, and a scrape that only copies bytes."""


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def scrape(connection, path="/metrics"):
    started = time.perf_counter()
    connection.request("GET", path, headers=LIKE_PROMETHEUS)
    body = connection.getresponse().read()
    return (time.perf_counter() - started) * 1000, body


def latencies(port, count, *, keep_alive, path="/metrics"):
    """Milliseconds of each scrape: on one connection, or with a connection each."""
    taken = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(count):
        if not keep_alive:
            connection.close()
            started = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.connect()
            extra = (time.perf_counter() - started) * 1000
        else:
            extra = 0.0
        spent, _ = scrape(connection, path)
        taken.append(spent + extra)
    connection.close()
    return taken


def p(values, percent):
    return statistics.quantiles(values, n=1000, method="inclusive")[percent * 10 - 1]


def node_of(size, args):
    """The node of this size, shared by the chosen system."""
    node = fleet_node(GPUS, size)
    return of_nvidias_plugin(node) if args.scheme == NVIDIA else node


def measure_vgpu(folder, size, args):
    scenario = node_of(size, args)
    found = {"who": "vgpu", "containers": size}
    interval = 0.25
    flags = (f"--sample.interval={interval}s", "--metrics.detail=calls")
    with LiveExporter(folder / "a", scenario, *flags) as exporter:
        pid = exporter.process.pid
        for _ in range(2):
            exporter.get("/metrics", LIKE_PROMETHEUS)
            time.sleep(1.0)
        calls = 'vgpu_nvml_calls_total{call="nvmlDeviceGetUtilizationRates"}'
        count, before = exporter.metrics()[calls], cpu_seconds(pid)
        time.sleep(interval * args.samples)
        spent, passes = cpu_seconds(pid) - before, (exporter.metrics()[calls] - count) / GPUS
        found["cpu_sample"] = spent / passes * 1000
    with LiveExporter(folder / "b", scenario, "--sample.interval=15s") as exporter:
        pid = exporter.process.pid
        latencies(exporter.port, 20, keep_alive=True)
        before = cpu_seconds(pid)
        kept = latencies(exporter.port, args.scrapes, keep_alive=True)
        found["cpu_scrape"] = (cpu_seconds(pid) - before) / args.scrapes * 1000
        fresh = latencies(exporter.port, args.scrapes, keep_alive=False)
        found |= {"p50": p(kept, 50), "p99": p(kept, 99)}
        found |= {"new_p50": p(fresh, 50), "new_p99": p(fresh, 99)}
        found["cpu_minute"] = 4 * (found["cpu_sample"] + found["cpu_scrape"])
        found |= {"rss": memory_mib(pid, "VmRSS"), "peak": memory_mib(pid, "VmHWM")}
        plain = exporter.get("/metrics").body
        found["series"] = sum(1 for line in plain.splitlines() if line[:1] != b"#")
        found["bytes"] = len(plain)
        found["gzip"] = len(exporter.get("/metrics", LIKE_PROMETHEUS).body)
    return found


def measure_delay(folder, size, args):
    """Scrape latency while each NVML call takes a millisecond."""
    slow = [nvml_fake.Fault("*", delay_ms=1)]
    exporter = LiveExporter(folder / "c", node_of(size, args), "--sample.interval=1s")
    exporter.write_driver(faults=slow)
    with exporter:
        return p(latencies(exporter.port, args.scrapes, keep_alive=True), 50)


def measure_grpc(folder, size):
    """Resident memory with the pod-resources API switched on, in MiB."""
    scenario = fleet_node(GPUS, size)
    names = {pod.ref.uid: pod.ref for pod in scenario.pods}
    held = [
        (names[g.pod_uid].namespace, names[g.pod_uid].name, g.container, g.resource, g.device_ids)
        for g in grants(scenario)
    ]
    answer = one_entry_per_device(*held)
    kubelet = Kubelet(folder / "kubelet.sock")
    kubelet.answer = lambda: answer
    flags = ("--sample.interval=1s", f"--kubelet.pod-resources={kubelet.path}")
    try:
        with LiveExporter(folder / "e", scenario, *flags) as exporter:
            latencies(exporter.port, 20, keep_alive=True)
            time.sleep(3.0)
            return memory_mib(exporter.process.pid, "VmRSS")
    finally:
        kubelet.stop()


def measure_nvitop(folder, size, args):
    """nvitop-exporter on the same driver; its processes must exist, so these are sleepers."""
    node = LiveExporter(folder / "d", fleet_node(GPUS, size))
    sleepers = [subprocess.Popen(["sleep", "3600"]) for _ in node.sample.processes]
    processes = fake_processes(node.sample)
    for process, sleeper in zip(processes, sleepers, strict=True):
        process.pid = sleeper.pid
    node.driver.write(fake_devices(node.sample), processes)
    port = 18000 + os.getpid() % 1000
    command = [sys.executable, "-m", "nvitop_exporter", "--port", str(port)]
    exporter = subprocess.Popen(
        command, env=node.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            try:
                latencies(port, 1, keep_alive=False)
                break
            except OSError:
                time.sleep(0.1)
        time.sleep(5.0)
        before = cpu_seconds(exporter.pid)
        time.sleep(10.0)
        idle = (cpu_seconds(exporter.pid) - before) / 10
        count = max(20, args.scrapes // 10)
        before, started = cpu_seconds(exporter.pid), time.monotonic()
        kept = latencies(port, count, keep_alive=True)
        busy = cpu_seconds(exporter.pid) - before - idle * (time.monotonic() - started)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics")
        plain = connection.getresponse().read()
        connection.close()
        per_scrape = max(0.0, busy / count * 1000)
        return {
            "who": "nvitop-exporter",
            "containers": size,
            "p50": p(kept, 50),
            "p99": p(kept, 99),
            "cpu_scrape": per_scrape,
            "cpu_minute": idle * 60_000 + 4 * per_scrape,
            "rss": memory_mib(exporter.pid, "VmRSS"),
            "peak": memory_mib(exporter.pid, "VmHWM"),
            "series": sum(1 for line in plain.splitlines() if line[:1] != b"#"),
            "bytes": len(plain),
        }
    finally:
        exporter.terminate()
        exporter.wait()
        for sleeper in sleepers:
            sleeper.kill()
        for sleeper in sleepers:
            sleeper.wait()


COLUMNS = (
    ("who", "", "{}"),
    ("containers", "", "{}"),
    ("p50", "p50 ms", "{:.2f}"),
    ("p99", "p99 ms", "{:.2f}"),
    ("new_p50", "new p50", "{:.2f}"),
    ("new_p99", "new p99", "{:.2f}"),
    ("cpu_sample", "CPU/sample ms", "{:.2f}"),
    ("cpu_scrape", "CPU/scrape ms", "{:.2f}"),
    ("cpu_minute", "CPU/min ms", "{:.1f}"),
    ("rss", "RSS MiB", "{:.1f}"),
    ("peak", "peak MiB", "{:.1f}"),
    ("series", "series", "{}"),
    ("bytes", "bytes", "{}"),
    ("gzip", "gzip", "{}"),
)


def show(rows):
    table = [[title or key for key, title, _ in COLUMNS]]
    table += [[f.format(row[key]) if key in row else "" for key, _, f in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", default="8,80,240")
    parser.add_argument("--scheme", choices=("volcano", NVIDIA.value), default="volcano")
    parser.add_argument("--scrapes", type=int, default=500)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--no-peer", action="store_true", help="leave nvitop-exporter out")
    parser.add_argument(
        "--minutes", type=float, default=0, help="measure only CPU and memory, as it happens"
    )
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    budgets = Budgets()
    if args.minutes:
        report(run(sizes, args.minutes, peer=not args.no_peer), budgets)
        return budgets.status()
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
            folder = Path(name)
            ours = measure_vgpu(folder, size, args)
            rows.append(ours)
            ours["delay"] = measure_delay(folder, size, args)
            ours["grpc"] = measure_grpc(folder, size)
            if not args.no_peer:
                peer = measure_nvitop(folder, size, args)
                rows.append(peer)
                ours["ratio"] = (peer["p50"] / ours["p50"], peer["cpu_minute"] / ours["cpu_minute"])
    show(rows)
    for row in rows:
        size = f"{row['containers']} containers"
        if row["who"] == "vgpu":
            print(f"{size}, with pod-resources over grpc: RSS {row['grpc']:.1f} MiB")
            for key, what, most, unit in BUDGETS:
                held = budgets.hold(f"{size}, {what}", row[key], most, unit)
                print(f"{size}, {what}: {row[key]:.2f} {unit}; {held}")
        if "ratio" in row:
            scrape_ratio, cpu_ratio = row["ratio"]
            print(
                f"{size}: nvitop-exporter takes {scrape_ratio:.0f}x as long a scrape and"
                f" {cpu_ratio:.0f}x the CPU a minute"
            )
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
