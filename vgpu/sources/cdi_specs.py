"""The CDI specs of a node: which CDI devices of DRA drivers the container runtime cannot find.

A driver writes a spec when it prepares a ResourceClaim, and the runtime reads ``*.json`` and
``*.yaml`` of its folders when it starts a container. A CDI device is looked for in the text of a
spec, by the words of its kind and of its name: that needs no parser of what others write, and a
device of a ResourceClaim usually has the UID of the ResourceClaim in its name.
"""

import os
import re
from collections.abc import Collection, Iterator
from typing import Final

from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.files import list_folder, read_file, translated

MAX_FILES: Final = 4096
"""Maximum number of entries in a folder."""

FILE_LIMIT: Final = 1024 * 1024
"""Maximum size of a spec, in bytes: that of a ResourceClaim has some kilobytes."""

TOTAL_LIMIT: Final = 16 * 1024 * 1024
"""Maximum size of all specs together, in bytes."""

_SUFFIXES: Final = (".json", ".yaml")
_WORD: Final = re.compile(rb"[A-Za-z0-9_.:/-]+")
"""A kind, ``<vendor>/<class>``, or the name of a device."""

_Stamp = tuple[str, int, int, int, int]
"""Path, inode, size, and the times of the last changes of a spec."""


class CdiSpecs:
    """The specs in some folders; a folder that does not exist has none. One thread uses it."""

    def __init__(self, folders: Collection[str] = ()) -> None:
        """``folders`` are all in which the runtime looks; without any, nothing is missing."""
        self._folders = tuple(folders)
        self._asked: frozenset[str] = frozenset()
        self._stamps: tuple[_Stamp, ...] = ()
        self._missing: frozenset[str] = frozenset()

    def missing(self, names: frozenset[str]) -> frozenset[str]:
        """The CDI devices, ``<kind>=<device>``, that no spec has.

        Specs are read again only if one of them, or ``names``, has changed. Raises SourceError if
        one of them cannot be read, since any device may be in it.
        """
        if not names or not self._folders:
            return frozenset()
        stamps = tuple(stamp for folder in self._folders for stamp in _specs(folder))
        if stamps != self._stamps or names != self._asked:
            self._asked = frozenset()
            self._missing = _search(names, stamps)
            self._asked, self._stamps = names, stamps
        return self._missing


def _specs(folder: str) -> Iterator[_Stamp]:
    """The specs of a folder, by name. Raises SourceError."""
    try:
        entries, refused = list_folder(folder, MAX_FILES)
    except SourceError as error:
        if error.reason is Reason.ABSENT:
            return
        raise
    if refused:
        raise SourceError(refused[0].reason, refused[0].object_name, refused[0].detail)
    for path in sorted(entry.path for entry in entries if entry.name.endswith(_SUFFIXES)):
        try:
            status = os.lstat(path)
        except FileNotFoundError:  # its ResourceClaim has just been released
            continue
        except OSError as error:
            raise translated(error, path) from error
        changed = status.st_mtime_ns, status.st_ctime_ns
        yield path, status.st_ino, status.st_size, *changed


def _search(names: Collection[str], specs: Collection[_Stamp]) -> frozenset[str]:
    """The names that stand in none of the specs. Raises SourceError."""
    if sum(size for _, _, size, *_ in specs) > TOTAL_LIMIT:
        detail = f"all of them have more than {TOTAL_LIMIT} bytes"
        raise SourceError(Reason.TOO_LARGE, "CDI specs", detail)
    missing = {name: tuple(name.encode().partition(b"=")[::2]) for name in names}
    for path, *_ in specs:
        try:
            words = set(_WORD.findall(read_file(path, FILE_LIMIT)))
        except SourceError as error:
            if error.reason is Reason.ABSENT:
                continue
            raise
        missing = {name: parts for name, parts in missing.items() if not words.issuperset(parts)}
    return frozenset(missing)
