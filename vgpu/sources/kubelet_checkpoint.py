"""The environment inside a device plugin's answer, read from its protobuf bytes.

The kubelet keeps the answer to Allocate in its checkpoint: a ``ContainerAllocateResponse`` of the
device-plugin API v1beta1, whose field 1 is ``map<string, string> envs``. Only this field is read
here, by protobuf's wire rules, so that a node needs no protobuf runtime for it. Any bytes give
a mapping or a :class:`WireError`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from vgpu.model.facts import Grant
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.schemes.nvidia.grant import parse_device_id
from vgpu.sources.files import KeptResults

ENVS = 1
KEY, VALUE = 1, 2  # of a map entry

_VARINT, _BYTES, _GROUP, _END_GROUP = 0, 2, 3, 4  # wire types
_FIXED = {1: 8, 5: 4}  # wire type -> bytes

_MAX_GROUP_DEPTH = 100  # protobuf's own default


class WireError(ValueError):
    """The bytes are not a protobuf message."""


def environment(message: bytes) -> dict[str, str]:
    """The ``envs`` of a ContainerAllocateResponse; a repeated key keeps its last value.

    Raises WireError.
    """
    envs = {}
    try:
        for field, entry in _fields(message):
            if field == ENVS:
                pair = {KEY: "", VALUE: ""}
                pair.update((n, text.decode()) for n, text in _fields(entry) if n in pair)
                envs[pair[KEY]] = pair[VALUE]
    except UnicodeDecodeError as error:
        raise WireError("a string that is not UTF-8") from error
    return envs


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of the outermost level, as (number, content).

    Every other field is checked and skipped: it is unknown, or has not the type it should have,
    which to protobuf is the same.
    """
    offset = 0
    groups: list[int] = []
    while offset < len(message):
        tag, offset = _varint(message, offset, longest=5)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise WireError(f"field number {number}")
        if wire == _GROUP:
            groups.append(number)
            if len(groups) > _MAX_GROUP_DEPTH:
                raise WireError("groups too deep")
        elif wire == _END_GROUP:
            if not groups or groups.pop() != number:
                raise WireError("a group ends that did not begin")
        else:
            start, offset = _content(message, offset, wire)
            if wire == _BYTES and not groups:
                yield number, message[start:offset]
    if groups:
        raise WireError("a group without end")


def _content(message: bytes, offset: int, wire: int) -> tuple[int, int]:
    """Where the content of the field whose tag ended at ``at`` begins and ends."""
    if wire == _VARINT:
        return offset, _varint(message, offset, longest=10)[1]
    if wire == _BYTES:
        size, offset = _varint(message, offset, longest=5)
    elif wire in _FIXED:
        size = _FIXED[wire]
    else:
        raise WireError(f"wire type {wire}")
    if size > len(message) - offset:
        raise WireError("a field is cut off")
    return offset, offset + size


