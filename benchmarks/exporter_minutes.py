"""The exporter's CPU time as it happens: real cgroups and processes, a scrape each 15 seconds.

Beside it in the same run, on the same nodes: nvitop-exporter, and as a floor an exporter that does
nothing with as many threads. All sizes are measured at the same time. Of each size there are three
nodes: a still one; one where each minute a pod ends and another starts; and a busy one, where
besides all readings and regions change every five seconds. One more node has 8 containers and
20,000 folders of pods that have ended, and a second scraper at another phase. A still node has a
second exporter with ``--collector.api``, connected as in a pod to a stand-in for the API server.
CPU time is the kernel's count of whole process trees, with all threads.
"""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.api_server import ApiServer
from benchmarks.budgets import Budgets
from benchmarks.real_node import GPUS, PROCESSES, RealNode, nodes_processes, start
from tests.support.live import port_in
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
IN_A_POD = ROOT / "tests" / "deviceplugin" / "in_a_pod.py"

LIKE_PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
    "Accept-Encoding": "gzip",
    "User-Agent": "Prometheus/2.42.0",
}
INTERVAL = 15.0
"""Interval between two scrapes, in seconds."""
WARM_SCRAPES = 3
"""Number of scrapes before the measurement: the first samples fill caches."""

STILL, CHANGING, BUSY = NODES = ("still", "changing", "busy")

LEAKED, LEAKED_SIZE, FOLDERS = "leaked folders", 8, 20_000
"""The node with folders of ended pods, its number of containers, and of these folders."""
LEAKED_MS = 300.0
"""Maximum CPU milliseconds a minute on that node."""
WITH_API, API_SIZE, API_MIB = "with API", 80, 16.0
"""The exporter with ``--collector.api``, its number of containers, and how much more resident
memory it may have than without."""
SECOND_SCRAPER = 0.4
"""The phase of the second scraper, in intervals."""

RATIOS = {8: 1.7, 80: 0.5, 240: 1.0}
"""Maximum CPU time in percent of nvitop-exporter's, by number of containers. No bound on busy
nodes: what a change costs is printed only."""
RSS_MIB = {8: 33.0, 80: 37.0, 240: 46.0}
"""Maximum resident memory, by number of containers."""

FLOOR = """
import http.server, sys, threading
for _ in range(int(sys.argv[1]) - 2):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
print(f'msg="web server ready" http://127.0.0.1:{server.server_port}', flush=True)
server.serve_forever(poll_interval=3600)
"""
"""An exporter that does nothing: its argument is its number of threads."""


class Measured(msgspec.Struct):
    """One program of the run, with its CPU milliseconds a minute and its memory at the end."""

    who: str
    size: int
    process: subprocess.Popen[bytes]
    port: int
    connections: dict[int, http.client.HTTPConnection] = {}
    begun: float = 0.0
    cpu_minute: float = 0.0
    rss: float = 0.0
    threads: int = 0

    def scrape(self, scraper: int = 0) -> bytes:
        """One scrape, as Prometheus makes it on its kept connection."""
        if scraper not in self.connections:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            self.connections[scraper] = connection
        self.connections[scraper].request("GET", "/metrics", headers=LIKE_PROMETHEUS)
        return self.connections[scraper].getresponse().read()


def cpu_ms(pid: int) -> float:
    """CPU milliseconds of the whole process, threads that have ended included."""
    return time.clock_gettime((~pid << 3) | 2) * 1000  # CPUCLOCK_SCHED, as clock_getcpuclockid(3)


def tree_ms(pid: int) -> float:
    """CPU milliseconds of the process and of all that it has started."""
    return sum(cpu_ms(one) for one in nodes_processes(pid))


def memory_mib(pid: int, name: str = "VmRSS") -> float:
    """A line of /proc/<pid>/status, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def free_port() -> int:
    """A port of the kernel's choice, free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def program(
    who: str, size: int, command: list[str], env: dict[str, str], log: Path, *, port: int = 0
) -> Iterator[Measured]:
    """A program that serves; ``port`` 0 is read from its ``log``."""
    process = start(command, env, log)
    try:
        if not port:
            port = wait_until(lambda: port_in(log.read_text()), f"{who} serves")
        wait_until(lambda: _accepts(port), f"{who} accepts", failures=(OSError,))
        yield Measured(who, size, process, port)
    finally:
        process.terminate()
        process.wait(30)


def _accepts(port: int) -> bool:
    socket.create_connection(("127.0.0.1", port), timeout=1).close()
    return True


def ours(node: RealNode, who: str, size: int, log: Path, flags: Sequence[str]):
    """Our exporter on the node."""
    command = [sys.executable, "-m", "vgpu", *_exporter(node, flags)]
    return program(who, size, command, node.environment(), log)


def ours_with_api(node: RealNode, size: int, log: Path, flags: Sequence[str], server: ApiServer):
    """Our exporter on the node, as in a pod that may ask the API server."""
    start = [sys.executable, str(IN_A_POD), str(server.account)]
    env = node.environment() | server.environment() | {"HOME": str(server.account)}
    env["PYTHONPATH"] = str(ROOT)
    env.pop("KUBECONFIG", None)
    command = [*start, *_exporter(node, (*flags, "--collector.api"))]
    return program(WITH_API, size, command, env, log)


def _exporter(node: RealNode, flags: Sequence[str]) -> list[str]:
    return ["exporter", "--web.listen-address=127.0.0.1:0", *node.flags(), *flags]


