"""The kinds of conflicts. Pure.

A kind is the value of the label ``type`` in metrics; its explanation stands in the documentation
and in the output of the commands.
"""

from typing import Final

from vgpu.model.reasons import Explained


class ConflictKind(Explained):
    """The kind of a conflict; ``explanation`` is the text for people."""

    GPU_DIFFERS = "card_differs", "sources name different devices for one container"
    FILE_DIFFERS = (
        "file_differs",
        "a file that a tenant can write names another device, and the driver does not confirm it",
    )
    SIZE_DIFFERS = "size_differs", "sources report different amounts for one share"
    LIMIT_DIFFERS = "limit_differs", "the enforced limit is not what was allocated"
    NODE_DIFFERS = "node_differs", "the annotations were made for another node"
    DOUBLE_BOOKED = "double_booked", "two pods hold the same slice of a device"
    OVERCOMMITTED = "overcommitted", "the shares of a device add up to more than it has"
    HELD_BY_NOBODY_ALIVE = (
        "held_by_nobody_alive",
        "a source still counts a pod that no longer exists",
    )
    OUTLIVES_POD = (
        "outlives_pod",
        "the container still holds a device, but its pod has ended or is gone",
    )
    RUNNING_WITHOUT_DEVICE = (
        "running_without_device",
        "the container runs and asks for devices, but the kubelet has allocated none to it",
    )
    PROCESS_WITHOUT_ALLOCATION = (
        "process_without_allocation",
        "a process uses a device of which nothing was allocated to its container",
    )
    DEVICE_MISSING = "device_missing", "the device is missing from the node, or no longer answers"
    DEVICE_UNHEALTHY = (
        "device_unhealthy",
        "the device plugin or the driver reports the device as unhealthy",
    )
    RESOURCE_CLAIM_LEFT = (
        "resource_claim_left",
        "a DRA driver has prepared a ResourceClaim that the kubelet or the API server lacks",
    )
    CDI_SPEC_MISSING = (
        "cdi_spec_missing",
        "the CDI spec of a prepared ResourceClaim is missing, so its containers cannot start",
    )
    GROUP_UNRESERVED = (
        "group_unreserved",
        "pods share a GPU for which KAI Scheduler has no reservation pod any more",
    )
    GROUP_SPLIT = "group_split", "a GPU group of KAI Scheduler has several reservation pods"
    GPU_IN_GROUPS = "gpu_in_groups", "several GPU groups of KAI Scheduler have one GPU"
    RESERVATION_ENDED = (
        "reservation_ended",
        "a reservation pod of KAI Scheduler has ended, and still counts for KAI",
    )
    RESERVATION_UNUSED = (
        "reservation_unused",
        "a reservation pod of KAI Scheduler keeps a GPU that no pod shares",
    )
    RESERVATION_MOVED = (
        "reservation_moved",
        "a reservation pod of KAI Scheduler reports another GPU than the kubelet has allocated",
    )
    PORTION_ZERO = (
        "portion_zero",
        "KAI Scheduler prints the pod's part of a GPU as 0.00, so that nothing limits it",
    )
    MALFORMED = "malformed", "an annotation or device ID cannot be read or cannot be true"


OF_RESOURCE_CLAIMS: Final = frozenset(
    {ConflictKind.RESOURCE_CLAIM_LEFT, ConflictKind.CDI_SPEC_MISSING}
)
"""Conflicts of which a node without ResourceClaims has not even the number 0."""

OF_GPU_GROUPS: Final = frozenset(
    {
        ConflictKind.GROUP_UNRESERVED,
        ConflictKind.GROUP_SPLIT,
        ConflictKind.GPU_IN_GROUPS,
        ConflictKind.RESERVATION_ENDED,
        ConflictKind.RESERVATION_UNUSED,
        ConflictKind.RESERVATION_MOVED,
        ConflictKind.PORTION_ZERO,
    }
)
"""Conflicts of which a node without GPU groups (KAI Scheduler) has not even the number 0."""
