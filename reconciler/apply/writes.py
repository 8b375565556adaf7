"""One write: sent once, and where its answer is lost, looked at."""

from collections.abc import Callable

from reconciler.apply.refusals import ActionRefused, refused
from reconciler.reasons import ActionOutcome
from vgpu.kube.connection import ClusterError
from vgpu.reasons import SourceError


def send(write: Callable[[], None], arrived: Callable[[], bool], *, dry_run: bool) -> str:
    """Send it; what is to be said of it when it is done.

    ``arrived`` looks whether it was done. Both raise ClusterError, SourceError. Raises
    ActionRefused unless it is done, or can be seen to be done: UNKNOWN where it may have been, and
    no source knows.
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
