"""Shares that are held without use: by pods that do not end, cannot run, or run no kernel.

These rules only report: an eviction of a pod that is being deleted does nothing, and a pod that
cannot run or is idle is its owner's decision. What a pod of NVIDIA's own plugin holds is in no
annotation: the kubelet allocates what the containers request when it admits the pod.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.findings import PodIndex, is_due, of_holding, of_pod, quoted
from vgpu.inventory.nvidia import (
    advertised_units,
    is_own_unit,
    labelled_sharing,
    requested_units,
)
from vgpu.kube.pod_state import CRASH_LOOP, failing_since, waits_in_vain
from vgpu.ledger import Holding
from vgpu.model.allocation import Allocation, Share
from vgpu.model.durations import age
from vgpu.model.names import UNLIMITED_SHARING, ContainerKind, Phase
from vgpu.model.objects import ContainerState, Node, Pod, Status, holds_devices
from vgpu.model.units import GIB, exact_size

_HOUR: Final = 3600.0


def stuck_terminating(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Pods whose deletion is due, and whose containers have not ended: they keep their shares."""
    for pod in cluster_index.all_pods:
        due = pod.deleted_at
        if due is None or not holds_devices(pod) or not cluster_index.has_gpus(pod):
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
    for pod in cluster_index.all_pods:
        if not pod.node or pod.terminal or pod.deleted_at is not None:
            continue
        status = _blocked(pod)
        if status is None:
            continue
        held = _useless(cluster_index, pod, status)
        since = failing_since(pod, status, cluster_index.now)
        if held.lines and is_due(cluster_index, policy, since, policy.ages.held):
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
    """Containers without a kernel for ``ages.idle``, or without a process; off while that is 0.

    The sharing library writes the time of the last kernel into the container's own file, which the
    tenant can change: enough for a report. NVIDIA's own plugin has no library: there a container
    that has been running for this time is idle if its pod has no process on the device now.
    """
    if policy.ages.idle:
        pod_index = PodIndex(cluster_index)
        yield from _without_kernel(cluster_index, pod_index, policy.ages.idle)
        yield from _without_process(cluster_index, pod_index, policy.ages.idle)


def _without_kernel(
    cluster_index: ClusterIndex, pod_index: PodIndex, idle: float
) -> Iterator[Finding]:
    for launch in cluster_index.snapshot.last_kernels:
        pod = pod_index.pod(launch.pod_uid)
        if pod is None or not _runs(pod):
            continue
        since = launch.launched_at or pod.started_at
        if since is None or cluster_index.now - since < idle:
            continue
        held = _of_allocations(_allocations(cluster_index, pod, launch.container))
        last = age(cluster_index.now - since)
        event = f"launched its last kernel {last} ago"
        if not launch.launched_at:
            event = f"has launched no kernel since its pod started {last} ago"
        yield Finding(
            rule=Rule.IDLE_HOLDER,
            cause=Cause.NO_KERNEL,
            object_ref=of_pod(pod),
            evidence=(f"container {launch.container} {event}", *held.lines),
            since=since,
            part=launch.container,
        )


def _without_process(
    cluster_index: ClusterIndex, pod_index: PodIndex, idle: float
) -> Iterator[Finding]:
    """Containers of NVIDIA's own plugin on devices where their pod has no process.

    A turn of a time-sliced device is left out while another turn is free: it has no amount, and
    keeps nobody from the device.
    """
    users = cluster_index.snapshot.device_pods
    for name, ledger in cluster_index.snapshot.ledgers.items():
        node = cluster_index.nodes.get(name)
        free = _free_units(cluster_index, node)
        for holding in ledger.holdings:
            pod = pod_index.pod(holding.pod.uid)
            device = holding.share.device
            if pod is None or not cluster_index.observed_scheme(pod) or device not in users:
                continue
            since = _running_since(pod, holding.container)
            if holding.pod.uid in users[device] or since is None:
                continue
            if free and _keeps_nobody_out(pod, holding, node, free):
                continue
            if cluster_index.now - since >= idle:
                runs = age(cluster_index.now - since)
                yield Finding(
                    rule=Rule.IDLE_HOLDER,
                    cause=Cause.NO_PROCESS,
                    object_ref=of_pod(pod),
                    evidence=(
                        _idle_text(holding.container, runs, device),
                        of_holding(holding, device),
                    ),
                    part=f"{holding.container}/{device}",
                )


def _free_units(cluster_index: ClusterIndex, node: Node | None) -> Mapping[str, int]:
    """The resources of NVIDIA's own plugin of which the node has free units, with their number."""
    if node is None or not cluster_index.has(Coverage.PODS):
        return {}
    units = advertised_units(node)
    held: Counter[str] = Counter()
    for pod in cluster_index.all_pods:
        if pod.node == node.name:
            held.update(requested_units(pod))
    return {name: number - held[name] for name, number in units.items() if number > held[name]}


