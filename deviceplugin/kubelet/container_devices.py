"""The kubelet's checkpoint as assignments of one resource, read again whenever it changes.

The file appears whole, by a rename, right after every Allocate, and a node with long lists has
megabytes of it. So only what is asked for is decoded, and the checksum is not verified here: that
is a loop over every byte, and :mod:`vgpu.sources.kubelet_checkpoint` does it when the plugin
starts. Of pods that are gone the kubelet keeps entries until it allocates again.
"""

import binascii
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from deviceplugin.allocate import responses
from deviceplugin.model import ContainerDevices
from vgpu.reasons import Reason, SourceError
from vgpu.schemes.codec import ContainerEdits
from vgpu.sources.files import printable, read_file
from vgpu.sources.kubelet_checkpoint import CHECKPOINT_LIMIT

Stamp = tuple[int, int, int, int]
"""Inode, mtime and ctime in nanoseconds, size: what a file that changed does not keep."""

MOST_ANSWERS: Final = 1024
"""That are remembered; a node has some hundred containers with devices."""

_UNREAD: Final = msgspec.Raw(b"null")

_ByNode = dict[str, list[str] | None]
"""NUMA node -> device IDs; a device of two nodes is listed under both."""


class _Entry(msgspec.Struct, gc=False):
    """Kubernetes ``PodDevicesEntry``."""

    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    device_ids: msgspec.Raw = msgspec.field(name="DeviceIDs", default=_UNREAD)
    answer: msgspec.Raw = msgspec.field(name="AllocResp", default=_UNREAD)


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _Checkpoint(msgspec.Struct):
    data: _Data | None = msgspec.field(name="Data")


_FILE: Final = msgspec.json.Decoder(_Checkpoint)
_IDS: Final = msgspec.json.Decoder(_ByNode | list[str] | None)  # a list: Kubernetes up to 1.19
_ANSWER: Final = msgspec.json.Decoder(str | None)


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
        data = _FILE.decode(content).data
        entries = (data.entries if data else None) or ()
        return tuple(_assignment(entry) for entry in entries if entry.resource == resource)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, printable(path), str(error)) from error


def _assignment(entry: _Entry) -> ContainerDevices:
    """Raises msgspec.DecodeError where the IDs are none: a container without them is a guess."""
    ids = _IDS.decode(entry.device_ids)
    lists = ids.values() if isinstance(ids, dict) else (ids,)
    name, edits = _answer(bytes(entry.answer))
    return ContainerDevices(
        pod_uid=entry.pod_uid,
        container=entry.container,
        ids=frozenset(each for listed in lists for each in listed or ()),
        name=name,
        answer=edits,
    )


@lru_cache(MOST_ANSWERS)
def _answer(told: bytes) -> tuple[str, ContainerEdits]:
    """From JSON. The file changes by one entry, so that nearly all were read before."""
    try:
        return responses.read(binascii.a2b_base64(_ANSWER.decode(told) or "", strict_mode=True))
    except (msgspec.DecodeError, ValueError):
        return "", ContainerEdits({})
