"""The values of a bill: a closed day, its rows, and the charges that prices make of them.

Amounts of time are integers of **GPU-microseconds**: a share that is half of a GPU for one second
has 500,000 of them. Amounts of money are integers of 10⁻⁶ of the currency.

    used + held idle + unsold + not measured = GPU-microseconds of the GPU's day
"""

from enum import StrEnum
from typing import Final, Self

import msgspec

SECOND: Final = 1_000_000
"""GPU-microseconds of a whole GPU in a second, and micro-units of money in one unit."""

HOUR: Final = 3600 * SECOND


class Part(StrEnum):
    """What a piece of a GPU's day was; every GPU-microsecond is exactly one of them."""

    USED = "used"
    HELD_IDLE = "held_idle"
    UNSOLD = "unsold"
    NOT_MEASURED = "not_measured"


class GpuKey(msgspec.Struct, frozen=True, order=True):
    """A device on one day: a GPU that is not split, or a MIG instance."""

    day: str
    cluster: str
    node: str
    uuid: str


class ShareKey(msgspec.Struct, frozen=True, order=True):
    """A container on a device, with the team and owner that it had.

    ``container`` is empty where a share belongs to the whole pod.
    """

    namespace: str
    pod: str
    pod_uid: str
    container: str
    owner: str = ""
    team: str = ""


class DayHead(msgspec.Struct, frozen=True, tag="day", tag_field="kind"):
    """The first line of a file.

    Attributes:
        format: version of the format.
        day: the day that the file closes, YYYY-MM-DD.
        timezone: IANA name of the zone in which the day begins and ends.
        start, end: its bounds in unix time, seconds.
        interval: seconds between two measurements: half of what a start or an end may be wrong.
        rule: how memory and cores make one part of a GPU: ``sum`` or ``max``.
        memory_weight: weight of memory with the rule ``sum``, a decimal from 0 to 1.
        corrects: earlier days of which the file has rows.
        generator: the generator and its seed where the file is made up; "" for a measured day.
    """

    format: int
    day: str
    timezone: str
    start: int
    end: int
    interval: int
    rule: str = "sum"
    memory_weight: str = "0.5"
    corrects: tuple[str, ...] = ()
    generator: str = ""
    closed: str = ""
    version: str = ""


class GpuDay(msgspec.Struct, frozen=True, tag="gpu", tag_field="kind"):
    """A device's day. ``total`` runs from its first to its last measurement.

    ``not_measured`` is the part of ``total`` without measurement; of it, ``filled`` is a hole that
    another day ends: before the first or after the last measurement of this one. ``outside`` is
    what processes outside of containers used, and is shown beside the bill. ``first`` and ``last``
    are the bounds of what was measured, in unix time. ``parent`` is the UUID of a MIG instance's
    GPU. ``correction`` is "", or the day whose file has this row about an earlier day.
    """

    key: GpuKey
    model: str
    total: int
    not_measured: int = 0
    mig_profile: str = ""
    labels: dict[str, str] = {}
    outside: int = 0
    first: int = 0
    last: int = 0
    correction: str = ""
    parent: str = ""
    filled: int = 0


class ShareDay(msgspec.Struct, frozen=True, tag="share", tag_field="kind"):
    """What a container held of a device on a day: ``used`` and ``idle``.

    Attributes:
        above: use above what was held, shown beside the bill and never priced.
        use_unknown: of ``idle``, what was held while the driver's use was not measured.
        bound: most by which used + idle may differ from the truth.
        normalised: seconds in which the parts of the device's shares were divided by their sum.
        over_committed: of these, seconds in which memory or cores alone were above the device.
        unsized: seconds in which the size of the share was unknown: it counts as 0.
        correction: as that of the device's row.
    """

    gpu: GpuKey
    share: ShareKey
    used: int
    idle: int
    above: int = 0
    use_unknown: int = 0
    bound: int = 0
    normalised: int = 0
    over_committed: int = 0
    unsized: int = 0
    correction: str = ""


Row = GpuDay | ShareDay


class ClosedDay(msgspec.Struct, frozen=True):
    """A file: its first line and its rows."""

    head: DayHead
    gpus: tuple[GpuDay, ...]
    shares: tuple[ShareDay, ...]


class Exactness(msgspec.Struct, frozen=True):
    """By how much the time that a share held may differ from the truth, and how it was divided.

    The fields are those of :class:`ShareDay`, of the share's day with all corrections until now.
    """

    bound: int = 0
    normalised: int = 0
    over_committed: int = 0

    def __add__(self, other: Self) -> Self:
        """Of two shares together."""
        return self._with(other, 1)

    def __sub__(self, other: Self) -> Self:
        """Without a share that was added."""
        return self._with(other, -1)

    def _with(self, other: Self, sign: int) -> Self:
        return type(self)(
            self.bound + sign * other.bound,
            self.normalised + sign * other.normalised,
            self.over_committed + sign * other.over_committed,
        )


NO_BOUND: Final = Exactness()


class Charge(msgspec.Struct, frozen=True):
    """The amount of one part of one row: ``amount`` in micro-units of the currency.

    ``share`` is None for what nobody held, ``correction`` that of the row. ``exactness`` is the
    share's; of what is unsold it is the sum of the device's shares, since unsold is the rest.
    What was not measured has none.
    """

    gpu: GpuKey
    model: str
    mig_profile: str
    part: Part
    quantity: int
    amount: int
    share: ShareKey | None = None
    correction: str = ""
    exactness: Exactness | None = None