def _keeps_nobody_out(
    pod: Pod, holding: Holding, node: Node | None, free: Mapping[str, int]
) -> bool:
    """Whether the holding is a turn without an amount, of a resource with free units.

    The kubelet's record decides how the device is shared, else the labels of the node.
    """
    resources = {
        name
        for container in pod.containers
        if container.name == holding.container
        for name, number in container.limits.items()
        if number and is_own_unit(name)
    }
    ways = {holding.sharing} - {None}
    if not ways and node is not None:
        labelled = labelled_sharing(node)
        ways = {labelled.get(name) for name in resources}
    return bool(ways) and ways <= UNLIMITED_SHARING and bool(resources) and resources <= free.keys()


# ---------------------------------------------------------------- what is held


def _blocked(pod: Pod) -> Status | None:
    """The first container that waits in vain."""
    return next((status for status in pod.statuses if waits_in_vain(status)), None)


def _runs(pod: Pod) -> bool:
    return pod.deleted_at is None and any(
        status.state is ContainerState.RUNNING for status in pod.statuses
    )


def _running_since(pod: Pod, container: str) -> float | None:
    """Since when the container runs, in unix seconds; None if it does not, or if unknown."""
    return next(
        (
            status.started_at or pod.started_at
            for status in pod.statuses
            if status.name == container
            and status.state is ContainerState.RUNNING
            and pod.deleted_at is None
        ),
        None,
    )


class _Held(msgspec.Struct, frozen=True):
    """What is held: a line for each share, and their memory together, 0 if unknown."""

    lines: tuple[str, ...] = ()
    memory_bytes: int = 0


def _useless(cluster_index: ClusterIndex, pod: Pod, status: Status) -> _Held:
    """The shares that are of no use while this container waits.

    An init container keeps all app containers waiting. A share of the whole pod is of use while
    any container runs.
    """
    of_all = status.kind is not ContainerKind.APP
    if of_all and _app_runs(pod):
        return _Held()
    if pod.group_gpus:
        return _Held(tuple(f"holds a part of {gpu}" for gpu in pod.group_gpus))
    if cluster_index.observed_scheme(pod):
        return _of_requests(pod, "" if of_all else status.name)
    allocations = _allocations(cluster_index, pod, "")
    return _of_allocations(
        allocation
        for allocation in allocations
        if of_all
        or allocation.container == status.name
        or (not allocation.container and not _runs(pod))
    )


def _of_requests(pod: Pod, container: str) -> _Held:
    """What the kubelet allocated at admission, of one container or of all."""
    return _Held(
        tuple(
            f"holds {number} of {resource}"
            for each in pod.containers
            for resource, number in sorted(each.limits.items())
            if number and container in ("", each.name)
        )
    )


def _of_allocations(allocations: Iterable[Allocation]) -> _Held:
    shares = [share for allocation in allocations for share in allocation.shares]
    memory = sum(share.memory_bytes or 0 for share in shares)
    return _Held(tuple(map(_of_share, shares)), memory)


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


def _idle_text(container: str, runs: str, device: str) -> str:
    what = f"container {container} has been running for {runs}"
    return f"{what}, and its pod has no process on {device} at this moment"


def _of_termination(pod: Pod, now: float, due: float) -> Iterator[str]:
    yield f"the pod should have ended {age(now - due)} ago"
    remaining = [status for status in pod.statuses if status.state is not ContainerState.TERMINATED]
    for status in remaining:
        reason = f": {quoted(status.reason)}" if status.reason else ""
        yield f"container {status.name} is {status.state}{reason}"
    if not pod.statuses:
        yield "the kubelet has reported no container"


def _of_failure(status: Status, held: _Held, since: float | None, now: float) -> Iterator[str]:
    restarts = f" after {status.restarts} restarts" if status.restarts else ""
    yield f"container {status.name} is waiting: {quoted(status.reason)}{restarts}"
    if status.message and status.reason != CRASH_LOOP:
        yield f"message {quoted(status.message)}"
    yield from held.lines
    memory = held.memory_bytes
    if memory and since is not None and now > since:
        hours = (now - since) / _HOUR
        yield f"{exact_size(memory)} for {hours:,.0f} hours: {memory / GIB * hours:,.0f} GiB hours"


def _of_share(share: Share) -> str:
    memory = "a share" if share.memory_bytes is None else exact_size(share.memory_bytes)
    return f"holds {memory} of {share.device or 'an unknown device'}"
