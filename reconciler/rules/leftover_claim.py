"""Pods that need no device any more, but are still candidates for Allocate.

Volcano's plugin finds the pod of a call of Allocate by the annotation ``devices-to-allocate``, and
checks neither the pod's phase nor whether it was served: the next pod on the node may be allocated
the devices of this one.
"""

from collections.abc import Iterator

from reconciler.cluster_index import RUNNING, ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule
from reconciler.rules.findings import edit_pod, ended_at, of_pod, quoted
from vgpu.model.objects import ContainerState, Pod
from vgpu.schemes.codec import LeftoverClaim


def leftover_claim(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Clear the rest that is to be allocated, as the plugin does.

    The annotation stays, empty: all its readers expect that. Another annotation has the devices
    that the pod was allocated.
    """
    for pod in cluster_index.snapshot.pods:
        for codec in cluster_index.codecs:
            leftover = codec.leftover(pod)
            if leftover is not None:
                yield from _leftover(policy, pod, leftover)


def _leftover(policy: Policy, pod: Pod, leftover: LeftoverClaim) -> Iterator[Finding]:
    if pod.terminal:
        cause, evidence = Cause.ENDED_WITH_CLAIM, f"phase {pod.phase}"
        since, grace = ended_at(pod), policy.ages.failed
    elif leftover.served and _is_served(pod):
        cause, evidence = Cause.SERVED_WITH_CLAIM, f"{leftover.served}, and it runs"
        since, grace = None, policy.ages.drift
    else:
        return
    yield Finding(
        rule=Rule.LEFTOVER_CLAIM,
        cause=cause,
        object_ref=of_pod(pod),
        evidence=(f"{leftover.key}: {quoted(leftover.text)}", evidence),
        since=since,
        grace=grace,
        effect=Effect.REPAIR,
        action=edit_pod(pod, {leftover.key: leftover.struck}),
    )


def _is_served(pod: Pod) -> bool:
    """Whether all the pod's containers run, so that Allocate has served all of them."""
    if pod.phase != RUNNING:
        return False
    running = {status.name for status in pod.statuses if status.state is ContainerState.RUNNING}
    return running.issuperset(pod.apps)
