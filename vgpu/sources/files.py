"""Reads files that other programs write, and detects their changes.

Promises: only regular files are read, never past a bound, never through a link unless asked; no
open blocks; a failure is a :class:`~vgpu.model.reasons.SourceError` that names the path.
"""

import errno
import itertools
import os
import stat
from collections.abc import Callable, Collection, Hashable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from vgpu.model.reasons import Reason, Rejection, SourceError

T = TypeVar("T")

Living = Callable[[], Collection[str]]
"""The UIDs of the pods that live here; called only if there are more than can be read."""

RACY_NS = 2_000_000_000
"""Minimum age of a reliable stamp, in ns: a second change may fall into the same clock tick."""

MAX_LOOKED_AT = 1_000_000
"""Maximum number of names that are looked at in a folder with more entries than are read."""

_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

EXHAUSTING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors for lack of descriptors or memory: temporary, and not the fault of the file."""

_REASONS = {
    errno.ENOENT: Reason.ABSENT,
    errno.ELOOP: Reason.NOT_REGULAR_FILE,  # O_NOFOLLOW met a symlink
    errno.ENXIO: Reason.NOT_REGULAR_FILE,  # a socket
    **dict.fromkeys(EXHAUSTING, Reason.EXHAUSTED),
}


def translated(error: OSError, path: str) -> SourceError:
    """The SourceError for an error of the operating system."""
    reason = _REASONS.get(error.errno or 0, Reason.UNREADABLE)
    return SourceError(reason, printable(path), error.strerror or str(error))


def printable(name: str) -> str:
    """A file name that may not be UTF-8, as text that every log and page can carry."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def read_file(path: str, limit: int, *, follow: bool = False) -> bytes:
    """The whole content of a regular file of at most ``limit`` bytes.

    ``follow`` allows a symlink as the last part of the path: right for a file that the operator
    names, wrong for one that a tenant may have made. Raises SourceError.
    """
    try:
        fd = os.open(path, _OPEN if follow else _OPEN | os.O_NOFOLLOW)
    except OSError as error:
        raise translated(error, path) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(Reason.NOT_REGULAR_FILE, printable(path))
        content = b""
        if status.st_size <= limit:
            # One byte more than allowed: a file that grows meanwhile is caught, not cut.
            while chunk := os.read(fd, min(status.st_size, limit - len(content)) + 1):
                content += chunk
    except OSError as error:
        raise translated(error, path) from error
    finally:
        os.close(fd)
    if status.st_size > limit or len(content) > limit:
        raise SourceError(Reason.TOO_LARGE, printable(path), f"more than {limit} bytes")
    return content


class FilePart(NamedTuple):
    """A part of a file; ``identity`` is device and inode, ``size`` that of the whole file."""

    identity: tuple[int, int]
    size: int
    content: bytes


def read_part(path: str, offset: int, limit: int) -> FilePart:
    """At most ``limit`` bytes of a regular file from ``offset`` on. Raises SourceError."""
    try:
        fd = os.open(path, _OPEN | os.O_NOFOLLOW)
    except OSError as error:
        raise translated(error, path) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(Reason.NOT_REGULAR_FILE, printable(path))
        content = os.pread(fd, limit, offset)
    except OSError as error:
        raise translated(error, path) from error
    finally:
        os.close(fd)
    return FilePart((status.st_dev, status.st_ino), status.st_size, content)


def exists(path: str) -> bool:
    """Whether there is a file of this name, which is no link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def first_entries(
    entries: Iterator[os.DirEntry[str]], limit: int, living: Living = tuple
) -> tuple[list[os.DirEntry[str]], bool]:
    """At most ``limit`` entries of a folder, and whether there are more.

    If there are more, those whose name begins with the UID of a pod that is ``living``, up to an
    underscore, come first. They are looked for among ``MAX_LOOKED_AT`` entries.
    """
    listed = list(itertools.islice(entries, limit))
    further = list(itertools.islice(entries, 1))
    if not further:
        return listed, False
    uids = living()

    def lives(entry: os.DirEntry[str]) -> bool:
        return entry.name.partition("_")[0] in uids

    alive = [entry for entry in listed if lives(entry)]
    rest = [entry for entry in listed if not lives(entry)]
    more = itertools.chain(further, itertools.islice(entries, MAX_LOOKED_AT))
    alive += filter(lives, more)
    return [*alive, *rest][:limit], True


def list_folder(
    path: str,
    limit: int,
    *,
    only_folders: bool = False,
    living: Living = tuple,
) -> tuple[list[os.DirEntry[str]], tuple[Rejection, ...]]:
    """The entries of a folder, in no order; those past ``limit`` are one rejection.

    Of more than ``limit``, those of ``living`` pods come first, as in :func:`first_entries`.
    ``only_folders`` leaves out everything else, links to folders too. Raises SourceError where
    the folder cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            listed, too_many = first_entries(entries, limit, living)
        if only_folders:
            listed = [entry for entry in listed if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise translated(error, path) from error
    detail = f"more than {limit} entries"
    refused = Rejection(printable(path), Reason.TOO_MANY_FILES, detail)
    return listed, (refused,) if too_many else ()


class Remembered(Generic[T]):
    """The value loaded from a file or folder, loaded again only after a change.

    Unchanged means: same inode, size, mtime and ctime as when it was last made, and both times
    older than two seconds at that moment. A failure is never remembered: it may have been ours,
    and pass while the file stays as it is.
    """

    def __init__(self, path: str, load: Callable[[str], T]) -> None:
        """``load`` gets the path and returns the value, or raises SourceError."""
        self._path = Path(path)
        self._load = load
        self._stamp: tuple[int, ...] | None = None
        self._kept: T

    def get(self, now: float) -> T:
        """The current value; ``now`` is unix seconds. Raises what ``load`` raises."""
        before, self._stamp = self._stamp, None
        try:
            status = self._path.stat()
        except OSError as error:
            raise translated(error, str(self._path)) from error
        # Taken before the content is read: a change in between differs from it next time.
        stamp = (
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        settled = stamp == before
        if not settled:
            self._kept = self._load(str(self._path))
            settled = now * 1e9 - max(status.st_mtime_ns, status.st_ctime_ns) > RACY_NS
        self._stamp = stamp if settled else None
        return self._kept


K = TypeVar("K", bound=Hashable)


class KeptResults(Generic[K, T]):
    """Calls a pure function for new keys only. What left with the last round is not kept.

    ``results(keys)[key] == function(key)`` for each of ``keys``, and it holds nothing else: its
    size is that of what is there now, however much comes and goes.
    """

    def __init__(self, function: Callable[[K], T]) -> None:
        """``function`` depends on its argument alone."""
        self._function = function
        self._results: dict[K, T] = {}

    def __call__(self, keys: Collection[K]) -> dict[K, T]:
        """The results by key. Raises what the function raises, and then keeps what it had."""
        before, function = self._results, self._function
        results = {
            key: before[key] if key in before else function(key) for key in dict.fromkeys(keys)
        }
        self._results = results
        return results
