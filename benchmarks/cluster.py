"""What large simulated clusters cost on this machine, as root; never in CI.

    python benchmarks/cluster.py [--nodes 5000] [--pods 10000] [--scheme volcano]

A fleet of the test bed (etcd, an API server and kwok) is populated from nothing, packed, and
started again from what was packed, as the tests do it. Then everything in it is listed, in pages of
500 as the product asks for it and in one piece, and the programs' memory is read. The listing is
the server's time and the wire's: the answer is read and thrown away.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "cluster")]

from bed.fleet import start_fleet, take_snapshot  # noqa: E402
from bed.population import SCHEMES, Population, node_name  # noqa: E402
from bed.tools import ToolsMissing, ensure  # noqa: E402
from bed.workplace import Workplace  # noqa: E402

MIB = 2**20
PAGE = 500
MEMORY = {"VmRSS": "now", "VmHWM": "peak"}


def listing(client, path, **query):
    """(bytes, seconds) of a whole list, page by page if ``limit`` is given."""
    size, seconds, more = 0, 0.0, None
    while True:
        started = time.monotonic()
        page = client.raw("GET", path, **query, **{"continue": more})
        seconds += time.monotonic() - started
        size += len(page.data)
        more = page.json()["metadata"].get("continue")
        if not more:
            return size, seconds


def memory(daemon):
    """MiB now and at its peak."""
    status = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status)
    return [int(fields[name].split()[0]) / 1024 for name in MEMORY]


def measure(population, tools):
    with Workplace() as workplace, tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder, "fleet.tgz")
        print("made from nothing")
        for what, seconds in take_snapshot(workplace, tools, population, snapshot).items():
            print(f"  {what:<36}{seconds:>9.1f} s")
        print(f"  {'packed':<36}{snapshot.stat().st_size / MIB:>9.1f} MiB")
        print("started again")
        started = time.monotonic()
        with start_fleet(workplace, tools, population, snapshot=snapshot) as fleet:
            print(f"  {'until it serves':<36}{time.monotonic() - started:>9.1f} s")
            show_lists(fleet)
            show_memory(fleet)


def show_lists(fleet):
    on_one = {"fieldSelector": f"spec.nodeName={node_name(0)}"}
    lists = {
        "nodes": ("/api/v1/nodes", {}),
        f"nodes, {PAGE} a page": ("/api/v1/nodes", {"limit": PAGE}),
        "pods": ("/api/v1/pods", {}),
        f"pods, {PAGE} a page": ("/api/v1/pods", {"limit": PAGE}),
        "pods of one node": ("/api/v1/pods", on_one),
    }
    print("listed")
    for what, (path, query) in lists.items():
        size, seconds = listing(fleet.client, path, **query)
        print(f"  {what:<36}{seconds:>9.2f} s{size / MIB:>9.1f} MiB")


def show_memory(fleet):
    print("resident memory, MiB" + " " * 23 + "".join(f"{name:>9}" for name in MEMORY.values()))
    for name, daemon in {**fleet.cluster.daemons, "kwok": fleet.kwok}.items():
        print(f"  {name:<36}" + "".join(f"{mib:>9.0f}" for mib in memory(daemon)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=10000)
    parser.add_argument("--scheme", choices=SCHEMES, default="volcano")
    args = parser.parse_args()
    try:
        tools = ensure()
    except ToolsMissing as error:
        sys.exit(str(error))
    print(f"{args.nodes} nodes, {args.pods} pods, {args.scheme}")
    measure(Population(args.nodes, args.pods, args.scheme), tools)


if __name__ == "__main__":
    main()
