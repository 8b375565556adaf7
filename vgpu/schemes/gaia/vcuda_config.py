"""The files of gpu-manager's library ``vcuda`` in one container: its limits, and its pids.

``vcuda.config`` is a C struct of exactly 8240 bytes, little-endian, aligned to 8 (vcuda-controller
``include/hijack.h``), at ``/etc/gpu-manager/vm/<podUID>/<containerID>/vcuda.config``. The file is
mode 0777, so nothing in it is trusted before it is checked.

``pids.config`` beside it has the host's pids of the container: 32-bit little-endian integers
without a header, at most 1024 (MAX_PIDS). The library finds its own by binary search, so they must
ascend; gpu-manager writes them as they come.
"""

import re
import struct
from collections.abc import Iterable

import msgspec

from vgpu.model.reasons import Reason, SourceError

VCUDA_CONFIG = "vcuda.config"
"""The file's name."""

CONFIG_SIZE = 8240

_CONFIG = struct.Struct("<48si4044x4096s16sQiiiii4x")
assert _CONFIG.size == CONFIG_SIZE  # noqa: S101  # the format string against the contract

MOST_CORES = 100 * 64
"""Percent; a container of 64 whole GPUs. What is above was not written by gpu-manager."""

MOST_MEMORY = 2**53
"""Maximum memory in bytes; no GPUs together have that much."""

_CONTAINER = re.compile(r"(?:[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)?")  # a DNS label, or unknown
_BUS_ID = re.compile(r"(?:[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])?")


class VcudaConfig(msgspec.Struct, frozen=True, gc=False):
    """The struct's fields, under their C names where these are clear.

    Attributes:
        pod_uid: the pod.
        limit_percent: the soft core limit (annotation vcuda-core-limit).
        container: the container's name.
        bus_id: the GPU, like ``0000:3b:00.0``.
        memory_bytes: the memory limit; blocks of 256 MiB by construction.
        utilization_percent: the cores requested; a multiple of 100 for whole GPUs.
        hard_limit: whether the request is the limit; else ``limit_percent`` is.
        driver: driver version, major and minor.
        enable: whether anything is enforced; false for whole GPUs.
    """

    pod_uid: str
    limit_percent: int
    container: str
    bus_id: str
    memory_bytes: int
    utilization_percent: int
    hard_limit: bool
    driver: tuple[int, int]
    enable: bool

    @property
    def cores_limit_percent(self) -> int:
        """The core limit in force while ``enable`` is set."""
        return self.utilization_percent if self.hard_limit else self.limit_percent


def decode(content: bytes, object_name: str = "vcuda.config") -> VcudaConfig:
    """The config in these bytes; what follows a string's NUL is not looked at.

    Raises SourceError: MALFORMED.
    """
    if len(content) != CONFIG_SIZE:
        detail = f"{len(content)} bytes, not {CONFIG_SIZE}"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    pod_uid, limit, container, bus_id, memory, utilization, hard, major, minor, enable = (
        _CONFIG.unpack(content)
    )
    if not (0 <= limit <= MOST_CORES and 0 <= utilization <= MOST_CORES):
        detail = f"cores outside 0..{MOST_CORES}: {limit}, {utilization}"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    if memory > MOST_MEMORY:
        raise SourceError(Reason.MALFORMED, object_name, f"memory limit of {memory} bytes")
    name = _text(container, object_name)
    if not _CONTAINER.fullmatch(name):
        raise SourceError(Reason.MALFORMED, object_name, f"no container is named {name[:64]!r}")
    bus_text = _text(bus_id, object_name)
    if not _BUS_ID.fullmatch(bus_text):
        raise SourceError(Reason.MALFORMED, object_name, f"bus id {bus_text!r}")
    return VcudaConfig(
        pod_uid=_text(pod_uid, object_name),
        limit_percent=limit,
        container=name,
        bus_id=bus_text,
        memory_bytes=memory,
        utilization_percent=utilization,
        hard_limit=hard != 0,
        driver=(major, minor),
        enable=enable != 0,
    )


def encode(config: VcudaConfig) -> bytes:
    """The file's 8240 bytes. Raises SourceError MALFORMED for what does not fit its field."""
    texts = [
        _field(text, size)
        for text, size in ((config.pod_uid, 48), (config.container, 4096), (config.bus_id, 16))
    ]
    try:
        return _CONFIG.pack(
            texts[0],
            config.limit_percent,
            texts[1],
            texts[2],
            config.memory_bytes,
            config.utilization_percent,
            config.hard_limit,
            *config.driver,
            config.enable,
        )
    except struct.error as error:
        raise SourceError(Reason.MALFORMED, "vcuda.config", str(error)) from error


def _text(field: bytes, object_name: str) -> str:
    """The C string in a field that it may fill to the last byte."""
    text = field.partition(b"\0")[0]
    if not text.isascii() or not (shown := text.decode()).isprintable():
        raise SourceError(Reason.MALFORMED, object_name, f"not a name: {text[:32]!r}")
    return shown


def _field(text: str, size: int) -> bytes:
    """A C string for a field of ``size`` bytes, for reading by :func:`_text`."""
    content = text.encode()
    if len(content) > size or not text.isprintable() or not content.isascii():
        raise SourceError(Reason.MALFORMED, "vcuda.config", f"not a name: {text[:32]!r}")
    return content


MOST_PIDS = 1024
PIDS_LIMIT = 4 * MOST_PIDS
"""Maximum size of the file, in bytes."""

_MOST_PID = 2**31 - 1


def decode_pids(content: bytes, object_name: str = "pids.config") -> tuple[int, ...]:
    """The pids, each once and ascending, however gpu-manager left them.

    Raises SourceError MALFORMED.
    """
    if len(content) % 4 or len(content) > PIDS_LIMIT:
        detail = f"{len(content)} bytes are not 0 to {MOST_PIDS} pids"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    pids = struct.unpack(f"<{len(content) // 4}i", content)
    return _checked_pids(pids, object_name)


def encode_pids(pids: Iterable[int], object_name: str = "pids.config") -> bytes:
    """The file's bytes, sorted. Raises SourceError MALFORMED for what is no pid, and too many."""
    checked = _checked_pids(pids, object_name)
    return struct.pack(f"<{len(checked)}i", *checked)


def _checked_pids(pids: Iterable[int], object_name: str) -> tuple[int, ...]:
    ascending = tuple(sorted(set(pids)))
    if len(ascending) > MOST_PIDS:
        raise SourceError(Reason.MALFORMED, object_name, f"{len(ascending)} pids, over {MOST_PIDS}")
    if ascending and not (ascending[0] > 0 and ascending[-1] <= _MOST_PID):
        detail = f"no pids: {ascending[0]} to {ascending[-1]}"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    return ascending
