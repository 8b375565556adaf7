"""Files and links that are there whole or not at all, whichever process dies in between.

A new file is made beside its place, synced, and renamed into it. So a reader sees the old file or
the new one, never a part, and a process that has the old one open or mounted keeps it. An existing
file is never written into.
"""

import os
from pathlib import Path
from typing import Final

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def beside(path: Path) -> Path:
    """The path at which a new file is made; it matches neither ``*.json`` nor ``*.so``."""
    return path.with_name(f".{path.name}.new")


def write(path: Path, content: bytes, mode: int = 0o644, *, lasting: bool = True) -> None:
    """Put a file in place; ``mode`` counts whatever the umask. Raises OSError.

    A file that is not ``lasting``, since it means nothing after a boot, is not synced: a loss of
    power may leave it empty.
    """
    new = beside(path)
    new.unlink(missing_ok=True)
    try:
        _make(new, content, mode, lasting=lasting)
        new.rename(path)
    except OSError:
        discard(new)
        raise
    if lasting:
        sync(path.parent)


def link(path: Path, target: str) -> None:
    """Put a symbolic link in place. Raises OSError."""
    new = beside(path)
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    try:
        new.rename(path)
    except OSError:
        discard(new)
        raise
    sync(path.parent)


def keep_as(path: Path, other: Path) -> None:
    """Keep the file of ``path`` as ``other``, whatever replaces it later. Raises OSError."""
    new = beside(other)
    new.unlink(missing_ok=True)
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
