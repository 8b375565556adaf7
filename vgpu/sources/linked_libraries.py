"""What processes have loaded of the libraries that limit, and the node's own files of these.

The kernel names the mapped files of a process in /proc/<pid>/maps, with their device and inode, and
the environment with which its program was started in /proc/<pid>/environ (proc(5));
/proc/<pid>/mountinfo has the mounts that it sees. All three need SYS_PTRACE for processes of other
containers. Only its owner may open ``environ``, so that of a process of another user is unknown; so
is a blank one, which a program has that writes its title over it. The node's files are seen through
the root of process 1.

A process is read once for a pid and its program: ``starttime`` of /proc/<pid>/stat, and the
addresses that exec(2) draws, are compared in each sample, so a process that starts another program
under its pid is read again.
"""

import errno
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from vgpu.model.facts import LinkedProcess, MappedFile, NodeLibrary
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.schemes.limit_ways import LIBRARIES
from vgpu.schemes.volcano.env import DISABLE_CONTROL, MEMORY_LIMIT, is_controlled, set_limit
from vgpu.sources.container_processes import read_kernel_file
from vgpu.sources.files import list_folder, translated
from vgpu.sources.mps import read_environment

MAX_MAPS_BYTES: Final = 8 * 1024 * 1024
"""Maximum number of bytes that are read of one file ``maps``: some 80,000 mappings."""

MAX_LIBRARIES: Final = 1024
"""Maximum number of entries that are read of a folder of libraries."""

_PRELOADS: Final = ("LD_PRELOAD", "LD_AUDIT")
"""Variables with libraries that are loaded before a program's own, and may take calls from them
(ld.so(8))."""

