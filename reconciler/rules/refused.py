"""Pods that the kubelet did not admit, or shut down: Failed for good, and not removed.

The reason of a refused pod is the kubelet's (Kubernetes ``pkg/kubelet/lifecycle``,
``pkg/kubelet/cm/admission`` and ``pkg/kubelet/nodeshutdown``) or gpu-manager's own. With any
reason, a Failed pod without a started container has been refused; a pod that was evicted or whose
deadline has passed is left to its owner.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from reconciler.cluster_index import FAILED, ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule
from reconciler.rules.findings import ended_at, evict, of_pod, quoted
from vgpu.kube.kept_keys import is_gpu_resource
from vgpu.model.objects import ContainerState, Pod, Status

_ADMISSION: Final[Mapping[str, Cause]] = {
    "UnexpectedAdmissionError": Cause.UNEXPECTED_ADMISSION_ERROR,
    "UnexpectedPredicateFailureType": Cause.UNEXPECTED_ADMISSION_ERROR,
    "TopologyAffinityError": Cause.TOPOLOGY_AFFINITY_ERROR,
    "PreStartContainerCheckErr": Cause.PRESTART_CHECK_ERROR,
}
"""By ``status.reason``: reasons that only a refused pod has."""

_OUT_OF: Final = "OutOf"
"""The beginning of the reason if the kubelet had too little of a resource."""

_NEVER_STARTED: Final[Mapping[str, Cause]] = {
    "NodeAffinity": Cause.NODE_AFFINITY,
    "NodeShutdown": Cause.NODE_SHUTDOWN,
}
"""The same, for a pod of which no container was ever started; else the cause is ``other``."""

_SHUT_DOWN: Final = "Terminated"
"""The reason of a pod that its node's shutdown has killed (``pkg/kubelet/nodeshutdown``)."""

_OF_OTHERS: Final = frozenset({"Evicted", "DeadlineExceeded", _SHUT_DOWN})

_UNKNOWN: Final = "ContainerStatusUnknown"
"""The kubelet's reason for a dead pod's containers that it cannot find, started or not."""


def refused(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict pods that the kubelet did not admit."""
    for pod in _failed(cluster_index):
        cause = _cause(pod)
        if cause is not None:
            yield _finding(Rule.REFUSED, cause, pod, cluster_index, policy)


def terminated(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict pods that their node's shutdown has killed: they ran, and may have logs to be read."""
    for pod in _failed(cluster_index):
        if pod.reason == _SHUT_DOWN:
            yield _finding(Rule.TERMINATED, Cause.NODE_WENT_DOWN, pod, cluster_index, policy)


def _failed(cluster_index: ClusterIndex) -> Iterator[Pod]:
    """Failed GPU pods, with those of NVIDIA's own plugin."""
    for pod in cluster_index.all_pods:
        if pod.phase == FAILED and cluster_index.has_gpus(pod):
            yield pod


def _finding(
    rule: Rule, cause: Cause, pod: Pod, cluster_index: ClusterIndex, policy: Policy
) -> Finding:
    return Finding(
        rule=rule,
        cause=cause,
        object_ref=of_pod(pod),
        evidence=(f"reason {quoted(pod.reason)}", f"message {quoted(pod.message)}"),
        since=ended_at(pod),
        grace=policy.ages.failed,
        effect=effect_of_eviction(cluster_index, pod),
        action=evict(pod),
    )


def _cause(pod: Pod) -> Cause | None:
    out_of = pod.reason.removeprefix(_OUT_OF)
    if out_of != pod.reason and is_gpu_resource(out_of):
        return Cause.OUT_OF_RESOURCE
    if pod.reason in _ADMISSION:
        return _ADMISSION[pod.reason]
    if pod.reason in _OF_OTHERS or any(map(_has_started, pod.statuses)):
        return None
    if pod.reason.startswith(_OUT_OF) and pod.reason != _OUT_OF:
        return Cause.OUT_OF_RESOURCE
    return _NEVER_STARTED.get(pod.reason, Cause.OTHER)


def _has_started(status: Status) -> bool:
    """Whether the container ever existed, even if the runtime could not start it."""
    if status.id or status.restarts or status.last_reason:
        return True
    waits = status.state is ContainerState.WAITING
    return not (waits or (status.state is ContainerState.TERMINATED and status.reason == _UNKNOWN))


def effect_of_eviction(cluster_index: ClusterIndex, pod: Pod) -> Effect:
    """The effect of evicting the pod: tidying, if it has failed and is already replaced."""
    if pod.phase != FAILED or pod.owner is None:
        return Effect.RECOVERY
    if not cluster_index.reaction(pod).remakes:
        return Effect.TIDYING
    failed_at, newest = ended_at(pod), cluster_index.newest_replica.get(pod.owner.uid)
    replaced = failed_at is not None and newest is not None and newest >= failed_at
    return Effect.TIDYING if replaced else Effect.RECOVERY
