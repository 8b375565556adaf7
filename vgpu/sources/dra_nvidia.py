"""The checkpoint of NVIDIA's DRA driver: the UUIDs and the sizes of what it has prepared.

The file is ``plugins/gpu.nvidia.com/checkpoint.json`` in the kubelet's root folder; it is only ever
read. Its second version has the whole status of each ResourceClaim, and a third version stands
beside it, so that the second is always there (kubernetes-sigs/dra-driver-nvidia-gpu,
``cmd/gpu-kubelet-plugin``). Its checksum is over Go's own JSON and is not verified: the driver
renames the file into place.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from vgpu.kube.resource_claims import allocated_devices
from vgpu.kube.wire import ResourceClaimStatus
from vgpu.model.facts import DriverResourceClaim
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import ResourceClaim
from vgpu.sources.files import printable, read_file

DRIVER: Final = "gpu.nvidia.com"
PATH: Final = f"plugins/{DRIVER}/checkpoint.json"
"""The file, in the kubelet's root folder."""

LIMIT: Final = 16 * 1024 * 1024
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


class _Device(_Camel):
    gpu: _Part | None = None
    mig: _Part | None = None


class _Group(_Camel):
    devices: list[_Device] | None = None


class _ResourceClaim(_Camel):
    checkpoint_state: str = ""
    status: ResourceClaimStatus = ResourceClaimStatus()
    prepared_devices: list[_Group] | None = None
    name: str = ""
    namespace: str = ""


class _Version(_Camel):
    prepared_claims: dict[str, _ResourceClaim] | None = None


class _Checkpoint(_Camel):
    v2: _Version | None = None


_DECODER: Final = msgspec.json.Decoder(_Checkpoint)


def parse_driver_checkpoint(content: bytes, object_name: str) -> tuple[DriverResourceClaim, ...]:
    """The ResourceClaims that the driver has prepared.

    Raises SourceError MALFORMED, also for a version without the status of ResourceClaims.
    """
    try:
        version = _DECODER.decode(content).v2
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
    return parse_driver_checkpoint(read_file(path, LIMIT), printable(path))
