"""Which days `vgpu bill close` closes, and what it does not take for measured."""

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner, Result

from tests.bill.timelines import TOTAL
from vgpu.io.writer_lock import writer_lock
from vgpu.web.message import HttpRequest, HttpResponse
from vgpu.web.server import WebServer
from vgpucli.bill.command import command
from vgpucli.bill.day_file import LOCK, BadDay, closed_days, path_of, read_day, write_day
from vgpucli.bill.day_writer import DayWriter
from vgpucli.bill.days import bounds
from vgpucli.bill.measurement import Method
from vgpucli.bill.model import SECOND, ClosedDay, DayHead
from vgpucli.bill.prometheus import BillSource, container_of
from vgpucli.bill.timeline import STEP, BilledContainer, BilledDevice, DeviceHour, Hour, ShareHour

UTC = ZoneInfo("UTC")
DEFAULT = Method()
FIRST = "2026-11-01"
BEGIN, END = bounds(FIRST, UTC)
DAY_SECONDS = 86_400
DEVICE = BilledDevice("", "GPU-1")
CONTAINER = BilledContainer("team", "pod", "uid", "main")


class MadeSource(BillSource):
    """A device that is there from ``begin`` on, with a container that holds half of its memory."""

    def __init__(self, begin: int) -> None:
        self.begin = begin

    def hours(self, begin: int, end: int) -> Iterator[Hour]:
        """The day in one piece; nothing where the device is not there yet."""
        there = [TOTAL if at >= self.begin else None for at in range(begin, end, STEP)]
        share = ShareHour(
            memory=[each and TOTAL / 2 for each in there],
            cores=[each and 0.1 for each in there],
        )
        yield Hour(
            begin,
            len(there),
            {DEVICE: DeviceHour("node", there)},
            {DEVICE: {CONTAINER: share}},
        )


class AwaySource(MadeSource):
    """The same device, of which there is no sample on some days."""

    def __init__(self, *days: str) -> None:
        super().__init__(0)
        self.away = {bounds(day, UTC)[0] for day in days}

    def hours(self, begin: int, end: int) -> Iterator[Hour]:
        """The day in one piece, or nothing."""
        if begin not in self.away:
            yield from super().hours(begin, end)


def writer_of(folder: Path, source: BillSource, method: Method = DEFAULT) -> DayWriter:
    """One that closes days of UTC."""
    return DayWriter(folder, UTC, method, source, ())


def closed_file(folder: Path, day: str, zone: str = "UTC") -> None:
    begin, end = bounds(day, ZoneInfo(zone))
    write_day(folder, ClosedDay(DayHead(1, day, zone, begin, end, STEP), (), ()))


# ---------------------------------------------------------------- which days


@pytest.mark.parametrize(
    ("day", "zone", "first", "problem"),
    [
        (FIRST, "Europe/Berlin", None, f"--timezone UTC: {FIRST} was closed with Europe/Berlin"),
        ("2026-11-09", "UTC", None, "2026-11-09.jsonl: this day has not ended yet"),
        (FIRST, "UTC", "2026-11-03", f"{FIRST} is the last closed day, so the next is 2026-11-02"),
        (FIRST, "UTC", FIRST, f"{FIRST} is closed already"),
    ],
)
def test_closed_days_that_do_not_fit_are_named(
    tmp_path: Path, day: str, zone: str, first: str | None, problem: str
) -> None:
    closed_file(tmp_path, day, zone)
    with pytest.raises(ValueError, match=problem):
        writer_of(tmp_path, MadeSource(0)).due(END + 3 * DAY_SECONDS, first)


def test_the_next_day_may_be_named(tmp_path: Path) -> None:
    closed_file(tmp_path, FIRST)
    writer = writer_of(tmp_path, MadeSource(0))
    due = writer.due(END + 2 * DAY_SECONDS + 7200, "2026-11-02")
    assert due == writer.due(END + 2 * DAY_SECONDS + 7200, None) == ["2026-11-02", "2026-11-03"]


def test_each_earlier_file_is_read_once_however_many_days_are_closed(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, MadeSource(0))
    for number, day in enumerate((FIRST, "2026-11-02", "2026-11-03")):
        writer.close(day, END + number * DAY_SECONDS + 7200)
    path_of(tmp_path, FIRST).write_text("no longer a day\n")
    third = read_day(writer.close("2026-11-04", END + 3 * DAY_SECONDS + 7200))
    assert len(third.gpus) == 1
    with pytest.raises(BadDay, match=f"{FIRST}.jsonl: line 1"):
        writer_of(tmp_path, MadeSource(0)).close("2026-11-05", END + 4 * DAY_SECONDS + 7200)