def _varint(message: bytes, offset: int, longest: int) -> tuple[int, int]:
    """The integer that starts at ``at``, of at most ``longest`` bytes, and where it ends."""
    value = 0
    for shift, byte in enumerate(message[offset : offset + longest]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, offset + shift + 1
    raise WireError("an integer is cut off or too long")


CHECKPOINT_LIMIT = 16 * 1024 * 1024
"""Maximum size of the file, in bytes. A plugin can register at most 4 MiB of IDs (the kubelet's
gRPC limit), and the file may list them twice."""

DeviceIds = dict[int, list[str] | None] | list[str] | None
"""NUMA node -> device IDs; a device of two nodes is listed under both."""


class CheckpointEntry(msgspec.Struct, gc=False):
    """Kubernetes ``PodDevicesEntry``. Device IDs and answer are decoded when they are asked for."""

    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    device_ids_text: msgspec.Raw = msgspec.field(name="DeviceIDs")
    answer_text: msgspec.Raw = msgspec.field(name="AllocResp")

    def device_ids(self) -> DeviceIds:
        """The device IDs, by NUMA node or as a plain list. Raises msgspec.DecodeError."""
        ids: DeviceIds = _DEVICE_IDS.decode(self.device_ids_text)
        return ids


class CheckpointData(msgspec.Struct):
    """The part of the file that the checksum is of."""

    entries: list[CheckpointEntry] | None = msgspec.field(name="PodDeviceEntries")
    registered: msgspec.Raw = msgspec.field(name="RegisteredDevices")


class _Checkpoint(msgspec.Struct):
    data: CheckpointData | None = msgspec.field(name="Data")
    checksum: int | None = msgspec.field(name="Checksum", default=None)


_DECODER: Final = msgspec.json.Decoder(_Checkpoint)
_DEVICE_IDS: Final = msgspec.json.Decoder(DeviceIds)
_ANSWER: Final = msgspec.json.Decoder(bytes | None)
_REGISTERED: Final = msgspec.json.Decoder(dict[str, list[str] | None] | None)


_REPLICA: Final = re.compile(rb"::|/vgpu")
"""What the ID of a replica has in front of its number: NVIDIA's plugin, and GKE's."""

_RESOURCES: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_IDS: Final = msgspec.json.Decoder(list[str] | None)


class _Verified(NamedTuple):
    """An entry with all data of the checksum."""

    entry: CheckpointEntry
    device_ids: DeviceIds
    answer: bytes | None


def entries_of(content: bytes) -> tuple[CheckpointEntry, ...]:
    """The entries of a checkpoint whose checksum is not verified.

    Verifying is a loop over every byte, and a node with long lists has megabytes of them. Raises
    msgspec.DecodeError, ValueError, RecursionError.
    """
    data = _DECODER.decode(content).data
    return tuple((data.entries if data else None) or ())


def decode_answer(text: msgspec.Raw | bytes) -> bytes:
    """An entry's answer, from its JSON; b"" if it has none. Raises msgspec.DecodeError."""
    return _ANSWER.decode(text) or b""


def parse_checkpoint(
    content: bytes, object_name: str = "checkpoint", *, verify: bool = True
) -> tuple[tuple[Grant, ...], tuple[Rejection, ...]]:
    """The grants of a checkpoint, in its order, with each entry's device IDs sorted.

    Without ``verify`` the checksum is not compared, and the registered devices are not decoded.

    An entry whose answer is not a ContainerAllocateResponse keeps its devices, has no ``env``,
    and is reported as a rejection. Entries of pods that are gone are normal.

    Raises:
        SourceError: MALFORMED, CHECKSUM_MISMATCH.
    """
    try:
        checkpoint = _DECODER.decode(content)
        data, checksum = checkpoint.data, checkpoint.checksum
        granted = _granted((data and data.entries) or ())
        expected = checksum
        if data is not None and verify:
            expected = checksum_of(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, object_name, str(error)) from error
    if data is None or checksum is None:
        raise SourceError(Reason.MALFORMED, object_name, "it has no data, or no checksum")
    if checksum != expected:
        detail = f"its checksum is {checksum}, but its content gives {expected}"
        raise SourceError(Reason.CHECKSUM_MISMATCH, object_name, detail)
    rejections = tuple(
        Rejection(f"{object_name}: {where}", Reason.MALFORMED, f"AllocResp: {error}")
        for _, where, error in granted
        if error
    )
    return tuple(grant for grant, _, _ in granted), rejections


def registered_replicas(content: bytes) -> dict[str, int]:
    """How many replicas of each device NVIDIA's plugin has registered: unhealthy ones are missing.

    Lists of other plugins, which may have megabytes, are not decoded. Raises msgspec.DecodeError,
    RecursionError.
    """
    if not _REPLICA.search(content):
        return {}
    data = _DECODER.decode(content).data
    by_resource = (data and _RESOURCES.decode(data.registered)) or {}
    of_nvidia = (text for text in by_resource.values() if _REPLICA.search(bytes(text)))
    ids = (parse_device_id(text) for texts in of_nvidia for text in _IDS.decode(texts) or ())
    return dict(Counter(one.device for one in ids if one and one.replica is not None))


class _EntryText(NamedTuple):
    """An entry as it stands in the checkpoint; IDs and answer are JSON."""

    pod_uid: str
    container: str
    resource: str
    device_ids: bytes
    answer: bytes


def _grant(entry: _EntryText) -> tuple[Grant, str, str]:
    """The grant of an entry, its place, and what is wrong with its answer. Raises DecodeError."""
    place = entry.pod_uid, entry.container, entry.resource
    env: Mapping[str, str] = {}
    broken = ""
    ids = tuple(sorted(all_device_ids(_DEVICE_IDS.decode(entry.device_ids))))
    try:
        env = environment(decode_answer(entry.answer))
    except WireError as error:
        broken = str(error)
    return Grant(*place, ids, env, not broken), "/".join(place), broken


_grants = KeptResults(_grant)


def _granted(entries: Iterable[CheckpointEntry]) -> list[tuple[Grant, str, str]]:
    """As :func:`_grant`, of each entry in order."""
    texts = [
        _EntryText(
            entry.pod_uid,
            entry.container,
            entry.resource,
            bytes(entry.device_ids_text),
            bytes(entry.answer_text),
        )
        for entry in entries
    ]
    grants = _grants(texts)
    return [grants[text] for text in texts]


def _decoded(entries: Iterable[CheckpointEntry]) -> Iterator[_Verified]:
    for entry in entries:
        yield _Verified(entry, entry.device_ids(), _ANSWER.decode(entry.answer_text))


def all_device_ids(ids: DeviceIds) -> set[str]:
    """Each ID once; a device that belongs to two NUMA nodes is listed under both."""
    if isinstance(ids, dict):
        return {device for node in ids.values() for device in node or ()}
    return set(ids or ())


def fnv1a_32(text: bytes) -> int:
    """FNV-1a, 32 bits (Fowler, Noll, Vo)."""
    value = 0x811C9DC5
    whole = len(text) & ~3
    quads = iter(text[:whole])
    # Four bytes a turn: the loop itself costs as much as a byte.
    for first, second, third, fourth in zip(quads, quads, quads, quads, strict=True):
        value = ((value ^ first) * 0x01000193 ^ second) * 0x01000193 & 0xFFFFFFFF
        value = ((value ^ third) * 0x01000193 ^ fourth) * 0x01000193 & 0xFFFFFFFF
    for byte in text[whole:]:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


# ------------------------------------------------------------ spew's "%#v", as the kubelet uses it


_OCTETS = [str(octet) for octet in range(256)]


def checksum_of(data: CheckpointData) -> int:
    """The kubelet's checksum. Raises msgspec.DecodeError."""
    return fnv1a_32(_spew_data(data).encode())


def _spew_data(data: CheckpointData) -> str:
    texts = None if data.entries is None else map(_spew_entry, _decoded(data.entries))
    registered = _REGISTERED.decode(data.registered)
    return (
        "(checkpoint.checkpointData){"
        f"PodDeviceEntries:([]checkpoint.PodDevicesEntry){_spew_list(texts)}"
        f" RegisteredDevices:(map[string][]string){_spew_map(registered)}}}"
    )


def _spew_entry(verified: _Verified) -> str:
    entry, device_ids, answer = verified
    octets = None if answer is None else map(_OCTETS.__getitem__, answer)
    ids = (
        f"([]string){_spew_list(device_ids)}"
        if isinstance(device_ids, list)
        else f"(checkpoint.DevicesPerNUMA){_spew_map(device_ids)}"
    )
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container}"
        f" ResourceName:(string){entry.resource} DeviceIDs:{ids}"
        f" AllocResp:([]uint8){_spew_list(octets)}}}"
    )


def _spew_list(items: Iterable[str] | None) -> str:
    return "<nil>" if items is None else f"[{' '.join(items)}]"


def _spew_map(mapping: Mapping[Any, list[str] | None] | None) -> str:
    """Keys in order: numbers by value, names by code point, which is UTF-8's order of bytes."""
    if mapping is None:
        return "<nil>"
    return f"map[{' '.join(f'{key}:{_spew_list(mapping[key])}' for key in sorted(mapping))}]"
