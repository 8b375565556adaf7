"""The pods of GPU schedulers whose shares are not read, for people. Pure."""

from collections.abc import Iterable

import msgspec

from vgpu.kube.pod_state import PodState, pod_state
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod, holds_devices
from vgpu.schemes.kai.groups import is_reservation, reserved_gpu
from vgpu.schemes.other_schedulers import Recognised, other_scheduler


class OtherPod(msgspec.Struct, frozen=True, gc=False):
    """A pod of another GPU scheduler.

    Attributes:
        pod: the pod.
        node: its node; "" if it is not bound.
        recognised: the scheduler, and the label or annotation that shows it.
        state: its state.
        since: when the pod was scheduled, started or created, in unix seconds, the first that is
            known; None if none is.
    """

    pod: PodRef
    node: str
    recognised: Recognised
    state: PodState
    since: float | None = None


def other_pods(pods: Iterable[Pod]) -> tuple[OtherPod, ...]:
    """The pods of other GPU schedulers that have not ended, by namespace and name.

    A reservation pod with a known GPU is the frame of shares that are read, and none of them.
    """
    found = (
        OtherPod(
            pod.ref,
            pod.node,
            recognised,
            pod_state(pod),
            pod.scheduled_at or pod.started_at or pod.created_at,
        )
        for pod in pods
        if holds_devices(pod)
        and (recognised := other_scheduler(pod)) is not None
        and not (is_reservation(pod) and reserved_gpu(pod))
    )
    return tuple(sorted(found, key=lambda one: (one.pod.namespace, one.pod.name, one.pod.uid)))
