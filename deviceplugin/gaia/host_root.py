"""Files of the host, seen from a container that has the host's root somewhere below its own."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

_MOST_LINKS: Final = 40
"""Maximum number of links in a path, as in the kernel: path_resolution(7)."""


def resolved(root: str, path: str) -> str:
    """The path here of the host's ``path``, with all links resolved.

    Links are resolved as on the host: from its root, and not above it. Raises OSError.
    """
    base = root.rstrip("/")
    done: list[str] = []
    rest = path.split("/")[::-1]
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            del done[-1:]
        elif part not in ("", "."):
            target = _link("/".join([base, *done, part]))
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                done = []
            rest += target.split("/")[::-1]
    return "/".join([base, *done])


def regular_file(root: str, path: str) -> tuple[str, os.stat_result] | None:
    """The regular file that the host has at ``path``, as a path here; None if there is none."""
    try:
        real = resolved(root, path)
        status = os.lstat(real)
    except OSError:
        return None
    return (real, status) if stat.S_ISREG(status.st_mode) else None


def _link(path: str) -> str | None:
    """The target of a link; None if the path is no link. Raises OSError."""
    try:
        return str(Path(path).readlink())
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
