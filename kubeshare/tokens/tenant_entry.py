"""A tenant of a GPU as the files name it. Pure."""

import msgspec

from vgpu.schemes.kubeshare.gemini_config import SharedPod, joined_name


class TenantEntry(msgspec.Struct, frozen=True):
    """A pod with its port.

    Attributes:
        uuid: its GPU.
        namespace, pod: its name.
        port: the port through which its processes come.
        share: its share; None while only its port is known.
        key: its name in messages, where ``namespace/pod`` is too long for them.
        addresses: those from which its processes come; empty if they are unknown.
    """

    uuid: str
    namespace: str
    pod: str
    port: int
    share: SharedPod | None
    key: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``namespace/pod``, or its key while its name is unknown."""
        return joined_name(self.namespace, self.pod)
