"""The kubelet's checkpoint as assignments of one resource, read again whenever it changes.

The kubelet renames the whole file into place right after every Allocate, and on a node with long
lists the file has megabytes. So only the requested resource is decoded, and the checksum is not
verified here: recovery verifies it when the plugin starts. The kubelet keeps entries of pods that
are gone until it allocates again.
"""

from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from deviceplugin.kubelet import responses
from deviceplugin.model import ContainerDevices
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.codec import ContainerEdits
from vgpu.sources.files import printable, read_file
from vgpu.sources.kubelet_checkpoint import (
    CHECKPOINT_LIMIT,
    CheckpointEntry,
    all_device_ids,
    decode_answer,
    entries_of,
)

Stamp = tuple[int, int, int, int]
"""Inode, mtime and ctime in nanoseconds, and size: they differ after any change of the file."""

MOST_ANSWERS: Final = 1024
"""Maximum number of decoded answers in memory; a node has some hundred containers with devices."""


def stamp(path: str) -> Stamp | None:
    """The stamp of the file as it is now; None if the file is missing or not accessible."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def read_assignments(path: str, resource: str) -> tuple[ContainerDevices, ...]:
    """The kubelet's assignments of the resource, in the file's order.

    An assignment with an unreadable answer has no name and is kept. Raises SourceError ABSENT,
    UNREADABLE, NOT_REGULAR_FILE, TOO_LARGE, MALFORMED.
    """
    content = read_file(path, CHECKPOINT_LIMIT)
    try:
        entries = entries_of(content)
        return tuple(_assignment(entry) for entry in entries if entry.resource == resource)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, printable(path), str(error)) from error


class KubeletTable:
    """The assignments of one resource in one checkpoint."""

    def __init__(self, path: str, resource: str) -> None:
        self._path = path
        self._resource = resource

    def stamp(self) -> Stamp | None:
        """See :func:`stamp`."""
        return stamp(self._path)

    def read(self) -> tuple[ContainerDevices, ...]:
        """See :func:`read_assignments`."""
        return read_assignments(self._path, self._resource)


def _assignment(entry: CheckpointEntry) -> ContainerDevices:
    """The assignment of an entry. Raises msgspec.DecodeError for an entry without valid IDs."""
    name, edits = _answer(bytes(entry.answer_text))
    return ContainerDevices(
        pod_uid=entry.pod_uid,
        container=entry.container,
        ids=frozenset(all_device_ids(entry.device_ids())),
        name=name,
        answer=edits,
    )


@lru_cache(MOST_ANSWERS)
def _answer(text: bytes) -> tuple[str, ContainerEdits]:
    """Decode an answer. The file changes by one entry, so most answers were decoded before."""
    try:
        return responses.read(decode_answer(text))
    except (msgspec.DecodeError, ValueError):
        return "", ContainerEdits({})
