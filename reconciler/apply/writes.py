"""Sends one write once; where its answer is lost, reads the object again."""

from collections.abc import Callable

from reconciler.apply.refusals import ActionRefused, refused
from reconciler.reasons import ActionOutcome
from vgpu.apiserver.connection import ClusterError
from vgpu.model.reasons import SourceError


def send(write: Callable[[], None], arrived: Callable[[], bool], *, dry_run: bool) -> str:
    """Send the write; returns the detail of its result, "" if there is none.

    ``arrived`` reads whether the write was done. Both raise ClusterError, SourceError. Raises
    ActionRefused unless the write is done, or the object shows that it is: UNKNOWN where it may
    have been done, and the object cannot be read.
    """
    try:
        write()
    except (ClusterError, SourceError) as error:
        refusal = refused(error)
    else:
        return ""
    if dry_run or not refusal.lost:
        raise refusal
    try:
        done = arrived()
    except (ClusterError, SourceError) as error:
        unknown = f"{refusal.detail}; whether it was done is not known: {error}"
        raise ActionRefused(
            ActionOutcome.UNKNOWN, unknown, unreached=refused(error).unreached
        ) from error
    if not done:
        raise ActionRefused(
            ActionOutcome.FAILED, f"{refusal.detail}; it can be seen not to be done"
        )
    return f"the answer was lost, but it can be seen to be done: {refusal.detail}"
