"""What a node costs Prometheus: series, bytes of a page, and memory of its head block.

    python benchmarks/storage.py [--containers 80] [--nodes 10]

The page as it is by default, and with ``--metrics.detail all``, which is what the first version
had. A real Prometheus scrapes each page three times, as so many nodes; its heap is read after a
garbage collection, without that of a Prometheus that scrapes nothing. Exits with 1 above a bound.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402
from benchmarks.real_node import GPUS  # noqa: E402
from tests.support.bed.monitoring import Prometheus  # noqa: E402
from tests.support.fleet_node import Fleet, fleet_node  # noqa: E402
from tests.support.live import LiveExporter  # noqa: E402

SERIES = 2500
"""Maximum number of own series of a node with 80 containers on two GPUs each, by default."""

CONTAINERS = Fleet(processes=3, gpus=2)
SCRAPES = 3
PAGES = {"by default": (), "with all details": ("--metrics.detail=all",)}


def heap(prometheus: Prometheus) -> float:
    """Bytes of the heap that are in use, after a garbage collection."""
    address = f"http://127.0.0.1:{prometheus.port}"
    with urlopen(f"{address}/debug/pprof/heap?gc=1") as answer:
        answer.read()
    with urlopen(f"{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith("go_memstats_heap_alloc_bytes "))
    return float(line.split()[1])


def scraped_heap(folder: Path, target: str, nodes: int) -> float:
    """The heap with the pages of so many nodes."""
    static = [{"targets": [target], "labels": {"copy": str(copy)}} for copy in range(nodes)]
    with Prometheus(
        folder, static_configs=static, scrape_timeout="5s", scrape_interval="5s"
    ) as one:
        one.wait_for(f"count(count_over_time(up[5m]) >= {SCRAPES}) == {nodes}")
        return heap(one)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--containers", type=int, default=80)
    parser.add_argument("--nodes", type=int, default=10)
    args = parser.parse_args()
    budgets = Budgets()
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
        folder = Path(name)
        with Prometheus(folder / "empty", jobs=()) as empty:
            base = heap(empty)
        for number, (title, flags) in enumerate(PAGES.items()):
            node = fleet_node(GPUS, args.containers, fleet=CONTAINERS)
            with LiveExporter(folder / f"exporter-{number}", node, *flags) as exporter:
                page = exporter.get("/metrics").body
                target = f"127.0.0.1:{exporter.port}"
                used = scraped_heap(folder / f"prometheus-{number}", target, args.nodes) - base
            series = sum(1 for line in page.splitlines() if line and line[:1] != b"#")
            text = (
                f"{args.containers} containers, {title}: {series} series,"
                f" {len(page) / 1000:.0f} KB, {used / args.nodes / 1e6:.1f} MB of Prometheus' heap"
            )
            if not flags and args.containers <= 80:
                text += f"; {budgets.hold('series', series, SERIES, 'series')}"
            print(text)
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
