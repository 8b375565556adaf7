"""Who a tenant of a GPU is, by its own file beside Gemini's, and its entry in the token daemon.

Gemini's files name a tenant by what its processes send, and have neither its addresses nor, where
``namespace/pod`` is too long for Gemini's messages, its name. The file ``tenants/<UUID>`` of
``/kubeshare/scheduler`` is JSON:

    {"version": 1, "tenants": [{"key": "ns/a", "namespace": "ns", "pod": "a",
                                "addresses": ["10.0.0.7"]}]}
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

import msgspec

from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.kubeshare.gemini_config import SharedPod, joined_name

TENANTS: Final = "tenants"
"""The folder of these files, beside ``config`` and ``podmanagerport``."""

IDENTITIES_LIMIT: Final = 1024 * 1024
"""Maximum size of such a file, in bytes."""

_VERSION: Final = 1
_MOST_ADDRESSES: Final = 16
_MOST_TENANTS: Final = 1024


class TenantIdentity(msgspec.Struct, frozen=True, order=True):
    """A tenant.

    Attributes:
        key: its name in Gemini's files and messages.
        namespace, pod: its name.
        addresses: its pod's, as the pod's status has them; empty if they are unknown.
    """

    key: str
    namespace: str
    pod: str
    addresses: tuple[str, ...] = ()


class _File(msgspec.Struct):
    version: int
    tenants: tuple[TenantIdentity, ...]


_DECODER: Final = msgspec.json.Decoder(_File)


def format_identities(tenants: Iterable[TenantIdentity]) -> bytes:
    """The file of a GPU's tenants, in their order."""
    return msgspec.json.encode(_File(_VERSION, tuple(tenants))) + b"\n"


def parse_identities(content: bytes, object_name: str = "tenants") -> tuple[TenantIdentity, ...]:
    """The file of a GPU's tenants. Raises SourceError MALFORMED."""
    try:
        file = _DECODER.decode(content)
    except msgspec.MsgspecError as error:
        raise SourceError(Reason.MALFORMED, object_name, str(error)) from error
    if file.version != _VERSION or len(file.tenants) > _MOST_TENANTS:
        detail = f"version {file.version}, {len(file.tenants)} tenants"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    return tuple(
        msgspec.structs.replace(each, addresses=addresses(each.addresses)) for each in file.tenants
    )


def addresses(texts: Iterable[object]) -> tuple[str, ...]:
    """The addresses among some values, as the kernel writes them, sorted."""
    found: set[str] = set()
    for text in texts:
        try:
            found.add(str(ipaddress.ip_address(text)) if isinstance(text, str) else "")
        except ValueError:
            continue
    return tuple(sorted(found - {""})[:_MOST_ADDRESSES])


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
