"""The shims' folders on a node, and whether a process uses the files in them.

A tenant can change a folder ``<podUID>_<container>`` and all in it: no link is followed,
everything is bounded, and a folder of unknown use counts as used. A file is in use while a process
has it mapped or open. All processes of the host are searched, once for all folders, and only if
there are folders of unknown pods.
"""

import errno
import itertools
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from reconciler.model import ShimFolder
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.registry import registry
from vgpu.sources.files import list_folder, printable, translated
from vgpu.sources.runtime import sees_host_processes
from vgpu.sources.shim import FOLDER_NAME

MOST_FOLDERS: Final = 16_384
"""Maximum number of folders of one root; far more than a node has containers."""

MOST_FILES: Final = 64
"""Maximum number of files in one folder; the shim makes two or three."""

MAPS_LIMIT: Final = 64 * 1024 * 1024
"""Maximum size of one process's mappings, in bytes; 65,530, the kernel's limit, take 8 MiB."""

Identity = tuple[int, int, int]
"""As of :class:`~reconciler.model.ShimFolder`."""

_CHUNK: Final = 65_536
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENDED: Final = frozenset({errno.ENOENT, errno.ESRCH})
_DELETED: Final = " (deleted)"

_MAPPING: Final = re.compile(
    rb"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([1-9][0-9]*) +(.*)$", re.MULTILINE
)
"""A file in /proc/<pid>/maps: range, rights, offset, device in hex, inode, path (proc(5))."""


class Found(msgspec.Struct, frozen=True):
    """The folders; ``note`` has the reason why some are missing, or why their use is unknown.

    ``more`` reports that there are more than the maximum: the folders here can still be judged.
    """

    folders: tuple[ShimFolder, ...] = ()
    note: str = ""
    more: str = ""


class FolderFile(msgspec.Struct, frozen=True, gc=False):
    """A file by its names in the kernel."""

    device: int
    inode: int
    name: str


class _Folder(msgspec.Struct, frozen=True, gc=False):
    """A folder as it was listed; ``plain``: it held nothing but a few regular files."""

    path: str
    identity: Identity
    files: tuple[FolderFile, ...]
    plain: bool


# ---------------------------------------------------------------- what is asked


def find_folders(
    roots: Sequence[str],
    is_known: Callable[[str], bool],
    procfs: str = "/proc",
) -> Found:
    """The folders below ``roots``, or below the usual ones; a root that does not exist has none.

    A folder whose pod ``is_known`` by its UID counts as used, and is not examined further.
    """
    folders, notes, crowded = _listed(roots or registry().region_roots)
    unknown = [folder for folder in folders if not is_known(_pod_uid(folder.path))]
    used: frozenset[FolderFile] = frozenset()
    if unknown:
        try:
            used = in_use((file for folder in unknown for file in folder.files), procfs)
        except SourceError as error:
            return Found(note=f"who uses the shims' folders is not known: {error}")
    idle = {folder.path for folder in unknown if folder.plain and used.isdisjoint(folder.files)}
    shim_folders = tuple(
        ShimFolder(
            path=folder.path,
            pod_uid=_pod_uid(folder.path),
            container=folder.path.rpartition("_")[2],
            identity=folder.identity,
            mapped=folder.path not in idle,
        )
        for folder in folders
    )
    return Found(shim_folders, _unseen(notes), _unseen(crowded))


def _unseen(notes: Sequence[str]) -> str:
    more = f" and {len(notes) - 1} more" if len(notes) > 1 else ""
    return f"not all shims' folders are seen: {notes[0]}{more}" if notes else ""


def identity(path: str) -> Identity:
    """The identity of the folder now. Raises SourceError: ABSENT if there is none."""
    return _look_at(path).identity


def mapped(path: str, procfs: str = "/proc") -> bool:
    """Whether a process uses the folder's files now.

    Raises SourceError: ABSENT if there is no such folder, or why its use is unknown. May block
    as long as the kernel does; a caller that must not wait needs a deadline.
    """
    folder = _look_at(path)
    used = in_use(folder.files, procfs)
    return not (folder.plain and used.isdisjoint(folder.files))


# ---------------------------------------------------------------- folders


def _listed(roots: Sequence[str]) -> tuple[list[_Folder], list[str], list[str]]:
    """The folders, each once, why others cannot be seen, and where there are too many."""
    folders: dict[tuple[int, int], _Folder] = {}
    notes: list[str] = []
    crowded: list[str] = []
    for root in roots:
        try:
            entries, too_many = list_folder(root, MOST_FOLDERS, only_folders=True)
        except SourceError as error:
            if error.reason is not Reason.ABSENT:
                notes.append(str(error))
            continue
        crowded += (f"{one.object_name}: {one.detail}" for one in too_many)
        for path in sorted(entry.path for entry in entries if FOLDER_NAME.fullmatch(entry.name)):
            try:
                folder = _look_at(path)
            except SourceError as error:
                if error.reason is not Reason.ABSENT:
                    notes.append(str(error))
            else:
                folders.setdefault(folder.identity[:2], folder)
    return list(folders.values()), notes, crowded


