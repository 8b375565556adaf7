"""Amounts as the allocation records keep them: integers of bytes and thousandths, never floats."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

MOST_DEVICE_MEMORY = 16 * TIB
"""Upper bound of a device's memory, oversold or not, in bytes."""

WHOLE_DEVICE_PERCENT = 100
"""All cores of one device."""

GAIA_MEMORY_BLOCK = 256 * MIB
"""Bytes of one unit of tencent.com/vcuda-memory."""

WHOLE_DEVICE_MILLI = 1000
"""All cores of one device, in thousandths."""

MOST_DEVICE_MILLI = 100 * WHOLE_DEVICE_MILLI
"""Upper bound of a device's cores, oversold or not, in thousandths."""

MILLI_PER_PERCENT = 10

_MOST_GIB = 10_240
"""Maximum amount in GiB; larger amounts, which no GPU has, are in TiB."""


def milli(decimal: str) -> int:
    """Thousandths of a decimal like ``0.5``, exact; finer digits are rounded up.

    KubeShare-Sched rounds up in the same way. The text is digits with at most one point.
    """
    whole, _, fraction = decimal.partition(".")
    thousandths = int(whole + fraction[:3].ljust(3, "0"))
    return thousandths + (fraction[3:].strip("0") != "")


def rounded_size(amount: int) -> str:
    """Bytes for people, in GiB with one decimal, or in MiB."""
    if amount >= _MOST_GIB * GIB:
        return f"{amount / 1024 / GIB:.1f} TiB"
    return f"{amount / GIB:.1f} GiB" if amount >= GIB or not amount else f"{amount // MIB} MiB"


def exact_size(amount: int) -> str:
    """Bytes for people, in GiB or MiB; also in MiB where one decimal of GiB is not exact.

    "over 16384 MiB" is some bytes more than that.
    """
    if 0 < amount < MIB:
        return "less than 1 MiB"
    mebibytes = f"{'over ' if amount % MIB else ''}{amount // MIB} MiB"
    if amount < GIB:
        return mebibytes
    gibibytes = f"{amount / GIB:.1f} GiB"
    return gibibytes if amount * 10 % GIB == 0 else f"{gibibytes} ({mebibytes})"


def count(number: int, noun: str) -> str:
    """A number of things, such as "1 pod" and "2 pods"; the first word of ``noun`` is counted."""
    first, _, rest = noun.partition(" ")
    return f"{number} {first}{'' if number == 1 else 's'}{f' {rest}' if rest else ''}"


def count_more(number: int, noun: str) -> str:
    """A number of further things, such as "1 more pod" and "2 more pods"."""
    return f"{number} more {noun}{'' if number == 1 else 's'}"


def percentage(thousandths: int) -> str:
    """Thousandths of a device for people, and exact: in percent."""
    return f"{thousandths / MILLI_PER_PERCENT:.12g} %"


def percent(thousandths: int) -> int:
    """Percent of a device, rounded up."""
    return -(-thousandths // MILLI_PER_PERCENT)
