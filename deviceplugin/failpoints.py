"""The moments at which the plugin may be interrupted; tests kill it at each of them."""

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """The step that is just done, in the order in which a container goes through the steps."""

    ALLOCATE_ASKED = "allocate_asked"
    ALLOCATE_ANSWERED = "allocate_answered"  # the answer is made, and about to be sent
    BINDING_DECIDED = "binding_decided"
    CHECKPOINT_WRITTEN = "checkpoint_written"
    FILES_WRITTEN = "files_written"
    POD_ANNOTATED = "pod_told"  # the pod's annotations are written
    LOCK_RELEASED = "lock_released"
    PRESTART_ASKED = "prestart_asked"
    PRESTART_ANSWERED = "prestart_answered"


Failpoint = Callable[[Step], None]


def noop(_: Step) -> None:
    """Called at every step outside of tests."""
