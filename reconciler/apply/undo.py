"""What became of one action that was to be undone, as a value. Pure."""

import msgspec

from reconciler.apply.audit_record import AuditRecord
from vgpu.reasons import Explained


class Undo(Explained):
    """What became of an action that was to be undone."""

    DONE = "done", "it is as it was before"
    DRY_RUN = "dry_run", "it would be as it was before"
    NOTHING = "nothing", "it is as it was before already"
    IRREVERSIBLE = "irreversible", "an eviction or removal cannot be undone"
    CHANGED = "changed", "it has been changed since: that is somebody else's"
    GONE = "gone", "it is not there any more"
    THROTTLED = "throttled", "the API server is too busy: try again"
    FORBIDDEN = "forbidden", "a right is missing"
    FAILED = "failed", "the API server refused it otherwise"
    UNKNOWN = "unknown", "the answer was lost, and it could not be read again: try again"


class Restored(msgspec.Struct, frozen=True):
    """What became of one; ``detail`` in words, ``at`` in unix seconds."""

    record: AuditRecord
    undo: Undo
    detail: str = ""
    at: float = 0.0
