"""What is billed differs from the truth by the bound that stands beside it, and by no more."""

from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.bill.timelines import Timeline, generated, hours, true_seconds
from vgpucli.bill.close import begins_later, closed, differences, last_seen, unseen
from vgpucli.bill.days import bounds
from vgpucli.bill.measurement import Method, PartRule
from vgpucli.bill.model import SECOND, ClosedDay, DayHead, GpuDay, ShareDay
from vgpucli.bill.prometheus import node_by_step
from vgpucli.bill.timeline import (
    STEP,
    BilledContainer,
    BilledDevice,
    DaySum,
    Described,
    DeviceHour,
    Hour,
)

DAYS = ("2026-11-01", "2026-11-02")
METHODS = st.sampled_from((Method(), Method(PartRule.MAX), Method(memory_weight=1.0)))


SHORT = 4 * 3600
"""Seconds of a day that is as good as a whole one, and cheaper."""


def head_of(day: str, zone: str = "UTC", seconds: int = 0) -> DayHead:
    """The first line of a day's file; the day may be shorter."""
    begin, end = bounds(day, ZoneInfo(zone))
    return DayHead(1, day, zone, begin, begin + seconds if seconds else end, STEP)


def summed(timeline: Timeline, head: DayHead, phase: int, method: Method) -> DaySum:
    """A day of the timeline as it is measured."""
    sums = DaySum(head, method)
    for hour in hours(timeline, head.start, head.end, phase):
        sums.add(hour)
    return sums


@given(st.integers(0, 2**32), st.integers(0, STEP - 1), METHODS)
def test_each_share_is_exact_to_its_bound(seed: int, phase: int, method: Method) -> None:
    head = head_of(DAYS[0], seconds=SHORT)
    timeline = generated(seed, head.start, head.end, pods=6, gpus=2)
    for gpu, shares in summed(timeline, head, phase, method).devices():
        truth = true_seconds(timeline, gpu.first, gpu.last, method)
        measured = sum(share.used + share.idle for share in shares)
        assert measured <= gpu.total - gpu.not_measured + len(shares)
        for share in shares:
            key = BilledDevice("", gpu.key.uuid), BilledContainer(*_name(share.share))
            held, used = (seconds * SECOND for seconds in truth.get(key, (0, 0)))
            assert abs(share.used + share.idle - held) <= share.bound + 1
            assert abs(share.used - used) <= share.bound + 1


def _name(share: object) -> tuple[str, ...]:
    return tuple(getattr(share, each) for each in BilledContainer._fields)


@given(st.integers(0, 2**32), st.integers(0, STEP - 1))
def test_a_hole_over_midnight_is_not_measured_on_both_days(seed: int, phase: int) -> None:
    first, second = (head_of(day) for day in DAYS)
    first = replace(first, start=first.end - SHORT)
    second = replace(second, end=second.start + SHORT)
    timeline = generated(seed, first.start, second.end, pods=4, gpus=2)
    hole = seed % 3600
    gaps = dict.fromkeys(timeline.devices, ((first.end - 1800 - hole, first.end + 1800 + hole),))
    timeline = timeline._replace(gaps=gaps)
    one = closed(first, summed(timeline, first, phase, Method()), {}, {})
    two = closed(second, summed(timeline, second, phase, Method()), last_seen([one]), {})
    assert two.head.corrects == (DAYS[0],)
    split = {*timeline.instances, *timeline.instances.values()}
    for uuid in {gpu.key.uuid for gpu in one.gpus} - {device.uuid for device in split}:
        rows = [gpu for gpu in (*one.gpus, *two.gpus) if gpu.key.uuid == uuid]
        lost = sum(gpu.not_measured for gpu in rows) / SECOND
        assert abs(lost - 2 * (1800 + hole)) <= 2 * STEP
        for day in DAYS:
            total = sum(gpu.total for gpu in rows if gpu.key.day == day) / SECOND
            assert abs(total - SHORT) <= STEP


def test_a_device_that_was_away_for_days_has_each_of_them_as_a_correction() -> None:
    heads = [head_of(f"2026-11-0{number}") for number in range(1, 5)]
    timeline = generated(1, heads[0].start, heads[-1].end, pods=3, gpus=1)
    away = (heads[0].start + 40_000, heads[3].start + 7_200)
    timeline = timeline._replace(gaps=dict.fromkeys(timeline.devices, (away,)))
    files: list[ClosedDay] = []
    for head in heads:
        measured = summed(timeline, head, 30, Method())
        files.append(closed(head, measured, last_seen(files), {}))
    assert [len(file.gpus) for file in files] == [1, 0, 0, 4]
    rows = [gpu for file in files for gpu in file.gpus]
    for head in heads:
        total = sum(gpu.total for gpu in rows if gpu.key.day == head.day) / SECOND
        assert abs(total - 86_400) <= STEP
    assert {gpu.correction for gpu in rows} == {"", heads[3].day}


