"""A cluster's shared GPUs for people: who holds what, who waits and why, what is free.

Pure: the API server's objects in, values out. The inventory adds two things to the ledgers of all
nodes: why a container has no device, or none yet, and the part of the free capacity that further
shares of the usual size could use.
"""

from vgpu.inventory.detection import DetectedSchemes, detect_schemes
from vgpu.inventory.model import (
    FreeCapacity,
    Inventory,
    NodeView,
    Objects,
    Pending,
    Probe,
    UnavailableMemory,
    UnavailableReason,
    Units,
    WaitingReason,
)
from vgpu.inventory.selection import SORTS, in_order, only_pods
from vgpu.inventory.summary import inventory, of_node, only_node, only_scheme
from vgpu.inventory.unit_check import doubt_notes, doubts_of

__all__ = [
    "SORTS",
    "DetectedSchemes",
    "FreeCapacity",
    "Inventory",
    "NodeView",
    "Objects",
    "Pending",
    "Probe",
    "UnavailableMemory",
    "UnavailableReason",
    "Units",
    "WaitingReason",
    "detect_schemes",
    "doubt_notes",
    "doubts_of",
    "in_order",
    "inventory",
    "of_node",
    "only_node",
    "only_pods",
    "only_scheme",
]
