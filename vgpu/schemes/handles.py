"""Further names of GPUs, which a sharing system makes up while they are in use. Pure."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from vgpu.model.allocation import Device


def with_handles(devices: Iterable[Device], uuids: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices, each with the GPUIDs whose UUID is its own; ``uuids`` is by GPUID."""
    gpuids: dict[str, list[str]] = {}
    for gpuid, uuid in sorted(uuids.items()):
        gpuids.setdefault(uuid, []).append(gpuid)
    return tuple(
        structs.replace(device, handles=(*device.handles, *gpuids.get(device.uuid, ())))
        for device in devices
    )
