"""Volcano's codec where the size of a unit of its memory is not set."""

from vgpu.model.allocation import Claim, Device, Request
from vgpu.model.objects import Node, Pod
from vgpu.schemes.unsized import claim_without_memory, without_memory
from vgpu.schemes.volcano.codec import Volcano


class UnsizedVolcano(Volcano, frozen=True):
    """All amounts of memory are unknown."""

    def requests(self, pod: Pod) -> tuple[Request, ...]:
        """What each container requests. Raises ClaimError."""
        return without_memory(super().requests(pod))

    def claim(self, pod: Pod) -> Claim | None:
        """The claim in the annotations. Raises ClaimError."""
        return claim_without_memory(super().claim(pod))

    def devices(self, node: Node) -> tuple[Device, ...]:
        """The registered GPUs. Raises ClaimError."""
        return without_memory(super().devices(node))
