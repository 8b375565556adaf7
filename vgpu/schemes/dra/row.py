"""The registry's row of dynamic resource allocation.

Who holds which device is in ResourceClaims, which the kubelet reports: :mod:`vgpu.ledger.from_dra`.
"""

from typing import Final

from vgpu.model.names import Scheme
from vgpu.model.objects import Node
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.observed_codec import ObservedCodec
from vgpu.schemes.row import KeyPrefixes, NodeEvidence, SchemeRow


def _codec(_: int | None) -> SchemeCodec:
    return ObservedCodec(Scheme.DRA.value)


def _registers_none(_: Node) -> bool:
    """False: devices are in ResourceSlices, and not in the Node object."""
    return False


DRA_ROW: Final = SchemeRow(
    name=Scheme.DRA.value,
    scheme=Scheme.DRA,
    codec=_codec,
    has_devices=_registers_none,
    keys=KeyPrefixes(),
    evidence=NodeEvidence(resource_claim_roots=("/usr/local/vgpu/claims",)),  # HAMi's driver
    has_allocate=False,  # the driver prepares a ResourceClaim
)
