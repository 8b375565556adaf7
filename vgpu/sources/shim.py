"""Shim regions on disk: every container's region file under the roots, read without trusting it.

A tenant owns the file and the folder it lies in, and may truncate, replace or forge them at any
moment. So: never ``mmap`` (a truncation would be a SIGBUS); nothing is followed, nothing but a
regular file is read; folders are opened once and files relative to them; a region is what two
copies agree on; and one bad container is one rejection.
"""

import errno
import itertools
import os
import re
import stat
import time
from collections.abc import Sequence

import msgspec

from vgpu.facts import Region, RegionFile, ShimSample
from vgpu.reasons import Reason, Rejection, SourceError
from vgpu.schemes.volcano import hami_core
from vgpu.sources.files import RACY_NS, Living, first_entries, printable, translated

# Where the library keeps its region in a container that no plugin gave a folder.
BARE_FOLDER, BARE_CACHE = "tmp", "cudevshr.cache"

MAX_ENTRIES = 16_384  # of one root; far more than a node has containers
MAX_FOLDER_ENTRIES = 64
MAX_CANDIDATES = 4  # region files of one container that are looked at

TRIES = 5
PAUSE_SECONDS = 0.0002  # between tries; a writer needs microseconds
_TRANSIENT = frozenset((Reason.CHANGED_WHILE_READ, Reason.INCONSISTENT_SUMS))

_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ROOT_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER_FLAGS = _ROOT_FLAGS | os.O_NOFOLLOW

FOLDER_NAME = re.compile(
    r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})"
    r"_[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
)
"""``<podUID>_<container>``: a UUID, or the hash that is a static pod's UID; a DNS label."""

# ---------------------------------------------------------------- one file


