"""Which pods may hold anything: a pod holds devices only if a source proves that it lives.

Data of the sources outlives its pods: the kubelet's checkpoint keeps UIDs for weeks, regions and
limit files stay on disk, a finished pod keeps its annotations. So these count only where another
source shows that the pod lives: the API server, its cgroup, a process on a device, or the kubelet's
own list of the devices in use. A pod that has ended holds nothing, whatever a statement reports; a
container that runs holds its devices, whatever is reported about its pod.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import msgspec

from vgpu.ledger.statements import Statement
from vgpu.model.names import Source
from vgpu.model.objects import SHARE_POD, TERMINAL_PHASES, Pod, holds_devices


class Liveness(StrEnum):
    """The state of a pod, apart from the statements about it."""

    HOLDS = "holds"  # alive: the API server reports it, or it has a cgroup
    LEFT = "left"  # it has a cgroup, but the API server has no such pod
    ENDED = "ended"  # the API server reports that it has ended
    GONE = "gone"  # no source that would know the pod has it
    UNKNOWN = "unknown"  # no source could be asked


NORMAL_LEFTOVERS: Mapping[Liveness, frozenset[Source]] = {
    Liveness.ENDED: frozenset(
        {Source.CHECKPOINT, Source.SHIM, Source.LIMIT_FILE, Source.ANNOTATIONS}
    ),
    Liveness.GONE: frozenset({Source.CHECKPOINT}),
}
"""Sources whose statements about such a pod are normal."""


def node_uid(pod: Pod) -> str:
    """The UID that cgroups, the kubelet and all files on the node have for the pod.

    A static pod's UID is in its mirror's annotation, a SharePod's is that of the pod made for it.
    """
    return pod.annotations.get(SHARE_POD) or pod.kubelet_uid


def pods_by_node_uid(pods: Iterable[Pod]) -> dict[str, Pod]:
    """The pods as the node knows them; a pod comes before the SharePod that it was made for."""
    by_uid: dict[str, Pod] = {}
    for pod in pods:
        uid = node_uid(pod)
        if uid not in by_uid or SHARE_POD not in pod.annotations:
            by_uid[uid] = pod
    return by_uid


def liveness_of(
    uid: str,
    pods: Mapping[str, Pod],
    live_pods: Collection[str] | None,
    *,
    pods_complete: bool,
) -> Liveness:
    """The state of the pod; ``pods`` are the API server's, by the UID on the node.

    ``pods_complete`` is whether they would have this pod. ``live_pods`` are the UIDs with a cgroup,
    None if these were not read.
    """
    pod = pods.get(uid)
    if pod is not None:
        return Liveness.HOLDS if holds_devices(pod) else Liveness.ENDED
    if live_pods is not None and uid in live_pods:
        return Liveness.LEFT if pods_complete else Liveness.HOLDS
    asked = pods_complete or live_pods is not None
    return Liveness.GONE if asked else Liveness.UNKNOWN


class Presence(msgspec.Struct, frozen=True):
    """Which pods have containers on the node: what is left on its disks counts only for those.

    Attributes:
        live_pods: UIDs that have a cgroup; None where that could not be read.
        phases: UID -> phase, by the API server or a dump; None where neither is read.
    """

    live_pods: frozenset[str] | None = None
    phases: Mapping[str, str] | None = None

    @property
    def known(self) -> bool:
        """Whether cgroups or phases are known."""
        return self.live_pods is not None or self.phases is not None

    def of(self, uid: str) -> bool | None:
        """Whether the pod has containers here, by its cgroup, else by its phase; None if unknown.

        Missing data is no evidence that a pod has ended.
        """
        if self.live_pods is not None:
            return uid in self.live_pods
        phase = (self.phases or {}).get(uid)
        return None if phase is None else phase not in TERMINAL_PHASES


def proves_liveness(statement: Statement) -> bool:
    """Whether a statement itself shows that its pod lives, unless the pod is known to have ended.

    The kubelet's list is made from the pods that it runs, unlike its checkpoint.
    """
    return statement.alive or statement.source is Source.POD_RESOURCES
