"""Names of containers and states of pods, as ``vgpu inspect`` shows them. Pure."""

from vgpu.kube.pod_state import STARTING, PodState
from vgpu.model.durations import age
from vgpu.model.names import PodRef


def who(pod: PodRef, container: str) -> str:
    """The name of a container with its pod's."""
    name = f"{pod.namespace}/{pod.name}" if pod.name else f"pod {pod.uid}"
    return f"{name}/{container}" if container else name


def state_text(state: PodState, as_of: float) -> str:
    """The state of a pod that does not simply run; "" for one that does."""
    parts = []
    if state.deleting_since is not None:
        parts.append(f"Terminating for {age(as_of - state.deleting_since) or '0s'}")
    if state.waiting_reason:
        message = f": {state.waiting_message}" if state.waiting_message else ""
        restarts = f", {state.restarts} restarts" if state.restarts > 1 else ""
        parts.append(f"{state.waiting_reason}{restarts}{message}")
    elif state.phase not in ("Running", "Pending", ""):
        parts.append(f"pod {state.phase}")
    return "; ".join(parts)


def is_stuck(state: PodState) -> bool:
    """Whether the pod waits for more than its start."""
    return state.deleting_since is not None or state.waiting_reason not in STARTING
