"""The outcome of undoing one action, as a value. Pure."""

import msgspec

from reconciler.apply.audit_record import AuditRecord
from vgpu.model.reasons import Explained


class Undo(Explained):
    """The outcome of undoing an action."""

    DONE = "done", "the object is as it was before"
    DRY_RUN = "dry_run", "the object would be as it was before"
    NOTHING = "nothing", "the object is already as it was before"
    IRREVERSIBLE = "irreversible", "an eviction or removal cannot be undone"
    CHANGED = "changed", "the object has been changed since by another client"
    GONE = "gone", "the object no longer exists"
    THROTTLED = "throttled", "the API server is too busy: try again"
    FORBIDDEN = "forbidden", "the reconciler lacks a permission (RBAC)"
    FAILED = "failed", "the API server refused the change for another reason"
    UNKNOWN = "unknown", "the answer was lost and the object could not be read again: try again"


class Restored(msgspec.Struct, frozen=True):
    """The outcome of undoing one record; ``detail`` in words, ``at`` in unix seconds."""

    record: AuditRecord
    undo: Undo
    detail: str = ""
    at: float = 0.0
