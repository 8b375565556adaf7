"""The token daemon: time of a hand-over, CPU of a message, and what hand-overs cost the GPU.

    python benchmarks/tokens.py [--seconds 3] [--runs 3]

The daemon and a server that reads 80 bytes and answers 40, and does nothing else, are processes of
their own; clients in C load them by turns. At the pace of hand-overs a message to either of them is
slower than at a higher one: processors sleep deeper between two messages, and lose their caches.
Tokens are held for times that vary, and for equal times. With equal ones that begin at one time the
GPUs stay in step: all their messages come at once, and each waits for those before it.
CPU times are the scheduler's counts for a server's process, the best of several runs. Shares are of
a simulated GPU on a virtual clock, with the hand-over that was measured.
"""

import argparse
import math
import selectors
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets, load  # noqa: E402
from kubeshare.gemini_placement import TokenWindow  # noqa: E402
from kubeshare.tokens.scheduler import TokenRules  # noqa: E402
from tests.kubeshare.tokens.gemini_process import compiled, own_address, pod, write  # noqa: E402
from tests.kubeshare.tokens.simulated_gpu import Behaviour, SimulatedGpu  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

CLIENTS = Path(__file__).with_name("token_clients.c")
GPUS, TENANTS, HOLD_MS = 8, 8, 20
"""64 clients; a GPU hands over 50 times a second."""

CONNECTIONS, PACE_MS = 64, 50

IN_STEP = "are equal and begin at one time"
HOLDS = {"vary": (25, 0), "are equal": (0, 0), IN_STEP: (0, 1)}
"""By how many percent the times differ for which tokens are held, and whether all GPUs begin at one
time. In step, p50 has no bound: half of the messages wait for three others."""

FIRST_PORT, WEB_PORT = 50051, 9402

HANDOVER_P50_MS, HANDOVER_P99_MS = 0.15, 2.0
CPU_RATIO = 2.5
"""Maximum CPU of a message beside that of the server that does nothing."""

CORE_PERCENT = 3.0
"""Maximum CPU of 8 GPUs that hand over 50 times a second each."""

SHARE_POINTS, LOST_PERCENT = 2.0, 1.0


def serve_nothing(address):
    """Answer every 80 bytes with 40."""
    selector = selectors.DefaultSelector()
    listening = socket.create_server((address, 0), backlog=512)
    selector.register(listening, selectors.EVENT_READ)
    print(listening.getsockname()[1], flush=True)
    answer, parts = bytes(40), {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is listening:
                connected, _ = listening.accept()
                connected.setblocking(False)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connected, selectors.EVENT_READ)
                parts[connected] = b""
                continue
            try:
                got = key.fileobj.recv(640)
            except OSError:  # the load ends with answers on their way
                got = b""
            if not got:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                continue
            received = parts[key.fileobj] + got
            parts[key.fileobj] = received[80:]
            if len(received) >= 80:
                key.fileobj.send(answer)


