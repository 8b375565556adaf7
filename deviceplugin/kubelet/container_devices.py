"""The kubelet's checkpoint as assignments of one resource, read again whenever it changes.

The file appears whole, by a rename, right after every Allocate, and a node with long lists has
megabytes of it. So only what is asked for is decoded, and the checksum is not verified here:
recovery does that when the plugin starts. The kubelet keeps entries of pods that are gone until it
allocates again.
"""

from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from deviceplugin.kubelet import responses
from deviceplugin.model import ContainerDevices
from vgpu.reasons import Reason, SourceError
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
"""Inode, mtime and ctime in nanoseconds, size: what a file that changed does not keep."""

MOST_ANSWERS: Final = 1024
"""That are remembered; a node has some hundred containers with devices."""


def stamp(path: str) -> Stamp | None:
    """Of the file as it is now; None if it cannot be seen."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def read_assignments(path: str, resource: str) -> tuple[ContainerDevices, ...]:
    """What the kubelet has given to whom of the resource, in the file's order.

    An answer that cannot be read has no name and is kept. Raises SourceError ABSENT, UNREADABLE,
    NOT_REGULAR_FILE, TOO_LARGE, MALFORMED.
    """
    content = read_file(path, CHECKPOINT_LIMIT)
    try:
        entries = entries_of(content)
        return tuple(_assignment(entry) for entry in entries if entry.resource == resource)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, printable(path), str(error)) from error


class KubeletTable:
    """The assignments of one resource in one checkpoint.

    A :class:`deviceplugin.allocate.binder_ports.KubeletDevices`.
    """

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
    """Raises msgspec.DecodeError where the IDs are none: a container without them is a guess."""
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
    """From JSON. The file changes by one entry, so that nearly all were read before."""
    try:
        return responses.read(decode_answer(text))
    except (msgspec.DecodeError, ValueError):
        return "", ContainerEdits({})
