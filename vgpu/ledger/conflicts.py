"""Where sources disagree with one another or with what can be: kept, typed, with the statements.

A kind is the value of the label ``type`` in metrics; its explanation is what the documentation
and the commands say.
"""

import msgspec

from vgpu.ledger.statements import Statement
from vgpu.model import PodRef
from vgpu.reasons import Explained


class ConflictKind(Explained):
    """What is wrong; ``explanation`` says it in words."""

    CARD_DIFFERS = "card_differs", "sources name different devices for one container"
    FILE_DIFFERS = (
        "file_differs",
        "a file that its tenant can write names another device, and the driver does not agree",
    )
    SIZE_DIFFERS = "size_differs", "sources tell different amounts for one share"
    LIMIT_DIFFERS = "limit_differs", "the limit that is enforced is not what was allocated"
    NODE_DIFFERS = "node_differs", "the annotations were made for another node"
    DOUBLE_BOOKED = "double_booked", "two pods hold the same slice of a device"
    OVERCOMMITTED = "overcommitted", "the shares of a device are together more than it has"
    HELD_BY_NOBODY_ALIVE = "held_by_nobody_alive", "a source still counts a pod that is no more"
    OUTLIVES_POD = "outlives_pod", "it still holds a device, but its pod has ended or is gone"
    RUNNING_WITHOUT_DEVICE = (
        "running_without_device",
        "it runs and asks for devices, but the kubelet has given it none",
    )
    PROCESS_WITHOUT_ALLOCATION = (
        "process_without_allocation",
        "a process uses a device of which its container was given nothing",
    )
    DEVICE_MISSING = "device_missing", "its device is not on the node, or no longer answers"
    DEVICE_UNHEALTHY = "device_unhealthy", "its device is unhealthy"
    MALFORMED = "malformed", "an annotation or device ID cannot be read or cannot be true"


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """One disagreement.

    Attributes:
        kind: what is wrong.
        device: on which device, by its name in the ledger; "" if on none, or on several.
        pod: whose; None if of several pods or of no pod.
        container: its name, "" if of a whole pod, or several.
        statements: those that conflict, the most trusted first.
        detail: what the kind does not say, in words.
    """

    kind: ConflictKind
    device: str = ""
    pod: PodRef | None = None
    container: str = ""
    statements: tuple[Statement, ...] = ()
    detail: str = ""