class Server:
    """A process with its port."""

    def __init__(self, command, port=None):
        self.process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        self.port = port or int(self.process.stdout.readline())

    def load(self, program, mode, *numbers):
        """p50 and p99 in milliseconds, and the CPU of the server for a message in microseconds."""
        place = [str(self.process.pid), own_address(), str(self.port)]
        command = [program, mode, *place, *map(str, numbers)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        p50, p99, cpu = (int(number) / 1000 for number in printed.split())
        return p50, p99, cpu

    def end(self):
        self.process.kill()
        self.process.communicate()


def started(folder):
    """The daemon with a tenant for each client, and the server that does nothing."""
    address = own_address()
    for gpu in range(GPUS):
        names = [f"t{gpu * TENANTS + number}" for number in range(TENANTS)]
        ports = {name: FIRST_PORT + int(name[1:]) for name in names}
        uuid = f"GPU-00000000-0000-0000-0000-00000000000{gpu}"
        write(folder, [pod(name, 1000 // TENANTS) for name in names], ports, uuid)
    web = f"{address}:{WEB_PORT}"
    daemon = [
        *("-m", "vgpu", "tokens", "--kubeshare-dir", str(folder), "--tenant-address", address),
        *("--web.listen-address", web, "--handover-socket", str(folder / "handover.sock")),
    ]
    servers = {
        "daemon": Server(daemon, FIRST_PORT),
        "nothing": Server([__file__, "--serve-nothing", address]),
    }
    url = f"http://{web}/-/ready"
    wait_until(lambda: urllib.request.urlopen(url).close() is None, "ready", failures=(OSError,))
    return servers


def handed_over():
    """Seconds and number of the hand-overs that the daemon has counted itself."""
    with urllib.request.urlopen(f"http://{own_address()}:{WEB_PORT}/metrics") as page:
        lines = dict(line.rpartition(" ")[::2] for line in page.read().decode().splitlines())
    return tuple(float(lines[f"vgpu_token_handover_seconds_{end}"]) for end in ("sum", "count"))


def measured(servers, program, seconds, runs):
    """The best of some runs, by figure; servers take turns."""
    best = {}

    def keep(what, p50, p99, cpu):
        for name, value in (("p50", p50), ("p99", p99), ("cpu", cpu)):
            best[what, name] = min(best.get((what, name), value), value)

    for _ in range(runs):
        for name, server in servers.items():
            keep(f"{name}, saturated", *server.load(program, "memory", 8, 0, seconds))
            load = (CONNECTIONS, PACE_MS, seconds)
            keep(f"{name}, paced", *server.load(program, "memory", *load))
        for holds, pacing in HOLDS.items():
            load = (HOLD_MS, *pacing, seconds)
            keep(
                f"nothing, holds {holds}",
                *servers["nothing"].load(program, "tokens", GPUS, 1, *load),
            )
            before = handed_over()
            daemon = servers["daemon"].load(program, "tokens", GPUS, TENANTS, *load)
            keep(f"daemon, holds {holds}", *daemon)
            time, count = (after - ago for after, ago in zip(handed_over(), before, strict=True))
            inside = best.get((holds, "inside"), math.inf)
            best[holds, "inside"] = min(inside, time / count * 1000)
    return best


def shares(handover_ms, requests, quota_ms=None):
    """The shares of always busy tenants in the first window after a warm-up, in percent."""
    window = TokenRules().window
    rules = TokenRules()
    if quota_ms is not None:
        quota = quota_ms * 1000
        rules = TokenRules(window=TokenWindow(quota, quota, window.length), max_quota=quota)
    tenants = [Behaviour(request, 1000) for request in requests]
    gpu = SimulatedGpu(tenants, rules, handover=round(handover_ms * 500))
    gpu.run(2 * window.length)
    return [100 * gpu.share(name, window.length) for name in gpu.tenants]


def report_times(best, budgets, load, most_p50=HANDOVER_P50_MS):
    """p50 and p99 of the daemon beside those of the server that does nothing."""
    for name, most in (("p50", most_p50), ("p99", HANDOVER_P99_MS)):
        value, beside = (best[f"{server}, {load}", name] for server in ("daemon", "nothing"))
        held = budgets.hold(f"{name}, {load}", value, most, "ms") if most else "no bound"
        print(f"  {name} {value:.3f} ms, beside {beside:.3f} ms: {held}")


def report(best):
    budgets = Budgets()
    hold = budgets.hold
    print(f'Load {load()}; times after "beside" are of the server that does nothing.')
    daemon, nothing = (best[f"{server}, saturated", "cpu"] for server in ("daemon", "nothing"))
    held = hold("CPU", daemon / nothing, CPU_RATIO, "times")
    each = f"{daemon:.1f} us beside {nothing:.1f} us"
    print(f"CPU of a memory message: {each}, {daemon / nothing:.2f} times: {held}")
    print(f"{CONNECTIONS} clients, a memory message every {PACE_MS} ms:")
    report_times(best, budgets, "paced")
    for holds in HOLDS:
        print(f"{GPUS} GPUs with {TENANTS} tenants each, tokens of {HOLD_MS} ms, holds {holds}:")
        most = None if holds == IN_STEP else HANDOVER_P50_MS
        report_times(best, budgets, f"holds {holds}", most)
        print(f"  of it in the daemon, on average: {best[holds, 'inside']:.3f} ms")
        daemon, nothing = (best[f"{each}, holds {holds}", "cpu"] for each in ("daemon", "nothing"))
        core = daemon * GPUS * 1000 / HOLD_MS / 1e6 * 100
        held = hold(f"CPU of hand-overs, holds {holds}", core, CORE_PERCENT, "% of a core")
        print(f"  CPU {daemon:.1f} us, beside {nothing:.1f} us; all together {core:.2f} %: {held}")
    handover = max(best[f"daemon, holds {holds}", "p50"] for holds in HOLDS)
    for requests in ([500, 500], [500, 300, 200], [100, 200, 400, 300]):
        reached = shares(handover, requests)
        off = max(abs(share - milli / 10) for share, milli in zip(reached, requests, strict=True))
        held = hold(f"shares {requests}", off, SHARE_POINTS, "points")
        print(f"shares {requests}: {', '.join(f'{it:.1f} %' for it in reached)}: {held}")
    lost = 100 - sum(shares(handover, [500, 500], quota_ms=100))
    held = hold("lost to hand-overs", lost, LOST_PERCENT, "%")
    print(f"lost to hand-overs with quotas of 100 ms: {lost:.2f} %: {held}")
    return budgets.status()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3, help="of each load")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--serve-nothing", metavar="ADDRESS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_nothing:
        serve_nothing(args.serve_nothing)
    program = compiled(CLIENTS)
    with tempfile.TemporaryDirectory() as folder:
        servers = started(Path(folder))
        try:
            best = measured(servers, program, args.seconds, args.runs)
        finally:
            for server in servers.values():
                server.end()
    return report(best)


if __name__ == "__main__":
    sys.exit(main())
