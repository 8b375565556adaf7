"""Other programs on this node that write the same words: a second feedback, HAMi's own monitor.

A second `vgpu feedback` is kept away by a lock. The process of HAMi's monitor is called
``vGPUmonitor`` in all releases of HAMi and of Volcano's device plugin. A process in a tenant's
container can have that name, too. So a process counts only if its mount table reaches a whole
folder of regions, which no container without a hostPath mount of it does: a tenant has the folder
of its own container at most. Both files are readable without a capability.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.files import printable, translated
from vgpu.sources.runtime import sees_host_processes

DEFAULT_LOCK: Final = "/run/vgpu/feedback.lock"

MONITOR: Final = "vGPUmonitor"
"""The name of the process, as /proc/<pid>/comm has it."""

OWN_MOUNTS: Final = "/proc/self/mountinfo"
"""Our own mount table, by which the paths of this process are understood; not the host's /proc."""

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


class KernelMount(msgspec.Struct, frozen=True, gc=False):
    """A line of /proc/<pid>/mountinfo, proc_pid_mountinfo(5).

    Attributes:
        device: ``major:minor`` of the file system.
        root: the folder of the file system that is mounted.
        mount_point: where it is mounted.
    """

    device: str
    root: str
    mount_point: str


class Place(msgspec.Struct, frozen=True, gc=False):
    """A folder by its file system, independent of where that is mounted."""

    device: str
    path: str


def parse_mounts(text: str) -> list[KernelMount]:
    """The mounts of a table, in its order."""
    lines = (line.split(" ") for line in text.split("\n"))
    return [
        KernelMount(fields[2], _unescaped(fields[3]), _unescaped(fields[4]))
        for fields in lines
        if len(fields) > 5
    ]


def place_of(path: str, mounts: Iterable[KernelMount]) -> Place | None:
    """Where a real path lies by a mount table; of equal mount points the last one counts."""
    best: KernelMount | None = None
    for mount in mounts:
        if _is_below(path, mount.mount_point) and (
            best is None or len(mount.mount_point) >= len(best.mount_point)
        ):
            best = mount
    if best is None:
        return None
    inside = PurePosixPath(path).relative_to(best.mount_point)
    return Place(best.device, str(PurePosixPath(best.root) / inside))


def reaches(mounts: Iterable[KernelMount], place: Place) -> bool:
    """Whether a mount table has all of a folder: the folder itself or one above it."""
    return any(
        mount.device == place.device and _is_below(place.path, mount.root) for mount in mounts
    )


def running_monitor(procfs: str, roots: Sequence[str]) -> str:
    """HAMi's monitor on this node, such as ``process 4711 (vGPUmonitor)``; "" if none runs.

    Raises:
        SourceError: FOREIGN_PIDS if the host's processes are not visible, else why the processes
            or a mount table could not be read.
    """
    if not sees_host_processes(procfs):
        raise SourceError(Reason.FOREIGN_PIDS, printable(procfs))
    own = _mounts(OWN_MOUNTS)
    real = (Path(root).resolve() for root in roots if Path(root).is_dir())
    places = [place for root in real if (place := place_of(str(root), own)) is not None]
    for pid in pids_of_monitors(procfs):
        try:
            mounts = _mounts(f"{procfs}/{pid}/mountinfo")
        except SourceError as error:
            if error.reason is Reason.ABSENT:  # it has ended
                continue
            raise
        if any(reaches(mounts, place) for place in places):
            return f"process {pid} ({MONITOR})"
    return ""


def pids_of_monitors(procfs: str) -> Iterator[int]:
    """The processes that have the monitor's name. Raises SourceError."""
    try:
        names = [entry.name for entry in Path(procfs).iterdir()]
    except OSError as error:
        raise translated(error, procfs) from error
    for name in names:
        if name.isdecimal() and process_name(f"{procfs}/{name}/comm") == MONITOR:
            yield int(name)


def process_name(path: str) -> str:
    """The name in this file ``comm`` of /proc; "" if the process has ended. Raises SourceError."""
    try:
        return Path(path).read_text(errors="replace").rstrip("\n")
    except OSError as error:
        problem = translated(error, path)
        if problem.reason is Reason.EXHAUSTED:  # any process could be the monitor
            raise problem from error
        return ""  # it has ended


def _mounts(path: str) -> list[KernelMount]:
    try:
        text = Path(path).read_text(errors="replace")
    except (ProcessLookupError, FileNotFoundError) as error:
        raise SourceError(Reason.ABSENT, printable(path)) from error
    except OSError as error:
        raise translated(error, path) from error
    return parse_mounts(text)


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _unescaped(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)
