"""The sharing systems' codecs with the units of this node's operator.

What a unit of memory means is set by the operator and never guessed: of a system whose unit is not
set, amounts that count in it are unknown.
"""

from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.registry import registry


def codecs(
    gpushare_unit_bytes: int | None, volcano_unit_bytes: int | None
) -> tuple[SchemeCodec, ...]:
    """All codecs; the units are of aliyun.com/gpu-mem and of volcano.sh/vgpu-memory."""
    return registry().codecs({"gpushare": gpushare_unit_bytes, "volcano": volcano_unit_bytes})
