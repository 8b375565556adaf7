"""One shim region on disk, read without trusting it.

A tenant owns the file and the folder it lies in, and may truncate, replace or forge them at any
moment. So: never ``mmap`` (a truncation would be a SIGBUS); no link is followed, and nothing but a
regular file is read; a region is what two copies agree on. Bytes that are the same as at the last
read are such copies, and are not decoded again.
"""

import errno
import os
import stat
import time

import msgspec

from vgpu.model.facts import Region
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.volcano import hami_core
from vgpu.sources.files import translated

# Where the library keeps its region in a container that no plugin gave a folder.
BARE_FOLDER, BARE_CACHE = "tmp", "cudevshr.cache"

TRIES = 5
PAUSE_SECONDS = 0.0002  # between tries; a writer needs microseconds
_TRANSIENT = frozenset((Reason.CHANGED_WHILE_READ, Reason.INCONSISTENT_SUMS))

_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ROOT_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER_FLAGS = ROOT_FLAGS | os.O_NOFOLLOW


class RegionImage(msgspec.Struct, frozen=True, gc=False):
    """A region, with the bytes from which it was decoded: header and slots, and trailer."""

    frame: hami_core.Frame
    body: bytes
    trailer: bytes
    region: Region


def read_region(path: str, dir_fd: int | None = None) -> Region:
    """The region in the file ``path``, relative to ``dir_fd`` if set. Raises as `read_image`."""
    return read_image(path, dir_fd).region


def read_image(
    path: str, dir_fd: int | None = None, before: RegionImage | None = None
) -> RegionImage:
    """The region in the file ``path``, relative to ``dir_fd`` if set, with its bytes.

    It is ``before`` itself if the file has the same bytes still.

    Raises:
        SourceError: ABSENT, UNREADABLE, NOT_REGULAR_FILE, EMPTY, UNKNOWN_LAYOUT, TRUNCATED,
            CHANGED_WHILE_READ, or what :func:`vgpu.schemes.volcano.hami_core.decode` raises.
    """
    fd = open_fd(path, _FILE_FLAGS, dir_fd)
    try:
        if before is not None and _has(fd, before):
            return before
        frame = checked_frame(fd, path)
        for _ in range(TRIES - 1):
            try:
                return _read_once(fd, frame, path)
            except SourceError as error:
                if error.reason not in _TRANSIENT:
                    raise
            time.sleep(PAUSE_SECONDS)
        return _read_once(fd, frame, path)
    except OSError as error:
        raise translated(error, path) from error
    finally:
        os.close(fd)


def is_same(path: str, dir_fd: int, image: RegionImage) -> bool:
    """Whether the file has the same bytes still. Raises SourceError where it cannot be read."""
    fd = open_fd(path, _FILE_FLAGS, dir_fd)
    try:
        return _has(fd, image)
    except OSError as error:
        raise translated(error, path) from error
    finally:
        os.close(fd)


def _has(fd: int, image: RegionImage) -> bool:
    """Whether the file has these bytes, and the frame's size: one byte more is asked for."""
    trailer, body, frame = image.trailer, image.body, image.frame
    size = frame.file_size - frame.trailer
    end = os.pread(fd, size + 1, frame.trailer)
    return len(end) == size and end.startswith(trailer) and os.pread(fd, len(body), 0) == body


def checked_frame(fd: int, path: str) -> hami_core.Frame:
    """The frame of an open region by its exact size.

    Raises SourceError NOT_REGULAR_FILE, EMPTY, UNKNOWN_LAYOUT, and OSError.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(Reason.NOT_REGULAR_FILE, path)
    if status.st_size == 0:
        raise SourceError(Reason.EMPTY, path)
    frame = hami_core.FRAMES.get(status.st_size)
    if frame is None:
        raise SourceError(Reason.UNKNOWN_LAYOUT, path, f"{status.st_size} bytes")
    return frame


def read_bare(proc_root: str, pid: int) -> Region:
    """The region at ``/tmp/cudevshr.cache`` in the file system of the process ``pid``.

    The kernel's link ``<proc_root>/<pid>/root`` is followed, none of the tenant's is.

    Raises:
        SourceError: as :func:`read_region`.
    """
    root = f"{proc_root}/{pid}/root"
    folder = f"{root}/{BARE_FOLDER}"
    root_fd = open_fd(root, ROOT_FLAGS)
    try:
        folder_fd = open_fd(BARE_FOLDER, FOLDER_FLAGS, root_fd, folder)
    finally:
        os.close(root_fd)
    try:
        return read_region(BARE_CACHE, folder_fd)
    except SourceError as error:
        raise SourceError(error.reason, f"{folder}/{BARE_CACHE}", error.detail) from error
    finally:
        os.close(folder_fd)


def open_fd(path: str, flags: int, dir_fd: int | None = None, object_name: str = "") -> int:
    """A descriptor; an error is raised as SourceError about the ``object_name``, else the path."""
    try:
        return os.open(path, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ENOTDIR:  # the error of O_DIRECTORY for a symlink, too
            raise SourceError(Reason.NOT_REGULAR_FILE, object_name or path) from error
        raise translated(error, object_name or path) from error


def _read_once(fd: int, frame: hami_core.Frame, path: str) -> RegionImage:
    """Header and slots twice, and the trailer around them: what did not change was not torn.

    A slot that stands half-written in both copies has an odd seqlock, which ``decode`` refuses.
    """
    before = read_exactly(fd, frame.trailer_size, frame.trailer, path)
    size = hami_core.body_size(frame, before)
    body = read_exactly(fd, size, 0, path)
    again = read_exactly(fd, size, 0, path)
    trailer = read_exactly(fd, frame.trailer_size, frame.trailer, path)
    if body != again or hami_core.body_size(frame, trailer) != size:
        raise SourceError(Reason.CHANGED_WHILE_READ, path)
    return RegionImage(frame, body, trailer, hami_core.decode(frame, body, trailer, path))


def read_exactly(fd: int, size: int, offset: int, path: str) -> bytes:
    """These bytes of an open file. Raises SourceError TRUNCATED, and OSError."""
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise SourceError(Reason.TRUNCATED, path, f"{len(data)} of {size} bytes at {offset}")
    return data