_LINE: Final = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) ([0-9]+) +(/(?:[^\n]*/)?)((?:"
    + b"|".join(re.escape(library.name.encode()) for library in LIBRARIES)
    + rb")[^/\n]*?)((?://| \()deleted\)?)?$",
    re.MULTILINE,
)
_LOADER: Final = re.compile(rb"/ld(?:-linux|-musl|64)?[^/\n]*\.so[^/\n]*$", re.MULTILINE)

_START: Final = 19
_DRAWN: Final = (23, 24, 25, 42, 43, 44, 45, 46, 47, 48)
"""Positions of ``starttime``, and of ``startcode`` to ``startstack`` and ``start_data`` to
``env_end``, in /proc/<pid>/stat, counted from the field behind the program's name."""

_GONE: Final = (errno.ENOENT, errno.ESRCH)

_Program = tuple[bytes, ...]
"""What distinguishes a process and its program from others."""


class LinkedLibraries:
    """The processes of one procfs. One thread uses it."""

    def __init__(self, procfs: str) -> None:
        self._procfs = procfs
        self._kept: dict[int, tuple[_Program, LinkedProcess]] = {}

    def sample(self, pids: Iterable[int], rejections: list[Rejection]) -> dict[int, LinkedProcess]:
        """What each process has loaded; one that is gone, or cannot be read, has no entry."""
        before, self._kept = self._kept, {}
        for pid in pids:
            try:
                program = self._program(pid)
                kept = before.get(pid)
                if kept is None or kept[0] != program:
                    linked = self._read(pid)
                    if linked is None or program != self._program(pid):
                        continue  # a zombie, or another program by now
                    kept = program, linked
            except OSError as error:
                if error.errno not in _GONE:
                    path = f"{self._procfs}/{pid}/maps"
                    rejections.append(translated(error, path).rejection())
                continue
            self._kept[pid] = kept
        return {pid: linked for pid, (_, linked) in self._kept.items()}

    def node_files(self, rejections: list[Rejection]) -> tuple[NodeLibrary, ...] | None:
        """The files of the libraries in their folders on the node, links followed.

        None if a folder that is there cannot be read.
        """
        files: dict[NodeLibrary, None] = {}
        before = len(rejections)
        for library in LIBRARIES:
            for folder in library.folders:
                path = f"{self._procfs}/1/root{folder}"
                try:
                    entries, _ = list_folder(path, MAX_LIBRARIES)
                    for entry in entries:
                        if not entry.name.startswith(library.name):
                            continue
                        status = Path(entry.path).stat()
                        device = _device(os.major(status.st_dev), os.minor(status.st_dev))
                        files[NodeLibrary(library.name, device, status.st_ino)] = None
                except FileNotFoundError:
                    continue
                except OSError as error:
                    rejections.append(translated(error, path).rejection())
                except SourceError as error:
                    if error.reason is not Reason.ABSENT:
                        rejections.append(error.rejection())
        return tuple(files) if len(rejections) == before else None

    def _program(self, pid: int) -> _Program:
        """The identity of the process and its program. Raises OSError."""
        fields = read_kernel_file(f"{self._procfs}/{pid}/stat").rpartition(b")")[2].split()
        return tuple([fields[place] for place in (_START, *_DRAWN) if place < len(fields)])

    def _read(self, pid: int) -> LinkedProcess | None:
        """What the process has loaded; None if it has no memory, as a zombie. Raises OSError."""
        maps = _whole(f"{self._procfs}/{pid}/maps")
        if not maps:
            return None
        found = set(_LINE.findall(maps))
        mounts = _mounts(_whole(f"{self._procfs}/{pid}/mountinfo")) if found else {}
        files = {
            MappedFile(
                name.decode("utf-8", "replace"),
                _device(int(major, 16), int(minor, 16)),
                int(inode),
                bool(deleted),
                _is_writable(folder + name, mounts),
                (folder + name).decode("utf-8", "replace"),
            ): None
            for major, minor, inode, folder, name, deleted in sorted(found)
        }
        is_dynamic = _LOADER.search(maps) is not None
        try:
            environment = read_environment(f"{self._procfs}/{pid}/environ")
        except PermissionError:
            return LinkedProcess(tuple(files), is_dynamic)
        if environment and not environment.strip(b"\0 "):
            return LinkedProcess(tuple(files), is_dynamic)
        variables = _variables(environment)
        preloads = (re.split(r"[ :]+", variables.get(name, "")) for name in _PRELOADS)
        limits = {name: text for name, text in variables.items() if name.startswith(MEMORY_LIMIT)}
        return LinkedProcess(
            tuple(files),
            is_dynamic,
            not is_controlled(variables),
            tuple([path for paths in preloads for path in paths if path]),
            set_limit(limits, 0) or 0,
        )


def _variables(environment: bytes) -> dict[str, str]:
    """The variables that are looked at."""
    variables = {}
    for variable in environment.decode("utf-8", "replace").split("\0"):
        name, _, text = variable.partition("=")
        if name.startswith((*_PRELOADS, DISABLE_CONTROL, MEMORY_LIMIT)):
            variables[name] = text
    return variables


LEAST_LIBRARY_KIB: Final = 64
"""Size of shared libraries, in KiB, below which a program has none: musl's alone has 400."""

_VM_LIB: Final = re.compile(rb"^VmLib:\s+([0-9]+) kB$", re.MULTILINE)


def is_static(procfs: str, pid: int) -> bool:
    """Whether a process runs a static binary, by VmLib of /proc/<pid>/status, which anybody reads.

    False where that is unknown. Only code counts, so the kernel's own page is below the bound.
    """
    try:
        size = _VM_LIB.search(read_kernel_file(f"{procfs}/{pid}/status"))
    except OSError:
        return False
    return size is not None and int(size[1]) < LEAST_LIBRARY_KIB


_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


def _mounts(mountinfo: bytes) -> dict[bytes, bool]:
    """Mount point -> whether it can be written, by the mount and by its file system."""
    mounts = {}
    for line in mountinfo.splitlines():
        own, _, of_system = line.partition(b" - ")
        fields, system = own.split(), of_system.split()
        if len(fields) > 5 and len(system) > 2:
            point = _ESCAPED.sub(lambda octal: bytes([int(octal[1], 8) & 255]), fields[4])
            is_writable = b"rw" in fields[5].split(b",") and b"ro" not in system[2].split(b",")
            mounts[point] = is_writable  # the last one of a place hides the others
    return mounts


def _is_writable(path: bytes, mounts: Mapping[bytes, bool]) -> bool:
    """Whether the mount below a container's root that has the file can be written."""
    while path not in (b"", b"/"):
        if path in mounts:
            return mounts[path]
        path = path.rpartition(b"/")[0]
    return False


def _device(major: int, minor: int) -> str:
    return f"{major}:{minor}"


def _whole(path: str) -> bytes:
    """The file; empty if it is larger than MAX_MAPS_BYTES. Raises OSError."""
    parts, size = [], 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, 1 << 16):
            parts.append(part)
            size += len(part)
            if size > MAX_MAPS_BYTES:
                return b""
    finally:
        os.close(fd)
    return b"".join(parts)