def test_a_day_without_samples_is_closed_when_a_later_day_has_some(tmp_path: Path) -> None:
    source = AwaySource("2026-11-02", "2026-11-03", "2026-11-05")
    writer = writer_of(tmp_path, source)
    writer.close(FIRST, END + 7200)
    now = END + 4 * DAY_SECONDS + 7200.0
    with pytest.raises(ValueError, match=r"^2026-11-05: no device was measured, so it is not clos"):
        [*writer.close_all(writer.due(now, None), now, [FIRST])]
    assert closed_days(tmp_path) == [FIRST, "2026-11-02", "2026-11-03", "2026-11-04"]
    assert writer.notes == [
        f"{day}: no device was measured; it is closed because 2026-11-04 has samples"
        for day in ("2026-11-02", "2026-11-03")
    ]
    assert read_day(path_of(tmp_path, "2026-11-02")).gpus == ()
    fourth = read_day(path_of(tmp_path, "2026-11-04"))
    assert fourth.head.corrects == ("2026-11-02", "2026-11-03")
    assert [(row.key.day, row.not_measured) for row in fourth.gpus] == [
        ("2026-11-04", 0),
        ("2026-11-02", DAY_SECONDS * SECOND),
        ("2026-11-03", DAY_SECONDS * SECOND),
    ]
    assert writer.due(now, None) == ["2026-11-05"]


def test_a_day_without_samples_is_measured_again_as_any_other(tmp_path: Path) -> None:
    source = AwaySource("2026-11-02")
    writer = writer_of(tmp_path, source)
    days = [FIRST, "2026-11-02", "2026-11-03"]
    assert [day for day, _ in writer.close_all(days, END + 2 * DAY_SECONDS + 7200)] == days
    source.away.clear()
    fourth = read_day(writer.close("2026-11-04", END + 3 * DAY_SECONDS + 7200, ["2026-11-02"]))
    (again,) = (row for row in fourth.gpus if row.key.day == "2026-11-02")
    assert (again.total, again.not_measured) == (0, -DAY_SECONDS * SECOND)


def test_a_new_folder_begins_with_the_day_that_is_asked_for(tmp_path: Path) -> None:
    due = writer_of(tmp_path, MadeSource(0)).due(END + 59 * DAY_SECONDS + 7200, FIRST)
    assert (len(due), due[0]) == (60, FIRST)


def test_days_without_samples_at_the_end_are_named(tmp_path: Path) -> None:
    first = str(dt.datetime.now(dt.UTC).date() - dt.timedelta(days=4))
    result = close(tmp_path, EMPTY, "--from", first)
    assert result.exit_code == 1, result.output
    assert result.output.startswith(f"Error: {first} to 2")
    assert not closed_days(tmp_path)


def test_two_processes_do_not_close_days_of_one_folder(tmp_path: Path) -> None:
    with writer_lock(str(tmp_path / LOCK)):
        result = close(tmp_path, EMPTY, "--allow-empty")
    assert result.exit_code == 1
    assert "another 'vgpu bill close' is closing its days" in result.output
    assert not closed_days(tmp_path)
    assert close(tmp_path, EMPTY, "--allow-empty").exit_code == 0


# ---------------------------------------------------------------- a day that is measured again


def test_a_day_is_measured_again_by_the_rule_of_its_file(tmp_path: Path) -> None:
    writer_of(tmp_path, MadeSource(0), Method(memory_weight=1.0)).close(FIRST, END + 7200)
    writer = writer_of(tmp_path, MadeSource(0))
    second = read_day(writer.close("2026-11-02", END + DAY_SECONDS + 7200, [FIRST]))
    assert second.head.corrects == ()
    assert (second.head.memory_weight, len(second.gpus), len(second.shares)) == ("0.5", 1, 1)
    assert not writer.notes


@pytest.mark.parametrize(
    ("begin", "note"),
    [
        (END, f"{FIRST}: GPU-1 is left as it is: there are no samples of it any more"),
        (BEGIN + 36_000, f"{FIRST} is left as it is: its samples begin at 10:00 now"),
    ],
)
def test_samples_that_prometheus_no_longer_keeps_take_nothing_from_a_closed_day(
    tmp_path: Path, begin: int, note: str
) -> None:
    source = MadeSource(0)
    writer = writer_of(tmp_path, source)
    writer.close(FIRST, END + 7200)
    source.begin = begin
    second = read_day(writer.close("2026-11-02", END + DAY_SECONDS + 7200, [FIRST]))
    assert second.head.corrects == ()
    assert second.gpus[0].total == DAY_SECONDS * SECOND
    (said,) = writer.notes
    assert note in said


