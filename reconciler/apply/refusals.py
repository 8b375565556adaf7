"""The refusals of actions: the API server's answers, and our own reasons. Pure."""

from typing import Final

import msgspec

from reconciler.reasons import ActionOutcome
from vgpu.kube.errors import ClusterError
from vgpu.model.reasons import SourceError

PDB_WAIT_SECONDS: Final = 10.0
"""Pause before a disruption budget is asked again, in seconds; the server itself uses 10."""

THROTTLE_WAIT_SECONDS: Final = 1.0
"""Pause before a busy API server is asked again, in seconds."""


class ActionRefused(Exception):  # noqa: N818  # an answer, not a fault
    """An action was not done.

    Attributes:
        outcome: the action's outcome.
        detail: the message of the refusal.
        wait: seconds after which another try may succeed; None if none would.
        lost: the action may have been done: the answer did not come, or was no answer.
        unreached: there was no answer at all.
        overtaken: the object changed between its read and the write: it can be read again.
    """

    def __init__(
        self,
        outcome: ActionOutcome,
        detail: str,
        *,
        wait: float | None = None,
        lost: bool = False,
        unreached: bool = False,
    ) -> None:
        super().__init__(f"{outcome}: {detail}")
        self.outcome = outcome
        self.detail = detail
        self.wait = wait
        self.lost = lost
        self.unreached = unreached
        self.overtaken = False


class _Row(msgspec.Struct, frozen=True):
    """An HTTP status, what the message must contain, and what that means."""

    status: int
    phrase: str
    outcome: ActionOutcome
    wait: float | None = None


_ROWS: Final = (
    _Row(404, "", ActionOutcome.GONE),
    _Row(410, "", ActionOutcome.GONE),
    _Row(409, "", ActionOutcome.CHANGED),
    _Row(429, "disruption budget", ActionOutcome.BLOCKED_BY_PDB, PDB_WAIT_SECONDS),
    _Row(403, "poddisruptionbudget", ActionOutcome.BLOCKED_BY_PDB, PDB_WAIT_SECONDS),
    _Row(429, "", ActionOutcome.THROTTLED, THROTTLE_WAIT_SECONDS),
    _Row(500, "more than one PodDisruptionBudget", ActionOutcome.SEVERAL_PDBS),
    _Row(401, "", ActionOutcome.FORBIDDEN),
    _Row(403, " cannot ", ActionOutcome.FORBIDDEN),
)
"""The first row that matches counts; a 403 of an admission webhook or a quota matches none.

Texts: pkg/registry/core/pod/storage/eviction.go and the authorizer's ForbiddenMessage.
"""

_UNSURE: Final = range(500, 600)
"""Statuses of etcd or of a proxy in between: the request may have arrived."""


def refused(error: ClusterError | SourceError) -> ActionRefused:
    """The refusal of a client's error."""
    if isinstance(error, SourceError):  # an answer that is not Kubernetes'
        return ActionRefused(ActionOutcome.FAILED, str(error), lost=True)
    message = "; ".join((*error.causes, error.message)) or error.reason
    for row in _ROWS:
        if row.status == error.status and row.phrase in error.message:
            wait = None if row.wait is None else max(error.retry_after or 0.0, 0.0) or row.wait
            return ActionRefused(row.outcome, message, wait=wait)
    unreached = error.status == 0
    lost = unreached or error.status in _UNSURE
    return ActionRefused(ActionOutcome.FAILED, str(error), lost=lost, unreached=unreached)
