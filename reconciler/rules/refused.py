"""Pods that the kubelet did not admit: they are Failed for good, and nobody removes them.

Such a pod has no container statuses and no conditions. Its reason is the kubelet's, Kubernetes
``pkg/kubelet/lifecycle`` and ``pkg/kubelet/cm/admission``, or gpu-manager's own.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule
from reconciler.rules.parts import ended_at, evict, of_pod, quoted
from reconciler.scene import FAILED, Scene
from vgpu.kube import Pod
from vgpu.kube_projection import RESOURCES

_CAUSES: Final[Mapping[str, Cause]] = {
    "UnexpectedAdmissionError": Cause.UNEXPECTED_ADMISSION_ERROR,
    "UnexpectedPredicateFailureType": Cause.UNEXPECTED_ADMISSION_ERROR,
    "TopologyAffinityError": Cause.TOPOLOGY_AFFINITY_ERROR,
    "PreStartContainerCheckErr": Cause.PRESTART_CHECK_ERROR,
}
"""By ``status.reason``."""

_OUT_OF: Final = tuple(f"OutOf{resource}" for resource in RESOURCES)
"""How the reason begins where the kubelet had too little of one of our resources."""

_REPLACED_AT_ONCE: Final = frozenset({"ReplicaSet", "ReplicationController"})
"""Kinds of controllers to which a failed pod is none at all."""


def refused(scene: Scene, policy: Policy) -> Iterator[Finding]:
    """Evict them."""
    for pod in scene.snapshot.pods:
        cause = _cause(pod.reason) if pod.phase == FAILED else None
        if cause is not None:
            yield Finding(
                rule=Rule.REFUSED,
                cause=cause,
                subject=of_pod(pod),
                evidence=(f"reason {quoted(pod.reason)}", f"message {quoted(pod.message)}"),
                since=ended_at(pod),
                grace=policy.ages.failed,
                effect=effect_of_eviction(scene, pod),
                action=evict(pod),
            )


def _cause(reason: str) -> Cause | None:
    if reason.startswith(_OUT_OF):
        return Cause.OUT_OF_RESOURCE
    return _CAUSES.get(reason)


def effect_of_eviction(scene: Scene, pod: Pod) -> Effect:
    """What it is good for to evict the pod: tidying, if it has failed and is replaced already."""
    if pod.phase != FAILED or pod.owner is None:
        return Effect.RECOVERY
    if pod.owner.kind in _REPLACED_AT_ONCE:
        return Effect.TIDYING
    failed_at, newest = ended_at(pod), scene.newest_replica.get(pod.owner.uid)
    replaced = failed_at is not None and newest is not None and newest >= failed_at
    return Effect.TIDYING if replaced else Effect.RECOVERY
