"""ResourceSlices: the devices that DRA drivers publish; pure.

A driver publishes each of its pools in one or more ResourceSlices. Only those of the newest
generation count, and only if all of them are there: a driver that replaces a pool does so one
ResourceSlice after another.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Final

from vgpu.kube import wire
from vgpu.kube.resource_claims import MEMORY, own_amounts
from vgpu.model.resource_claims import PublishedDevice, ResourceSlice

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
