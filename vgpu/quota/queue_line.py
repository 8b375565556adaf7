"""One line of a queue: the amounts of one resource, each with its source, as values; pure."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from vgpu.model.declared_quota import QuotaResource
from vgpu.quota.quota_units import QuotaUnit
from vgpu.quota.resources import Amounts


class AmountKind(StrEnum):
    """The kind of an amount; see :class:`vgpu.quota.tree.QuotaNode`."""

    LIMIT = "limit"
    NOMINAL = "nominal"
    GUARANTEED = "guaranteed"
    BORROWED = "borrowed"
    LENT = "lent"
    USED = "used"
    HELD = "held"
    DRIVER = "driver"
    WAITING = "waiting"
    REQUESTED = "requested"


class SourcedAmount(msgspec.Struct, frozen=True, gc=False):
    """An amount and where it is from; without a value the source is why there is none.

    ``is_assumed`` is whether something that decides about it was not read.
    """

    value: int | None
    source: str
    is_assumed: bool = False


class QueueLine(msgspec.Struct, frozen=True):
    """The amounts of one resource and flavor; the flavor "" is any, unknown, or there is none.

    ``weight`` is its part of what the queues beside it leave, where it has one for each resource.
    """

    resource: QuotaResource
    unit: QuotaUnit
    amounts: Mapping[AmountKind, SourcedAmount]
    weight: float | None = None


def held_amount(unit: QuotaUnit, amounts: Amounts) -> SourcedAmount:
    """What the ledger shows, in the unit of a resource."""
    source = "the ledger" if unit.amount else "the ledger has no amount of this resource"
    return SourcedAmount(unit.of_ledger(amounts), source)


def driver_amount(unit: QuotaUnit, used: Amounts | None, *, is_measured: bool) -> SourcedAmount:
    """What the driver measured, in the unit of a resource."""
    source = "exporters" if is_measured else "no exporter was asked"
    return SourcedAmount(None if used is None else unit.of_ledger(used), source)
