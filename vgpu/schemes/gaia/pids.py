"""gpu-manager's ``pids.config``: the host's pids of one container, for the library ``vcuda``.

32-bit little-endian integers without a header, at most 1024 (vcuda-controller
``include/hijack.h``, MAX_PIDS), beside ``vcuda.config``. The library finds its own by binary
search, so they must ascend; gpu-manager writes them as they come.
"""

import struct
from collections.abc import Iterable

from vgpu.model.reasons import Reason, SourceError

MOST_PIDS = 1024
PIDS_LIMIT = 4 * MOST_PIDS
"""Maximum size of the file, in bytes."""

_MOST_PID = 2**31 - 1


def decode(content: bytes, object_name: str = "pids.config") -> tuple[int, ...]:
    """The pids, each once and ascending, however gpu-manager left them.

    Raises SourceError MALFORMED.
    """
    if len(content) % 4 or len(content) > PIDS_LIMIT:
        detail = f"{len(content)} bytes are not 0 to {MOST_PIDS} pids"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    pids = struct.unpack(f"<{len(content) // 4}i", content)
    return _checked(pids, object_name)


def encode(pids: Iterable[int], object_name: str = "pids.config") -> bytes:
    """The file's bytes, sorted. Raises SourceError MALFORMED for what is no pid, and too many."""
    checked = _checked(pids, object_name)
    return struct.pack(f"<{len(checked)}i", *checked)


def _checked(pids: Iterable[int], object_name: str) -> tuple[int, ...]:
    ascending = tuple(sorted(set(pids)))
    if len(ascending) > MOST_PIDS:
        raise SourceError(Reason.MALFORMED, object_name, f"{len(ascending)} pids, over {MOST_PIDS}")
    if ascending and not (ascending[0] > 0 and ascending[-1] <= _MOST_PID):
        detail = f"no pids: {ascending[0]} to {ascending[-1]}"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    return ascending
