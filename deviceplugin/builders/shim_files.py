"""The shim on the host: ``libvgpu.so`` and the ``ld.so.preload`` that loads it, to be mounted.

A library is put under a name with the digest of its content, and ``libvgpu.so`` is a link to the
newest. Neither is ever written into: a running container has the file mounted, and a process dies
if its code changes. Where a runtime made a folder of these names, as it does for the missing source
of a mount, the folder is moved aside.
"""

import hashlib
import re
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from vgpu.io import atomic_files
from vgpu.model.reasons import SourceError
from vgpu.schemes.volcano.key_set import VOLCANO, ShimPaths
from vgpu.sources.files import printable, read_file

DEFAULT_SHIM_DIR: Final = str(Path(VOLCANO.paths.library).parent)
"""The folder of the dialects' host files."""

LIBRARY_FLAG: Final = "--volcano.shim-library"
FOLDER_FLAG: Final = "--volcano.shim-dir"

KEPT: Final = 3
"""Number of the newest versions that stay, so that an operator can go back by hand. No container
needs an older version: a running one has the file, a recreated one gets the link's target."""

_LIMIT: Final = 256 * 1024 * 1024
"""Maximum size of a library in bytes; HAMi-core's has one million."""

_ELF: Final = b"\x7fELF"
_VERSION: Final = re.compile(r"[0-9a-f]{16}")


class ShimError(Exception):
    """The shim cannot be put in place; the message names the flag."""


def paths_below(paths: ShimPaths, folder: str) -> ShimPaths:
    """The dialect's paths, with the host's paths below ``folder`` instead of the default."""

    def moved(path: str) -> str:
        return str(Path(folder, Path(path).relative_to(DEFAULT_SHIM_DIR)))

    return replace(
        paths,
        library=moved(paths.library),
        preload=moved(paths.preload),
        containers=moved(paths.containers),
    )


def install(source: str, folder: str, key_set: ShimPaths) -> ShimPaths:
    """Put the library of the file ``source`` in place; returns the paths to mount.

    Writes nothing if all files are there already. Raises ShimError.
    """
    try:
        content = read_file(source, _LIMIT, follow=True)
    except SourceError as error:
        raise ShimError(f"{LIBRARY_FLAG} {error}") from error
    if not content.startswith(_ELF):
        raise ShimError(f"{LIBRARY_FLAG} {printable(source)}: it is no shared library (ELF)")
    paths = paths_below(key_set, folder)
    try:
        _put(content, Path(paths.library))
        _put_text(f"{paths.library_target}\n".encode(), Path(paths.preload))
    except OSError as error:
        raise ShimError(f"{FOLDER_FLAG} {printable(folder)}: {error}") from error
    return paths


def _put(content: bytes, link: Path) -> None:
    """Write a version and the link to it. Raises OSError."""
    link.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(content).hexdigest()
    version = link.with_name(f"{link.name}.{digest[:16]}")
    _put_text(content, version)
    if not link.is_symlink() or link.readlink() != Path(version.name):
        atomic_files.link(link, version.name, replaces_folder=True)
    _forget_old(link, version)


def _put_text(content: bytes, path: Path) -> None:
    """Write a file with this content, unless there is one. Raises OSError."""
    try:
        present = read_file(str(path), _LIMIT)
    except SourceError:
        present = None
    if present != content:
        atomic_files.write(path, content, replaces_folder=True)


def _forget_old(link: Path, newest: Path) -> None:
    """Remove versions beyond :data:`KEPT`. Raises OSError."""
    prefix = f"{link.name}."
    versions = [
        path
        for path in link.parent.iterdir()
        if path.name.startswith(prefix) and _VERSION.fullmatch(path.name.removeprefix(prefix))
    ]
    older = (path for path in versions if path != newest)
    for path in sorted(older, key=lambda path: path.lstat().st_mtime_ns, reverse=True)[KEPT - 1 :]:
        path.unlink()
