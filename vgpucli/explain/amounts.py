"""Amounts of memory in another unit than their resource counts, such as bytes for MiB. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from vgpu.model.objects import Pod
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB, MIB, MOST_DEVICE_MEMORY, rounded_size
from vgpu.schemes.gaia.node import MEMORY as GAIA_MEMORY
from vgpu.schemes.gpushare.node import MEMORY as GPUSHARE_MEMORY
from vgpu.schemes.registry import UnitBytes
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO

_ROWS: Final[Mapping[str, str]] = {
    HAMI.memory: "hami",
    VOLCANO.memory: "volcano",
    GPUSHARE_MEMORY: "gpushare",
    GAIA_MEMORY: "gaia",
}
"""Each resource of memory with the name of its system's row."""

_DEFAULTS: Final = {GPUSHARE_MEMORY: GIB, GAIA_MEMORY: GAIA_MEMORY_BLOCK}
"""Bytes of a unit where the row has none; MiB of other resources."""

_TEXTS: Final = {MIB: "MiB", GIB: "GiB", GAIA_MEMORY_BLOCK: "blocks of 256 MiB"}


def misread_amounts(pod: Pod, units: UnitBytes) -> Iterator[tuple[str, str]]:
    """Amounts that no GPU has, each with what to write; ``units`` are by the row's name.

    An amount is taken for bytes if it is at least one unit of the resource that way.
    """
    for container in pod.containers:
        for name, amount in container.limits.items():
            if name not in _ROWS:
                continue
            unit = units.get(_ROWS[name]) or _DEFAULTS.get(name, MIB)
            unit_text = _TEXTS.get(unit, f"{unit} bytes")
            if amount * unit <= MOST_DEVICE_MEMORY:
                continue
            text = f"container {container.name}: {name} counts {unit_text}, and no GPU has {amount}"
            if amount < unit:
                yield text, f"write {name} in {unit_text}"
                continue
            text += f"; {rounded_size(amount)} are {amount // unit} {unit_text}"
            yield text, f"write {name}: {amount // unit}, which is {rounded_size(amount)}"
