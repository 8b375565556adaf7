"""The pods of a ledger, and the reports of its sources, in words that a person can check. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import ObjectKind, ObjectRef
from reconciler.rules.findings import of_pod
from vgpu.ledger import Holding, Statement
from vgpu.model.allocation import Device, Share
from vgpu.model.names import PodRef
from vgpu.model.objects import MIRROR, Pod
from vgpu.model.units import count, exact_size, percent
from vgpu.placement.pods_without_gpu import PodWithoutGpu

MOST_NAMED: Final = 16
"""Maximum number of parties named in the evidence of a finding; the others are counted."""


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
    return (*asks, "no annotation names a GPU of the node for it")


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
