"""The processes of containers, by their cgroups, and the pids that they have inside.

``NSpid`` of /proc/<pid>/status has a process's pid in each pid namespace from the reader's to its
own (proc(5), since Linux 4.1); the last one is what ``getpid`` returns in the process.
"""

import errno
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from vgpu.model.facts import PodPids, ProcessOwner
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.files import list_folder, printable, translated

MAX_CGROUPS: Final = 256
"""Maximum number of cgroups that are read of one container: a tenant may make more."""

MAX_KERNEL_BYTES: Final = 256 * 1024
"""Maximum size of one file that the kernel makes when it is read, in bytes: some 30,000 pids."""

_GONE_OR_THREADED: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP})
"""A threaded cgroup has no list of its own; its processes are in that of its parent."""


def container_processes(folder: str) -> Iterator[int]:
    """The host pids in a container's cgroup ``folder`` and below it.

    Raises SourceError: TOO_MANY_FILES after the pids that are within the bounds, FOREIGN_PIDS for a
    process that our pid namespace does not have, ABSENT for a folder that is no cgroup.
    """
    procs = Path(folder, "cgroup.procs")
    if not procs.exists() and procs.parent.exists():
        raise SourceError(Reason.ABSENT, printable(str(procs)))
    waiting, seen, all_listed = [folder], 0, True
    while waiting and seen < MAX_CGROUPS:
        path = waiting.pop()
        seen += 1
        pids, has_all_pids = _listed(f"{path}/cgroup.procs")
        yield from pids
        folders, has_all_folders = _below(path)
        waiting += folders
        all_listed = all_listed and has_all_pids and has_all_folders
    if waiting or not all_listed:
        detail = f"more than {MAX_CGROUPS} cgroups, or {MAX_KERNEL_BYTES} bytes of pids"
        raise SourceError(Reason.TOO_MANY_FILES, printable(folder), detail)


def read_kernel_file(path: str) -> bytes:
    """The content of a file of the kernel, whose size is not known before. Raises OSError."""
    content = b""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(content) < MAX_KERNEL_BYTES and (chunk := os.read(fd, MAX_KERNEL_BYTES)):
            content += chunk
    finally:
        os.close(fd)
    return content


def _listed(path: str) -> tuple[list[int], bool]:
    """The pids in one cgroup.procs, and whether these are all. Raises SourceError."""
    try:
        content = read_kernel_file(path)
    except OSError as error:
        if error.errno in _GONE_OR_THREADED:
            return [], True
        raise translated(error, path) from error
    is_whole = len(content) < MAX_KERNEL_BYTES
    pids = []
    for word in content.split() if is_whole else content.split()[:-1]:  # the last may be cut
        if not word.isdigit():
            raise SourceError(Reason.MALFORMED, printable(path), f"not a pid: {word[:16]!r}")
        if word == b"0":  # a process of a pid namespace that is neither ours nor below ours
            raise SourceError(Reason.FOREIGN_PIDS, printable(path))
        pids.append(int(word))
    return pids, is_whole


def _below(path: str) -> tuple[list[str], bool]:
    """The folders in a cgroup, and whether these are all. Raises SourceError."""
    try:
        folders, too_many = list_folder(path, MAX_CGROUPS, only_folders=True)
    except SourceError as error:
        if error.reason is Reason.ABSENT:
            return [], True
        raise
    return [folder.path for folder in folders], not too_many


_START_TIME = 19
"""Position of starttime in /proc/<pid>/stat, counted from the field behind the program's name."""


class PodPidReader:
    """Reads the pids of pods. What it has read of a process is kept while the process lives."""

    def __init__(self, procfs: str) -> None:
        self._procfs = procfs
        self._kept: dict[int, tuple[bytes, int]] = {}  # pid -> start time, pid inside
        self._asked: set[int] = set()

    def forget_others(self) -> None:
        """Forget the processes that were not asked for since the last call."""
        self._kept = {pid: self._kept[pid] for pid in self._asked & self._kept.keys()}
        self._asked = set()

    def read(
        self,
        wanted: Collection[int],
        known: Mapping[int, ProcessOwner],
        cgroups: Mapping[str, str],
    ) -> PodPids:
        """The processes of one pod, until all of ``wanted``, pids inside, are found.

        ``known`` are processes that are known to be the pod's, by host pid. ``cgroups`` are the
        folders of the pod's containers by container id; without any the pod's processes are
        elsewhere. Where something cannot be read, the result is not complete.
        """
        containers: dict[str, dict[int, int]] = {}
        complete = bool(cgroups)
        pids = ((owner.container_id, iter((pid,))) for pid, owner in known.items())
        trees = ((container, container_processes(folder)) for container, folder in cgroups.items())
        for candidates in (pids, trees):
            for container, members in candidates:
                inside = containers.setdefault(container, {})
                try:
                    for pid in members:
                        own = self._inside(pid)
                        if own is not None:
                            inside[own] = pid
                except SourceError:
                    complete = False
            if all(any(pid in inside for inside in containers.values()) for pid in wanted):
                return PodPids(containers, complete=False)
        return PodPids(containers, complete)

    def _inside(self, pid: int) -> int | None:
        """The process's pid in its own namespace; None if it has ended. Raises SourceError."""
        self._asked.add(pid)
        start = self._start(pid)
        kept = self._kept.get(pid)
        if kept is not None and kept[0] == start:
            return kept[1]
        path = f"{self._procfs}/{pid}/status"
        try:
            content = read_kernel_file(path)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            raise translated(error, path) from error
        own = _namespace_pid(content)
        if own is None:
            raise SourceError(Reason.MALFORMED, printable(path), "no NSpid")
        if start:
            self._kept[pid] = start, own
        return own

    def _start(self, pid: int) -> bytes:
        """When the process began, in clock ticks since boot; empty if that is unknown."""
        try:
            stat = read_kernel_file(f"{self._procfs}/{pid}/stat")
        except OSError:
            return b""
        fields = stat.rpartition(b")")[2].split()
        return fields[_START_TIME] if len(fields) > _START_TIME else b""


def _namespace_pid(status: bytes) -> int | None:
    for line in status.split(b"\n"):
        if line.startswith(b"NSpid:"):
            pids = line.split()[1:]
            return int(pids[-1]) if pids and pids[-1].isdigit() else None
    return None
