"""The kubelet's state of dynamic resource allocation: which pods use which ResourceClaims.

The file is ``dra_manager_state`` in the kubelet's root folder; it is only ever read. Its data is a
JSON text inside of JSON, and its checksum is the CRC-32 (IEEE) of that text (kubernetes
``pkg/kubelet/cm/dra/state``). ``ShareID`` is there from Kubernetes 1.35 on. An entry appears just
before the drivers are asked, its devices after they have answered.
"""

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.model.facts import CdiDevice, PreparedResourceClaim
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import ResourceClaimDevice
from vgpu.sources.files import printable, read_file

LIMIT: Final = 16 * 1024 * 1024
"""Maximum size of the file, in bytes: a ResourceClaim has at most 32 devices, about 10 KiB."""

_KIND: Final = ("DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1")


class _Device(msgspec.Struct):
    pool: str = msgspec.field(name="PoolName", default="")
    device: str = msgspec.field(name="DeviceName", default="")
    share_id: str | None = msgspec.field(name="ShareID", default=None)
    requests: list[str] | None = msgspec.field(name="RequestNames", default=None)
    cdi: list[str] | None = msgspec.field(name="CDIDeviceIDs", default=None)


class _Driver(msgspec.Struct):
    devices: list[_Device] | None = msgspec.field(name="Devices", default=None)


class _Entry(msgspec.Struct):
    uid: str = msgspec.field(name="ClaimUID")
    name: str = msgspec.field(name="ClaimName")
    namespace: str = msgspec.field(name="Namespace")
    pods: dict[str, msgspec.Raw] | None = msgspec.field(name="PodUIDs", default=None)
    drivers: dict[str, _Driver] | None = msgspec.field(name="DriverState", default=None)


class _Data(msgspec.Struct):
    kind: str = ""
    api_version: str = msgspec.field(name="apiVersion", default="")
    entries: list[_Entry] | None = msgspec.field(name="ClaimInfoStateList", default=None)


class _Checkpoint(msgspec.Struct):
    data: str = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


_DECODER: Final = msgspec.json.Decoder(_Checkpoint)
_DATA: Final = msgspec.json.Decoder(_Data)


def parse_dra_state(
    content: bytes, object_name: str = "dra_manager_state"
) -> tuple[PreparedResourceClaim, ...]:
    """The prepared ResourceClaims of a state, in its order.

    Raises:
        SourceError: MALFORMED, CHECKSUM_MISMATCH, FUTURE_VERSION for a format of a later kubelet.
    """
    try:
        checkpoint = _DECODER.decode(content)
        text = checkpoint.data.encode()
        data = _DATA.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, object_name, str(error)) from error
    expected = zlib.crc32(text)
    if checkpoint.checksum != expected:
        detail = f"its checksum is {checkpoint.checksum}, but its content gives {expected}"
        raise SourceError(Reason.CHECKSUM_MISMATCH, object_name, detail)
    if (data.kind, data.api_version) != _KIND:
        detail = f"its format is {data.kind[:64]} of {data.api_version[:64]}"
        raise SourceError(Reason.FUTURE_VERSION, object_name, detail)
    return tuple(
        PreparedResourceClaim(
            entry.uid,
            entry.namespace,
            entry.name,
            tuple(sorted(entry.pods or ())),
            tuple(_devices(entry, entry.drivers or {})),
            tuple(_cdi_devices(entry.drivers or {})),
        )
        for entry in data.entries or ()
    )


def _devices(entry: _Entry, drivers: Mapping[str, _Driver]) -> list[ResourceClaimDevice]:
    """The devices, each once: when a kubelet prepares again, 1.34 adds them a second time."""
    devices = {
        ResourceClaimDevice(
            entry.uid,
            entry.name,
            driver,
            device.pool,
            device.device,
            device.share_id or "",
            tuple(sorted(device.requests or ())),
        )
        for driver, state in drivers.items()
        for device in state.devices or ()
    }
    return sorted(devices)


def _cdi_devices(drivers: Mapping[str, _Driver]) -> list[CdiDevice]:
    """The CDI devices, each once."""
    devices = {
        CdiDevice(driver, device.pool, device.device, name)
        for driver, state in drivers.items()
        for device in state.devices or ()
        for name in device.cdi or ()
    }
    return sorted(devices)


def read_dra_state(path: str) -> tuple[PreparedResourceClaim, ...]:
    """The prepared ResourceClaims in a file. Raises SourceError."""
    return parse_dra_state(read_file(path, LIMIT), printable(path))
