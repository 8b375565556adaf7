"""The state of a pod as a person asks for it: does it run, and if not, why and since when. Pure."""

from typing import Final

import msgspec

from vgpu.kube.errors import one_line
from vgpu.model.names import ContainerKind
from vgpu.model.objects import ContainerState, Pod, Status

CRASH_LOOP: Final = "CrashLoopBackOff"

STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Waiting reasons of a container that is on its way, by the kubelet."""

_BACKOFF_SECONDS: Final = (10.0, 20.0, 40.0, 80.0, 160.0)
_LONGEST_BACKOFF_SECONDS: Final = 300.0
"""The kubelet's waits before restarts of a container that keeps failing, in seconds; a container
that has run for ten minutes begins again (``pkg/kubelet/kubelet.go``)."""

_MESSAGE: Final = 160
"""Maximum length of a quoted message, in characters."""


class PodState(msgspec.Struct, frozen=True, gc=False):
    """The state of a pod, or of one of its containers. Times are unix seconds.

    Attributes:
        phase: the pod's phase.
        deleting_since: when its deletion was requested; None if it is not being deleted.
        waiting_reason: the kubelet's reason why a container waits; "" if none waits.
        waiting_message: the kubelet's message for it, on one line.
        restarts: of the container that restarted most.
    """

    phase: str
    deleting_since: float | None = None
    waiting_reason: str = ""
    waiting_message: str = ""
    restarts: int = 0


def pod_state(pod: Pod, container: str = "") -> PodState:
    """The state of a pod; with ``container`` its reason and restarts are that container's.

    While init containers run, an app container waits for them: then their reason is the answer.
    """
    statuses = [status for status in pod.statuses if status.kind is not ContainerKind.EPHEMERAL]
    own = [status for status in statuses if container in ("", status.name)] or statuses
    blocking = [
        status
        for status in statuses
        if status.kind is not ContainerKind.APP and waits_in_vain(status)
    ]
    waiting = next((status for status in (*blocking, *own) if waits_in_vain(status)), None)
    waiting = waiting or next((status for status in own if _waits(status)), None)
    restarts = max((status.restarts for status in (*blocking, *own)), default=0)
    deleting = None if pod.deleted_at is None else pod.deleted_at - pod.grace_seconds
    if waiting is None:
        return PodState(pod.phase, deleting, restarts=restarts)
    message = "" if waiting.reason == CRASH_LOOP else one_line(waiting.message)[:_MESSAGE]
    return PodState(pod.phase, deleting, waiting.reason, message, restarts)


def _waits(status: Status) -> bool:
    return status.state is ContainerState.WAITING and bool(status.reason)


def waits_in_vain(status: Status) -> bool:
    """Whether the container waits because it cannot run, and not because it is just starting."""
    return status.state is ContainerState.WAITING and status.reason not in STARTING


def failing_since(pod: Pod, status: Status, now: float) -> float | None:
    """The latest time at which the waiting container's failure can have begun; None if unknown.

    A container that never ran has failed since its pod started, or since its pod was last ready. A
    crash loop has lasted for the kubelet's waits between its restarts, unless the container ran
    well in between; it is no older than the pod.
    """
    begun = max((at for at in (pod.started_at, pod.created_at) if at is not None), default=None)
    if not status.restarts:
        times = [at for at in (begun, pod.unready_at) if at is not None and at <= now]
        return max(times, default=None)
    waits = sum(_BACKOFF_SECONDS[: status.restarts])
    waits += max(0, status.restarts - len(_BACKOFF_SECONDS)) * _LONGEST_BACKOFF_SECONDS
    anchor = status.last_finished_at if status.last_finished_at is not None else now
    return max(filter(None, (anchor - waits, begun)), default=None)