def _look_at(path: str) -> _Folder:
    """One folder. Raises SourceError."""
    try:
        fd = os.open(path, _FOLDER_FLAGS)
    except OSError as error:
        if error.errno == errno.ENOTDIR:  # O_DIRECTORY has this error for a symlink, too
            raise SourceError(Reason.NOT_REGULAR_FILE, printable(path)) from error
        raise translated(error, path) from error
    try:
        with os.scandir(fd) as entries:
            listed = list(itertools.islice(entries, MOST_FILES + 1))
        states = [(entry.name, entry.stat(follow_symlinks=False)) for entry in listed]
        own = os.fstat(fd)
    except OSError as error:
        raise translated(error, path) from error
    finally:
        os.close(fd)
    newest = max([own.st_ctime_ns, *(state.st_ctime_ns for _, state in states)])
    return _Folder(
        path,
        (own.st_dev, own.st_ino, newest),
        tuple(FolderFile(state.st_dev, state.st_ino, name) for name, state in states),
        plain=len(states) <= MOST_FILES and all(stat.S_ISREG(state.st_mode) for _, state in states),
    )


def _pod_uid(path: str) -> str:
    return path.rpartition("/")[2].partition("_")[0]


# ---------------------------------------------------------------- processes


def in_use(files: Iterable[FolderFile], procfs: str = "/proc") -> frozenset[FolderFile]:
    """The files that a process of this host has mapped or open.

    Raises SourceError where the use by all processes is unknown: FOREIGN_PIDS if the processes are
    not the host's, UNREADABLE if one may not be read.
    """
    by_inode: dict[int, list[FolderFile]] = {}
    for file in files:
        by_inode.setdefault(file.inode, []).append(file)
    if not sees_host_processes(procfs):
        raise SourceError(Reason.FOREIGN_PIDS, printable(procfs))
    try:
        pids = [name for name in _names(procfs) if name.isdecimal()]
    except OSError as error:
        raise translated(error, procfs) from error
    names = {file.name for of_inode in by_inode.values() for file in of_inode}
    used: set[FolderFile] = set()
    for pid in pids if by_inode else ():
        for device, inode, name in (
            *_mappings(f"{procfs}/{pid}/maps", by_inode.keys()),
            *_open_files(f"{procfs}/{pid}/fd", names),
        ):
            # A mapping's device is that of the whole file system; a subvolume of btrfs has another
            # one in stat(2): there the name decides.
            used.update(
                file
                for file in by_inode.get(inode, ())
                if file.device == device or file.name == name
            )
    return frozenset(used)


def _mappings(path: str, inodes: Collection[int]) -> Iterator[tuple[int, int, str]]:
    """Device, inode and name of a process's mapped files of these inodes. Raises SourceError."""
    try:
        content = _read(path)
    except OSError as error:
        if error.errno in _ENDED:
            return
        raise translated(error, path) from error
    for major, minor, number, where in _MAPPING.findall(content):
        inode = int(number)
        if inode in inodes:
            yield os.makedev(int(major, 16), int(minor, 16)), inode, _name(os.fsdecode(where))


def _open_files(folder: str, names: Collection[str]) -> Iterator[tuple[int, int, str]]:
    """Device, inode and name of a process's open files of these names. Raises SourceError.

    Other files are not touched: a file on a dead network file system would never answer.
    """
    try:
        numbers = _names(folder)
    except OSError as error:
        if error.errno in _ENDED:
            return
        raise translated(error, folder) from error
    for number in numbers:
        link = Path(folder, number)
        try:
            name = _name(str(link.readlink()))
            state = link.stat() if name in names else None
        except OSError as error:
            if error.errno not in _ENDED:
                raise translated(error, str(link)) from error
            continue
        if state is not None:
            yield state.st_dev, state.st_ino, name


def _names(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _name(where: str) -> str:
    return where.removesuffix(_DELETED).rpartition("/")[2]


def _read(path: str) -> bytes:
    """A file of /proc, which has no size. Raises OSError, SourceError TOO_LARGE."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        size = 0
        while chunk := os.read(fd, _CHUNK):
            chunks.append(chunk)
            size += len(chunk)
            if size > MAPS_LIMIT:
                raise SourceError(Reason.TOO_LARGE, path, f"more than {MAPS_LIMIT} bytes")
    finally:
        os.close(fd)
    return b"".join(chunks)
