"""Which pods of a node have to go so that a pod of higher priority has its GPUs; pure.

kube-scheduler chooses victims by the sums of a node, so that what they free may be on several GPUs.
Its victims stay victims, since only kube-scheduler knows its other checks. As few pods of lower
priority as possible are added, in kube-scheduler's own order: the least important pods end first.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

import msgspec

from vgpu.model.objects import Pod
from vgpu.placement.result import Placement


class NodePreemption(msgspec.Struct, frozen=True):
    """How a node is made to take a pod.

    Attributes:
        added: the victims beside kube-scheduler's.
        placement: where the pod goes when all victims are gone.
    """

    added: tuple[Pod, ...]
    placement: Placement


def choose_victims(
    pods: Iterable[Pod],
    chosen: AbstractSet[str],
    priority: int,
    place: Callable[[AbstractSet[str]], Placement | None],
    spared: AbstractSet[str] = frozenset(),
) -> NodePreemption | None:
    """The victims; None if the node does not take the pod whatever leaves it.

    ``chosen`` are the UIDs of kube-scheduler's victims, ``spared`` those of pods that have to stay;
    ``place`` returns where the pod goes once the pods of these UIDs are gone.
    """
    placement = place(chosen)
    if placement is not None:
        return NodePreemption((), placement)
    lower = sorted(
        (
            pod
            for pod in pods
            if pod.priority < priority and pod.ref.uid not in chosen and pod.ref.uid not in spared
        ),
        key=importance,
    )
    gone = {*chosen, *(pod.ref.uid for pod in lower)}
    placement = place(gone) if lower else None
    if placement is None:
        return None
    needed = reprieve(lower, gone, lambda fewer: place(fewer) is not None)
    placement = place(needed) or placement
    return NodePreemption(tuple(pod for pod in lower if pod.ref.uid in needed), placement)


def reprieve(
    pods: Iterable[Pod],
    gone: AbstractSet[str],
    suffices: Callable[[AbstractSet[str]], bool],
) -> frozenset[str]:
    """Those of ``gone`` that have to go, if each of the pods stays that may, the first one first.

    ``gone`` and the result are UIDs; ``suffices`` is whether it is enough that these pods go.
    """
    needed = frozenset(gone)
    for pod in pods:
        fewer = needed - {pod.ref.uid}
        if suffices(fewer):
            needed = fewer
    return needed


def importance(pod: Pod) -> tuple[int, bool, float]:
    """The most important first: by priority, and of equal ones the one that started first."""
    return -pod.priority, pod.started_at is None, pod.started_at or 0.0
