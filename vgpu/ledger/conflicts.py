"""Conflicts: where sources disagree with one another or with what is possible; their statements."""

import msgspec

from vgpu.ledger.conflict_kinds import OF_GPU_GROUPS, OF_RESOURCE_CLAIMS, ConflictKind
from vgpu.ledger.statements import Statement
from vgpu.model.names import PodRef

__all__ = ["OF_GPU_GROUPS", "OF_RESOURCE_CLAIMS", "Conflict", "ConflictKind"]


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """One disagreement.

    Attributes:
        kind: what is wrong.
        device: the device's name in the ledger; "" if there is none, or several.
        pod: the pod; None if there are several, or none.
        container: its name, "" for a whole pod, or several containers.
        statements: those that conflict, the most trusted first.
        detail: the details beyond the kind, as text.
        group: the GPU group; "" of a conflict that is about none.
        members: the pods of the group, of which ``pod`` may be one.
    """

    kind: ConflictKind
    device: str = ""
    pod: PodRef | None = None
    container: str = ""
    statements: tuple[Statement, ...] = ()
    detail: str = ""
    group: str = ""
    members: tuple[PodRef, ...] = ()
