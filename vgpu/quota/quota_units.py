"""What the resources of queues mean in the ledger: which amount, and how much one unit is; pure.

A quota counts names of resources, and the ledger counts GPUs, bytes and thousandths of cores. The
names of the sharing systems lead from one to the other, also through a transformation of Kueue:
its output stands for its input. A resource of no such name has no amount in the ledger.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Final

import msgspec

from vgpu.kube.kueue_kinds import CPU
from vgpu.model.units import MIB, MILLI_PER_PERCENT
from vgpu.quota.kueue_config import KueueConfig
from vgpu.quota.resources import CORES, GPUS, MEMORY, UNKNOWN_MEMORY
from vgpu.schemes.registry import UnitBytes, names_of
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO


class QuotaUnit(msgspec.Struct, frozen=True):
    """The unit of a resource.

    Attributes:
        text: for people.
        amount: the ledger's amount, one of :mod:`vgpu.quota.resources`; "" has none.
        size: how much of it one unit is.
    """

    text: str
    amount: str = ""
    size: Fraction = Fraction(1)

    def of_ledger(self, amounts: Mapping[str, int]) -> int | None:
        """An amount of the ledger in this unit, rounded up; None if it has not all of it."""
        if not self.amount or not self.size:
            return None
        if self.amount == MEMORY and amounts.get(UNKNOWN_MEMORY):
            return None
        return ceil(amounts.get(self.amount, 0) / self.size)


_MILLI_CPU: Final = QuotaUnit("thousandths of a CPU")
_BYTES: Final = QuotaUnit("bytes")
_UNITS: Final = QuotaUnit("units")
_NATIVE: Final = {CPU: _MILLI_CPU, "memory": _BYTES, "ephemeral-storage": _BYTES}


def quota_unit(resource: str, config: KueueConfig, unit_bytes: UnitBytes) -> QuotaUnit:
    """The unit of a quota's resource."""
    direct = _direct(resource, unit_bytes)
    if direct.amount:
        return direct
    for name, transformation in sorted(config.transformations.items()):
        ratio = transformation.outputs.get(resource)
        source = _direct(name, unit_bytes)
        if ratio and source.amount:
            text = source.text if ratio == 1 else f"{source.text} / {ratio}"
            return QuotaUnit(text, source.amount, source.size / ratio)
    return direct


def _direct(resource: str, unit_bytes: UnitBytes) -> QuotaUnit:
    for keys in (HAMI, VOLCANO):
        names = names_of(keys.name)
        if resource == names.count:
            return QuotaUnit("GPUs", GPUS)
        if resource == names.cores:
            return QuotaUnit("percent of a GPU's cores", CORES, Fraction(MILLI_PER_PERCENT))
        if resource == names.memory:
            return _memory(unit_bytes.get(keys.name) or MIB)
    if resource == names_of("gpushare").memory:
        size = unit_bytes.get("gpushare")
        return _memory(size) if size else _UNITS
    return _NATIVE.get(resource, _UNITS)


def _memory(size: int) -> QuotaUnit:
    text = "MiB" if size == MIB else f"units of {size // MIB} MiB"
    return QuotaUnit(text, MEMORY, Fraction(size))
