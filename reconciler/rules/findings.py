"""The parts of the rules' findings: objects, actions, times, and evidence in words. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Edit, Evict, Guard, ObjectKind, ObjectRef
from reconciler.policy import Policy
from vgpu.ledger import Holding, Statement
from vgpu.model.allocation import Device, Share
from vgpu.model.names import PodRef
from vgpu.model.objects import MIRROR, Node, Pod
from vgpu.model.units import count, exact_size, percent
from vgpu.placement.pods_without_gpu import PodWithoutGpu

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


MOST_NAMED: Final = 16
"""Maximum number of parties named in the evidence of a finding; the others are counted."""


# ---------------------------------------------------------------- pods of a ledger


class PodIndex:
    """Finds the pod or SharePod of a ledger's UID, which is the UID on the node."""

    def __init__(self, cluster_index: ClusterIndex) -> None:
        """Finds pods of this index."""
        self._cluster_index = cluster_index

    def pod(self, uid: str) -> Pod | None:
        """The pod by the UID on the node; None if it is not in the snapshot."""
        return self._cluster_index.pods.get(uid) or self._static.get(uid)

    @cached_property
    def _static(self) -> dict[str, Pod]:
        return {
            pod.kubelet_uid: pod
            for pod in self._cluster_index.all_pods
            if MIRROR in pod.annotations
        }

    def object_ref(self, ref: PodRef, node: str) -> ObjectRef:
        """The pod as an object; a pod that is not in the snapshot has the names that are known."""
        pod, share_pod = self.pod(ref.uid), self._cluster_index.share_pods.get(ref.uid)
        if pod is not None:
            return of_pod(pod)
        if share_pod is not None:
            return of_share_pod(share_pod)
        return ObjectRef(ObjectKind.POD, ref.namespace, ref.name, ref.uid, node=node)


def of_share_pod(pod: Pod) -> ObjectRef:
    """The SharePod as an object, with its node."""
    return ObjectRef(
        ObjectKind.SHARE_POD, pod.ref.namespace, pod.ref.name, pod.ref.uid, node=pod.node
    )


# ---------------------------------------------------------------- in words


def without_claim_text(pod: PodWithoutGpu) -> tuple[str, ...]:
    """What a bound pod requests of GPUs that are not known."""
    asks = (
        f"{request.container or 'the pod'} asks for {count(request.count, 'GPU')}"
        for request in pod.requests
    )
    return (*asks, pod.named or "no annotation names a GPU of the node for it")


def of_device(device: Device, here: str = "") -> str:
    """A device and its capacity; ``here`` as in of_holding."""
    parts = [] if device.memory_bytes is None else [exact_size(device.memory_bytes)]
    parts.append(f"{percent(device.cores_milli)} % of cores")
    if device.slots is not None:
        parts.append(count(device.slots, "slot"))
    name = "this GPU" if device.name == here else device.name
    return f"{name} has {', '.join(parts)} to share"


def of_holding(holding: Holding, here: str = "") -> str:
    """A holder and its share; the device ``here`` has been named, and is "this GPU"."""
    times = f"{holding.slots} shares, together " if holding.slots > 1 else ""
    sources = ", ".join(holding.sources)
    who = _who(holding.pod, holding.container)
    return f"{who} holds {times}{_share(holding.share, here)} ({sources})"


def of_statement(statement: Statement, here: str = "") -> str:
    """A source's report of a container, and where it was read; ``here`` as in of_holding."""
    shares = ", ".join(_share(share, here) for share in statement.shares) or "nothing"
    where = f" ({statement.where})" if statement.where else ""
    return f"{statement.source}: {_who(statement.pod, statement.container)}: {shares}{where}"


def at_most(lines: Sequence[str]) -> Iterator[str]:
    """The first lines, and the number of the others."""
    yield from lines[:MOST_NAMED]
    if len(lines) > MOST_NAMED:
        yield f"and {len(lines) - MOST_NAMED} more"


def of_statements(statements: Iterable[Statement], here: str = "") -> Iterator[str]:
    """The statements in words, at most :data:`MOST_NAMED`; ``here`` as in of_holding."""
    return at_most([of_statement(statement, here) for statement in statements])


def _who(pod: PodRef, container: str) -> str:
    if not pod.uid:
        return f"container {container}" if container else "no container"
    name = f"{pod.namespace}/{pod.name}" if pod.name else f"pod {pod.uid}"
    return f"{name}/{container}" if container else name


def _share(share: Share, here: str = "") -> str:
    parts = [] if share.memory_bytes is None else [exact_size(share.memory_bytes)]
    if share.cores_milli is not None:
        parts.append(f"{percent(share.cores_milli)} % of cores")
    device = share.device or "an unknown device"
    return f"{', '.join(parts) or 'a share'} of {'this GPU' if here == device else device}"
