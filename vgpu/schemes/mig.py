"""Names of slots of a GPU in MIG mode where no instance has a UUID yet. Pure.

Volcano's scheduler names one ``<UUID>[<group>-<position>]``.
"""

import re

_DEVICE = re.compile(
    r"(?P<card>[A-Za-z0-9_./-]{1,96})"
    r"(?:\[(?P<group>[A-Za-z0-9_.]{1,64})-(?P<position>[0-9]{1,4})\])?"
)


def is_device(text: str) -> bool:
    """Whether it can name a device: a UUID, or a MIG slot as ``GPU-<uuid>[<group>-<position>]``."""
    return _DEVICE.fullmatch(text) is not None


def physical(device: str) -> str:
    """The GPU or MIG instance behind a device's name: what is in front of a MIG slot's bracket."""
    match = _DEVICE.fullmatch(device) if "[" in device else None
    return match["card"] if match else device


def mig_slot(device: str) -> tuple[str, int] | None:
    """Group and position of a MIG slot's name; None for any other device."""
    match = _DEVICE.fullmatch(device) if "[" in device else None
    return (match["group"], int(match["position"])) if match and match["group"] else None
