"""Amounts of memory in another unit than their resource counts, such as bytes for MiB. Pure."""

from collections.abc import Iterator
from typing import Final

from vgpu.model.objects import Pod
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB, MIB, MOST_DEVICE_MEMORY, rounded_size
from vgpu.schemes.registry import UnitBytes, registry

_FIXED: Final = {"gaia": GAIA_MEMORY_BLOCK}
"""Bytes of a unit that no operator chooses."""

_DEFAULTS: Final = {"gpushare": GIB}
"""Bytes of a unit where the operator's is not known; MiB of other systems."""

_TEXTS: Final = {MIB: "MiB", GIB: "GiB", GAIA_MEMORY_BLOCK: "blocks of 256 MiB"}


def memory_unit(system: str, units: UnitBytes) -> int:
    """Bytes of one unit of a system's memory in requests; ``units`` are by the row's name."""
    return _FIXED.get(system) or units.get(system) or _DEFAULTS.get(system, MIB)


def misread_amounts(pod: Pod, units: UnitBytes) -> Iterator[tuple[str, str]]:
    """Amounts that no GPU has, each with what to write; ``units`` are by the row's name.

    An amount is taken for bytes if it is at least one unit of the resource that way.
    """
    systems = {names.memory: system for system, names in registry().names.items()}
    for container in pod.containers:
        for name, amount in container.limits.items():
            if name not in systems:
                continue
            unit = memory_unit(systems[name], units)
            unit_text = _TEXTS.get(unit, f"{unit} bytes")
            if amount * unit <= MOST_DEVICE_MEMORY:
                continue
            text = f"container {container.name}: {name} counts {unit_text}, and no GPU has {amount}"
            if amount < unit:
                yield text, f"write {name} in {unit_text}"
                continue
            needed = -(-amount // unit)
            size = rounded_size(needed * unit)
            text += f"; {rounded_size(amount)} need {needed} {unit_text}"
            yield text, f"write {name}: {needed}, which is {size}"
