"""A cluster's shared GPUs for people: who holds what, who waits and why, what is free.

Pure: the API server's objects in, values out. It adds to the ledgers of all nodes the reason for
each container that has no device, or none yet, and how much of what is free a further share of the
usual size could have.
"""

from vgpu.inventory.detection import DetectedSchemes, detect_schemes
from vgpu.inventory.model import (
    FreeCapacity,
    Inventory,
    NodeView,
    Objects,
    Pending,
    Probe,
    Units,
    WaitingReason,
)
from vgpu.inventory.summary import inventory, of_node, only_node, only_scheme

__all__ = [
    "DetectedSchemes",
    "FreeCapacity",
    "Inventory",
    "NodeView",
    "Objects",
    "Pending",
    "Probe",
    "Units",
    "WaitingReason",
    "detect_schemes",
    "inventory",
    "of_node",
    "only_node",
    "only_scheme",
]
