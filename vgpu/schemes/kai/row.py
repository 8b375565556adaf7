"""The registry's row of KAI Scheduler, which is only observed.

Who holds which GPU is in several objects, which :mod:`vgpu.schemes.kai.groups` joins. The isolator
(Project-HAMi/KAI-resource-isolator) leaves regions where HAMi has them.
"""

from typing import Final

from vgpu.model.objects import Node
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.kai.groups import is_reservation, resolved
from vgpu.schemes.kai.keys import (
    CONFIG_MAP,
    FRACTION,
    KAI,
    MEMORY,
    RECEIVED,
    RESERVED_GPU,
)
from vgpu.schemes.limit_ways import KAI as KAI_WAY
from vgpu.schemes.observed_codec import ObservedCodec
from vgpu.schemes.row import KeyPrefixes, SchemeRow


def _codec(_: int | None) -> SchemeCodec:
    return ObservedCodec(KAI.value)


def _registers_none(_: Node) -> bool:
    """KAI counts the units of NVIDIA's device plugin, and registers nothing itself."""
    return False


KAI_ROW: Final = SchemeRow(
    name=KAI.value,
    scheme=KAI,
    codec=_codec,
    has_devices=_registers_none,
    keys=KeyPrefixes(kept=(FRACTION, MEMORY, RECEIVED, CONFIG_MAP, RESERVED_GPU)),
    shares_cores=False,
    has_allocate=False,  # the binder names the GPU, and the kubelet allocates nothing to a tenant
    keeps_for_others=is_reservation,
    is_reservation=is_reservation,
    resolve=resolved,
    limit_way=KAI_WAY,
)