def nvitop(node: RealNode, size: int, log: Path):
    """nvitop-exporter on the node."""
    port = free_port()
    command = [sys.executable, "-m", "nvitop_exporter", "--port", str(port)]
    return program("nvitop-exporter", size, command, node.environment(), log, port=port)


def floor(threads: int, log: Path):
    """The exporter that does nothing."""
    command = [sys.executable, "-c", FLOOR, str(threads)]
    return program("nothing", 0, command, dict(os.environ), log)


def run(sizes: Sequence[int], minutes: float, *, peer: bool, flags: Sequence[str] = ()):
    """All programs of the run, measured for so many minutes."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-bench-")))
        programs: list[Measured] = []
        moving: list[tuple[RealNode, str]] = []
        kernel = True
        for size in sizes:
            for who in NODES:
                node = stack.enter_context(RealNode(_made(folder / f"{who}-{size}"), size))
                kernel = kernel and node.kernel
                log = folder / f"{who}-{size}.log"
                programs.append(stack.enter_context(ours(node, who, size, log, flags)))
                if who != STILL:
                    moving.append((node, who))
                    continue
                if size == API_SIZE:
                    server = stack.enter_context(ApiServer(folder / "api", node))
                    log = folder / "api.log"
                    programs.append(
                        stack.enter_context(ours_with_api(node, size, log, flags, server))
                    )
                if peer:
                    log = folder / f"nvitop-{size}.log"
                    programs.append(stack.enter_context(nvitop(node, size, log)))
        node = stack.enter_context(RealNode(_made(folder / "leaked"), LEAKED_SIZE))
        node.leak(FOLDERS)
        log = folder / "leaked.log"
        programs.append(stack.enter_context(ours(node, LEAKED, LEAKED_SIZE, log, flags)))
        threads = len(list(Path(f"/proc/{programs[0].process.pid}/task").iterdir()))
        programs.append(stack.enter_context(floor(threads, folder / "floor.log")))
        print(f"{GPUS} GPUs, {PROCESSES} processes a container,", end=" ")
        print("cgroups of the kernel" if kernel else "simulated cgroups: none can be made here")
        _measure(programs, moving, minutes)
        return programs


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _measure(programs: list[Measured], moving: list[tuple[RealNode, str]], minutes: float) -> None:
    rounds = round(minutes * 60 / INTERVAL)
    begun = time.monotonic()
    stop = threading.Event()
    mover = threading.Thread(target=_move, args=(moving, stop), daemon=True)
    mover.start()
    try:
        for number in range(-WARM_SCRAPES, rounds + 1):
            at = begun + (number + WARM_SCRAPES) * INTERVAL
            _sleep_until(at)
            if number == 0:
                for one in programs:
                    one.begun = tree_ms(one.process.pid)
            for one in programs:
                one.scrape()
            if number < rounds:
                _sleep_until(at + SECOND_SCRAPER * INTERVAL)
                for one in programs:
                    if one.who == LEAKED:
                        one.scrape(1)
        for one in programs:
            pid = one.process.pid
            one.cpu_minute = (tree_ms(pid) - one.begun) / (rounds * INTERVAL / 60)
            one.rss = memory_mib(pid)
            one.threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    finally:
        stop.set()
        mover.join()


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def _move(nodes: Sequence[tuple[RealNode, str]], stop: threading.Event) -> None:
    """Move the busy nodes each five seconds, and replace a pod of each node once a minute."""
    begun, moves = time.monotonic(), 0
    while not stop.wait(5.0):
        moves += 1
        for node, who in nodes:
            replaces = moves % 12 == 6
            if replaces:
                node.replace_a_pod()
            if replaces or who == BUSY:
                node.move(time.monotonic() - begun if who == BUSY else 5.0)


def report(programs: Sequence[Measured], budgets: Budgets) -> None:
    """Print the run, and compare it with the bounds."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"load {load}; CPU milliseconds a minute, as it happens:")
    peers = {one.size: one.cpu_minute for one in programs if one.who == "nvitop-exporter"}
    for one in sorted(programs, key=lambda one: one.size):
        what = f"{one.size:4d} containers  {one.who:16s}"
        shared = ""
        peer = peers.get(one.size)
        if peer and one.who != "nvitop-exporter":
            ratio = 100 * one.cpu_minute / peer
            shared = f"  {ratio:5.2f} % of nvitop-exporter's"
            if one.who in (STILL, CHANGING) and one.size in RATIOS:
                what_for = f"{one.size} containers, {one.who}, of nvitop-exporter's CPU"
                shared += f"; {budgets.hold(what_for, ratio, RATIOS[one.size], '%')}"
        print(f"{what} {one.cpu_minute:8.1f} ms  {one.rss:5.1f} MiB  {one.threads} threads{shared}")
    for one in programs:
        if one.who == LEAKED:
            held = budgets.hold(f"{FOLDERS} {LEAKED}", one.cpu_minute, LEAKED_MS, "ms")
            print(f"{FOLDERS} {LEAKED}, two scrapers: {one.cpu_minute:.1f} ms a minute; {held}")
        if one.who == WITH_API:
            (without,) = (p.rss for p in programs if (p.who, p.size) == (STILL, one.size))
            more = one.rss - without
            held = budgets.hold("RSS with --collector.api", more, API_MIB, "MiB")
            print(f"{one.size} containers: RSS {more:+.1f} MiB with --collector.api; {held}")
        if one.who == STILL and one.size in RSS_MIB:
            held = budgets.hold(f"{one.size} containers, RSS", one.rss, RSS_MIB[one.size], "MiB")
            print(f"{one.size} containers: RSS {one.rss:.1f} MiB; {held}")
