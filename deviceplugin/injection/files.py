"""Without CDI: a container gets what depends on its pod through files that the answer names.

Each binding has a folder of its name. Allocate's answer mounts what will be in it: a link
``mount-<i>`` for every host path, and ``overrideEnv``, ``KEY=value`` lines that HAMi-core reads at
its start. A runtime makes a missing source as an empty folder instead of refusing it, so only
PreStartContainer delays a container until the folder is there; the folder appears as a whole.

``seal`` is a digest of the rest. If the seal is broken, or a part is missing, the folder is damaged
and counts as lost: it is rewritten, unless a runtime has made a folder in the place of a part.
"""

import errno
import hashlib
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from deviceplugin.model import checked_name, is_binding_name
from vgpu.io import atomic_files
from vgpu.model.names import Scheme
from vgpu.model.reasons import SourceError
from vgpu.schemes.codec import ContainerEdits, Mount
from vgpu.sources.files import read_file

OVERRIDE_ENV: Final = "/overrideEnv"
"""The path in the container that HAMi-core reads."""

_ENV: Final = "overrideEnv"
_BOOT: Final = "boot-id"
_SEAL: Final = "seal"
_LONGEST_LINE: Final = 9_000
"""Maximum length of a line in bytes; HAMi-core reads up to 10,000 at a time."""

_LIMIT: Final = 1024 * 1024
"""Maximum size in bytes of a file that we read again."""


class FileInjector:
    """A :class:`deviceplugin.ports.Injector` for runtimes without CDI. One thread writes."""

    guesses: Final = True

    def __init__(self, run_dir: str, scheme: Scheme, boot_id: str) -> None:
        """``run_dir`` has to be the same path on the host."""
        self._folder = Path(run_dir, "late", scheme)
        self._boot_id = boot_id

    def response(
        self, name: str, edits: ContainerEdits, late_env: Mapping[str, str]
    ) -> ContainerEdits:
        """See :meth:`deviceplugin.ports.Injector.response`.

        Two pods' responses differ only in devices and environment, which cannot come later.
        """
        folder = self._folder / checked_name(name)
        mounts = [
            replace(mount, host=str(folder / _link(i))) for i, mount in enumerate(edits.mounts)
        ]
        if late_env:
            mounts.append(Mount(str(folder / _ENV), OVERRIDE_ENV, read_only=True))
        env = {key: value for key, value in edits.env.items() if key not in late_env}
        return replace(edits, env=env, mounts=tuple(mounts))

    def write(self, name: str, edits: ContainerEdits, late_env: Mapping[str, str]) -> None:
        """See :meth:`deviceplugin.ports.Injector.write`.

        Raises OSError EEXIST if a folder of this boot with other content is there already, and
        OSError EINVAL for a variable of more than one line.
        """
        folder = self._folder / checked_name(name)
        links = {_link(i): mount.host for i, mount in enumerate(edits.mounts)}
        files = {_BOOT: self._boot_id.encode()} | ({_ENV: _lines(late_env)} if late_env else {})
        if _is(folder, links, files):
            return
        if _has_folders(folder):
            # A runtime made a missing source here: it has not waited for PreStartContainer.
            detail = "a container was made before its limits were there: its pod must be replaced"
            raise OSError(errno.EEXIST, detail, str(folder))
        if self._is_whole(folder):
            detail = "its content differs, and a container may use it"
            raise OSError(errno.EEXIST, detail, str(folder))
        new = atomic_files.beside(folder)
        _remove(new)
        new.mkdir(parents=True)
        for file, content in {**files, _SEAL: _seal(links, files)}.items():
            atomic_files.write(new / file, content, lasting=False)
        for link, target in links.items():
            (new / link).symlink_to(target)
        _remove(folder)  # of an older boot, or damaged
        new.rename(folder)

    def written(self) -> frozenset[str]:
        """See :meth:`deviceplugin.ports.Injector.written`."""
        return frozenset(
            path.name
            for path in self._entries()
            if is_binding_name(path.name) and self._is_whole(path)
        )

    def is_whole(self, name: str) -> bool:
        """See :meth:`deviceplugin.ports.Injector.is_whole`."""
        return self._is_whole(self._folder / checked_name(name))

    def prune(self, names: Collection[str]) -> None:
        """See :meth:`deviceplugin.ports.Injector.prune`."""
        for path in self._entries():
            if path.name not in names:
                _remove(path)

    def _entries(self) -> list[Path]:
        """All entries of the run directory. Raises OSError."""
        return [*self._folder.iterdir()] if self._folder.exists() else []

    def _is_whole(self, folder: Path) -> bool:
        """Whether the folder was written in this boot and is unchanged.

        A folder without a seal is older than seals: only its boot is known.
        """
        if _content(folder / _BOOT) != self._boot_id.encode():
            return False
        try:
            found = {path.name: path for path in folder.iterdir()}
            if _SEAL not in found:
                return True
            seal = _content(found.pop(_SEAL))
            links = {name: str(p.readlink()) for name, p in found.items() if p.is_symlink()}
        except OSError:
            return False
        files = {name: _content(path) for name, path in found.items() if name not in links}
        told = {name: content for name, content in files.items() if content is not None}
        return told.keys() == files.keys() and seal == _seal(links, told)


def _link(position: int) -> str:
    return f"mount-{position}"


def _lines(env: Mapping[str, str]) -> bytes:
    """The variables as lines that HAMi-core reads. Raises OSError EINVAL."""
    for key, value in env.items():
        line = f"{key}={value}"
        if not key or "=" in key or not line.isprintable() or len(line.encode()) > _LONGEST_LINE:
            raise OSError(errno.EINVAL, f"{key[:64]!r} cannot be a line: {value[:64]!r}", _ENV)
    return "".join(f"{key}={value}\n" for key, value in sorted(env.items())).encode()


def _seal(links: Mapping[str, str], files: Mapping[str, bytes]) -> bytes:
    """A digest of a folder's content."""
    whole = hashlib.sha256()
    parts = {**files, **{link: bytes(Path(target)) for link, target in links.items()}}
    for name, content in sorted(parts.items()):
        whole.update(b"%d %d %b%b" % (len(name), len(content), name.encode(), content))
    return whole.hexdigest().encode()


def _has_folders(folder: Path) -> bool:
    """Whether there is a folder in this folder: we make none there."""
    try:
        return any(path.is_dir() and not path.is_symlink() for path in folder.iterdir())
    except OSError:
        return False


def _is(folder: Path, links: Mapping[str, str], files: Mapping[str, bytes]) -> bool:
    """Whether the folder has these links and files, and nothing else but their seal."""
    try:
        found = {path.name for path in folder.iterdir()}
        linked = found - {_SEAL} == {*links, *files} and all(
            (folder / link).readlink() == Path(target) for link, target in links.items()
        )
        sealed = _SEAL not in found or _content(folder / _SEAL) == _seal(links, files)
    except OSError:
        return False
    return linked and sealed and all(_content(folder / f) == told for f, told in files.items())


def _content(path: Path) -> bytes | None:
    """The file's bytes; None if it is no file that can be read."""
    try:
        return read_file(str(path), _LIMIT)
    except SourceError:
        return None


def _remove(path: Path) -> None:
    """Remove a file, link or folder; links are not followed. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
