"""The limits of MPS that processes have set for themselves, from their environment.

Reading ``/proc/<pid>/environ`` needs SYS_PTRACE. An environment often holds secrets: only the two
variables of MPS are decoded, and nothing else of it is kept.
"""

import errno
import os
from collections.abc import Callable, Iterable
from typing import Final

from vgpu.model.facts import MpsClientLimits
from vgpu.model.reasons import Rejection
from vgpu.schemes.nvidia.mps import client_limits
from vgpu.sources.files import translated

MAX_ENVIRON_BYTES: Final = 256 * 1024
"""Maximum number of bytes that are read of an environment: the rest is ignored."""


class MpsClients:
    """The environments of the processes of one procfs. One thread uses it."""

    def __init__(self, procfs: str) -> None:
        self._procfs = procfs
        self._limits: dict[int, MpsClientLimits] = {}

    def sample(
        self, pids: Iterable[int], is_same: Callable[[int], bool], rejections: list[Rejection]
    ) -> dict[int, MpsClientLimits]:
        """The limits by pid; a process that is gone has no entry.

        ``is_same`` is whether a pid has been one process since the sample before: an environment
        is what the process was started with, so it is read once.
        """
        before, self._limits = self._limits, {}
        for pid in pids:
            if pid in before and is_same(pid):
                self._limits[pid] = before[pid]
                continue
            path = f"{self._procfs}/{pid}/environ"
            try:
                self._limits[pid] = client_limits(_read(path))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESRCH):
                    rejections.append(translated(error, path).rejection())
        return self._limits


def _read(path: str) -> bytes:
    """The environment, up to the last whole variable of its first part. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while len(content) < MAX_ENVIRON_BYTES:
            part = os.read(fd, MAX_ENVIRON_BYTES - len(content))
            if not part:
                return content
            content += part
        return content[: content.rfind(b"\0") + 1]
    finally:
        os.close(fd)