@given(st.integers(0, 2**32))
def test_a_day_that_is_measured_again_becomes_what_was_measured(seed: int) -> None:
    head = head_of(DAYS[0], seconds=SHORT)
    old, new = (
        generated(seed + number, head.start, head.end, pods=5, gpus=2) for number in range(2)
    )
    before = closed(head, summed(old, head, 7, Method()), {}, {})
    rows = differences(before, summed(new, head, 7, Method()), DAYS[1])
    wanted = closed(head, summed(new, head, 7, Method()), {}, {})
    totals: dict[object, int] = {}
    for row in (*before.gpus, *before.shares, *rows):
        amounts = (
            {
                row.share: row.used + row.idle,
                (row.share, "used"): row.used,
                (row.share, "bound"): row.bound,
            }
            if hasattr(row, "share")
            else {"total": row.total, "lost": row.not_measured}
        )
        for name, amount in amounts.items():
            key = getattr(row, "gpu", None) or row.key, name
            totals[key] = totals.get(key, 0) + amount
    for row in wanted.shares:
        assert totals[row.gpu, row.share] == row.used + row.idle
        assert totals[row.gpu, (row.share, "used")] == row.used
        assert totals[row.gpu, (row.share, "bound")] == row.bound
    for gpu in wanted.gpus:
        assert (totals[gpu.key, "total"], totals[gpu.key, "lost"]) == (gpu.total, gpu.not_measured)


def test_a_day_on_which_the_clocks_change_has_its_own_length() -> None:
    for day, length in (("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-01", 24)):
        head = head_of(day, "Europe/Berlin")
        timeline = generated(3, head.start, head.end, pods=2, gpus=1)._replace(gaps={})
        ((gpu, _),) = summed(timeline, head, 0, Method()).devices()
        assert gpu.total == length * 3600 * SECOND


STEPS = (3600 * 24) // STEP
GPU, INSTANCE = BilledDevice("", "GPU-1"), BilledDevice("", "MIG-1")
KINDS = {INSTANCE: Described("A100", "1g.10gb", GPU.uuid)}


def one_hour(head: DayHead, *devices: tuple[BilledDevice, DeviceHour]) -> DaySum:
    """A day of which one span was read, with MIG instances among the devices."""
    sums = DaySum(head, Method())
    sums.add(Hour(head.start, STEPS, dict(devices), {}, KINDS))
    return sums


def there(*intervals: tuple[int, int]) -> list[float | None]:
    """A series with a value in these hours."""
    return [
        100.0 if any(begin * 60 <= index < end * 60 for begin, end in intervals) else None
        for index in range(STEPS)
    ]


def hours_of(closed_day: ClosedDay) -> dict[str, tuple[float, float]]:
    """(hours, hours without measurement) of each device and node, over all rows."""
    found: dict[str, tuple[float, float]] = {}
    for gpu in closed_day.gpus:
        name = f"{gpu.key.day[-1]} {gpu.key.node} {gpu.key.uuid}"
        total, lost = found.get(name, (0.0, 0.0))
        hour = 3600 * SECOND
        found[name] = total + gpu.total / hour, lost + gpu.not_measured / hour
    return found


def test_a_gpu_is_a_device_until_it_is_split_and_after_it_was() -> None:
    """The whole GPU goes on to have samples while it is split, with a hole from 7 to 8."""
    head = head_of(DAYS[0])
    whole = there((0, 7), (8, 24))
    sums = one_hour(
        head, (GPU, DeviceHour("n", whole)), (INSTANCE, DeviceHour("n", there((6, 7), (8, 18))))
    )
    day = closed(head, sums, {}, {})
    assert hours_of(day) == {"1 n GPU-1": (12, 0), "1 n MIG-1": (12, 1)}
    sums = one_hour(
        head, (GPU, DeviceHour("n", whole)), (INSTANCE, DeviceHour("n", there((0, 6), (18, 24))))
    )
    day = closed(head, sums, {}, {})
    assert hours_of(day) == {"1 n GPU-1": (12, 1), "1 n MIG-1": (12, 0)}


def test_a_split_that_lasts_for_days_is_no_hole_of_the_whole_gpu() -> None:
    heads = [head_of(f"2026-11-0{number}") for number in (1, 2, 3)]
    split = (there((6, 24)), there((0, 24)), there((0, 3)))
    files: list[ClosedDay] = []
    for head, of_day in zip(heads, split, strict=True):
        whole = there((0, 24))
        sums = one_hour(head, (GPU, DeviceHour("n", whole)), (INSTANCE, DeviceHour("n", of_day)))
        files.append(closed(head, sums, last_seen(files), {}))
    assert [hours_of(file) for file in files] == [
        {"1 n GPU-1": (6, 0), "1 n MIG-1": (18, 0)},
        {"2 n MIG-1": (24, 0)},
        {"3 n GPU-1": (21, 0), "3 n MIG-1": (3, 0)},
    ]


