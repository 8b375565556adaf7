"""ResourceClaims with the results in their status; pure.

Kubernetes gives every result of a device that allows several allocations a share ID and the amounts
that it consumes of the device's capacities. A device without a share ID is allocated as a whole.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Final

from vgpu.kube import wire
from vgpu.kube.projection import kept
from vgpu.kube.quantities import whole
from vgpu.model.names import PodRef
from vgpu.model.resource_claims import AllocatedDevice, ResourceClaim
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
    )


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