# ---------------------------------------------------------------- answers


@contextmanager
def served(answers: Mapping[str, object]) -> Iterator[str]:
    """A server with Prometheus' paths; each gives its answer to every query."""
    bodies = {f"/api/v1/{path}": json.dumps(answer).encode() for path, answer in answers.items()}

    def answered(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (("Content-Type", "application/json"),), bodies[request.path])

    pages = dict.fromkeys(bodies, answered)
    server = WebServer(pages, ["127.0.0.1:0"], None)
    server.start()
    try:
        yield f"http://{server.addresses[0]}"
    finally:
        server.stop(grace=1)


def close(folder: Path, answers: Mapping[str, object], *more: str) -> Result:
    with served(answers) as url:
        words = ["close", "--days", str(folder), "--prometheus", url, *more]
        return CliRunner().invoke(command, words)


def nothing(kind: str, **more: object) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": kind, "result": []}, **more}


EMPTY = {"query": nothing("vector"), "query_range": nothing("matrix")}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"message": "please log in"}, "not an answer of Prometheus' HTTP API"),
        ({"status": "error", "error": "no store"}, "no store"),
        ({"status": "success"}, "it answered with nothing and not with a vector"),
        (nothing("scalar"), "it answered with scalar and not with a vector"),
        ({"status": "success", "data": {"resultType": "vector"}}, "not an answer of Prometheus'"),
        (nothing("vector", warnings=["store a: timeout"]), "may not be whole: store a: timeout"),
        (nothing("vector", infos=["1 store is away"]), "may not be whole: 1 store is away"),
        (nothing("vector", isPartial=True), "may not be whole: isPartial"),
    ],
)
def test_an_answer_that_is_not_whole_closes_no_day(
    tmp_path: Path, answer: object, problem: str
) -> None:
    result = close(tmp_path, {**EMPTY, "query": answer})
    assert result.exit_code == 1, result.output
    assert problem in result.output
    assert result.output.count("\n") == 1
    assert not closed_days(tmp_path)


def test_a_day_in_which_no_device_was_measured_is_closed_only_if_it_is_allowed(
    tmp_path: Path,
) -> None:
    said = {
        "query": nothing("vector", infos=["PromQL info: x"]),
        "query_range": EMPTY["query_range"],
    }
    result = close(tmp_path, said)
    assert result.exit_code == 1, result.output
    assert ": no device was measured, so it is not closed; --allow-empty closes" in result.output
    assert not closed_days(tmp_path)
    result = close(tmp_path, EMPTY, "--allow-empty")
    assert result.exit_code == 0, result.output
    (day,) = closed_days(tmp_path)
    assert read_day(path_of(tmp_path, day)).gpus == ()


# ---------------------------------------------------------------- names

EXPORTER = {("namespace", "monitoring"), ("pod", "exporter-x"), ("container", "exporter")}
TARGET = dict(EXPORTER)


@pytest.mark.parametrize(
    ("labels", "target", "name"),
    [
        ({"namespace": "a", "pod": "p", "container": "c"}, EXPORTER, ("a", "p", "c")),
        ({"namespace": "a", "pod": "p"}, EXPORTER, ("a", "p", "")),
        ({"namespace": "monitoring", "pod": "p"}, EXPORTER, ("monitoring", "p", "")),
        (
            {**TARGET, "exported_namespace": "a", "exported_pod": "p", "exported_container": "c"},
            EXPORTER,
            ("a", "p", "c"),
        ),
        ({**TARGET, "exported_namespace": "a", "exported_pod": "p"}, EXPORTER, ("a", "p", "")),
        (
            {**TARGET, "exported_namespace": "a", "exported_pod": "p", "container": "c"},
            EXPORTER - {("container", "exporter")},
            ("a", "p", "c"),
        ),
        ({**TARGET, "exported_container": "c"}, EXPORTER, ("", "", "c")),
        (TARGET, EXPORTER, ("", "", "")),
    ],
)
def test_a_container_has_its_own_names_whatever_labels_its_target_has(
    labels: dict[str, str], target: set[tuple[str, str]], name: tuple[str, ...]
) -> None:
    container = container_of({**labels, "pod_uid": "u"}, target)
    assert (container.namespace, container.pod, container.container) == name
    assert container.pod_uid == "u"
