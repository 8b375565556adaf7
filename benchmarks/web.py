"""The CPU time of serving a scrape over keep-alive, beside Python's own HTTP server.

    python benchmarks/web.py [--requests 4000] [--runs 5]

Both serve the same 60 kB from a process of their own. The peer is http.server's ThreadingHTTPServer
with additions for scrapes: HTTP/1.1, TCP_NODELAY, no line in the log, and head and body in one
write. The CPU time is the scheduler's count for all threads of the server, the best of several runs
that take turns.
"""

import argparse
import http.client
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402
from benchmarks.exporter import LIKE_PROMETHEUS  # noqa: E402
from benchmarks.exporter_minutes import cpu_ms  # noqa: E402
from vgpu.web.server import HttpResponse, WebServer  # noqa: E402

BODY = b"m" * 60_000
BUDGET = 0.7
"""Maximum CPU time of ours as a part of the peer's; by vgpu/web/server.py it is about half."""


def serve_ours():
    server = WebServer({"/metrics": lambda _: HttpResponse(200, (), BODY)}, ["127.0.0.1:0"])
    server.start()
    print(server.addresses[0].rpartition(":")[2], flush=True)
    sys.stdin.read()


class _PeersHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 2 * len(BODY)  # one write a response

    def do_GET(self):  # http.server's name
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_):
        pass


def serve_peer():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _PeersHandler)
    print(server.server_port, flush=True)
    server.serve_forever()


SERVERS = {"ours": serve_ours, "http.server": serve_peer}


def measure(name, requests):
    """CPU time of the server for one scrape, in microseconds."""
    command = [sys.executable, __file__, "--serve", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", int(child.stdout.readline()))
            for number in range(-100, requests):
                if number == 0:
                    before = cpu_ms(child.pid)
                connection.request("GET", "/metrics", headers=LIKE_PROMETHEUS)
                assert connection.getresponse().read() == BODY
            return (cpu_ms(child.pid) - before) / requests * 1000
        finally:
            connection.close()
            child.kill()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=4000, help="scrapes in each run")
    parser.add_argument("--runs", type=int, default=5, help="of each server")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return SERVERS[args.serve]()
    runs = [{name: measure(name, args.requests) for name in SERVERS} for _ in range(args.runs)]
    best = {name: min(run[name] for run in runs) for name in SERVERS}
    for name, cost in best.items():
        print(f"{name}: {cost:.0f} us of CPU for a scrape of {len(BODY)} bytes over keep-alive")
    budgets = Budgets()
    ratio = best["ours"] / best["http.server"]
    held = budgets.hold("CPU of a scrape beside http.server's", ratio, BUDGET, "of the peer's")
    print(f"the peer takes {1 / ratio:.2f} times our CPU; {held}")
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
