"""The parts of the rules' findings: objects, actions, quotations, times. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Edit, Evict, Guard, ObjectKind, ObjectRef
from reconciler.policy import Policy
from vgpu.model.objects import Node, Pod

_QUOTED: Final = 300
"""Maximum length of foreign text in evidence, in characters."""


def of_pod(pod: Pod) -> ObjectRef:
    """The pod as an object, with its node."""
    return ObjectRef(ObjectKind.POD, pod.ref.namespace, pod.ref.name, pod.ref.uid, node=pod.node)


def of_node(node: Node, key: str) -> ObjectRef:
    """One annotation of the node."""
    return ObjectRef(ObjectKind.NODE, "", node.name, node.uid, part=key, node=node.name)


def evict(pod: Pod, *guards: Guard) -> Evict:
    """Evict exactly this version of the pod."""
    return Evict(pod.ref, pod.resource_version, guards)


def edit_pod(pod: Pod, after: Mapping[str, str | None]) -> Edit:
    """Change annotations of exactly this version of the pod, None removes one."""
    before = {key: pod.annotations.get(key) for key in after}
    return Edit(of_pod(pod), pod.resource_version, before, after)


def remove_mark(node: Node, key: str, *guards: Guard) -> Edit:
    """Remove an annotation of the node, if it still has this value."""
    before = {key: node.annotations[key]}
    return Edit(of_node(node, key), "", before, {key: None}, guards=guards)


def quoted(text: str) -> str:
    """The beginning of a foreign text in quotes, without control characters."""
    return repr(text[:_QUOTED])


def latest(times: Iterable[float | None]) -> float | None:
    """The latest of the known times."""
    return max((time for time in times if time is not None), default=None)


def ended_at(pod: Pod) -> float | None:
    """When the pod ended, in unix seconds; None if no source reports it.

    A pod's last status is the one that it ended with, so its time is exact. The other times are
    lower bounds: they count where the status has no time.
    """
    finished = (status.finished_at for status in pod.statuses)
    return latest((pod.status_at, *finished, pod.started_at, pod.created_at))


def changed_at(pod: Pod) -> float | None:
    """When the status of the pod last changed, by the times in it; None if it has none."""
    times = (
        time
        for status in pod.statuses
        for time in (status.started_at, status.finished_at, status.last_finished_at)
    )
    own = (pod.status_at, pod.unready_at, pod.scheduled_at, pod.started_at, pod.created_at)
    return latest((*own, *times))


def is_due(cluster_index: ClusterIndex, policy: Policy, since: float | None, grace: float) -> bool:
    """Whether a state that is normal for ``grace`` seconds is a finding now.

    A state without a time is: it counts from when we first saw it. So is a state whose time is
    further in the future than clocks may differ: that time is wrong.
    """
    if since is None or grace <= 0:
        return True
    return not -policy.ages.clock_skew <= cluster_index.now - since < grace