def read_region(path: str, dir_fd: int | None = None) -> Region:
    """The region in the file ``path``, relative to ``dir_fd`` if set.

    Raises:
        SourceError: ABSENT, UNREADABLE, NOT_REGULAR_FILE, EMPTY, UNKNOWN_LAYOUT, TRUNCATED,
            CHANGED_WHILE_READ, or what :func:`vgpu.schemes.volcano.hami_core.decode` raises.
    """
    fd = _open(path, _FILE_FLAGS, dir_fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(Reason.NOT_REGULAR_FILE, path)
        if status.st_size == 0:
            raise SourceError(Reason.EMPTY, path)
        frame = hami_core.FRAMES.get(status.st_size)
        if frame is None:
            raise SourceError(Reason.UNKNOWN_LAYOUT, path, f"{status.st_size} bytes")
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


def read_bare(proc_root: str, pid: int) -> Region:
    """The region at ``/tmp/cudevshr.cache`` in the file system of the process ``pid``.

    The kernel's link ``<proc_root>/<pid>/root`` is followed, none of the tenant's is.

    Raises:
        SourceError: as :func:`read_region`.
    """
    root = f"{proc_root}/{pid}/root"
    folder = f"{root}/{BARE_FOLDER}"
    root_fd = _open(root, _ROOT_FLAGS)
    try:
        folder_fd = _open(BARE_FOLDER, _FOLDER_FLAGS, root_fd, folder)
    finally:
        os.close(root_fd)
    try:
        return read_region(BARE_CACHE, folder_fd)
    except SourceError as error:
        raise SourceError(error.reason, f"{folder}/{BARE_CACHE}", error.detail) from error
    finally:
        os.close(folder_fd)


def _open(path: str, flags: int, dir_fd: int | None = None, object_name: str = "") -> int:
    try:
        return os.open(path, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ENOTDIR:  # the error of O_DIRECTORY for a symlink, too
            raise SourceError(Reason.NOT_REGULAR_FILE, object_name or path) from error
        raise translated(error, object_name or path) from error


def _read_once(fd: int, frame: hami_core.Frame, path: str) -> Region:
    """Header and slots twice, and the trailer around them: what did not change was not torn.

    A slot that stands half-written in both copies has an odd seqlock, which ``decode`` refuses.
    """
    before = _pread(fd, frame.trailer_size, frame.trailer, path)
    size = hami_core.body_size(frame, before)
    body = _pread(fd, size, 0, path)
    again = _pread(fd, size, 0, path)
    trailer = _pread(fd, frame.trailer_size, frame.trailer, path)
    if body != again or hami_core.body_size(frame, trailer) != size:
        raise SourceError(Reason.CHANGED_WHILE_READ, path)
    return hami_core.decode(frame, body, trailer, path)


def _pread(fd: int, size: int, offset: int, path: str) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise SourceError(Reason.TRUNCATED, path, f"{len(data)} of {size} bytes at {offset}")
    return data


# ---------------------------------------------------------------- all roots


class _Listing(msgspec.Struct, frozen=True):
    """What a folder held while its ``stamp`` was this; ``entries`` are names and full paths.

    One that is not ``whole`` depends on which pods live, and not on the folder alone.
    """

    stamp: tuple[int, int, int]
    entries: tuple[tuple[str, str], ...]
    rejections: tuple[Rejection, ...] = ()
    whole: bool = True


class _Root(msgspec.Struct):
    """The cache of one root: its listing, and that of each of its folders."""

    path: str
    listing: _Listing | None = None
    folders: dict[str, _Listing] = {}


class _Pass(msgspec.Struct):
    """The results of one pass so far."""

    now_ns: int
    files: list[RegionFile] = []
    rejections: list[Rejection] = []

    def refuse(self, error: SourceError, path: str) -> None:
        """Note a refusal; an entry that was removed since the listing is ignored."""
        if error.reason is not Reason.ABSENT:
            self.rejections.append(Rejection(path, error.reason, error.detail))


class ShimSource:
    """Reads the region files of all containers under ``roots``. One thread calls ``sample``.

    Of each root ``MAX_ENTRIES`` are read, those of ``living`` pods first. Folders are listed again
    only after a change.
    """

    def __init__(
        self,
        roots: Sequence[str],
        *,
        required: bool = True,
        living: Living = tuple,
    ) -> None:
        """Take the roots; if none exists that is an error only if one is ``required``."""
        self._roots = [_Root(path) for path in roots]
        self._required = required
        self._living = living

    def sample(self) -> ShimSample:
        """Every container's region, by root and folder name. Roots that do not exist are fine.

        Raises:
            SourceError: no root could be read; ABSENT if there is none and one is required.
        """
        this_pass = _Pass(time.time_ns())
        roots_read: set[tuple[int, int]] = set()
        failed: list[SourceError] = []
        for root in self._roots:
            try:
                fd = _open(root.path, _ROOT_FLAGS)
            except SourceError as error:
                failed.append(error)
                continue
            try:
                stamp = _stamp(fd)
                if stamp[:2] not in roots_read:
                    roots_read.add(stamp[:2])
                    self._read_root(root, fd, stamp, this_pass)
            except OSError as error:
                failed.append(translated(error, root.path))
            finally:
                os.close(fd)
        broken = [failure for failure in failed if failure.reason is not Reason.ABSENT]
        if len(failed) == len(self._roots) and not broken and not self._required:
            absent = (e.rejection() for e in failed)
            return ShimSample((), tuple(absent))
        if len(failed) == len(self._roots):
            raise (broken or failed or [SourceError(Reason.ABSENT, "no roots")])[0]
        for failure in broken:
            this_pass.refuse(failure, failure.object_name)
        return ShimSample(tuple(this_pass.files), tuple(this_pass.rejections))

    def _read_root(
        self, root: _Root, fd: int, stamp: tuple[int, int, int], this_pass: _Pass
    ) -> None:
        listing = root.listing
        if listing is None or listing.stamp != stamp:
            listing = _list_root(fd, root.path, stamp, self._living)
            kept = listing.whole and _settled(stamp, this_pass.now_ns)
            root.listing = listing if kept else None
            names = (name for name, _ in listing.entries if name in root.folders)
            root.folders = {name: root.folders[name] for name in names}
        this_pass.rejections += listing.rejections
        for name, path in listing.entries:
            try:
                _read_folder(root.folders, fd, name, path, this_pass)
            except SourceError as error:
                this_pass.refuse(error, path)
            except OSError as error:
                this_pass.refuse(translated(error, path), path)


def _read_folder(
    listings: dict[str, _Listing], root_fd: int, name: str, path: str, this_pass: _Pass
) -> None:
    """Read the one region of one container's folder."""
    fd = _open(name, _FOLDER_FLAGS, root_fd)
    try:
        stamp = _stamp(fd)
        listing = listings.get(name)
        if listing is None or listing.stamp != stamp:
            listing = _list_folder(fd, path, stamp)
            if _settled(stamp, this_pass.now_ns):
                listings[name] = listing
        this_pass.rejections += listing.rejections
        regions = []
        for file, file_path in listing.entries:
            try:
                regions.append((file_path, read_region(file, fd)))
            except SourceError as error:
                this_pass.refuse(error, file_path)
    finally:
        os.close(fd)
    if len(regions) > 1:
        raise SourceError(Reason.AMBIGUOUS, path, f"{len(regions)} valid regions")
    pod_uid, _, container = name.partition("_")
    this_pass.files.extend(RegionFile(at, pod_uid, container, region) for at, region in regions)


def _stamp(fd: int) -> tuple[int, int, int]:
    """Device, inode and ctime in ns: unlike mtime, ctime is not a tenant's to set."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _settled(stamp: tuple[int, int, int], now_ns: int) -> bool:
    """Whether a change after a listing made now would show in the stamp."""
    return now_ns - stamp[2] > RACY_NS


def _list_root(fd: int, path: str, stamp: tuple[int, int, int], living: Living) -> _Listing:
    """The containers' folders; for all other entries one rejection for each reason."""
    names, bad_names, no_folders = [], [], []
    with os.scandir(fd) as entries:
        listed, too_many = first_entries(entries, MAX_ENTRIES, living)
        for entry in listed:
            if not FOLDER_NAME.fullmatch(entry.name):
                bad_names.append(entry.name)
            elif not entry.is_dir(follow_symlinks=False):
                no_folders.append(entry.name)
            else:
                names.append(entry.name)
    rejections = [
        Rejection(
            printable(f"{path}/{min(refused)}"),
            reason,
            f"and {len(refused) - 1} more" if len(refused) > 1 else "",
        )
        for reason, refused in (
            (Reason.BAD_DIRECTORY_NAME, bad_names),
            (Reason.NOT_REGULAR_FILE, no_folders),
        )
        if refused
    ]
    if too_many:
        detail = f"more than {MAX_ENTRIES} entries"
        rejections.append(Rejection(path, Reason.TOO_MANY_FILES, detail))
    else:  # of too many the living ones come first, and stay so
        names.sort()
    paths = tuple((name, f"{path}/{name}") for name in names)
    return _Listing(stamp, paths, tuple(rejections), whole=not too_many)


def _list_folder(fd: int, path: str, stamp: tuple[int, int, int]) -> _Listing:
    """The region files of one container; what is not a regular file is not even opened."""
    caches, rejections = [], []
    with os.scandir(fd) as entries:
        for entry in itertools.islice(entries, MAX_FOLDER_ENTRIES):
            if not entry.name.endswith(".cache"):
                continue
            file_path = printable(f"{path}/{entry.name}")
            if entry.is_file(follow_symlinks=False):
                caches.append((entry.name, file_path))
            else:
                rejections.append(Rejection(file_path, Reason.NOT_REGULAR_FILE))
        too_many = next(entries, None) is not None
    if too_many:
        refusal = Rejection(path, Reason.TOO_MANY_FILES, f"more than {MAX_FOLDER_ENTRIES} entries")
        return _Listing(stamp, (), (refusal,))
    if len(caches) > MAX_CANDIDATES:
        return _Listing(stamp, (), (Rejection(path, Reason.AMBIGUOUS, f"{len(caches)} files"),))
    return _Listing(stamp, tuple(sorted(caches)), tuple(rejections))
