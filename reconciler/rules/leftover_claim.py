"""Pods that need no device any more, but are still candidates for Allocate.

Volcano's plugin finds the pod that the kubelet means by what stands in ``devices-to-allocate``, and
looks neither at the pod's phase nor at whether it was served: the next pod on the node may be
given what this one reports.
"""

from collections.abc import Iterator

from reconciler.cluster_index import RUNNING, ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule
from reconciler.rules.findings import edit_pod, ended_at, of_pod, quoted
from vgpu.kube.objects import ContainerState, Pod
from vgpu.schemes.volcano.claim import SUCCESS, struck
from vgpu.schemes.volcano.codec import Volcano
from vgpu.schemes.volcano.key_set import KeySet


def leftover_claim(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Strike what is left to be allocated, as the plugin does.

    The annotation stays, empty: that is what everybody who reads it knows. Which devices the pod
    was given is in another one.
    """
    dialects = [each.key_set for each in cluster_index.codecs if isinstance(each, Volcano)]
    for pod in cluster_index.snapshot.pods:
        for key_set in dialects:
            text = pod.annotations.get(key_set.to_allocate)
            if text:
                yield from _leftover(policy, pod, key_set, text)


def _leftover(policy: Policy, pod: Pod, key_set: KeySet, text: str) -> Iterator[Finding]:
    rest = struck(text)
    if rest == text:
        return
    if pod.terminal:
        cause, told = Cause.ENDED_WITH_CLAIM, f"phase {pod.phase}"
        since, grace = ended_at(pod), policy.ages.failed
    elif _is_served(pod, key_set):
        cause, told = Cause.SERVED_WITH_CLAIM, f"{key_set.bind_phase}: {SUCCESS}, and it runs"
        since, grace = None, policy.ages.drift
    else:
        return
    yield Finding(
        rule=Rule.LEFTOVER_CLAIM,
        cause=cause,
        subject=of_pod(pod),
        evidence=(f"{key_set.to_allocate}: {quoted(text)}", told),
        since=since,
        grace=grace,
        effect=Effect.REPAIR,
        action=edit_pod(pod, {key_set.to_allocate: rest}),
    )


def _is_served(pod: Pod, key_set: KeySet) -> bool:
    """Whether Allocate has nothing left to do for it, and what it has is told elsewhere."""
    if pod.phase != RUNNING or pod.annotations.get(key_set.bind_phase) != SUCCESS:
        return False
    running = {one.name for one in pod.statuses if one.state is ContainerState.RUNNING}
    return key_set.devices in pod.annotations and running.issuperset(pod.apps)
