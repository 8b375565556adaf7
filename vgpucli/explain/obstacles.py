"""What may keep a pod from GPUs that are free by the allocation records. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from vgpu.ledger.from_api import read_pod
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.schemes.codec import ClaimError, NodeLock, SchemeCodec
from vgpu.schemes.registry import registry
from vgpucli.explain.scheduler_message import PartKind, parsed
from vgpucli.missing_resources import MissingResource, with_nearest

_MOST_NAMED: Final = 5
"""Maximum number of pods that are named."""

_MOST_LOOKED_AT: Final = 500
"""Maximum number of placed pods whose scheduler is read."""


def requested_names(pod: Pod) -> frozenset[str]:
    """The extended resources that a container of the pod requests."""
    return frozenset(
        name
        for container in pod.containers
        for name, units in (*container.limits.items(), *container.others.items())
        if units
    )


def missing_resources(
    pod: Pod, advertised: Collection[str], uncounted: Collection[str], *, fits: bool
) -> tuple[MissingResource, ...]:
    """The requested resources that are not ``advertised``, without those that no plugin has.

    A resource of a sharing system is missing only if the pod ``fits`` a node by its GPUs, or has
    none of a system that counts GPUs, and kube-scheduler misses the resource: others may count it.
    """
    of_systems = registry().resource_names
    requested = requested_names(pod)
    if registry().may_be_renamed(requested):
        requested &= of_systems
    parts = parsed(pod.unschedulable).of_kind(PartKind.RESOURCE) if fits else ()
    missed = {part.name for part in parts}
    names = requested - {*advertised} - {*uncounted} - (of_systems - missed)
    return with_nearest(names, {*advertised, *uncounted, *of_systems})


def node_locks(
    nodes: Iterable[Node], codecs: Sequence[SchemeCodec]
) -> Iterator[tuple[str, NodeLock]]:
    """The locks of the nodes, each once."""
    for node in nodes:
        locks: dict[str, NodeLock] = {}
        for codec in codecs:
            try:
                locks |= {lock.key: lock for lock in codec.locks(node)}
            except ClaimError:
                continue
        for lock in locks.values():
            yield node.name, lock


def foreign_reservations(
    pods: Iterable[Pod], names: Collection[str], codecs: Sequence[SchemeCodec]
) -> Iterator[str]:
    """The pods that are bound to another node than the one of ``names`` that they reserve."""
    found = 0
    for pod in pods:
        if not pod.node or not any(
            text in names and text != pod.node for text in pod.annotations.values()
        ):
            continue
        if not holds_devices(pod):
            continue
        reserved = {claim.node for claim in read_pod(pod, codecs).claims} - {"", pod.node}
        for name in sorted(reserved.intersection(names)):
            found += 1
            if found > _MOST_NAMED:
                return
            yield (
                f"pod {pod.ref.namespace}/{pod.ref.name} is bound to node {pod.node}, and its"
                f" annotations reserve GPUs of node {name}"
            )


SCHEDULERS: Final[Mapping[str, str]] = {
    "hami-scheduler": "hami",
    "volcano": "volcano",
    "kubeshare-scheduler": "kubeshare",
    "kai-scheduler": "kai",
    "koord-scheduler": "koordinator",
}
"""The names of schedulers by their projects' charts, with the name of the system that each places.

HAMi (``charts/hami/values.yaml``, schedulerName), Volcano
(``cmd/controller-manager/app/options/options.go``), KubeShare (``pkg/scheduler/scheduler.go``), KAI
Scheduler (``pkg/common/constants/constants.go``), Koordinator (``cmd/koord-scheduler``).
"""


def is_of_other_system(scheduler: str, codec: SchemeCodec) -> bool:
    """Whether a scheduler's name is that of another system.

    Pods of another system that it has placed show nothing: one scheduler may place for several.
    """
    return SCHEDULERS.get(scheduler, codec.name) != codec.name


def placing_schedulers(pods: Iterable[Pod], codec: SchemeCodec) -> Mapping[str, str]:
    """The schedulers of pods that have GPUs of the system by a scheduler, each with one pod."""
    schedulers: dict[str, str] = {}
    seen = 0
    for pod in pods:
        if pod.node and pod.scheduler and codec.claim_keys(pod):
            schedulers.setdefault(pod.scheduler, f"{pod.ref.namespace}/{pod.ref.name}")
            seen += 1
            if seen >= _MOST_LOOKED_AT:
                break
    return schedulers
