"""Amounts of memory in another unit than their resource counts, such as bytes for MiB. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from vgpu.model.objects import Pod
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB, MIB, MOST_DEVICE_MEMORY, rounded_size
from vgpu.schemes.gaia.node import MEMORY as GAIA_MEMORY
from vgpu.schemes.gpushare.node import MEMORY as GPUSHARE_MEMORY
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO

_UNITS: Final[Mapping[str, tuple[int, str]]] = {
    HAMI.memory: (MIB, "MiB"),
    VOLCANO.memory: (MIB, "MiB"),
    GPUSHARE_MEMORY: (GIB, "GiB"),
    GAIA_MEMORY: (GAIA_MEMORY_BLOCK, "blocks of 256 MiB"),
}
"""The bytes of one unit of a resource of memory, and the unit for people."""


def misread_amounts(pod: Pod) -> Iterator[tuple[str, str]]:
    """Amounts that no GPU has, each with what to write.

    An amount is taken for bytes if it is at least one unit of the resource that way.
    """
    for container in pod.containers:
        for name, amount in container.limits.items():
            if name not in _UNITS:
                continue
            unit, unit_text = _UNITS[name]
            if amount * unit <= MOST_DEVICE_MEMORY:
                continue
            text = f"container {container.name}: {name} counts {unit_text}, and no GPU has {amount}"
            if amount < unit:
                yield text, f"write {name} in {unit_text}"
                continue
            text += f"; {rounded_size(amount)} are {amount // unit} {unit_text}"
            yield text, f"write {name}: {amount // unit}, which is {rounded_size(amount)}"
