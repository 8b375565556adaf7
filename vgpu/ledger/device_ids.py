"""The kubelet's device IDs that several containers of a pod have. Pure.

An ID is held by one of them at a time: the kubelet offers an init container's devices to those that
start after it, and a sidecar's and an app container's to none (``devicesToReuse`` of kubernetes
``pkg/kubelet/cm/devicemanager/manager.go``). Its checkpoint keeps the init container's
entry as long as the pod exists. A ResourceClaim has no such IDs: several containers hold its device
at once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from vgpu.ledger.statements import KUBELET, Containers, Statement
from vgpu.ledger.usage import Place, container_name
from vgpu.model.facts import ContainerName, ProcessOwner
from vgpu.model.names import PodRef

DeviceIds = frozenset[tuple[str, str]]
"""(resource, device ID)."""


def reused_ids(containers: Containers) -> dict[str, DeviceIds]:
    """Container -> its device IDs that another container of the pod has, too; {} if none has."""
    if len(containers) < 2:
        return {}
    by_container = {name: _ids(statements) for name, statements in containers.items()}
    seen: set[tuple[str, str]] = set()
    twice: set[tuple[str, str]] = set()
    for ids in by_container.values():
        twice |= seen & ids
        seen |= ids
    return (
        {name: own for name, ids in by_container.items() if (own := ids & twice)} if twice else {}
    )


def pods_with_reused_ids(statements: Iterable[Statement]) -> frozenset[str]:
    """UIDs of the pods in which several containers have one device ID."""
    pods: dict[str, dict[str, list[Statement]]] = {}
    for statement in statements:
        if statement.source in KUBELET and statement.slices:
            containers = pods.setdefault(statement.pod.uid, {})
            containers.setdefault(statement.container, []).append(statement)
    return frozenset(
        uid
        for uid, containers in pods.items()
        if reused_ids({name: tuple(own) for name, own in containers.items()})
    )


def running_containers(
    uids: Collection[str],
    owners: Iterable[ProcessOwner | None],
    names: Mapping[str, ContainerName],
) -> frozenset[Place]:
    """The containers of these pods with a live process; a container without a name is ""."""
    if not uids:
        return frozenset()
    return frozenset(
        (owner.pod_uid, container_name(owner, names))
        for owner in owners
        if owner is not None and owner.pod_uid in uids
    )


def started_containers(
    uids: Iterable[str], pods: Mapping[str, PodRef], names: Mapping[str, ContainerName]
) -> frozenset[Place]:
    """The containers of these pods that have a log, and so have started at any time."""
    known = {(pods[uid].namespace, pods[uid].name): uid for uid in uids if uid in pods}
    if not known:
        return frozenset()
    return frozenset(
        (uid, named.container)
        for named in names.values()
        if (uid := known.get((named.namespace, named.pod))) and named.pod_uid in ("", uid)
    )


def _ids(statements: Iterable[Statement]) -> DeviceIds:
    return frozenset(
        (resource, device_id)
        for statement in statements
        if statement.source in KUBELET
        for resource, ids in statement.slices
        for device_id in ids
    )


def most_at_once(amounts: Sequence[tuple[int, DeviceIds]]) -> int:
    """The most that a pod's containers have together, each device ID in one container at a time.

    ``amounts`` are by container, with its reused IDs; which of the containers are init containers
    is not known. All but one of those that share an ID are. So those that share IDs with the most
    others are taken out, until the rest R shares none:

        max(Σ R,  max over each i taken out: amount(i) + Σ of those in R that share no ID with i)

    No term has an ID twice.
    """
    sharing = [
        {other for other, (_, theirs) in enumerate(amounts) if other != at and ids & theirs}
        for at, (_, ids) in enumerate(amounts)
    ]
    rest = set(range(len(amounts)))

    def rank(at: int) -> tuple[int, int, int]:
        return len(sharing[at] & rest), -amounts[at][0], at

    while rest and rank(most := max(rest, key=rank))[0]:
        rest.remove(most)
    sums = [sum(amounts[at][0] for at in rest)]
    for at, (amount, _) in enumerate(amounts):
        if at not in rest:
            sums.append(amount + sum(amounts[other][0] for other in rest - sharing[at]))
    return max(sums)
