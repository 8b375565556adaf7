"""The resources that a quota limits; pure.

Amounts of pods are kept by resource, as integers in the resource's own unit:

    ======================== ========================================================
    ``gpus``                 GPUs that containers see, of every sharing system
    ``memory``               bytes of GPU memory, of every GPU that containers see
    ``cores``                thousandths of a GPU's cores, likewise
    ``limits.<its name>``    what HAMi counts for its own quota: MiB of memory, percent of
                             cores, of every GPU that containers see
    any extended resource    units as Kubernetes counts them for a ResourceQuota: what
                             containers request, whatever the number of GPUs
    ======================== ========================================================
"""

from collections.abc import Callable, Mapping
from typing import Final

from vgpu.model.units import MIB, MILLI_PER_PERCENT, exact_size, percentage
from vgpu.schemes.registry import names_of

GPUS: Final = "gpus"
MEMORY: Final = "memory"
CORES: Final = "cores"

UNKNOWN_MEMORY: Final = "gpus of unknown memory"
"""Whole GPUs whose memory is not known: a sum with some is no amount of memory."""

OWN_RESOURCES: Final = (GPUS, MEMORY, CORES)
"""The resources that a Namespace's annotations limit."""

_LIMITS: Final = "limits."
"""How HAMi's entries of a ResourceQuota begin, which Kubernetes stores and does not count (HAMi,
``pkg/device/quota.go``); the name of the resource follows."""


def hami_memory() -> str:
    """HAMi's entry for memory, by the name in force."""
    return _LIMITS + names_of("hami").memory


def hami_cores() -> str:
    """HAMi's entry for cores, by the name in force."""
    return _LIMITS + names_of("hami").cores


Amounts = Mapping[str, int]
"""Amounts by resource."""


def plus(*amounts: Amounts) -> dict[str, int]:
    """The sums by resource."""
    sums = dict(amounts[0]) if amounts else {}
    for each in amounts[1:]:
        for resource, amount in each.items():
            sums[resource] = sums.get(resource, 0) + amount
    return sums


def amount_text(resource: str, amount: int, size: Callable[[int], str] = exact_size) -> str:
    """An amount for people; ``size`` is the text of bytes."""
    if resource == MEMORY:
        return size(amount)
    if resource == hami_memory():
        return size(amount * MIB)
    if resource == CORES:
        return percentage(amount)
    if resource == hami_cores():
        return percentage(amount * MILLI_PER_PERCENT)
    return str(amount)
