"""Devices of ResourceClaims and ResourceSlices as frozen values. No I/O."""

from collections.abc import Mapping

import msgspec

from vgpu.model.names import PodRef


class ResourceClaimDevice(msgspec.Struct, frozen=True, gc=False, order=True):
    """One device that a ResourceClaim has: a result of its allocation.

    Attributes:
        resource_claim_uid, resource_claim: the ResourceClaim; its namespace is that of its pods.
        driver, pool, device: the device, as the driver names it.
        share_id: which share of a device that allows several; "" if it is whole, or not known.
        requests: names of the requests that it is for, sorted.
    """

    resource_claim_uid: str
    resource_claim: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    requests: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``<driver>/<pool>/<device>``, the name of a device whose UUID is not known."""
        return f"{self.driver}/{self.pool}/{self.device}"


class AllocatedDevice(msgspec.Struct, frozen=True, gc=False, order=True):
    """One result in the status of a ResourceClaim.

    Attributes:
        request: the request that it is for, ``<request>`` or ``<request>/<alternative>``.
        driver, pool, device: the device, as the driver names it.
        share_id: of a device that allows several allocations; "" if the device is whole.
        memory_bytes: what is consumed of its memory; None of a whole device, or if unknown.
        cores_milli: what is consumed of its cores, as for :class:`Share`.
        admin: it only observes the device (``adminAccess``) and consumes nothing.
    """

    request: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    memory_bytes: int | None = None
    cores_milli: int | None = None
    admin: bool = False


class ResourceClaim(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaim, by its status.

    What it requests is only named: nothing here evaluates the CEL of selectors.

    Attributes:
        uid, namespace, name: its identity.
        results: the devices that it has; () before its allocation.
        reserved_for: the pods that may use it.
        reserved_otherwise: whether an object that is no pod may use it.
        node: the node of its devices; "" if they are of no single node, or if it is not known.
        annotations: those that are kept of every object.
        device_classes: the names of the DeviceClasses that it requests.
        has_selectors: whether it also selects devices by their attributes.
    """

    uid: str
    namespace: str
    name: str
    results: tuple[AllocatedDevice, ...]
    reserved_for: tuple[PodRef, ...] = ()
    reserved_otherwise: bool = False
    node: str = ""
    annotations: Mapping[str, str] = {}
    device_classes: tuple[str, ...] = ()
    has_selectors: bool = False


class PublishedDevice(msgspec.Struct, frozen=True, gc=False):
    """A device of a ResourceSlice.

    Attributes:
        name: its name in its pool.
        uuid: its UUID; "" if its driver publishes none.
        memory_bytes: its memory; None if its driver publishes none.
        model: the name of its product, "" if unknown.
        parent: of a MIG instance, its GPU's UUID.
    """

    name: str
    uuid: str = ""
    memory_bytes: int | None = None
    model: str = ""
    parent: str = ""


class ResourceSlice(msgspec.Struct, frozen=True, gc=False):
    """A part of the devices that a DRA driver publishes.

    Attributes:
        name: the name of the object.
        driver, pool: the pool of the devices.
        generation: the version of the pool; only the newest one counts.
        slices: number of ResourceSlices of the pool in this generation.
        node: the node of the devices; "" if they are of no single node.
        devices: the devices.
    """

    name: str
    driver: str
    pool: str
    generation: int
    slices: int
    node: str = ""
    devices: tuple[PublishedDevice, ...] = ()
