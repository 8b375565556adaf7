"""The host's pids of a pod's containers, for gpu-manager's library; from the kernel."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vgpu.reasons import Reason, SourceError
from vgpu.sources.files import list_folder, translated
from vgpu.sources.runtime import ProcessSource, read_containers

MOST_CGROUPS: Final = 256
"""Maximum number of cgroups to read of one container, which may make some inside its own."""

_MOST_BYTES: Final = 256 * 1024
"""Maximum size of one cgroup.procs in bytes: some 30,000 pids."""

_MOST_ENTRIES: Final = 2**23
"""Maximum number of entries of procfs; the kernel allows half as many processes."""

_GONE_OR_THREADED: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP})


def pids_of(
    uid: str, procfs: str = "/proc", cgroupfs: str = "/sys/fs/cgroup"
) -> dict[str, set[int]]:
    """The pids of each container of a pod, by container ID; the pod's sandbox is among them.

    If the containers' cgroups are not below the pod's (the kubelet uses systemd and the runtime
    does not), this reads the cgroup of every process. Raises SourceError, FOREIGN_PIDS where the
    host's pids are not visible.
    """
    folders = read_containers(cgroupfs, uid)
    if folders:
        return {container: _pids(folder) for container, folder in folders.items()}
    names = (entry.name for entry in list_folder(procfs, _MOST_ENTRIES)[0])
    pids = [int(name) for name in names if name.isascii() and name.isdigit()]
    sample = ProcessSource(procfs, cgroupfs, watch=False).sample(pids)
    if not sample.sees_host:
        raise SourceError(Reason.FOREIGN_PIDS, procfs)
    found: dict[str, set[int]] = {}
    for pid, owner in sample.owners.items():
        if owner and owner.pod_uid == uid:
            found.setdefault(owner.container_id, set()).add(pid)
    return found


def _pids(folder: str) -> set[int]:
    """The pids of a cgroup and of those below it. Raises SourceError."""
    pids: set[int] = set()
    waiting, seen = [folder], 0
    while waiting and seen < MOST_CGROUPS:
        path = waiting.pop()
        seen += 1
        pids.update(_read(f"{path}/cgroup.procs"))
        waiting += _below(path)
    return pids


def _read(path: str) -> Iterator[int]:
    """The pids in one cgroup.procs. Raises SourceError."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError as error:
        if error.errno in _GONE_OR_THREADED:
            return
        raise translated(error, path) from error
    for word in content.split():
        if not word.isdigit():
            raise SourceError(Reason.MALFORMED, path, f"not a pid: {word[:16]!r}")
        if word == b"0":  # a process of a pid namespace that is neither ours nor below ours
            raise SourceError(Reason.FOREIGN_PIDS, path)
        yield int(word)


def _below(path: str) -> list[str]:
    try:
        return [entry.path for entry in list_folder(path, MOST_CGROUPS, only_folders=True)[0]]
    except SourceError as error:
        if error.reason is Reason.ABSENT:
            return []
        raise
