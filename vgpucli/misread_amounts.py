"""Amounts of memory in another unit than their resource counts, such as bytes for MiB. Pure."""

from collections.abc import Iterator
from typing import Final

from vgpu.model.objects import Pod
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB, MIB, MOST_DEVICE_MEMORY, rounded_size
from vgpu.schemes.registry import UnitBytes, registry

_DEFAULTS: Final = {"gpushare": GIB, "gaia": GAIA_MEMORY_BLOCK}
"""Bytes of a unit where the row has none; MiB of other systems."""

_TEXTS: Final = {MIB: "MiB", GIB: "GiB", GAIA_MEMORY_BLOCK: "blocks of 256 MiB"}


def misread_amounts(pod: Pod, units: UnitBytes) -> Iterator[tuple[str, str]]:
    """Amounts that no GPU has, each with what to write; ``units`` are by the row's name.

    An amount is taken for bytes if it is at least one unit of the resource that way.
    """
    systems = {names.memory: system for system, names in registry().names.items()}
    for container in pod.containers:
        for name, amount in container.limits.items():
            if name not in systems:
                continue
            unit = units.get(systems[name]) or _DEFAULTS.get(systems[name], MIB)
            unit_text = _TEXTS.get(unit, f"{unit} bytes")
            if amount * unit <= MOST_DEVICE_MEMORY:
                continue
            text = f"container {container.name}: {name} counts {unit_text}, and no GPU has {amount}"
            if amount < unit:
                yield text, f"write {name} in {unit_text}"
                continue
            text += f"; {rounded_size(amount)} are {amount // unit} {unit_text}"
            yield text, f"write {name}: {amount // unit}, which is {rounded_size(amount)}"
