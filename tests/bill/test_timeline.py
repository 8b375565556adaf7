"""What is billed differs from the truth by the bound that stands beside it, and by no more."""

from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.bill.timelines import Timeline, generated, hours, true_seconds
from vgpucli.bill.close import closed, differences, last_seen
from vgpucli.bill.days import bounds
from vgpucli.bill.measurement import Method, PartRule
from vgpucli.bill.model import SECOND, ClosedDay, DayHead
from vgpucli.bill.timeline import STEP, BilledContainer, BilledDevice, DaySum

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
            {row.share: row.used + row.idle, (row.share, "used"): row.used}
            if hasattr(row, "share")
            else {"total": row.total, "lost": row.not_measured}
        )
        for name, amount in amounts.items():
            key = getattr(row, "gpu", None) or row.key, name
            totals[key] = totals.get(key, 0) + amount
    for row in wanted.shares:
        assert totals[row.gpu, row.share] == row.used + row.idle
        assert totals[row.gpu, (row.share, "used")] == row.used
    for gpu in wanted.gpus:
        assert (totals[gpu.key, "total"], totals[gpu.key, "lost"]) == (gpu.total, gpu.not_measured)


def test_a_day_on_which_the_clocks_change_has_its_own_length() -> None:
    for day, length in (("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-01", 24)):
        head = head_of(day, "Europe/Berlin")
        timeline = generated(3, head.start, head.end, pods=2, gpus=1)._replace(gaps={})
        ((gpu, _),) = summed(timeline, head, 0, Method()).devices()
        assert gpu.total == length * 3600 * SECOND
