"""The limits of MPS as NVIDIA's device plugin has configured them, from its daemons' log files.

The plugin has one control daemon for each shared resource, with its files in
``<root>/<resource>/``: ``.started`` once the limits are set, and ``log/control.log``. No tenant can
write there: containers get ``pipe`` and ``shm`` alone. The log is never rotated, so that each
sample reads only what was added, and at most a part of it.
"""

import errno
import os
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from vgpu.model.facts import MpsClientLimits, MpsLimits
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.schemes.nvidia.mps import MpsControl, client_limits
from vgpu.sources.files import exists, list_folder, read_part, translated

DEFAULT_MPS_DIR: Final = "/run/nvidia/mps"
"""The plugin's default of ``mpsRoot``."""

MOST_RESOURCES: Final = 64
"""Maximum number of entries that are read of the root and of a resource's domain."""

PART_BYTES: Final = 1 << 20
"""Maximum number of bytes that one sample reads of one log."""

_SHM: Final = "shm"
"""The folder of the root in which all clients write."""


class _Read(msgspec.Struct):
    """What was read of a log: its identity, the number of bytes, and their content."""

    identity: tuple[int, int]
    offset: int = 0
    control: MpsControl = MpsControl()


class MpsSource:
    """The logs below one root. One thread uses it."""

    def __init__(self, root: str | None) -> None:
        """``root`` need not exist; None is not read."""
        self._root = root
        self._logs: dict[str, _Read] = {}

    def sample(self) -> tuple[tuple[MpsLimits, ...], tuple[Rejection, ...]]:
        """The limits by resource. Never raises: what cannot be read is a rejection.

        A log of which a part is still to be read has no limits yet.
        """
        limits: list[MpsLimits] = []
        rejections: list[Rejection] = []
        kept: dict[str, _Read] = {}
        for resource, folder in self._resources(rejections):
            path = f"{folder}/log/control.log"
            try:
                log, complete = self._read(path)
            except SourceError as error:
                _refuse(error, rejections)
                continue
            kept[path] = log
            if complete and exists(f"{folder}/.started"):
                limits.append(
                    MpsLimits(
                        resource,
                        log.control.memory_bytes,
                        log.control.thread_percent,
                        log.control.servers,
                    )
                )
        self._logs = kept
        return tuple(limits), tuple(rejections)

    def _resources(self, rejections: list[Rejection]) -> list[tuple[str, str]]:
        """The resources that have a folder, sorted, with their folders."""
        found = []
        for domain in self._folders(self._root, rejections) if self._root else ():
            if domain != _SHM:
                folder = f"{self._root}/{domain}"
                found += [
                    (f"{domain}/{name}", f"{folder}/{name}")
                    for name in self._folders(folder, rejections)
                ]
        return sorted(found)

    @staticmethod
    def _folders(path: str, rejections: list[Rejection]) -> list[str]:
        try:
            entries, too_many = list_folder(path, MOST_RESOURCES, only_folders=True)
        except SourceError as error:
            _refuse(error, rejections)
            return []
        rejections += too_many
        return [entry.name for entry in entries]

    def _read(self, path: str) -> tuple[_Read, bool]:
        """The log with its next part, and whether this was the last one. Raises SourceError."""
        before = self._logs.get(path)
        part = read_part(path, before.offset if before else 0, PART_BYTES)
        if before is None or part.identity != before.identity or part.size < before.offset:
            before = _Read(part.identity)
            part = read_part(path, 0, PART_BYTES)
        whole = part.content.rpartition(b"\n")[0]
        taken = len(whole) + 1 if whole else 0
        if not whole and len(part.content) == PART_BYTES:
            taken = PART_BYTES  # a line that no daemon writes
        control = before.control.after(whole) if whole else before.control
        complete = before.offset + len(part.content) >= part.size
        return _Read(before.identity, before.offset + taken, control), complete


def _refuse(error: SourceError, rejections: list[Rejection]) -> None:
    """Note a failure, unless the file is absent."""
    if error.reason is not Reason.ABSENT:
        rejections.append(error.rejection())


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
                self._limits[pid] = client_limits(read_environment(path))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESRCH):
                    rejections.append(translated(error, path).rejection())
        return self._limits


_SERVER: Final = b"nvidia-cuda-mps"
"""The kernel's name of nvidia-cuda-mps-server, of which it keeps 15 bytes."""


def is_mps_server(procfs: str, pid: int) -> bool:
    """Whether a process outside of containers is a server of MPS, by the name of its program.

    A container may give its processes any name, so that theirs is no evidence.
    """
    try:
        fd = os.open(f"{procfs}/{pid}/comm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(fd, len(_SERVER) + 1).rstrip(b"\n") == _SERVER
    except OSError:
        return False
    finally:
        os.close(fd)


def read_environment(path: str) -> bytes:
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
