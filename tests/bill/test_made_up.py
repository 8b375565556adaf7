"""Closed days that are made up: of the demo, of the benchmark, and of a month of many pods."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import ROOT
from vgpucli.bill.day_file import encoded, write_day
from vgpucli.bill.days import days_between
from vgpucli.demo.bill_days import PRICES, SEED, MadeUp

MOST_BYTES = 300 * 2**20


def test_the_same_seed_makes_the_same_file_which_names_it_first() -> None:
    made = encoded(MadeUp(24).day("2026-11-01"))
    assert made == encoded(MadeUp(24).day("2026-11-01"))
    assert made != encoded(MadeUp(24, seed=1).day("2026-11-01"))
    first = json.loads(made.splitlines()[0])
    assert first["generator"] == f"vgpucli/demo/bill_days.py, seed {SEED}, 24 pods"


def test_shares_hold_at_most_what_was_measured_of_their_gpu() -> None:
    day = MadeUp(23).day("2026-11-01")
    assert len(day.shares) == 23
    for gpu in day.gpus:
        held = sum(row.used + row.idle for row in day.shares if row.gpu == gpu.key)
        assert held <= gpu.total - gpu.not_measured


@pytest.mark.thorough("bill")
@pytest.mark.parametrize("pods", [200, 10_000])
def test_a_month_adds_up_in_little_memory(tmp_path: Path, pods: int) -> None:
    days = tmp_path / "days"
    days.mkdir()
    made_up = MadeUp(pods)
    for day in days_between("2026-11-01", "2026-12-01"):
        write_day(days, made_up.day(day))
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    prices.chmod(0o600)
    period = ["--from=2026-11-01", "--to=2026-12-01", "--by=team", "-o", "json"]
    files = [f"--days={days}", f"--prices={prices}"]
    command = [sys.executable, "-m", "vgpu", "bill", *files, *period]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        document = json.loads(process.stdout.read())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = status
    assert status == 0
    assert used.ru_maxrss * 1024 <= MOST_BYTES
    gpus = -(-pods // 5)
    hours = sum(sum(line["gpuHours"].values()) for line in document["lines"])
    assert hours == pytest.approx(gpus * 30 * 24)
    assert sum(line["microTotal"] for line in document["lines"]) == document["microTotal"]
    of_a100 = -(-gpus // 2)  # every second GPU of a node
    assert document["microTotal"] == (of_a100 * 210 + (gpus - of_a100) * 105) * 10_000 * 30 * 24
