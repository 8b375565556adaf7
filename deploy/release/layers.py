"""Tar files with equal bytes for equal content: no owner, no date of the build, one order.

    pack(folder, file, epoch)       # file.tar.gz

The compressed bytes also depend on the zlib of the Python that runs this.
"""

import gzip
import hashlib
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

LEVEL: Final = 6
"""Compression level of gzip."""


def pack(folder: Path, file: Path, epoch: int) -> Path:
    """Write the content of ``folder`` to a tar file, compressed if ``file`` ends with gz.

    Each file is root's and readable by every user; a file is executable by all users or by none.
    """

    def normal(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
        entry.mode = _mode(entry)
        return entry

    with _opened(file) as content, tarfile.open(fileobj=content, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=normal)
    return file


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def unpacked_sha256(file: Path) -> str:
    """The SHA-256 of what gzip compressed into ``file``, in hexadecimal."""
    with gzip.open(file) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    with file.open("wb") as raw:
        if not file.name.endswith("gz"):
            yield raw
            return
        with gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as content:
            yield content  # type: ignore[misc]


def _mode(entry: tarfile.TarInfo) -> int:
    if entry.issym():
        return 0o777
    if entry.isdir():
        return 0o755 if not entry.mode & stat.S_ISVTX else 0o1777
    return 0o755 if entry.mode & 0o100 else 0o644
