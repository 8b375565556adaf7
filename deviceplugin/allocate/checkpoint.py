"""The plugin's own checkpoint on disk: it survives any crash, and no version is lost.

``checkpoint-<scheme>.json`` is the newest version, and ``.bak`` beside it the one before. An
unreadable file is renamed to ``.damaged-<time>``, never overwritten. A lock keeps a second plugin
of the same scheme from using the node's files while the first one lives. The binder writes the file
whenever the admitted pods differ from it.
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_events import BinderEvents
from vgpu.io import atomic_files
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.names import Scheme
from vgpu.model.own_checkpoint import LIMIT, decode, encode, file_name
from vgpu.model.own_checkpoint import Checkpoint as Content
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.files import printable, read_file

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 30.0
"""Maximum time to wait for a predecessor that is still ending, in seconds, as the kubelet waits."""

MOST_DAMAGED: Final = 4
"""Maximum number of damaged files that are kept for people; the oldest are removed."""

_STAMP: Final = 13
"""Number of digits of unix milliseconds, until the year 2286."""

_DIGITS: Final = "[0-9]" * _STAMP
_PAUSE_SECONDS: Final = 0.1
_MODE: Final = 0o600
_OPEN_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


_Stamp = tuple[int, int, int]
"""Inode, size, mtime in nanoseconds; renaming the file changes none of them."""


class LockHeld(Exception):  # noqa: N818  # it is a state of the node, not a failure of ours
    """Another plugin of the same scheme runs on this node.

    Attributes:
        path: the lock.
    """

    def __init__(self, path: str) -> None:
        super().__init__(
            f"another device plugin of this scheme runs on this node: it holds {path}"
            f" (fuser -v {path} names it)"
        )
        self.path = path


class Loaded(msgspec.Struct, frozen=True):
    """The content of the checkpoint.

    Attributes:
        admitted_pods: of the newest readable file; () if there is none.
        this_boot: whether the file was written since the node started; an older one has old state.
        problem: why that is not the newest file, or why there is none; None without a problem.
    """

    admitted_pods: tuple[AdmittedPod, ...] = ()
    this_boot: bool = False
    problem: SourceError | None = None


class CheckpointFile:
    """The file, for one thread. A context manager that releases the lock."""

    def __init__(
        self,
        folder: str,
        scheme: Scheme,
        node: str,
        boot_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` returns unix seconds. Nothing is read yet: see :meth:`open`."""
        self._scheme = scheme
        self._node = node
        self._boot_id = boot_id
        self._clock = clock
        self._path = Path(folder, file_name(scheme))
        self._backup = self._path.with_name(f"{self._path.name}.bak")
        self._lock = -1
        self._good: _Stamp | None = None  # of the newest file when it was last known to be whole

    def open(
        self, patience: float = PATIENCE_SECONDS, ended: Callable[[], bool] = lambda: False
    ) -> Self:
        """Make the folder, and wait to be the only plugin.

        Waits at most ``patience`` seconds, and no longer than until ``ended``. Raises LockHeld,
        OSError.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path.with_suffix(".lock")
        fd = os.open(path, _OPEN_LOCK, _MODE)
        try:
            _locked(fd, printable(str(path)), patience, ended)
        except BaseException:
            os.close(fd)
            raise
        self._lock = fd
        return self

    def load(self) -> Loaded:
        """The last saved content, as far as it can be read. Never raises."""
        problems: list[SourceError] = []
        for path in (self._path, self._backup):
            try:
                kept = self._read(path)
            except SourceError as error:
                problems.append(error)
                if error.reason is not Reason.ABSENT:
                    self._try_to_set_aside(path, error)
                continue
            self._good = _stamp(path) if path == self._path else None
            first = problems[0] if problems else None
            return Loaded(kept.admitted_pods, kept.boot_id == self._boot_id, first)
        broken = (error for error in problems if error.reason is not Reason.ABSENT)
        return Loaded(problem=next(broken, None))

    def save(self, admitted_pods: Iterable[AdmittedPod]) -> None:
        """Make the admitted pods durable. Raises OSError; the previous content then stays."""
        kept = Content(self._node, self._scheme, self._boot_id, self._clock(), tuple(admitted_pods))
        content = encode(kept)
        if len(content) > LIMIT:
            raise OSError(errno.EFBIG, f"more than {LIMIT} bytes", str(self._path))
        if self.is_whole():
            with suppress(FileNotFoundError):  # another program has removed it
                atomic_files.keep_as(self._path, self._backup)
        elif os.path.lexists(self._path):
            self._set_aside(self._path)
        atomic_files.write(self._path, content, _MODE)
        self._good = _stamp(self._path)

    def is_whole(self) -> bool:
        """Whether the last saved file is unchanged, by a quick check."""
        return self._good is not None and self._good == _stamp(self._path)

    def close(self) -> None:
        """Release the lock for another plugin."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------ parts

    def _read(self, path: Path) -> Content:
        """The content of a file. Raises SourceError."""
        content = read_file(str(path), LIMIT)
        return decode(content, printable(str(path)), self._scheme, self._node)

    def _try_to_set_aside(self, path: Path, error: SourceError) -> None:
        try:
            aside = self._set_aside(path)
        except OSError as failure:
            log.warning("our checkpoint cannot be read: %s; nor set aside: %s", error, failure)
        else:
            log.warning("our checkpoint cannot be read: %s; it is now %s", error, aside)

    def _set_aside(self, path: Path) -> Path:
        """Rename a damaged file, so that it is kept and not overwritten. Raises OSError."""
        older = sorted(path.parent.glob(f"{path.name}.damaged-{_DIGITS}"))
        last = int(older[-1].name[-_STAMP:]) if older else 0
        milliseconds = max(int(self._clock() * 1000), last + 1)  # the clock may have been set back
        aside = path.with_name(f"{path.name}.damaged-{milliseconds:0{_STAMP}d}")
        path.rename(aside)
        for file in [*older, aside][:-MOST_DAMAGED]:
            atomic_files.discard(file)
        return aside


