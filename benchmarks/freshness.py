"""The age of a page at the scrape: how old the data is that Prometheus stores.

    python benchmarks/freshness.py [--minutes 2] [--interval 15]

One exporter is scraped by one scraper, another one by two scrapers with the same interval at
different phases, as two replicas of Prometheus do. Both are measured at the same time, in real
time; the first three scrapes of each scraper do not count. Exits with 1 above a bound.
"""

import argparse
import http.client
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402
from benchmarks.exporter_minutes import LIKE_PROMETHEUS  # noqa: E402
from tests.support.fleet_node import fleet_node  # noqa: E402
from tests.support.live import TAKEN, LiveExporter  # noqa: E402

WORST_AGE = 2.0
"""Maximum age of a page at a scrape, in seconds, after three scrapes of each scraper."""

LEARNING = 3
"""Number of scrapes of each scraper that do not count."""

CALLS = 'vgpu_nvml_calls_total{call="nvmlDeviceGetUtilizationRates"}'
GPUS = 8


class Scraper(msgspec.Struct):
    """A scraper, with the ages of the pages that it got."""

    connection: http.client.HTTPConnection
    due: float
    ages: list[float] = []

    def scrape(self) -> None:
        """Read the time of the page at the end of a scrape."""
        headers = {**LIKE_PROMETHEUS, "Accept-Encoding": "identity"}
        self.connection.request("GET", "/metrics", headers=headers)
        page = self.connection.getresponse().read().decode()
        (taken,) = (line for line in page.splitlines() if line.startswith(TAKEN))
        self.ages.append(time.time() - float(taken.split()[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--interval", type=float, default=15)
    args = parser.parse_args()
    phases = {"one scraper": (0.3,), "two scrapers": (0.1, 0.4)}
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
        exporters = {
            who: LiveExporter(
                Path(name, str(number)), fleet_node(GPUS, 80), "--metrics.detail=calls"
            ).__enter__()
            for number, who in enumerate(phases)
        }
        begun = time.monotonic() + 1
        scrapers = [
            (
                who,
                Scraper(
                    http.client.HTTPConnection("127.0.0.1", exporters[who].port, timeout=60),
                    begun + phase * args.interval,
                ),
            )
            for who, of_exporter in phases.items()
            for phase in of_exporter
        ]
        before = {who: exporter.metrics()[CALLS] for who, exporter in exporters.items()}
        end = begun + (LEARNING + 1) * args.interval + 60 * args.minutes
        while True:
            _, scraper = min(scrapers, key=lambda pair: pair[1].due)
            if scraper.due > end:
                break
            time.sleep(max(0.0, scraper.due - time.monotonic()))
            scraper.scrape()
            scraper.due += args.interval
        seconds = time.monotonic() - begun
        budgets = Budgets()
        print(f"load {' '.join(f'{value:.1f}' for value in os.getloadavg())}")
        for who, exporter in exporters.items():
            samples = (exporter.metrics()[CALLS] - before[who]) / GPUS
            ages = sorted(
                age for whose, one in scrapers if whose == who for age in one.ages[LEARNING:]
            )
            held = budgets.hold(f"{who}, worst age", ages[-1], WORST_AGE, "s")
            print(
                f"{who}: {len(ages)} scrapes, age median {ages[len(ages) // 2]:.2f} s,"
                f" worst {ages[-1]:.2f} s; {held};"
                f" {samples * args.interval / seconds:.2f} samples an interval"
            )
            exporter.stop()
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
