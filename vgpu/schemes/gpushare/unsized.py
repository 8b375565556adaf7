"""gpushare's codec where the size of a unit of its memory is not set."""

from collections.abc import Mapping

from vgpu.model.allocation import Claim, Request, Share
from vgpu.model.objects import Pod
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.unsized import claim_without_memory, without_memory


class UnsizedGpushare(Gpushare, frozen=True):
    """Requests and shares of unknown memory."""

    def requests(self, pod: Pod) -> tuple[Request, ...]:
        """What each container requests. Raises ClaimError."""
        return without_memory(super().requests(pod))

    def claim(self, pod: Pod) -> Claim | None:
        """The claim in the annotations. Raises ClaimError."""
        return claim_without_memory(super().claim(pod))

    def answered(self, env: Mapping[str, str]) -> tuple[Share, ...]:
        """The share in the environment of the plugin's answer."""
        return without_memory(super().answered(env))
