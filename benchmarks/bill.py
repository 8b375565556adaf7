"""The cost of `vgpu bill`: a month of closed days that are made up, of 200 and of 10,000 pods.

    python benchmarks/bill.py [--pods 200 10000] [--days 30]

The files are made by `vgpucli/demo/bill_days.py`: five pods share a GPU, and each day has a row for
each of them. The time is that of the whole command, with the start of Python; memory is the most
that its process had. CPU seconds are beside it. There is no peer.
"""

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets  # noqa: E402
from vgpucli.bill.day_file import write_day  # noqa: E402
from vgpucli.bill.days import days_between  # noqa: E402
from vgpucli.demo.bill_days import PRICES, MadeUp  # noqa: E402

MOST_SECONDS = 30.0
MOST_MIB = 300.0
FIRST = "2026-11-01"


def measured(folder: Path, until: str) -> tuple[float, float, float, int]:
    """(seconds, CPU seconds, MiB, rows of the answer) of the command."""
    files = [f"--days={folder / 'days'}", f"--prices={folder / 'prices.yaml'}"]
    question = [f"--from={FIRST}", f"--to={until}", "--by=team", "-o", "json"]
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "vgpu", "bill", *files, *question], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    lines = json.loads(process.stdout.read())["lines"]
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    seconds = time.monotonic() - begin
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, len(lines)


def main() -> int:
    """Measure each size; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, nargs="+", default=[200, 10_000])
    parser.add_argument("--days", type=int, default=30)
    args = parser.parse_args()
    until = (dt.date.fromisoformat(FIRST) + dt.timedelta(days=args.days)).isoformat()
    budgets = Budgets()
    for pods in args.pods:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "days").mkdir()
            size = 0
            for day in days_between(FIRST, until):
                size += write_day(folder / "days", MadeUp(pods).day(day)).stat().st_size
            prices = folder / "prices.yaml"
            prices.write_text(PRICES)
            prices.chmod(0o600)
            seconds, cpu, mib, lines = measured(folder, until)
        what = f"{pods} pods for {args.days} days"
        print(f"{what}: {size / 2**20:.0f} MiB of files, {lines} lines")
        verdict = budgets.hold(what, seconds, MOST_SECONDS, "s")
        print(f"  {seconds:.1f} s, {cpu:.1f} CPU s: {verdict}")
        print(f"  {mib:.0f} MiB: {budgets.hold(what, mib, MOST_MIB, 'MiB')}")
    return budgets.status()


if __name__ == "__main__":
    sys.exit(main())
