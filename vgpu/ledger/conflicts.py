"""Conflicts: where sources disagree with one another or with what is possible, with the statements.

A kind is the value of the label ``type`` in metrics; its explanation stands in the documentation
and in the output of the commands.
"""

from typing import Final

import msgspec

from vgpu.ledger.statements import Statement
from vgpu.model.names import PodRef
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
    MALFORMED = "malformed", "an annotation or device ID cannot be read or cannot be true"


OF_RESOURCE_CLAIMS: Final = frozenset(
    {ConflictKind.RESOURCE_CLAIM_LEFT, ConflictKind.CDI_SPEC_MISSING}
)
"""Conflicts of which a node without ResourceClaims has not even the number 0."""


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """One disagreement.

    Attributes:
        kind: what is wrong.
        device: the device's name in the ledger; "" if there is none, or several.
        pod: the pod; None if there are several, or none.
        container: its name, "" for a whole pod, or several containers.
        statements: those that conflict, the most trusted first.
        detail: the details beyond the kind, as text.
    """

    kind: ConflictKind
    device: str = ""
    pod: PodRef | None = None
    container: str = ""
    statements: tuple[Statement, ...] = ()
    detail: str = ""
