"""The metric sets of the original monitors, so that existing dashboards keep working.

Names, labels and units are the originals', wrong units included; the numbers come from the same
place (the driver for the host, the shim region for containers, live slots only; for a scheduler's
set, the ledger). One deviation:
``Device_memory_desc_of_container`` is a gauge of total bytes without the breakdown as labels,
since each allocation would make a new series; ``breakdown=True`` brings the labels back.

A series whose pod name is unknown is left out, and counted.
"""

from enum import StrEnum


class Compat(StrEnum):
    """The values of ``--compat``."""

    VOLCANO = "volcano"
    VOLCANO_SCHEDULER = "volcano-scheduler"
    HAMI_LEGACY = "hami-legacy"
    HAMI = "hami"
    GAIA = "gaia"
    NONE = "none"


CONFLICTING = (Compat.VOLCANO, Compat.HAMI_LEGACY)
"""They use the same names with different labels."""
