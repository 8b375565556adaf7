"""The registry's row of dynamic resource allocation."""

from typing import Final

from vgpu.kube.objects import Node
from vgpu.model import Scheme
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.dra.codec import Dra
from vgpu.schemes.row import KeyPrefixes, SchemeRow


def _codec(_: int | None) -> SchemeCodec:
    return Dra()


def _has_devices(_: Node) -> bool:
    """False: devices are in ResourceSlices, and not in the Node object."""
    return False


DRA_ROW: Final = SchemeRow(
    name="dra",
    scheme=Scheme.DRA,
    codec=_codec,
    has_devices=_has_devices,
    keys=KeyPrefixes(),
    has_allocate=False,  # the driver prepares a ResourceClaim
)
