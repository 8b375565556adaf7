"""The files that gpu-manager's library reads its limits and pids from, in a folder for each pod.

``<limits>/<pod UID>/<container ID>/vcuda.config`` and ``pids.config``; containers see their pod's
folder read-only as ``/etc/vcuda``. Promises: a reader finds each file whole, with a lock or
without; no link is followed out of the limits' folder; an unchanged file is not written again.

gpu-manager truncates ``pids.config`` and fills it again under a lock that the library does not
take. Here both files are renamed into their places: no reader sees a part of a file, and a
container that holds the lock delays nobody.
"""

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from vgpu.model.reasons import SourceError
from vgpu.schemes.gaia.vcuda_config import CONFIG_SIZE, PIDS_LIMIT, VCUDA_CONFIG
from vgpu.sources.files import read_file

PIDS_CONFIG: Final = "pids.config"
SOCKET: Final = "vcuda.sock"

FOLDER_MODE: Final = 0o755
FILE_MODE: Final = 0o644
"""Any user of the container can read; only we write. Nothing needs gpu-manager's 0777."""

_LIMITS: Final = {VCUDA_CONFIG: CONFIG_SIZE, PIDS_CONFIG: PIDS_LIMIT}
_NAME: Final = re.compile(r"[0-9A-Za-z](?:[-0-9A-Za-z]{0,62}[0-9A-Za-z])?")
_POD: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""A pod's UID, or the hash that a static pod has in its place."""

_CONTAINER_ID: Final = re.compile(r"[0-9a-f]{64}")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class LimitsFolder:
    """The folder of all pods. One thread at a time may write for a pod."""

    def __init__(self, root: str) -> None:
        self.root = root

    def socket(self, uid: str) -> str:
        """The path of the pod's socket."""
        return f"{self.root}/{checked(uid)}/{SOCKET}"

    def make(self, uid: str) -> None:
        """Make the pod's folder. Raises OSError."""
        Path(self.root).mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        with _opened(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as root_fd:
            _make(checked(uid), root_fd)

    def content(self, uid: str, folder: str, name: str) -> bytes | None:
        """The content of a container's file; None if it is missing, or not written by us."""
        try:
            return read_file(f"{self._path(uid, folder)}/{name}", _LIMITS[name])
        except SourceError:
            return None

    def containers(self, uid: str) -> tuple[str, ...]:
        """The folders of a pod's containers, under their IDs and names. Raises OSError."""
        with os.scandir(f"{self.root}/{checked(uid)}") as entries:
            folders = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
        return tuple(filter(_NAME.fullmatch, folders))

    def write(self, uid: str, folder: str, name: str, content: bytes) -> None:
        """Write a container's file in one step; its pod has a folder. Raises OSError."""
        if self.content(uid, folder, name) == content:
            return
        with (
            _opened(f"{self.root}/{checked(uid)}", _FOLDER) as pod_fd,
            _made(checked(folder), pod_fd) as fd,
        ):
            fresh = f".{name}.new"
            file = os.open(fresh, _NEW, FILE_MODE, dir_fd=fd)
            with os.fdopen(file, "wb") as stream:
                os.fchmod(file, FILE_MODE)  # whatever the umask
                stream.write(content)
            os.rename(fresh, name, src_dir_fd=fd, dst_dir_fd=fd)

    def prune(self, uid: str, container_ids: Collection[str]) -> None:
        """Remove the files of the pod's containers that are gone. Raises OSError."""
        with _opened(f"{self.root}/{checked(uid)}", _FOLDER) as pod_fd:
            with os.scandir(pod_fd) as entries:
                names = [entry.name for entry in entries if _CONTAINER_ID.fullmatch(entry.name)]
            for name in names:
                if name not in container_ids:
                    shutil.rmtree(name, dir_fd=pod_fd)

    def remove(self, uid: str) -> None:
        """Remove the pod's folder with all that is in it, if it is there. Raises OSError."""
        with suppress(FileNotFoundError), _opened(self.root, _FOLDER & ~os.O_NOFOLLOW) as root_fd:
            shutil.rmtree(checked(uid), dir_fd=root_fd)  # follows no links

    def pods(self) -> tuple[str, ...]:
        """The UIDs of the pods that have a folder; other entries are not ours.

        Those may be the host's, if an operator has named the wrong folder.
        """
        try:
            with os.scandir(self.root) as entries:
                folders = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return ()
        return tuple(sorted(filter(_POD.fullmatch, folders)))

    def _path(self, uid: str, folder: str) -> str:
        return f"{self.root}/{checked(uid)}/{checked(folder)}"


def checked(name: str) -> str:
    """The pod's UID, or container's ID or name, if it is a plain folder name.

    Raises OSError.
    """
    if not _NAME.fullmatch(name):
        raise NotADirectoryError(f"no folder is called {name[:64]!r}")
    return name


@contextmanager
def _opened(path: str, flags: int, dir_fd: int | None = None) -> Iterator[int]:
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _made(name: str, dir_fd: int) -> Iterator[int]:
    _make(name, dir_fd)
    with _opened(name, _FOLDER, dir_fd) as fd:
        yield fd


def _make(name: str, dir_fd: int) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=dir_fd)
        os.chmod(name, FOLDER_MODE, dir_fd=dir_fd)  # whatever the umask