def test_a_gpu_that_is_on_another_node_for_some_hours_is_billed_once() -> None:
    head = head_of(DAYS[0])
    nodes = ["a"] * (6 * 60 + 30) + ["b"] * (3 * 60) + ["a"] * (STEPS - 9 * 60 - 30)
    sums = one_hour(head, (GPU, DeviceHour("a", there((0, 24)), nodes=nodes)))
    day = closed(head, sums, {}, {})
    assert hours_of(day) == {"1 a GPU-1": (21, 0), "1 b GPU-1": (3, 0)}


def test_the_node_of_a_step_is_that_which_the_target_names_then() -> None:
    """In step 2 both nodes are named: the old GPU is still on the old node."""
    nodes = {"a": [1.0, 1.0, 1.0, None, None], "b": [None, None, 1.0, 1.0, 1.0]}
    old: list[float | None] = [1.0, 1.0, 1.0, None, None]
    new: list[float | None] = [None, None, 1.0, 1.0, 1.0]
    assert node_by_step(nodes, old, "i")[:3] == ["a", "a", "a"]
    assert node_by_step(nodes, new, "i")[2:] == ["b", "b", "b"]
    assert node_by_step({}, old, "i") == ["i"] * 5


def corrected_day(*hours_: tuple[int, int]) -> DaySum:
    """The first of :data:`DAYS`, with a GPU that has samples in these hours."""
    return one_hour(head_of(DAYS[0]), (GPU, DeviceHour("n", there(*hours_))))


def with_corrections(old: ClosedDay, rows: list[GpuDay | ShareDay]) -> ClosedDay:
    gpus = (row for row in rows if isinstance(row, GpuDay))
    return ClosedDay(old.head, (*old.gpus, *gpus), old.shares)


def test_a_day_whose_holes_were_filled_needs_no_correction_if_samples_are_the_same() -> None:
    first, second = (head_of(day) for day in DAYS)
    before = closed(head_of("2026-10-31"), DaySum(head_of("2026-10-31"), Method()), {}, {})
    one = closed(first, corrected_day((2, 20)), last_seen([before]), {})
    two = closed(
        second, one_hour(second, (GPU, DeviceHour("n", there((4, 24))))), last_seen([one]), {}
    )
    assert hours_of(two) == {"1 n GPU-1": (4, 4), "2 n GPU-1": (24, 4)}
    again = with_corrections(one, [row for row in two.gpus if row.key.day == DAYS[0]])
    assert differences(again, corrected_day((2, 20)), DAYS[1]) == []
    own = ClosedDay(second, tuple(row for row in two.gpus if row.key.day == DAYS[1]), ())
    same = one_hour(second, (GPU, DeviceHour("n", there((4, 24)))))
    assert differences(own, same, "2026-11-03") == []


def test_samples_that_came_late_make_a_filled_hole_smaller_and_the_day_no_longer() -> None:
    first, second = (head_of(day) for day in DAYS)
    one = closed(first, corrected_day((0, 20)), {}, {})
    two = closed(
        second, one_hour(second, (GPU, DeviceHour("n", there((4, 24))))), last_seen([one]), {}
    )
    again = with_corrections(one, [row for row in two.gpus if row.key.day == DAYS[0]])
    for until in (22, 23, 21):
        rows = differences(again, corrected_day((0, until)), "2026-11-03")
        again = with_corrections(again, rows)
        assert hours_of(again) == {"1 n GPU-1": (24, 24 - until)}
    assert differences(again, corrected_day((0, 21)), "2026-11-03") == []


def test_a_device_without_samples_is_left_as_it_is() -> None:
    head = head_of(DAYS[0])
    one = closed(head, corrected_day((0, 24)), {}, {})
    other = one_hour(head, (BilledDevice("", "GPU-2"), DeviceHour("n", there((0, 24)))))
    rows = differences(one, other, DAYS[1])
    assert [(row.key.uuid, row.total > 0) for row in rows if isinstance(row, GpuDay)] == [
        ("GPU-2", True)
    ]
    assert unseen(one, other) == ["GPU-1"]
    assert unseen(one, corrected_day((3, 24))) == []
    assert begins_later(one, corrected_day((3, 24))) == head.start + 3 * 3600
    assert not begins_later(one, corrected_day((0, 3)))
