"""The processes of one container, by its cgroup and those that it has made inside its own."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
