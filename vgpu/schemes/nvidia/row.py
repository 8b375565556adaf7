"""The registry's row of NVIDIA's own device plugin."""

from typing import Final

from vgpu.model.objects import Node
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.nvidia.grant import NVIDIA, named_devices
from vgpu.schemes.observed_codec import ObservedCodec
from vgpu.schemes.row import KeyPrefixes, SchemeRow


def _codec(_: int | None) -> SchemeCodec:
    return ObservedCodec(NVIDIA.value)


def _registers_none(_: Node) -> bool:
    """The plugin registers its GPUs with the kubelet, and none on the Node object."""
    return False


NVIDIA_ROW: Final = SchemeRow(
    name=NVIDIA.value,
    scheme=NVIDIA,
    codec=_codec,
    has_devices=_registers_none,
    keys=KeyPrefixes(),
    shares_cores=False,
    has_allocate=False,
    named_devices=named_devices,
)
