"""`vgpu bill` as a person types it."""

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from vgpucli.bill.command import KEYS, command
from vgpucli.bill.day_file import closed_days, path_of, write_day
from vgpucli.bill.model import (
    SECOND,
    ClosedDay,
    DayHead,
    GpuDay,
    GpuKey,
    Part,
    ShareDay,
    ShareKey,
)
from vgpucli.demo import bill_days

HOUR = 3600 * SECOND
PRICES = """
currency: EUR
prices:
  - {model: A100, per_gpu_hour: "1.00"}
"""
RANGE = ("--from", "2026-11-01", "--to", "2026-11-03")


def _day(day: str, start: int, generator: str = "") -> ClosedDay:
    key = GpuKey(day, "", "node-1", "GPU-1")
    share = ShareKey("vision", "train-0", "uid-1", "main", "Job/train", "research")
    head = DayHead(1, day, "UTC", start, start + 86_400, 60, generator=generator)
    return ClosedDay(
        head,
        (GpuDay(key, "A100", 24 * HOUR, 2 * HOUR),),
        (ShareDay(key, share, 6 * HOUR, 3 * HOUR, 0, 0, 240 * SECOND, 1800, 900),),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    days = tmp_path / "days"
    days.mkdir()
    write_day(days, _day("2026-11-01", 1_793_491_200))
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    prices.chmod(0o600)
    return tmp_path


def run(folder: Path, *arguments: str, status: int = 0) -> str:
    """What the command prints."""
    base = ["--days", str(folder / "days"), "--prices", str(folder / "prices.yaml")]
    result = CliRunner().invoke(command, [*base, *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_the_table_has_a_line_for_each_namespace_and_for_what_nobody_held(folder: Path) -> None:
    lines = [line.split() for line in run(folder, *RANGE).splitlines()]
    assert ["vision", "9.00", "0.07", "6.00", "3.00", "0.00", "9.00"] in lines
    assert ["(unsold)", "13.00", "0.07", "0.00", "0.00", "13.00", "13.00"] in lines
    assert ["(not", "measured)", "2.00", "-", "0.00", "0.00", "2.00", "2.00"] in lines
    assert ["total", "24.00", "0.07", "6.00", "3.00", "15.00", "24.00"] in lines


def test_a_namespace_with_the_name_of_the_last_line_stands_in_quotation_marks(folder: Path) -> None:
    second = _day("2026-11-02", 1_793_577_600)
    (share,) = second.shares
    named = replace(share, share=replace(share.share, namespace="total"))
    write_day(folder / "days", replace(second, shares=(named,)))
    names = [line.split()[0] for line in run(folder, *RANGE).splitlines() if line]
    assert (names.count('"total"'), names.count("total")) == (1, 1)


def test_a_day_that_is_not_closed_is_named(folder: Path) -> None:
    assert "note: 1 day of the period not closed: 2026-11-02" in run(folder, *RANGE)


def test_a_day_that_is_not_closed_has_no_hours_of_owned_gpus(folder: Path) -> None:
    prices = folder / "prices.yaml"
    prices.write_text(f"{PRICES}inventory: [{{node: node-1, model: A100, gpus: 2}}]\n")
    document = json.loads(run(folder, *RANGE, "-o", "json"))
    assert document["microTotal"] == 2 * 24 * SECOND
    assert "not closed: 2026-11-02" in run(folder, *RANGE)


@pytest.mark.parametrize(
    ("by", "name"),
    [("team", "research"), ("owner", "Job/train"), ("model", "A100"), ("namespace", "vision")],
)
def test_the_document_has_the_same_sums(folder: Path, by: str, name: str) -> None:
    document = json.loads(run(folder, *RANGE, "--by", by, "-o", "json"))
    assert document["microTotal"] == 24 * SECOND
    assert sum(line["microTotal"] for line in document["lines"]) == 24 * SECOND
    (line,) = [line for line in document["lines"] if line["name"] == name]
    assert line["microAmount"]["used"] == 6 * SECOND
    assert line["gpuHours"]["held_idle"] == 3


def test_each_row_and_each_line_has_its_bound_and_how_its_share_was_divided(folder: Path) -> None:
    late = replace(_day("2026-11-01", 0).shares[0], used=-HOUR, idle=0, correction="2026-11-02")
    late = replace(late, above=0, bound=60 * SECOND, normalised=-1800, over_committed=-900)
    second = _day("2026-11-02", 1_793_577_600)
    head = replace(second.head, corrects=("2026-11-01",))
    write_day(folder / "days", replace(second, head=head, shares=(late,)))
    rows, focus = (
        [*csv.DictReader(io.StringIO(run(folder, *RANGE, "-o", output).partition("note:")[0]))]
        for output in ("csv", "focus")
    )
    columns = ("bound_gpu_microseconds", "normalised_seconds", "over_committed_seconds")
    assert [(row["correction"], row["part"], *(row[name] for name in columns)) for row in rows] == [
        ("", "held_idle", "240000000", "1800", "900"),
        ("", "used", "240000000", "1800", "900"),
        ("", "not_measured", "", "", ""),
        ("", "unsold", "240000000", "", ""),
        ("2026-11-02", "used", "300000000", "0", "0"),
        ("2026-11-02", "unsold", "300000000", "", ""),
        ("", "not_measured", "", "", ""),
        ("", "unsold", "0", "", ""),
    ]
    hours = ("x_VgpuBoundHours", "x_VgpuNormalisedHours", "x_VgpuOverCommittedHours")
    assert [focus[0][name] for name in hours] == ["0.066666667", "0.5", "0.25"]
    assert [focus[2][name] for name in hours] == ["", "", ""]
    document = json.loads(run(folder, *RANGE, "-o", "json"))
    of_line = ("boundGpuHours", "normalisedHours", "overCommittedHours")
    assert {line["name"]: [line[name] for name in of_line] for line in document["lines"]} == {
        "vision": [0.083333, 0, 0],
        "(unsold)": [0.083333, 0, 0],
        "(not measured)": [None, None, None],
    }
    assert document["boundGpuHours"] == 0.083333


@pytest.mark.parametrize("output", ["csv", "focus"])
def test_each_part_is_a_row(folder: Path, output: str) -> None:
    text = run(folder, *RANGE, "-o", output)
    rows = [*csv.DictReader(io.StringIO(text.partition("note:")[0]))]
    part, cost = ("part", "amount") if output == "csv" else ("x_VgpuPart", "EffectiveCost")
    assert {row[part]: float(row[cost]) for row in rows} == {
        "used": 6,
        "held_idle": 3,
        "unsold": 13,
        "not_measured": 2,
    }


def test_the_hours_of_the_csv_are_exact_in_microseconds(folder: Path) -> None:
    text = run(folder, *RANGE, "-o", "csv")
    rows = [*csv.DictReader(io.StringIO(text.partition("note:")[0]))]
    assert sum(int(row["gpu_microseconds"]) for row in rows) == 24 * HOUR


def test_each_row_names_the_rule_of_its_day_and_a_note_that_there_are_several(folder: Path) -> None:
    second = _day("2026-11-02", 1_793_577_600)
    write_day(folder / "days", replace(second, head=replace(second.head, rule="max")))
    text = run(folder, *RANGE, "-o", "focus")
    table, _, notes = text.partition("note:")
    rows = [*csv.DictReader(io.StringIO(table))]
    assert {(row["ChargePeriodStart"][:10], row["x_VgpuMethod"]) for row in rows} == {
        ("2026-11-01", "vgpu/1 sum 0.5"),
        ("2026-11-02", "vgpu/1 max"),
    }
    assert "days were closed by different rules: vgpu/1 max, vgpu/1 sum 0.5" in notes


def test_a_bill_of_made_up_days_has_a_note(folder: Path) -> None:
    write_day(folder / "days", _day("2026-11-02", 1_793_577_600, "tests, seed 1"))
    assert "note: this is no measured bill: tests, seed 1" in run(folder, *RANGE)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("prices.yaml", "currency: XX\nprices: []\n", "currency 'XX' is no code of ISO 4217"),
        ("prices.yaml", "currency: EUR\nprices: [{model: A, price: 1}]", "prices[0]"),
        ("prices.yaml", "currency: !!bool x\nprices: []", "not YAML: a value does not fit its tag"),
        ("prices.yaml", "currency: EUR\nprices: !!timestamp x", "a value does not fit its tag"),
        ("prices.yaml", "currency: EUR\nprices: !!int x", "not YAML"),
        ("prices.yaml", "currency: EUR\nprices: !!float x", "not YAML"),
        ("prices.yaml", "currency: EUR\nprices: !!binary x", "line 2: failed to decode base64"),
        ("prices.yaml", "currency: EUR\nprices: !!omap x", "an ordered map, expected a sequence"),
        ("prices.yaml", "currency: EUR\nprices: &a [*a]", "prices[0]"),
        ("prices.yaml", "!!int ''", "not YAML"),
        ("days/2026-11-01.jsonl", "", "line 1"),
        ("days/2026-11-01.jsonl", '{"kind":"gpu"}', "line 1"),
        ("days/2026-11-01.jsonl", "\xff", "line 1"),
    ],
)
def test_a_bad_file_is_one_line_with_its_name(
    folder: Path, name: str, content: str, problem: str
) -> None:
    (folder / name).write_text(content)
    output = run(folder, *RANGE, status=1)
    assert problem in output
    assert Path(name).name in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("name", ["prices.yaml", "days/2026-11-01.jsonl"])
def test_a_file_that_others_may_read_is_refused(folder: Path, name: str) -> None:
    (folder / name).chmod(0o644)
    assert "other users may read it; chmod 600 it first" in run(folder, *RANGE, status=1)


def test_a_closed_day_has_mode_0600_and_is_not_written_again(folder: Path) -> None:
    path = path_of(folder / "days", "2026-11-01")
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write_day(folder / "days", _day("2026-11-01", 1_793_491_200))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--from", "2026-11-02", "--to", "2026-11-02"), "is not after"),
        (("--from", "2026-11-31", "--to", "2026-12-02"), "is no day"),
        (("--to", "2026-12-02"), "--from missing"),
        ((*RANGE, "--timezone", "Mars/Base"), "is no time zone"),
    ],
)
def test_a_wrong_flag_is_named(folder: Path, arguments: tuple[str, ...], problem: str) -> None:
    assert problem in run(folder, *arguments, status=2)


