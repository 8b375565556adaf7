"""The results in the status of a ResourceClaim; pure.

Kubernetes gives every result of a device that allows several allocations a share ID and the amounts
that it consumes of the device's capacities. A device without a share ID is allocated as a whole.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from vgpu.kube import wire
from vgpu.kube.quantities import whole
from vgpu.model import AllocatedDevice
from vgpu.units import WHOLE_DEVICE_MILLI

MEMORY: Final = "memory"
"""The capacity that is a GPU's memory, of every driver that has one."""

CORES: Final[Mapping[str, str]] = {
    "gpu.example.com": "compute",
    "hami-core-gpu.project-hami.io": "cores",
}
"""The capacity that is a GPU's cores, in percent, by driver."""


def allocated_devices(status: wire.ClaimStatus) -> Iterator[AllocatedDevice]:
    """The results, in their order."""
    devices = status.allocation.devices if status.allocation else None
    for result in (devices.results if devices else None) or ():
        consumed = _own(result.driver, result.consumed_capacity or {})
        percent = consumed.get(CORES.get(result.driver, ""))
        is_whole = not result.share_id
        yield AllocatedDevice(
            request=result.request,
            driver=result.driver,
            pool=result.pool,
            device=result.device,
            share_id=result.share_id or "",
            memory_bytes=None if is_whole else consumed.get(MEMORY),
            cores_milli=WHOLE_DEVICE_MILLI
            if is_whole
            else None
            if percent is None
            else percent * WHOLE_DEVICE_MILLI // 100,
            admin=bool(result.admin_access),
        )


def _own(driver: str, consumed: Mapping[str, wire.Quantity]) -> dict[str, int]:
    """The amounts of the driver's own capacities; a name without a domain is the driver's.

    A quantity that is no whole number is left out.
    """
    amounts: dict[str, int] = {}
    for name, quantity in consumed.items():
        domain, slash, short = name.rpartition("/")
        amount = whole(str(quantity))
        if amount is not None and (not slash or domain == driver):
            amounts[short] = amount
    return amounts
