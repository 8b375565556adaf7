"""The Debian packages of the image: the lock file, the download, the unpacked root folder.

A line of requirements/debian.lock is one package; the file is written by debian_lock.py:

    amd64 libc6 2.41-12+deb13u4 967aa6… debian/pool/main/g/glibc/libc6_2.41-12+deb13u4_amd64.deb

A package's file is fetched from Debian's mirror. The mirror keeps a version until the next one
replaces it; snapshot.debian.org keeps all, under the date of the lock. The hash decides which bytes
are used.
"""

import hashlib
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec

from deploy.release.commands import ReleaseError, run

MIRROR: Final = "http://deb.debian.org"
SNAPSHOT: Final = "http://snapshot.debian.org/archive"
SUITE: Final = "trixie"

PACKAGES: Final = ("base-files", "base-passwd", "libgcc-s1", "libstdc++6", "python3")
"""Packages that the image needs: a user table, Python, and the C++ library of grpc. The lock has
their dependencies, too."""

SETUP_ONLY: Final = frozenset(
    {
        "debconf",
        "dpkg",
        "libacl1",
        "libdebconfclient0",
        "libmd0",
        "libpcre2-8-0",
        "libselinux1",
        "mawk",
        "tar",
    }
)
"""Dependencies that only the scripts need by which dpkg sets packages up. No script runs here, so
that the image has no shell and no package manager."""

DOWNLOADS: Final = 4
"""Number of packages that are fetched at a time."""

TIMEOUT: Final = 60.0
"""Maximum time to wait for the mirror's next bytes, in seconds."""

_SNAPSHOT_LINE: Final = re.compile(r"# snapshot: (\d{8}T\d{6}Z)")
_NOT_NEEDED: Final = (
    "usr/sbin",  # base-passwd's program, which needs libraries of setup only
    "usr/share/gdb",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
)


class PackageGoneError(ReleaseError):
    """Nobody has a file of the lock: the mirror has replaced it, and no snapshot answered."""


class DebianPackage(msgspec.Struct, frozen=True, order=True):
    """One line of the lock.

    Attributes:
        platform: whose image has it.
        name: the package's name.
        version: with the epoch, if it has one.
        sha256: of its file, in hexadecimal.
        path: of its file, below the mirror's address; the first folder is the archive's name.
    """

    platform: str
    name: str
    version: str
    sha256: str
    path: str


class DebianLock(msgspec.Struct, frozen=True):
    """The lock file: all packages, and when the mirror had them, as a snapshot's URL has it."""

    snapshot: str
    packages: tuple[DebianPackage, ...]

    def of(self, platform: str) -> tuple[DebianPackage, ...]:
        """The packages of one platform."""
        return tuple(package for package in self.packages if package.platform == platform)

    def addresses(self, package: DebianPackage) -> tuple[str, str]:
        """Where a package's file can be fetched: the mirror first, then the snapshot."""
        archive, _, path = package.path.partition("/")
        return f"{MIRROR}/{package.path}", f"{SNAPSHOT}/{archive}/{self.snapshot}/{path}"


def parse(text: str) -> DebianLock:
    """The lock of a lock file's text. Raises ReleaseError where a line is malformed."""
    snapshot = _SNAPSHOT_LINE.search(text)
    if snapshot is None:
        raise ReleaseError("requirements/debian.lock: no line names the snapshot")
    return DebianLock(snapshot[1], tuple(_packages(text.splitlines())))


def _packages(lines: Iterable[str]) -> Iterator[DebianPackage]:
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != len(DebianPackage.__struct_fields__):
            raise ReleaseError(f"requirements/debian.lock, line {number}: not five words")
        yield DebianPackage(*words)


def text_of(lock: DebianLock) -> str:
    """The lock file's text."""
    lines = (" ".join(msgspec.structs.astuple(package)) for package in sorted(lock.packages))
    about = "# Debian packages of the image. Written by `make lock-debian`. Do not edit."
    return "\n".join((about, f"# snapshot: {lock.snapshot}", *lines, ""))


def download_folder() -> Path:
    """Where downloaded packages are kept, by their hashes."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches, "vgpu-release", "debian")


def fetch(lock: DebianLock, platform: str, folder: Path) -> list[Path]:
    """The files of a platform's packages in ``folder``; what is there already is not fetched again.

    Raises:
        PackageGoneError: the mirror has replaced a package; `make lock-debian` writes a new lock.
        ReleaseError: a file cannot be fetched, or does not have the hash of the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        return list(pool.map(lambda package: _file(lock, package, folder), lock.of(platform)))


def _file(lock: DebianLock, package: DebianPackage, folder: Path) -> Path:
    file = folder / f"{package.sha256}.deb"
    if file.exists():
        return file
    failures = []
    gone = False
    for address in lock.addresses(package):
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as response:  # noqa: S310  # constants
                content: bytes = response.read()
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            failures.append(f"{address}: {error}")
            gone |= isinstance(error, urllib.error.HTTPError) and error.code == HTTPStatus.NOT_FOUND
            continue
        if hashlib.sha256(content).hexdigest() == package.sha256:
            part = file.with_suffix(f".part-{os.getpid()}")
            part.write_bytes(content)
            return part.rename(file)
        failures.append(f"{address}: not the hash of the lock")
    kind = PackageGoneError if gone else ReleaseError
    raise kind(f"{package.name} {package.version}: {'; '.join(failures)}")


def unpack(files: Iterable[Path], folder: Path) -> None:
    """Unpack packages into a root folder, without running their scripts.

    The licences stay, and each package is registered in /var/lib/dpkg/status.d, where scanners of
    images look for it.
    """
    folder.mkdir()
    status = folder / "var" / "lib" / "dpkg" / "status.d"
    for file in files:
        run("dpkg-deb", "--extract", file, folder)
        status.mkdir(parents=True, exist_ok=True)
        control = run("dpkg-deb", "--field", file)
        name = run("dpkg-deb", "--field", file, "Package").strip()
        (status / name).write_text(control)
    for name in ("passwd", "group"):  # as base-passwd's own script does
        shutil.copy(folder / f"usr/share/base-passwd/{name}.master", folder / "etc" / name)
    for path in _NOT_NEEDED:
        shutil.rmtree(folder / path, ignore_errors=True)
    for page in (folder / "usr" / "share" / "doc").glob("*/*"):
        if page.name != "copyright":
            shutil.rmtree(page) if page.is_dir() and not page.is_symlink() else page.unlink()
