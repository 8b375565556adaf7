"""The kubelet's device checkpoint: which device IDs it gave to which container.

The file is ``/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint``; it is only ever
read. Its checksum is FNV-1a 32 over the text that Go's spew prints of the data (kubernetes
``pkg/kubelet/cm/devicemanager/checkpoint``), so a file that verifies here is one that the
kubelet itself would accept. Both shapes are read: ``DeviceIDs`` as a map from NUMA node to IDs,
and the plain list of Kubernetes up to 1.19.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from vgpu.facts import Grant
from vgpu.reasons import Reason, Rejection, SourceError
from vgpu.sources.allocate_response import WireError, environment

CHECKPOINT_LIMIT = 16 * 1024 * 1024
"""Bytes. A plugin can register at most 4 MiB of IDs (the kubelet's gRPC limit), twice told."""

DeviceIds = dict[int, list[str] | None] | list[str] | None


class _Entry(msgspec.Struct, gc=False):
    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    device_ids: DeviceIds = msgspec.field(name="DeviceIDs")
    answer: bytes | None = msgspec.field(name="AllocResp")


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries")
    registered: dict[str, list[str] | None] | None = msgspec.field(name="RegisteredDevices")


class _Checkpoint(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


_DECODER = msgspec.json.Decoder(_Checkpoint)


def parse_checkpoint(
    content: bytes, subject: str = "checkpoint"
) -> tuple[tuple[Grant, ...], tuple[Rejection, ...]]:
    """The grants of a checkpoint, in its order, with each entry's device IDs sorted.

    An entry whose answer is not a ContainerAllocateResponse keeps its devices, has no ``env``,
    and is reported as a rejection. Entries of pods that are gone are normal.

    Raises:
        SourceError: MALFORMED, CHECKSUM_MISMATCH.
    """
    try:
        checkpoint = _DECODER.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, subject, str(error)) from error
    expected = fnv1a_32(_spew_data(checkpoint.data).encode())
    if checkpoint.checksum != expected:
        detail = f"its checksum is {checkpoint.checksum}, but its content gives {expected}"
        raise SourceError(Reason.CHECKSUM_MISMATCH, subject, detail)
    grants, rejections = [], []
    for entry in checkpoint.data.entries or ():
        env: Mapping[str, str] = {}
        try:
            env = environment(entry.answer or b"")
        except WireError as error:
            where = f"{subject}: {entry.pod_uid}/{entry.container}/{entry.resource}"
            rejections.append(Rejection(where, Reason.MALFORMED, f"AllocResp: {error}"))
        grants.append(
            Grant(
                pod_uid=entry.pod_uid,
                container=entry.container,
                resource=entry.resource,
                device_ids=tuple(sorted(_all_ids(entry.device_ids))),
                env=env,
            )
        )
    return tuple(grants), tuple(rejections)


def _all_ids(ids: DeviceIds) -> set[str]:
    """Each ID once; a device that belongs to two NUMA nodes is listed under both."""
    if isinstance(ids, dict):
        return {device for node in ids.values() for device in node or ()}
    return set(ids or ())


def fnv1a_32(text: bytes) -> int:
    """FNV-1a, 32 bits (Fowler, Noll, Vo)."""
    value = 0x811C9DC5
    for byte in text:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


# ------------------------------------------------------------ spew's "%#v", as the kubelet uses it


def _spew_data(data: _Data) -> str:
    entries = None if data.entries is None else map(_spew_entry, data.entries)
    return (
        "(checkpoint.checkpointData){"
        f"PodDeviceEntries:([]checkpoint.PodDevicesEntry){_spew_list(entries)}"
        f" RegisteredDevices:(map[string][]string){_spew_map(data.registered)}}}"
    )


def _spew_entry(entry: _Entry) -> str:
    answer = None if entry.answer is None else map(str, entry.answer)
    ids = (
        f"([]string){_spew_list(entry.device_ids)}"
        if isinstance(entry.device_ids, list)
        else f"(checkpoint.DevicesPerNUMA){_spew_map(entry.device_ids)}"
    )
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container}"
        f" ResourceName:(string){entry.resource} DeviceIDs:{ids}"
        f" AllocResp:([]uint8){_spew_list(answer)}}}"
    )


def _spew_list(items: Iterable[str] | None) -> str:
    return "<nil>" if items is None else f"[{' '.join(items)}]"


def _spew_map(mapping: Mapping[Any, list[str] | None] | None) -> str:
    """Keys in order: numbers by value, names by code point, which is UTF-8's order of bytes."""
    if mapping is None:
        return "<nil>"
    return f"map[{' '.join(f'{key}:{_spew_list(mapping[key])}' for key in sorted(mapping))}]"
