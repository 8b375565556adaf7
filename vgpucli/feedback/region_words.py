"""The regions of a node's containers, as far as the feedback reads and writes them.

A tenant owns the file and the folder it lies in, and may replace, truncate or forge both at any
moment. So: no link is followed; a file is opened for reading or writing only when its descriptor
has shown that it is a regular file, which keeps the open from touching a device or a FIFO; size,
magic and version words are checked before each write; nothing is mapped; and exactly four bytes
are written at a time. One bad container costs itself only.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.schemes.volcano import hami_core
from vgpu.schemes.volcano.hami_core import FeedbackWords, Frame, RegionFeedback
from vgpu.sources.files import Living, translated
from vgpu.sources.regions import (
    FOLDER_FLAGS,
    ROOT_FLAGS,
    checked_frame,
    open_fd,
    read_exactly,
)
from vgpu.sources.shim import list_regions, list_root
from vgpucli.feedback.decision import recent_kernel_to_write

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: Final = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_READ: Final = os.O_RDONLY | _OPEN
_WRITE: Final = os.O_RDWR | _OPEN

_WORDS_BYTES: Final = 16  # of the trailer: proc_num, both words, priority


class ContainerRegion(msgspec.Struct, frozen=True, gc=False):
    """The region of one container, with where it lies."""

    root: str
    folder: str
    file: str
    feedback: RegionFeedback

    @property
    def path(self) -> str:
        """The path of the file."""
        return f"{self.root}/{self.folder}/{self.file}"

    @property
    def container(self) -> tuple[str, str]:
        """The pod's UID and the container's name."""
        uid, _, name = self.folder.partition("_")
        return uid, name


class RegionReading(msgspec.Struct, frozen=True):
    """The regions of a node, and what was refused."""

    regions: tuple[ContainerRegion, ...]
    rejections: tuple[Rejection, ...] = ()


RECENT_KERNEL: Final = "recent_kernel"
UTILIZATION_SWITCH: Final = "utilization_switch"


def read_regions(roots: Sequence[str], living: Living = tuple) -> RegionReading:
    """The region of each container under the roots; a root that does not exist has none.

    Of a root with too many folders those of ``living`` pods come first.
    """
    regions: list[ContainerRegion] = []
    rejections: list[Rejection] = []
    seen: set[tuple[int, int]] = set()
    for root in roots:
        try:
            with _opened(root, ROOT_FLAGS) as root_fd:
                status = os.fstat(root_fd)
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                listing = list_root(root_fd, root, living)
                rejections += listing.rejections
                for name, _, _ in listing.entries:
                    _read_folder(root_fd, root, name, regions, rejections)
        except SourceError as error:
            if error.reason is not Reason.ABSENT:
                rejections.append(error.rejection())
        except OSError as error:
            rejections.append(translated(error, root).rejection())
    return RegionReading(tuple(regions), tuple(rejections))


def read_only_problem(roots: Sequence[str]) -> str:
    """Which root is mounted read-only; "" if none is."""
    for root in roots:
        try:
            if os.statvfs(root).f_flag & os.ST_RDONLY:
                return f"{root} is mounted read-only"
        except OSError:  # reading it reports why
            continue
    return ""


def write_words(region: ContainerRegion, decided: FeedbackWords) -> tuple[str, ...]:
    """Write the words that differ from what the file has now; returns the names of those written.

    Raises SourceError: the file is no longer the region that it was, or cannot be written.
    """
    read = region.feedback.words
    try:
        with (
            _opened(region.root, ROOT_FLAGS) as root_fd,
            _opened(region.folder, FOLDER_FLAGS, root_fd, region.path) as folder_fd,
            _opened_region(region.file, folder_fd, region.path, _WRITE) as fd,
        ):
            frame, _ = _read_once(fd, region.path)
            trailer = read_exactly(fd, _WORDS_BYTES, frame.trailer, region.path)
            current = hami_core.decode_words(trailer)
            recent = recent_kernel_to_write(
                read.recent_kernel, decided.recent_kernel, current.recent_kernel
            )
            written = []
            if current.utilization_switch != decided.utilization_switch:
                at, data = hami_core.utilization_switch_patch(frame, decided.utilization_switch)
                os.pwrite(fd, data, at)
                written.append(UTILIZATION_SWITCH)
            if recent is not None:
                at, data = hami_core.recent_kernel_patch(frame, recent)
                os.pwrite(fd, data, at)
                written.append(RECENT_KERNEL)
            return tuple(written)
    except OSError as error:
        raise translated(error, region.path) from error


def _read_folder(
    root_fd: int,
    root: str,
    name: str,
    regions: list[ContainerRegion],
    rejections: list[Rejection],
) -> None:
    path = f"{root}/{name}"
    try:
        with _opened(name, FOLDER_FLAGS, root_fd, path) as folder_fd:
            files, refused = list_regions(folder_fd, path)
            rejections += refused
            read = [*_read_files(folder_fd, (root, name), files, rejections)]
        if len(read) > 1:
            detail = f"{len(read)} valid regions"
            rejections.append(Rejection(path, Reason.AMBIGUOUS, detail))
        else:
            regions += read
    except SourceError as error:
        if error.reason is not Reason.ABSENT:  # removed since the listing
            rejections.append(error.rejection())
    except OSError as error:
        rejections.append(translated(error, path).rejection())


def _read_files(
    folder_fd: int,
    place: tuple[str, str],
    files: Collection[tuple[str, str]],
    rejections: list[Rejection],
) -> Iterator[ContainerRegion]:
    for file, path in files:
        try:
            with _opened_region(file, folder_fd, path, _READ) as fd:
                yield ContainerRegion(*place, file, _read_once(fd, path)[1])
        except SourceError as error:
            if error.reason is not Reason.ABSENT:
                rejections.append(error.rejection())
        except OSError as error:
            rejections.append(translated(error, path).rejection())


def _read_once(fd: int, path: str) -> tuple[Frame, RegionFeedback]:
    """The checked frame, and the words. Raises SourceError, OSError."""
    frame = checked_frame(fd, path)
    header = read_exactly(fd, frame.slots, 0, path)
    trailer = read_exactly(fd, _WORDS_BYTES, frame.trailer, path)
    return frame, hami_core.decode_feedback(frame, header, trailer, path)


@contextmanager
def _opened(
    path: str, flags: int, dir_fd: int | None = None, object_name: str = ""
) -> Iterator[int]:
    fd = open_fd(path, flags, dir_fd, object_name)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _opened_region(name: str, folder_fd: int, path: str, flags: int) -> Iterator[int]:
    """A regular file, which is opened only when it is known to be one. Raises SourceError."""
    with _opened(name, _LOOK, folder_fd, path) as look:
        checked_frame(look, path)
        with _opened(f"/proc/self/fd/{look}", flags, None, path) as fd:
            yield fd
