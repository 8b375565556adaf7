"""Files and links that are there whole or not at all, whichever process dies in between.

A new file is made beside its place, synced, and renamed into it. So a reader sees the old file or
the new one, never a part, and a process that has the old one open or mounted keeps it. An existing
file is never written into.

A folder at the name of the new file does not stop a writer, and one at the file's own name does
not where the caller allows it: a tenant or a container runtime may have made it. It is moved aside
under a name of its own. It is never deleted, since its content is not ours, and no link is
followed.
"""

import logging
import os
import secrets
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_TRIES: Final = 3
"""Maximum number of folders that a writer moves aside for one file."""

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def beside(path: Path) -> Path:
    """The path at which a new file is made; it matches neither ``*.json`` nor ``*.so``."""
    return path.with_name(f".{path.name}.new")


def write(
    path: Path,
    content: bytes,
    mode: int = 0o644,
    *,
    lasting: bool = True,
    replaces_folder: bool = False,
) -> None:
    """Put a file in place; ``mode`` counts whatever the umask. Raises OSError.

    A file that is not ``lasting``, since it means nothing after a boot, is not synced: a loss of
    power may leave it empty. ``replaces_folder`` is for a name that is ours alone.
    """
    new = _cleared(beside(path))
    try:
        _make(new, content, mode, lasting=lasting)
        _rename(new, path, replaces_folder=replaces_folder)
    except OSError:
        discard(new)
        raise
    if lasting:
        sync(path.parent)


def link(path: Path, target: str, *, replaces_folder: bool = False) -> None:
    """Put a symbolic link in place. Raises OSError."""
    new = _cleared(beside(path))
    new.symlink_to(target)
    try:
        _rename(new, path, replaces_folder=replaces_folder)
    except OSError:
        discard(new)
        raise
    sync(path.parent)


def keep_as(path: Path, other: Path) -> None:
    """Keep the file of ``path`` as ``other``, whatever replaces it later. Raises OSError."""
    new = _cleared(beside(other))
    new.hardlink_to(path)
    new.rename(other)
    new.unlink(missing_ok=True)  # of two names for one file a rename leaves both


def sync(folder: Path) -> None:
    """Sync a folder, so that its names survive a loss of power. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def discard(path: Path) -> None:
    """Remove a file if possible."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _cleared(new: Path) -> Path:
    """The path of a new file, at which there is nothing any more. Raises OSError."""
    try:
        new.unlink(missing_ok=True)
    except IsADirectoryError:
        _move_aside(new)
    return new


def _rename(new: Path, path: Path, *, replaces_folder: bool) -> None:
    """Rename a new file into its place. Raises OSError."""
    for _ in range(_TRIES if replaces_folder else 0):
        try:
            new.rename(path)
        except IsADirectoryError:
            _move_aside(path)
        else:
            return
    new.rename(path)


def _move_aside(folder: Path) -> None:
    """Give a folder another name in the same folder. Raises OSError."""
    other = folder.with_name(f".{folder.name.lstrip('.')}.{secrets.token_hex(8)}.moved")
    folder.rename(other)
    log.warning(
        "folder in the place of a file moved aside", extra={"path": folder, "moved_to": other.name}
    )


def _make(path: Path, content: bytes, mode: int, *, lasting: bool) -> None:
    fd = os.open(path, _NEW, mode)
    try:
        os.fchmod(fd, mode)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if lasting:
            os.fsync(fd)
    finally:
        os.close(fd)
