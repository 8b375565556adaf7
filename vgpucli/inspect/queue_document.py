"""The document of ``vgpu inspect --by queue``."""

from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType


class AmountDocument(msgspec.Struct, frozen=True, rename="camel"):
    """One amount; ``value`` is null if it is unknown, or if there is none."""

    value: int | None
    unit: str
    source: str


class QuotaDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The amounts of one resource; ``flavor`` is "" where it is unknown, or may be any.

    ``limit`` is the most that the queue can have, ``used`` what its system counts, ``held`` what
    the ledger shows, ``driver`` what exporters measured, ``guaranteed`` what nobody else may take.
    A queue of KAI Scheduler also has ``requested`` and ``over_quota_weight``.
    """

    flavor: str
    resource: str
    limit: AmountDocument
    nominal: AmountDocument
    borrowed: AmountDocument
    lent: AmountDocument
    used: AmountDocument
    held: AmountDocument
    driver: AmountDocument
    waiting: AmountDocument
    guaranteed: AmountDocument
    requested: AmountDocument | UnsetType = UNSET
    over_quota_weight: float | UnsetType | None = UNSET


class QueueDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A node of the tree; ``parent`` is "" of a root, ``inactive`` is "" of one that admits."""

    kind: str
    name: str
    system: str
    parent: str
    depth: int
    inactive: str
    waiting_workloads: int
    quotas: list[QuotaDocument]


class QueueFindingDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A finding; ``object`` is "" of the line about further ones."""

    code: str
    object: str
    text: str
    runbook: str


class QueuesDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The whole document; a queue follows what is above it."""

    api_version: str
    kind: str
    as_of: datetime
    system: str
    queues: list[QueueDocument]
    findings: list[QueueFindingDocument]
    remarks: list[str]
    notes: list[str]