def test_days_of_another_time_zone_are_refused(folder: Path) -> None:
    output = run(folder, *RANGE, "--timezone", "Europe/Berlin", status=1)
    assert "its day is of UTC; give --timezone" in output


def test_a_server_that_does_not_answer_is_one_line(folder: Path) -> None:
    arguments = ["close", "--days", str(folder / "days"), "--prometheus", "http://127.0.0.1:1"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1
    assert result.output.startswith("Error: http://127.0.0.1:1: ")
    assert closed_days(folder / "days") == ["2026-11-01"]


def test_a_day_before_a_closed_one_is_refused(folder: Path) -> None:
    arguments = ["close", "--days", str(folder / "days"), "--prometheus", "http://127.0.0.1:1"]
    result = CliRunner().invoke(command, [*arguments, "--from", "2026-10-30"])
    assert result.exit_code == 1
    assert "2026-11-01 is closed already; --correct measures a day again" in result.output
    result = CliRunner().invoke(command, [*arguments, "--correct", "2026-10-30"])
    assert "--correct 2026-10-30: this day is not closed" in result.output


@pytest.fixture
def month(tmp_path: Path) -> Path:
    """Days with several models, one of them without a price, a correction, and owned GPUs."""
    days = tmp_path / "days"
    days.mkdir()
    first, second = (bill_days.MadeUp(23).day(day) for day in ("2026-11-01", "2026-11-02"))
    gpu, share = first.gpus[0], first.shares[0]
    more = replace(gpu, total=0, not_measured=7 * SECOND, correction="2026-11-02")
    less = replace(share, used=-3 * SECOND - 1, idle=1, correction="2026-11-02")
    mig = GpuDay(GpuKey("2026-11-02", "", "gpu-node-1", "MIG-1"), "A30", 77_777_777, 1, "1g.6gb")
    write_day(days, first)
    write_day(
        days,
        ClosedDay(
            replace(second.head, corrects=("2026-11-01",)),
            (*second.gpus, mig, more),
            (*second.shares, less),
        ),
    )
    prices = tmp_path / "prices.yaml"
    owned = f"inventory: [{{node: gpu-node-9, model: {gpu.model}, gpus: 1}}]\n"
    prices.write_text(bill_days.PRICES.replace("2.10", "2.1234567") + owned)
    prices.chmod(0o600)
    return tmp_path


@pytest.mark.parametrize("by", KEYS)
def test_all_outputs_have_the_same_sums_by_part_in_time_and_in_money(month: Path, by: str) -> None:
    document = json.loads(run(month, *RANGE, "--by", by, "-o", "json"))
    rows, focus = (
        [*csv.DictReader(io.StringIO(run(month, *RANGE, "-o", output).partition("note:")[0]))]
        for output in ("csv", "focus")
    )
    total = 0
    for part in Part:
        money = sum(line["microAmount"][part] for line in document["lines"])
        hours = sum(line["gpuHours"][part] for line in document["lines"])
        of_part = [row for row in rows if row["part"] == part]
        in_focus = [row for row in focus if row["x_VgpuPart"] == part]
        assert sum(Decimal(row["amount"]) for row in of_part) * SECOND == money
        assert sum(Decimal(row["EffectiveCost"]) for row in in_focus) * SECOND == money
        assert sum(int(row["gpu_microseconds"]) for row in of_part) / HOUR == pytest.approx(hours)
        assert sum(float(row["PricingQuantity"]) for row in in_focus) == pytest.approx(hours)
        total += money
    assert total == document["microTotal"]
    assert any(row["correction"] for row in rows)
    table = [line.split() for line in run(month, *RANGE, "--by", by).splitlines()]
    _, *lines = table[table.index([]) + 1 : table.index([], table.index([]) + 1)]
    cents = [[Decimal(cell.replace(",", "")) for cell in (line[-6], *line[-4:])] for line in lines]
    *of_lines, last = cents
    assert [sum(column) for column in zip(*of_lines, strict=True)] == last
    for _, *parts, whole in cents:
        assert sum(parts) == whole
    assert last[-1] == round(Decimal(total) / SECOND, 2)
