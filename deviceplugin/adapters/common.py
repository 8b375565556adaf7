"""Functions that several adapters use."""

from collections.abc import Iterable, Mapping

from deviceplugin.scheme_adapter import AnnotationPatch
from vgpu.ledger.from_node import devices_of
from vgpu.model.allocation import Device
from vgpu.model.facts import Gpu


def gpu_devices(gpus: Iterable[Gpu]) -> tuple[Device, ...]:
    """The GPUs that can be shared, by index: their memory is known, and MIG does not cut them."""
    gpus = tuple(gpus)
    cut = {gpu.parent for gpu in gpus}
    whole = (
        gpu
        for gpu in gpus
        if not gpu.parent and gpu.uuid not in cut and not gpu.readings.get(("mig_mode",))
    )
    known = (device for device in devices_of(whole) if device.memory_bytes)
    return tuple(sorted(known, key=lambda device: device.index or 0))


def lagging(current: Mapping[str, str], wanted: AnnotationPatch) -> AnnotationPatch:
    """The part of ``wanted`` that differs from the annotations or labels of now."""
    return {key: text for key, text in wanted.items() if current.get(key) != text}