def _stamp(path: Path) -> _Stamp | None:
    """The stamp of a file; None if the file is missing or not accessible."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _locked(fd: int, path: str, patience: float, ended: Callable[[], bool]) -> None:
    """Take the lock. Raises LockHeld, OSError."""
    until = time.monotonic() + patience
    waiting = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until or ended():
                raise LockHeld(path) from error
        else:
            return
        if not waiting:
            log.warning("waiting for another device plugin to let go of %s", path)
            waiting = True
        time.sleep(_PAUSE_SECONDS)


class CheckpointWriter:
    """Writes the file when the admitted pods have changed. Used by the binder's thread alone."""

    def __init__(self, store: CheckpointFile, events: BinderEvents) -> None:
        self._store = store
        self._events = events
        self._saved: Mapping[str, AdmittedPod] | None = None

    def assume(self, admitted_pods: Mapping[str, AdmittedPod] | None) -> None:
        """The checkpoint has these pods; None is unknown, so that it is written next time."""
        self._saved = admitted_pods

    def check(self) -> None:
        """If the checkpoint is damaged, it is written next time."""
        if not self._store.is_whole():
            self._saved = None

    def keep(self, allocation_state: AllocationState) -> bool:
        """Write the checkpoint if it differs; returns whether it is up to date now."""
        if allocation_state.admitted_pods == self._saved:
            return True
        try:
            self.save(allocation_state)
        except OSError as error:
            log.warning("our checkpoint cannot be written: %s", error)
            return False
        return True

    def save(self, allocation_state: AllocationState) -> None:
        """Write the checkpoint. Raises OSError."""
        try:
            self._store.save(allocation_state.admitted_pods.values())
        except OSError:
            self._events.unsaved()
            raise
        self._saved = allocation_state.admitted_pods
