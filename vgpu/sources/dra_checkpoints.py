"""The checkpoints of dynamic resource allocation on a node: the kubelet's, and NVIDIA's driver's.

Both are only ever read. ``dra_manager_state`` in the kubelet's root folder has which pods use which
ResourceClaims. Its data is a JSON text inside of JSON, and its checksum is the CRC-32 (IEEE) of
that text (kubernetes ``pkg/kubelet/cm/dra/state``). ``ShareID`` is there from Kubernetes 1.35 on.
An entry appears just before the drivers are asked, its devices after they have answered.

``plugins/gpu.nvidia.com/checkpoint.json`` has the UUIDs and the sizes of what NVIDIA's driver has
prepared. Its second version has the whole status of each ResourceClaim, and a third version stands
beside it, so that the second is always there (kubernetes-sigs/dra-driver-nvidia-gpu,
``cmd/gpu-kubelet-plugin``). Its checksum is over Go's own JSON and is not verified: the driver
renames the file into place.
"""

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from vgpu.kube.dra_objects import allocated_devices
from vgpu.kube.wire import ResourceClaimStatus
from vgpu.model.facts import CdiDevice, DriverResourceClaim, PreparedResourceClaim
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import ResourceClaim, ResourceClaimDevice
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


DRIVER: Final = "gpu.nvidia.com"
PATH: Final = f"plugins/{DRIVER}/checkpoint.json"
"""The file, in the kubelet's root folder."""

DRIVER_LIMIT: Final = 16 * 1024 * 1024
"""Maximum size of the file, in bytes."""

_COMPLETED: Final = "PrepareCompleted"
"""The state of a ResourceClaim whose devices are prepared."""


class _Camel(msgspec.Struct, rename="camel"):
    """The base of the driver's own structs."""


class _Info(_Camel):
    uuid: str = ""
    mig_uuid: str = msgspec.field(name="migUUID", default="")


class _Named(msgspec.Struct):
    device: str = msgspec.field(name="DeviceName", default="")


class _Part(_Camel):
    """A GPU or a MIG device; ``concrete`` is that of a MIG device since the driver makes them."""

    info: _Info | None = None
    concrete: _Info | None = None
    device: _Named | None = None


class _DriverDevice(_Camel):
    gpu: _Part | None = None
    mig: _Part | None = None


class _Group(_Camel):
    devices: list[_DriverDevice] | None = None


class _ResourceClaim(_Camel):
    checkpoint_state: str = ""
    status: ResourceClaimStatus = ResourceClaimStatus()
    prepared_devices: list[_Group] | None = None
    name: str = ""
    namespace: str = ""


class _Version(_Camel):
    prepared_claims: dict[str, _ResourceClaim] | None = None


class _DriverCheckpoint(_Camel):
    v2: _Version | None = None


_DRIVER_DECODER: Final = msgspec.json.Decoder(_DriverCheckpoint)


def parse_driver_checkpoint(content: bytes, object_name: str) -> tuple[DriverResourceClaim, ...]:
    """The ResourceClaims that the driver has prepared.

    Raises SourceError MALFORMED, also for a version without the status of ResourceClaims.
    """
    try:
        version = _DRIVER_DECODER.decode(content).v2
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, object_name, str(error)) from error
    if version is None:
        raise SourceError(Reason.MALFORMED, object_name, "it has no second version (v2)")
    return tuple(
        DriverResourceClaim(
            ResourceClaim(
                uid,
                resource_claim.namespace,
                resource_claim.name,
                tuple(allocated_devices(resource_claim.status)),
            ),
            DRIVER,
            dict(_uuids(resource_claim)),
        )
        for uid, resource_claim in (version.prepared_claims or {}).items()
        if resource_claim.checkpoint_state == _COMPLETED
    )


def _uuids(resource_claim: _ResourceClaim) -> Iterator[tuple[str, str]]:
    """The name and the UUID of each device; a device without both is left out."""
    for group in resource_claim.prepared_devices or ():
        for device in group.devices or ():
            part = device.gpu or device.mig
            about = part and (part.info or part.concrete)
            uuid = about and (about.uuid or about.mig_uuid)
            if part and part.device and part.device.device and uuid:
                yield part.device.device, uuid


def read_driver_checkpoint(path: str) -> tuple[DriverResourceClaim, ...]:
    """What is in the file. Raises SourceError."""
    return parse_driver_checkpoint(read_file(path, DRIVER_LIMIT), printable(path))
