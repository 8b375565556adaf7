"""What pods request, remembered while a pod does not change; pure."""

from collections.abc import Sequence
from typing import Final

from vgpu.model.objects import Pod
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme, demand_of
from vgpu.placement.result import PlacementRefusal

MOST_REMEMBERED: Final = 20_000
"""Maximum number of pods whose demands are remembered; then all are forgotten."""

Demanded = tuple[SchedulerScheme, PodDemand] | PlacementRefusal
"""The sharing system of a pod and what the pod requests, or why that is not known."""


class PodDemands:
    """The demands of pods. kube-scheduler offers the same pod at every try.

    Any thread may call every method: at worst a demand is computed twice.
    """

    def __init__(self, schemes: Sequence[SchedulerScheme]) -> None:
        self._schemes = schemes
        self._known: dict[str, tuple[Pod, Demanded]] = {}

    def of(self, pod: Pod) -> Demanded:
        """What the pod requests; known of this object, not of an equal one."""
        known = self._known.get(pod.ref.uid)
        if known is not None and known[0] is pod:
            return known[1]
        demanded = demand_of(pod, self._schemes)
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[pod.ref.uid] = pod, demanded
        return demanded

    def forget(self, uid: str) -> None:
        """The pod is bound or gone."""
        self._known.pop(uid, None)
