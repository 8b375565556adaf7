"""Shares that are held without use: by pods that do not end, cannot run, or run no kernel.

These rules only report: an eviction of a pod that is being deleted does nothing, and a pod that
cannot run or is idle is its owner's decision.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.evidence_text import PodIndex
from reconciler.rules.findings import is_due, of_pod, quoted
from vgpu.durations import age
from vgpu.kube.objects import ContainerState, Pod, Status, holds_devices
from vgpu.kube.pod_state import CRASH_LOOP, failing_since, waits_in_vain
from vgpu.model import Allocation, ContainerKind, Phase
from vgpu.units import GIB, exact_size

_HOUR: Final = 3600.0


def stuck_terminating(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Pods whose deletion is due, and whose containers have not ended: they keep their shares."""
    for pod in cluster_index.snapshot.pods:
        due = pod.deleted_at
        if due is None or not holds_devices(pod) or not cluster_index.shares(pod):
            continue
        if not is_due(cluster_index, policy, due, policy.ages.terminating):
            continue
        node = cluster_index.nodes.get(pod.node)
        is_away = cluster_index.has(Coverage.NODES) and (node is None or not node.ready)
        yield Finding(
            rule=Rule.STUCK_TERMINATING,
            cause=Cause.NODE_AWAY if is_away else Cause.CONTAINERS_REMAIN,
            object_ref=of_pod(pod),
            evidence=tuple(_of_termination(pod, cluster_index.now, due)),
            since=due,
            grace=policy.ages.terminating,
        )


def held_for_nothing(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Shares of containers that cannot run: of a missing image, a refused start, a crash loop."""
    for pod in cluster_index.snapshot.pods:
        if not pod.node or pod.terminal or pod.deleted_at is not None:
            continue
        status = _blocked(pod)
        if status is None:
            continue
        held = _held(cluster_index, pod, status)
        since = failing_since(pod, status, cluster_index.now)
        if held and is_due(cluster_index, policy, since, policy.ages.held):
            crashes = status.reason == CRASH_LOOP
            yield Finding(
                rule=Rule.HELD_FOR_NOTHING,
                cause=Cause.CRASH_LOOP if crashes else Cause.CANNOT_START,
                object_ref=of_pod(pod),
                evidence=tuple(_of_failure(status, held, since, cluster_index.now)),
                since=since,
                grace=policy.ages.held,
            )


def idle_holder(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Containers that have launched no kernel for ``ages.idle``; off while that is 0.

    The sharing library writes the time of the last kernel into the container's own file, which the
    tenant can change: enough for a report.
    """
    idle = policy.ages.idle
    if not idle:
        return
    pod_index = PodIndex(cluster_index)
    for launch in cluster_index.snapshot.last_kernels:
        pod = pod_index.pod(launch.pod_uid)
        if pod is None or not _runs(pod):
            continue
        since = launch.at or pod.started_at
        if since is None or cluster_index.now - since < idle:
            continue
        held = _allocations(cluster_index, pod, launch.container)
        last = age(cluster_index.now - since)
        event = f"launched its last kernel {last} ago"
        if not launch.at:
            event = f"has launched no kernel since its pod started {last} ago"
        yield Finding(
            rule=Rule.IDLE_HOLDER,
            cause=Cause.NO_KERNEL,
            object_ref=of_pod(pod),
            evidence=(f"container {launch.container} {event}", *_of_held(held)),
            since=since,
            part=launch.container,
        )


# ---------------------------------------------------------------- what is held


def _blocked(pod: Pod) -> Status | None:
    """The first container that waits in vain."""
    return next((status for status in pod.statuses if waits_in_vain(status)), None)


def _runs(pod: Pod) -> bool:
    return pod.deleted_at is None and any(
        status.state is ContainerState.RUNNING for status in pod.statuses
    )


def _held(cluster_index: ClusterIndex, pod: Pod, status: Status) -> tuple[Allocation, ...]:
    """The shares that are of no use while this container waits.

    An init container keeps all app containers waiting. A share of the whole pod is of use while
    any container runs.
    """
    allocations = _allocations(cluster_index, pod, "")
    if status.kind is not ContainerKind.APP:
        return allocations if not _app_runs(pod) else ()
    return tuple(
        allocation
        for allocation in allocations
        if allocation.container == status.name or (not allocation.container and not _runs(pod))
    )


def _app_runs(pod: Pod) -> bool:
    return any(
        status.state is ContainerState.RUNNING and status.kind is ContainerKind.APP
        for status in pod.statuses
    )


def _allocations(cluster_index: ClusterIndex, pod: Pod, container: str) -> tuple[Allocation, ...]:
    """The allocated shares by the pod's annotations, of one container or of all.

    Other rules look at shares that are only reserved.
    """
    return tuple(
        allocation
        for claim in cluster_index.claims(pod)
        for allocation in claim.allocations
        if allocation.phase is Phase.ASSIGNED and container in ("", allocation.container)
    )


# ---------------------------------------------------------------- in words


def _of_termination(pod: Pod, now: float, due: float) -> Iterator[str]:
    yield f"the pod should have ended {age(now - due)} ago"
    remaining = [status for status in pod.statuses if status.state is not ContainerState.TERMINATED]
    for status in remaining:
        reason = f": {quoted(status.reason)}" if status.reason else ""
        yield f"container {status.name} is {status.state}{reason}"
    if not pod.statuses:
        yield "the kubelet has reported no container"


def _of_failure(
    status: Status, held: Sequence[Allocation], since: float | None, now: float
) -> Iterator[str]:
    restarts = f" after {status.restarts} restarts" if status.restarts else ""
    yield f"container {status.name} is waiting: {quoted(status.reason)}{restarts}"
    if status.message and status.reason != CRASH_LOOP:
        yield f"message {quoted(status.message)}"
    yield from _of_held(held)
    memory = sum(share.memory_bytes or 0 for allocation in held for share in allocation.shares)
    if memory and since is not None and now > since:
        hours = (now - since) / _HOUR
        yield f"{exact_size(memory)} for {hours:,.0f} hours: {memory / GIB * hours:,.0f} GiB hours"


def _of_held(held: Sequence[Allocation]) -> Iterator[str]:
    for allocation in held:
        for share in allocation.shares:
            memory = "a share" if share.memory_bytes is None else exact_size(share.memory_bytes)
            yield f"holds {memory} of {share.device or 'an unknown device'}"
