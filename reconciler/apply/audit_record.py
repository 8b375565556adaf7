"""One line of the audit, as a value. Pure; :mod:`.audit` writes and reads it."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from reconciler.model import Action, ObjectRef
from reconciler.reasons import ActionOutcome, Cause, Rule


class AuditEvent(StrEnum):
    """The kind of a line."""

    INTENT = "intent"  # the action is about to begin
    RESULT = "result"  # the action's outcome


class AuditRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the audit.

    Attributes:
        time: when the line was written.
        plan: the plan's id.
        event: the kind of the line.
        rule, cause, object_ref, evidence: as of the finding.
        action: what is done, with its preconditions; of an edit the before- and the after-image.
        outcome: of a result.
        detail: the message of the API server or file system.
        by: the acting user.
    """

    time: Annotated[datetime, msgspec.Meta(tz=True)]
    plan: str
    event: AuditEvent
    rule: Rule
    cause: Cause
    object_ref: ObjectRef = msgspec.field(name="subject")
    action: Action
    evidence: tuple[str, ...] = ()
    outcome: ActionOutcome | None = None
    detail: str = ""
    by: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The same for an intent and its result."""
        return self.plan, self.object_ref.key


class AuditError(Exception):
    """The audit cannot be written or read.

    Attributes:
        path: the audit's path.
        line: the line that cannot be read, 0 for the file as a whole.
        detail: what is wrong.
    """

    def __init__(self, path: str, detail: str, line: int = 0) -> None:
        super().__init__(f"{path}, line {line}: {detail}" if line else f"{path}: {detail}")
        self.path = path
        self.line = line
        self.detail = detail
