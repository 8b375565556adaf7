"""Device IDs of NVIDIA's device plugin, distinguished from HAMi's by their form. Pure.

Both plugins register ``nvidia.com/gpu``, and entries of the one stay in the kubelet's checkpoint
after the other was installed: one resource may have both kinds of ID. NVIDIA's plugin
(k8s-device-plugin 0.12 to 0.20, ``internal/rm/devices.go``) allocates the device that the ID names.
HAMi's and Volcano's append ``-<n>`` and allocate what the scheduler's annotation names.
"""

import re
from typing import Final

import msgspec

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_OWN: Final = re.compile(
    rf"(?P<device>(?:GPU|MIG)-{_UUID}|MIG-GPU-{_UUID}/[0-9]{{1,4}}/[0-9]{{1,4}})"
    r"(?:::(?P<replica>[0-9]{1,6}))?"
)
_COUNTED: Final = re.compile(r".*-[0-9]+")


class DeviceId(msgspec.Struct, frozen=True, gc=False):
    """What an ID names.

    Attributes:
        device: the UUID of a GPU or MIG instance; ``MIG-GPU-<uuid>/<gi>/<ci>`` of drivers before
            R470 names the instance by its parent and its IDs.
        replica: the number of the replica; None for the whole device.
    """

    device: str
    replica: int | None = None

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance, or a replica of one."""
        return self.device.startswith("MIG-")


def parse_device_id(text: str) -> DeviceId | None:
    """The device that an ID of NVIDIA's plugin names; None for an ID of any other form."""
    matched = _OWN.fullmatch(text)
    if matched is None:
        return None
    replica = matched["replica"]
    return DeviceId(matched["device"], None if replica is None else int(replica))


def is_counted(text: str) -> bool:
    """Whether an ID has the form of HAMi's and Volcano's: a device's name, then ``-<n>``."""
    return parse_device_id(text) is None and _COUNTED.fullmatch(text) is not None


def legacy_instance(parent: str, gpu_instance: str, compute_instance: str) -> str:
    """The name of a MIG instance in drivers before R470."""
    return f"MIG-{parent}/{gpu_instance}/{compute_instance}"
