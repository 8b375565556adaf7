"""A tenant of a GPU as Gemini's files name it. Pure."""

import msgspec

from vgpu.schemes.kubeshare.gemini_config import SharedPod


class TenantEntry(msgspec.Struct, frozen=True):
    """A pod with its port; its share is None while only its port is known."""

    uuid: str
    namespace: str
    pod: str
    port: int
    share: SharedPod | None

    @property
    def name(self) -> str:
        """The name by which its processes report: ``namespace/pod``."""
        return f"{self.namespace}/{self.pod}"
