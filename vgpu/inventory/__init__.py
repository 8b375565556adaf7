"""A cluster's shared GPUs for people: who holds what, who waits and why, what is free.

Pure: the API server's objects in, values out. The inventory adds two things to the ledgers of all
nodes: why a container has no device, or none yet, and the part of the free capacity that further
shares of the usual size could use.
"""

from vgpu.inventory.free_capacity import available_bytes, closed, unavailable
from vgpu.inventory.model import (
    FreeCapacity,
    Inventory,
    MaybeHeld,
    NodeView,
    Objects,
    Pending,
    Probe,
    UnavailableMemory,
    UnavailableReason,
    Units,
    WaitingReason,
)
from vgpu.inventory.summary import (
    SORTS,
    DetectedSchemes,
    detect_schemes,
    in_order,
    inventory,
    of_node,
    of_other_systems,
    only_node,
    only_pods,
    only_scheme,
    with_resource_claims,
)
from vgpu.inventory.unit_check import (
    NodeDoubt,
    doubt_notes,
    doubts_of,
    short_notes,
    sizes_by_scheme,
    unit_doubt,
)

__all__ = [
    "SORTS",
    "DetectedSchemes",
    "FreeCapacity",
    "Inventory",
    "MaybeHeld",
    "NodeDoubt",
    "NodeView",
    "Objects",
    "Pending",
    "Probe",
    "UnavailableMemory",
    "UnavailableReason",
    "Units",
    "WaitingReason",
    "available_bytes",
    "closed",
    "detect_schemes",
    "doubt_notes",
    "doubts_of",
    "in_order",
    "inventory",
    "of_node",
    "of_other_systems",
    "only_node",
    "only_pods",
    "only_scheme",
    "short_notes",
    "sizes_by_scheme",
    "unavailable",
    "unit_doubt",
    "with_resource_claims",
]
