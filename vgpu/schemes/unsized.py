"""Claims, requests and devices of unknown memory: the size of a unit of it is not set."""

from typing import TypeVar

from msgspec import structs

from vgpu.model.allocation import Claim, Device, Request, Share

_Sized = TypeVar("_Sized", Request, Share, Device)


def without_memory(values: tuple[_Sized, ...]) -> tuple[_Sized, ...]:
    """The same values, with unknown memory."""
    return tuple(structs.replace(value, memory_bytes=None) for value in values)


def claim_without_memory(claim: Claim | None) -> Claim | None:
    """The same claim, with unknown memory in all its shares."""
    return claim and structs.replace(
        claim,
        allocations=tuple(
            structs.replace(allocation, shares=without_memory(allocation.shares))
            for allocation in claim.allocations
        ),
    )
