"""The example of docs/bill.md: its numbers are what the program makes of the same samples."""

import csv
import io
import re
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner

from tests.bill.timelines import TOTAL, Values
from tests.support.environment import ROOT
from vgpucli.bill.close import closed
from vgpucli.bill.command import command
from vgpucli.bill.day_file import write_day
from vgpucli.bill.days import bounds
from vgpucli.bill.measurement import Method
from vgpucli.bill.model import DayHead
from vgpucli.bill.timeline import (
    STEP,
    BilledContainer,
    BilledDevice,
    DaySum,
    Described,
    DeviceHour,
    Hour,
    ShareHour,
)

PAGE = (ROOT / "docs" / "bill.md").read_text()
SECTION = PAGE[PAGE.index("### An example to compute by hand") : PAGE.index("## Closing days")]
BILL, ROWS = re.findall(r"```\n\$ vgpu bill [^\n]*\n(.*?)```", SECTION, re.DOTALL)
GPU = BilledDevice("", "GPU-1")
DAY = "2026-11-01"
MINUTES = 24 * 3600 // STEP


def _while(first: int, until: int, value: float) -> Values:
    """The value from an hour to another one."""
    steps = range(MINUTES)
    return [value if first * 60 <= step < until * 60 else None for step in steps]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The flags by which the example's bill is asked for."""
    begin, end = bounds(DAY, ZoneInfo("UTC"))
    a = ShareHour(_while(10, 12, 0.8 * TOTAL), memory_use=_while(10, 12, 0.4 * TOTAL))
    b = ShareHour(
        _while(11, 12, 0.1 * TOTAL),
        _while(11, 12, 1.0),
        memory_use=_while(11, 12, 0.1 * TOTAL),
        core_use=_while(11, 12, 1.0),
    )
    head = DayHead(1, DAY, "UTC", begin, end, STEP)
    sums = DaySum(head, Method())
    shares = {BilledContainer(f"team-{n}", n, n, "main"): s for n, s in (("a", a), ("b", b))}
    device = DeviceHour("gpu-node-1", _while(10, 12, TOTAL))
    sums.add(Hour(begin, MINUTES, {GPU: device}, {GPU: shares}, {GPU: Described("A100")}))
    write_day(tmp_path, closed(head, sums, {}, {}))
    prices = tmp_path / "prices.yaml"
    prices.write_text('currency: EUR\nprices: [{model: A100, per_gpu_hour: "2.00"}]\n')
    prices.chmod(0o600)
    return [f"--days={tmp_path}", f"--prices={prices}", f"--from={DAY}", "--to=2026-11-02"]


def run(words: list[str]) -> str:
    """What the command prints."""
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_bill_is_what_the_page_shows(words: list[str]) -> None:
    assert run(words) == BILL


def test_the_rows_are_what_the_page_shows(words: list[str]) -> None:
    text = run([*words, "-o", "csv"]).partition("note:")[0]
    (fields,) = re.findall(r"cut -d, -f([\d,]+)", SECTION)
    lines = csv.reader(io.StringIO(text))
    rows = [",".join(line[int(field) - 1] for field in fields.split(",")) for line in lines]
    assert rows == ROWS.splitlines()


def test_the_parts_in_the_table_are_quotients_of_the_sum() -> None:
    line = next(each for each in SECTION.splitlines() if each.startswith("| 11–12"))
    quotients = re.findall(r"([\d.]+) / ([\d.]+) = ([\d.]+)", line)
    assert len(quotients) == 2
    for part, whole, quotient in quotients:
        assert float(part) / float(whole) == pytest.approx(float(quotient), abs=5e-5)
