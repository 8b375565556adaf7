"""ResourceClaims with the results in their status; pure.

Kubernetes gives every result of a device that allows several allocations a share ID and the amounts
that it consumes of the device's capacities. A device without a share ID is allocated as a whole.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from vgpu.kube import wire
from vgpu.kube.projection import kept
from vgpu.kube.quantities import whole
from vgpu.model.names import PodRef
from vgpu.model.resource_claims import (
    AllocatedDevice,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
)
from vgpu.model.units import WHOLE_DEVICE_MILLI

MEMORY: Final = "memory"
"""The capacity that is a GPU's memory, of every driver that has one."""

CORES: Final[Mapping[str, str]] = {
    "gpu.example.com": "compute",
    "hami-core-gpu.project-hami.io": "cores",
}
"""The capacity that is a GPU's cores, in percent, by driver."""


_NODE_NAME: Final = "metadata.name"
"""The field by which an allocation of devices of a single node selects it."""


def project_resource_claim(resource_claim: wire.ResourceClaimFields, _: str) -> ResourceClaim:
    """A ResourceClaim."""
    meta, status = resource_claim.metadata, resource_claim.status
    requests = tuple(_requests(resource_claim.spec.devices.requests or ()))
    consumers = status.reserved_for or ()
    pods = tuple(
        PodRef(consumer.uid, meta.namespace, consumer.name)
        for consumer in consumers
        if consumer.resource == "pods" and not consumer.api_group
    )
    return ResourceClaim(
        uid=meta.uid,
        namespace=sys.intern(meta.namespace),
        name=meta.name,
        results=tuple(allocated_devices(status)),
        reserved_for=pods,
        reserved_otherwise=len(pods) < len(consumers),
        node=_node(status.allocation),
        annotations=kept(meta.annotations),
        device_classes=tuple(sorted({sys.intern(each.device_class_name) for each in requests})),
        has_selectors=any(each.selectors for each in requests),
    )


def _requests(requests: Iterable[wire.DeviceRequestFields]) -> Iterator[wire.DeviceRequestFields]:
    """What names a DeviceClass: the requests, or their alternatives.

    Fields as in Kubernetes' ``k8s.io/api/resource``, ``v1/types.go`` and ``v1beta1/types.go``.
    """
    for request in requests:
        for each in (request, request.exactly, *(request.first_available or ())):
            if each is not None and each.device_class_name:
                yield each


def _node(allocation: wire.AllocationResult | None) -> str:
    """The only node that the allocation selects, by its name; "" if it selects otherwise."""
    selector = allocation.node_selector if allocation else None
    terms = (selector.node_selector_terms if selector else None) or ()
    for term in terms if len(terms) == 1 else ():
        for field in term.match_fields or ():
            names = field.values or ()
            if field.key == _NODE_NAME and field.operator == "In" and len(names) == 1:
                return sys.intern(names[0])
    return ""


def allocated_devices(status: wire.ResourceClaimStatus) -> Iterator[AllocatedDevice]:
    """The results, in their order."""
    devices = status.allocation.devices if status.allocation else None
    for result in (devices.results if devices else None) or ():
        consumed = own_amounts(result.driver, result.consumed_capacity or {})
        percent = consumed.get(CORES.get(result.driver, ""))
        is_whole = not result.share_id
        yield AllocatedDevice(
            request=result.request,
            driver=result.driver,
            pool=result.pool,
            device=result.device,
            share_id=result.share_id or "",
            memory_bytes=None if is_whole else consumed.get(MEMORY),
            cores_milli=WHOLE_DEVICE_MILLI
            if is_whole
            else None
            if percent is None
            else percent * WHOLE_DEVICE_MILLI // 100,
            admin=bool(result.admin_access),
        )


def own_amounts(driver: str, consumed: Mapping[str, wire.Quantity]) -> dict[str, int]:
    """The amounts of the driver's own capacities; a name without a domain is the driver's.

    A quantity that is no whole number is left out.
    """
    amounts: dict[str, int] = {}
    for name, quantity in consumed.items():
        domain, slash, short = name.rpartition("/")
        amount = whole(str(quantity))
        if amount is not None and (not slash or domain == driver):
            amounts[short] = amount
    return amounts


_UUID: Final = "uuid"
_MODELS: Final = ("productName", "model")
_PARENT: Final = "parentUUID"
"""Attributes of NVIDIA's, HAMi's and Kubernetes' example driver."""

DeviceName = tuple[str, str, str]
"""Driver, pool and device."""


def project_resource_slice(resource_slice: wire.SliceFields, _: str) -> ResourceSlice:
    """A ResourceSlice."""
    spec = resource_slice.spec
    return ResourceSlice(
        name=resource_slice.metadata.name,
        driver=sys.intern(spec.driver),
        pool=sys.intern(spec.pool.name),
        generation=spec.pool.generation,
        slices=spec.pool.resource_slice_count,
        node=sys.intern(spec.node_name),
        devices=tuple(_device(device, spec.driver) for device in spec.devices or ()),
    )


def _device(fields: wire.DeviceFields, driver: str) -> PublishedDevice:
    details = fields.basic or fields
    texts = {
        name.removeprefix(f"{driver}/"): attribute.string
        for name, attribute in (details.attributes or {}).items()
        if attribute.string
    }
    capacities = {name: each.value for name, each in (details.capacity or {}).items()}
    return PublishedDevice(
        name=fields.name,
        uuid=texts.get(_UUID, ""),
        memory_bytes=own_amounts(driver, capacities).get(MEMORY),
        model=next((texts[name] for name in _MODELS if name in texts), ""),
        parent=texts.get(_PARENT, ""),
    )


class PublishedDevices:
    """The devices of all complete pools, with their nodes."""

    def __init__(self, slices: Iterable[ResourceSlice] = ()) -> None:
        """``slices`` are all that the API server has, or all of one node."""
        pools: dict[tuple[str, str], list[ResourceSlice]] = {}
        for resource_slice in sorted(slices, key=lambda one: one.name):
            pools.setdefault((resource_slice.driver, resource_slice.pool), []).append(
                resource_slice
            )
        devices: dict[DeviceName, PublishedDevice] = {}
        nodes: dict[DeviceName, str] = {}
        self.incomplete: set[tuple[str, str]] = set()
        for pool, published in pools.items():
            newest = max(resource_slice.generation for resource_slice in published)
            current = [one for one in published if one.generation == newest]
            if any(one.slices != len(current) for one in current):
                self.incomplete.add(pool)
                continue
            for resource_slice in current:
                for device in resource_slice.devices:
                    devices[*pool, device.name] = device
                    nodes[*pool, device.name] = resource_slice.node
        self.devices: Mapping[DeviceName, PublishedDevice] = devices
        self.nodes: Mapping[DeviceName, str] = nodes
