"""The closed days of a period, as charges, one day after another."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from vgpucli.bill.charges import UnknownModel, charges, device_days, missing_of_inventory
from vgpucli.bill.day_file import BadDay, closed_days, corrections, path_of, read_day
from vgpucli.bill.days import bounds
from vgpucli.bill.model import SECOND, Charge, DayHead, ShareDay
from vgpucli.bill.prices import PriceTable


class Period(msgspec.Struct):
    """What was found while the charges of a period were made.

    Attributes:
        heads: the first lines of the files that were read.
        missing: days without a file.
        unknown: devices without a price.
        above, outside: use above what was held, and use outside of containers, in GPU-microseconds.
        use_unknown: what was held while its use was not measured.
        bound: most by which all shares together may differ from the truth.
        normalised, over_committed, unsized: seconds of shares.
    """

    heads: list[DayHead] = []
    missing: list[str] = []
    unknown: set[UnknownModel] = set()
    above: int = 0
    outside: int = 0
    use_unknown: int = 0
    bound: int = 0
    normalised: int = 0
    over_committed: int = 0
    unsized: int = 0

    def count(self, share: ShareDay) -> None:
        """Add what stands beside the bill."""
        self.above += share.above
        self.use_unknown += share.use_unknown
        self.bound += share.bound
        self.normalised += share.normalised
        self.over_committed += share.over_committed
        self.unsized += share.unsized


def period_charges(
    folder: Path, days: Sequence[str], table: PriceTable, zone: ZoneInfo, period: Period
) -> Iterator[Charge]:
    """The charges of the days; ``period`` is complete after the last one.

    Raises BadDay and OSError.
    """
    closed = frozenset(closed_days(folder))
    late_gpus, late_shares = corrections(folder, days)
    for day in days:
        gpus = [row for row in late_gpus if row.key.day == day]
        shares = [row for row in late_shares if row.gpu.day == day]
        begin, end = bounds(day, zone)
        if day in closed:
            file = read_day(path_of(folder, day))
            if file.head.timezone != zone.key:
                raise BadDay(
                    f"{path_of(folder, day)}: its day is of {file.head.timezone}; give --timezone"
                )
            period.heads.append(file.head)
            gpus[:0] = [row for row in file.gpus if row.key.day == day]
            shares[:0] = [row for row in file.shares if row.gpu.day == day]
            gpus += missing_of_inventory(table, day, end - begin, gpus, SECOND)
        else:
            period.missing.append(day)
        for share in shares:
            period.count(share)
        period.outside += sum(gpu.outside for gpu in gpus)
        yield from charges(device_days(gpus, shares), table, period.unknown)
