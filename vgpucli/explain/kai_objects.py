"""What KAI Scheduler has written about one pod, as values. Pure."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from vgpu.kube.api_kind import ApiKind
from vgpu.kube.kai_groups import KaiGroup, KaiPod, KaiQueue
from vgpu.kube.kai_kinds import BindRequest
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.schemes.other_schedulers import OtherScheduler, other_scheduler

KAI_SCHEDULER: Final = "kai-scheduler"
"""KAI's schedulerName, if no flag names another one."""


_GROUP_LABEL: Final = "runai-gpu-group"
"""The label with a pod's GPU group; with ``/<group>`` behind it, of each of several."""


class KaiObjects(msgspec.Struct, frozen=True):
    """What was read for a pod of KAI Scheduler; None is an object that does not exist.

    Attributes:
        pod: its group's name and KAI's condition.
        request: its BindRequest; that of an earlier pod of its name is none of it.
        group: its PodGroup.
        queues: the PodGroup's queue and those above it, as far as they exist.
        unread: the kinds that were not read, of which nothing is known.
        without_gpus: the names of the nodes that have no GPU for KAI.
        members: number of pods of the PodGroup; None if they were not counted.
    """

    pod: KaiPod | None = None
    request: BindRequest | None = None
    group: KaiGroup | None = None
    queues: tuple[KaiQueue, ...] = ()
    unread: frozenset[str] = frozenset()
    without_gpus: frozenset[str] = frozenset()
    members: int | None = None

    def lacks(self, kind: ApiKind[Any]) -> bool:
        """Whether objects of this kind were not read."""
        return kind.name in self.unread


ReadKai = Callable[[PodRef], KaiObjects]
"""Reads what KAI Scheduler has written about a pod."""


def groups_of(pod: Pod) -> tuple[str, ...]:
    """The GPU groups of a pod, by its labels."""
    labels = pod.labels.items()
    named = {value for key, value in labels if key.partition("/")[0] == _GROUP_LABEL}
    return tuple(sorted(named - {""}))


def is_of_kai(pod: Pod) -> bool:
    """Whether KAI Scheduler places the pod: by its marks, or by the pod's schedulerName.

    With its group's label the pod's share may be known, so that it is no other scheduler's.
    """
    if pod.scheduler == KAI_SCHEDULER:
        return True
    if groups_of(pod):
        return True
    other = other_scheduler(pod)
    return other is not None and other.scheduler is OtherScheduler.KAI
