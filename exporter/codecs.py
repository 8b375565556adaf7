"""The sharing systems' languages as this node's operator has set them up.

What a unit of memory means is told by the operator and never guessed: of a language whose unit is
not told, amounts that count in it are unknown.
"""

from typing import TypeVar

import msgspec

from vgpu.kube.objects import Node, Pod
from vgpu.model import Claim, Device, Request, Share
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.volcano.codec import HAMI, Volcano
from vgpu.units import MIB

_Sized = TypeVar("_Sized", Request, Share, Device)


def codecs(
    gpushare_unit_bytes: int | None, volcano_unit_bytes: int | None
) -> tuple[SchemeCodec, ...]:
    """All languages; the units are of aliyun.com/gpu-mem and of volcano.sh/vgpu-memory.

    HAMi counts in MiB wherever it does not say otherwise.
    """
    return (
        Volcano(memory_factor=volcano_unit_bytes // MIB) if volcano_unit_bytes else _Volcano(),
        Volcano(HAMI),
        Gpushare(gpushare_unit_bytes) if gpushare_unit_bytes else _Gpushare(),
        Gaia(),
        KubeShare(),
    )


class _Volcano(Volcano, frozen=True):
    def requests(self, pod: Pod) -> tuple[Request, ...]:
        return _without_memory(super().requests(pod))

    def claim(self, pod: Pod) -> Claim | None:
        return _claim_without_memory(super().claim(pod))

    def devices(self, node: Node) -> tuple[Device, ...]:
        return _without_memory(super().devices(node))


class _Gpushare(Gpushare, frozen=True):
    def requests(self, pod: Pod) -> tuple[Request, ...]:
        return _without_memory(super().requests(pod))

    def claim(self, pod: Pod) -> Claim | None:
        return _claim_without_memory(super().claim(pod))


def _without_memory(each: tuple[_Sized, ...]) -> tuple[_Sized, ...]:
    return tuple(msgspec.structs.replace(one, memory_bytes=None) for one in each)


def _claim_without_memory(claim: Claim | None) -> Claim | None:
    return claim and msgspec.structs.replace(
        claim,
        allocations=tuple(
            msgspec.structs.replace(allocation, shares=_without_memory(allocation.shares))
            for allocation in claim.allocations
        ),
    )
