"""Conflicts and remarks about who holds what. Pure.

There are three kinds. Conflicts of the **allocation state** itself (a GPU that is missing, more
than a GPU has, a GPU that was not allocated) are computed from the state of now. Disagreements of
**sources** were found when the plugin started; each counts while the pods it is about are there.
Data that a **tenant can write** (a region, a limit file, its pod's annotations) makes only a
remark, which is counted and logged without an alert, unless the driver or the kubelet agrees.
"""

from collections.abc import Collection, Iterable
from typing import Final

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.model import AdmittedPod, AllocationConflict
from vgpu.ledger import ConflictKind, Ledger
from vgpu.ledger.conflicts import Conflict as Disagreement
from vgpu.ledger.statements import is_tenants_own
from vgpu.model.allocation import Share
from vgpu.model.names import Scheme, Source

_NAMED: Final = 4
"""Maximum number of statements that a conflict names."""

_ELSEWHERE: Final = frozenset(
    {
        ConflictKind.OVERCOMMITTED,  # from the allocation state: the ledger counts reservations
        ConflictKind.DEVICE_MISSING,  # from the allocation state
        ConflictKind.DEVICE_UNHEALTHY,  # a matter of the GPU's health
        ConflictKind.HELD_BY_NOBODY_ALIVE,  # a pod that is gone holds nothing
    }
)
"""Conflicts that are not taken from the ledger."""

_CLAIMED: Final = frozenset(
    {ConflictKind.FILE_DIFFERS, ConflictKind.LIMIT_DIFFERS, ConflictKind.MALFORMED}
)
"""Conflicts that rest only on data that tenants can write."""

_BY_ANNOTATION: Final = frozenset(
    {ConflictKind.GPU_DIFFERS, ConflictKind.SIZE_DIFFERS, ConflictKind.NODE_DIFFERS}
)
"""Conflicts that may rest on an annotation that was edited after we bound the pod."""


def of_allocations(allocation_state: AllocationState) -> tuple[AllocationConflict, ...]:
    """The conflicts of the allocation state itself."""
    admitted_pods = allocation_state.admitted_pods.values()
    lost = any(
        share.device not in allocation_state.named
        for admitted_pod in admitted_pods
        for share in admitted_pod.shares
    )
    impossible = (
        AllocationState.over(allocation_state.devices, admitted_pods)[1]
        if lost or allocation_state.unbooked
        else ()
    )
    return (
        *(_uses(admitted_pod) for admitted_pod in admitted_pods if admitted_pod.beside),
        *impossible,
    )


def of_now(
    found: Iterable[AllocationConflict], there: Collection[str]
) -> tuple[AllocationConflict, ...]:
    """The conflicts whose parties are still there: the pod, or at least two of several pods.

    ``there`` are the UIDs of admitted pods, and of pods that hold devices according to the API
    server.
    """
    return tuple(conflict for conflict in found if _has_parties(conflict, there))


def disagreements(
    ledger: Ledger, scheme: Scheme, admitted_uids: Collection[str]
) -> tuple[tuple[AllocationConflict, ...], tuple[AllocationConflict, ...]]:
    """The conflicts between sources about admitted pods of this scheme, and the remarks.

    A pod that only waits holds nothing, so that no source can disagree about it. A pod that runs
    without a device holds nothing either, but should.
    """
    conflicts, remarks = [], []
    for conflict in ledger.conflicts:
        schemes = {statement.scheme for statement in conflict.statements}
        parties = frozenset(
            statement.pod.uid for statement in conflict.statements if statement.pod.uid
        )
        about = frozenset({conflict.pod.uid}) if conflict.pod else parties
        held = about & set(admitted_uids)
        ours = not schemes or scheme in schemes or held
        if not ours or conflict.kind in _ELSEWHERE:
            continue
        reported = AllocationConflict(conflict.pod, _text(conflict), about)
        if _is_claimed(conflict):
            remarks.append(reported)
        elif held or conflict.kind is ConflictKind.RUNNING_WITHOUT_DEVICE:
            conflicts.append(reported)
    return tuple(conflicts), tuple(remarks)


def _has_parties(conflict: AllocationConflict, there: Collection[str]) -> bool:
    parties = frozenset({conflict.pod.uid}) if conflict.pod else conflict.parties
    return bool(parties) and len(parties & frozenset(there)) >= min(2, len(parties))


def _is_claimed(conflict: Disagreement) -> bool:
    """Whether the disagreement rests only on data that tenants can write."""
    if conflict.kind in _CLAIMED:
        return True
    trusted = [
        statement
        for statement in conflict.statements
        if not is_tenants_own(statement) and statement.source is not Source.ANNOTATIONS
    ]
    if conflict.kind is ConflictKind.DOUBLE_BOOKED:  # only annotations have MIG slots
        return len({statement.pod.uid for statement in trusted}) < 2
    admitted = [statement for statement in trusted if statement.source is Source.OWN_CHECKPOINT]
    if conflict.kind not in _BY_ANNOTATION or not admitted:
        return False
    bound = {share.device for statement in admitted for share in statement.shares} | {""}
    sizes = {
        sum(share.memory_bytes or 0 for share in statement.shares) for statement in trusted
    } - {0}
    return len(sizes) < 2 and all(
        share.device in bound for statement in trusted for share in statement.shares
    )


def _uses(admitted_pod: AdmittedPod) -> AllocationConflict:
    devices = ", ".join(dict.fromkeys(share.device for share in admitted_pod.beside))
    return AllocationConflict(admitted_pod.pod, f"it uses {devices}, which was not allocated to it")


def _text(conflict: Disagreement) -> str:
    statements = [
        f"{statement.source} of {_devices(statement.shares)}"
        for statement in conflict.statements[:_NAMED]
    ]
    rest = len(conflict.statements) - len(statements)
    parts = (
        f" on {conflict.device}" if conflict.device else "",
        f" for container {conflict.container}" if conflict.container else "",
        f": {conflict.detail}" if conflict.detail else "",
        f"; by {', '.join(statements)}" if statements else "",
        f" and {rest} more" if rest else "",
    )
    return conflict.kind.explanation + "".join(parts)


def _devices(shares: Iterable[Share]) -> str:
    return " and ".join(dict.fromkeys(share.device or "some device" for share in shares)) or "none"
