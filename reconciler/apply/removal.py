"""Removes a shim's folder that no process uses, and nothing else.

The tenant can change the folder and its files at any moment, so no link is followed: the
folder is opened once, its files are removed relative to it, and only if all of them are regular
files. There is no recursion, and no trash: a removal that is cut short leaves a folder of the
same name with fewer files, which the next cycle finds again.
"""

import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from reconciler.apply.client import ActionRefused
from reconciler.model import RemoveFolder
from reconciler.reasons import ActionOutcome
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.registry import registry
from vgpu.sources.files import printable
from vgpu.sources.shim import FOLDER_NAME

MOST_FILES: Final = 64
"""Maximum number of files in one folder; the shim makes two or three."""

_ROOT_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER_FLAGS: Final = _ROOT_FLAGS | os.O_NOFOLLOW

Identity = tuple[int, int, int]
"""As of :class:`~reconciler.model.ShimFolder`."""


class Remover:
    """Removes folders directly below the shims' roots."""

    def __init__(
        self,
        roots: Collection[str],
        identity: Callable[[str], Identity],
        mapped: Callable[[str], bool],
    ) -> None:
        """``roots`` hold the folders; the usual ones do if there are none.

        ``identity`` returns which folder a path is now, ``mapped`` whether a process uses it; both
        may raise SourceError.
        """
        self._roots = frozenset(root.rstrip("/") for root in roots or registry().region_roots)
        self._identity = identity
        self._mapped = mapped

    def remove(self, action: RemoveFolder, *, dry_run: bool = False) -> str:
        """Remove the folder if its identity is unchanged and no process uses it.

        Returns what was done, in words. Raises ActionRefused.
        """
        root, name = os.path.split(action.path)
        uid, _, _ = name.partition("_")
        if root not in self._roots or not FOLDER_NAME.fullmatch(name) or uid != action.pod_uid:
            raise ActionRefused(
                ActionOutcome.FAILED, f"{printable(action.path)} is no folder of a shim's"
            )
        try:
            if self._mapped(action.path):
                raise ActionRefused(ActionOutcome.CHANGED, "a process uses it")
            with _opened(root, _ROOT_FLAGS) as root_fd, _opened(name, _FOLDER_FLAGS, root_fd) as fd:
                return self._empty(action, root_fd, fd, name, dry_run=dry_run)
        except SourceError as error:
            outcome = ActionOutcome.GONE if error.reason is Reason.ABSENT else ActionOutcome.FAILED
            raise ActionRefused(outcome, str(error)) from error
        except FileNotFoundError as error:
            raise ActionRefused(ActionOutcome.GONE, str(error)) from error
        except OSError as error:
            raise ActionRefused(ActionOutcome.FAILED, str(error)) from error

    def _empty(
        self, action: RemoveFolder, root_fd: int, fd: int, name: str, *, dry_run: bool
    ) -> str:
        files = _plain_files(fd)
        if self._identity(action.path) != action.identity or not _is(fd, action.identity):
            raise ActionRefused(ActionOutcome.CHANGED, "it has changed, or is another folder")
        summary = f"{len(files)} file" + "s" * (len(files) != 1)
        if dry_run:
            return summary
        for file in files:
            os.unlink(file, dir_fd=fd)
        if not _is(root_fd, action.identity, name):
            raise ActionRefused(
                ActionOutcome.CHANGED, "another folder took its name while it was emptied"
            )
        os.rmdir(name, dir_fd=root_fd)  # refuses where something was put into it meanwhile
        return summary


@contextmanager
def _opened(path: str, flags: int, dir_fd: int | None = None) -> Iterator[int]:
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _is(fd: int, identity: Identity, name: str = "") -> bool:
    """Whether the open folder, or what is called ``name`` in it, is that device and inode."""
    status = os.stat(name, dir_fd=fd, follow_symlinks=False) if name else os.fstat(fd)
    return (status.st_dev, status.st_ino) == identity[:2]


def _plain_files(fd: int) -> tuple[str, ...]:
    """The files. Raises ActionRefused where there are others than a few regular files."""
    names = []
    for name in os.listdir(fd):
        if not stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            raise ActionRefused(
                ActionOutcome.FAILED, f"it holds {printable(name)}, which is no regular file"
            )
        names.append(name)
    if len(names) > MOST_FILES:
        raise ActionRefused(
            ActionOutcome.FAILED, f"it holds {len(names)} files, more than any shim makes"
        )
    return tuple(names)
