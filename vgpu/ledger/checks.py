"""Conflicts beyond a single container, found after all containers are resolved."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vgpu.ledger.conflicts import Conflict, ConflictKind
from vgpu.ledger.entries import Holding
from vgpu.ledger.pods import SupportedHolding
from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import KUBELET, Containers, Evidence, Malformed, Statement, Wanted
from vgpu.model.names import Scheme, Source
from vgpu.schemes.nvidia.grant import UNKNOWN
from vgpu.schemes.registry import registry as schemes_registry

MAX_NAMED = 8
"""Maximum number of device IDs named in one conflict; the others are counted."""


_NO_SYSTEM = frozenset({Scheme.NONE, UNKNOWN})
"""Schemes of holdings whose sharing system is not known."""


def double_booked(
    statements: Iterable[Statement], held: Mapping[str, Sequence[Holding]]
) -> Iterator[Conflict]:
    """Slices that two pods hold; ``held`` is what each pod holds, by UID.

    Containers of one pod may share slices: app containers take over the init containers'.
    """
    granted = [statement for statement in statements if statement.slices]
    slices: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
    for statement in granted:
        for resource, own in statement.slices:
            slices.setdefault(resource, set()).add((statement.pod.uid, own))
    for resource, pods in slices.items():
        if len(set().union(*(own for _, own in pods))) == sum(len(own) for _, own in pods):
            continue
        for uids, shared in _clashes(pods).items():
            ids = frozenset(shared)
            devices = {holding.share.device for uid in uids for holding in held.get(uid, ())}
            named = ", ".join(shared[:MAX_NAMED])
            more = f" and {len(shared) - MAX_NAMED} more" if len(shared) > MAX_NAMED else ""
            yield Conflict(
                ConflictKind.DOUBLE_BOOKED,
                devices.pop() if len(devices) == 1 else "",
                statements=tuple(s for s in granted if _is_granted(s, resource, ids)),
                detail=f"{resource}: {named}{more}",
            )


def several_schemes(holders: Iterable[SupportedHolding], registry: Registry) -> Iterator[Conflict]:
    """GPUs that a sharing system allocates beside a plugin that needs no scheduler.

    Each of them counts the whole GPU as its own, and the other's holders are in none of its sums.
    A GPU's MIG instances belong to it.
    """
    by_gpu: dict[str, list[SupportedHolding]] = {}
    for holder in holders:
        holding = holder.holding
        if holding.share.device in registry.devices and holding.scheme not in _NO_SYSTEM:
            by_gpu.setdefault(registry.gpu(holding.share.device), []).append(holder)
    for gpu, sharing in by_gpu.items():
        schemes = sorted({holder.holding.scheme for holder in sharing})
        if len(schemes) > 1 and not schemes_registry().observed.isdisjoint(schemes):
            yield Conflict(
                ConflictKind.DOUBLE_BOOKED,
                gpu,
                statements=tuple(basis for holder in sharing for basis in holder.basis),
                detail=f"several sharing systems allocate it: {', '.join(schemes)}",
            )


def _is_granted(statement: Statement, resource: str, ids: frozenset[str]) -> bool:
    return any(of == resource and not ids.isdisjoint(own) for of, own in statement.slices)


def _clashes(granted: Iterable[tuple[str, tuple[str, ...]]]) -> dict[tuple[str, ...], list[str]]:
    """UIDs of pods -> the device IDs that all of them have, and no other pod."""
    pods: dict[str, set[str]] = {}
    for uid, ids in granted:
        pods.setdefault(uid, set()).update(ids)
    seen: set[str] = set()
    twice: set[str] = set()
    for own in pods.values():
        twice |= seen & own
        seen |= own
    owners: dict[str, list[str]] = {}
    for uid, own in sorted(pods.items()):
        for device_id in own & twice:
            owners.setdefault(device_id, []).append(uid)
    clashes: dict[tuple[str, ...], list[str]] = {}
    for device_id, uids in sorted(owners.items()):
        clashes.setdefault(tuple(uids), []).append(device_id)
    return clashes


def without_device(
    wanted: Iterable[Wanted], by_pod: Mapping[str, Containers], read: frozenset[Source]
) -> Iterator[Conflict]:
    """Containers that run and ask for a device, but to which the kubelet allocated none.

    It happens when the kubelet starts without its checkpoint: it does not know the resource then
    and admits the pod as it is. ``read`` are the sources that were read completely.
    """
    if not read & KUBELET:
        return
    for request in wanted:
        name = request.request.container
        containers = by_pod.get(request.pod.uid, {})
        about = (*containers.get(name, ()), *(containers.get("", ()) if name else ()))
        allocated = any(s.source in KUBELET and s.container == name for s in about)
        if request.resource and request.running and not allocated:
            kind = ConflictKind.RUNNING_WITHOUT_DEVICE
            yield Conflict(kind, pod=request.pod, container=name, statements=about)


def by_no_container(statements: Iterable[Statement], registry: Registry) -> Iterator[Conflict]:
    """Processes on devices that belong to no container."""
    for statement in statements:
        for device in dict.fromkeys(registry.gpus(statement)):
            kind = ConflictKind.PROCESS_WITHOUT_ALLOCATION
            yield Conflict(kind, device, statements=(statement,))


def of_resource_claims(evidence: Evidence, registry: Registry) -> Iterator[Conflict]:
    """ResourceClaims that only a driver has, and those whose CDI spec is missing."""
    found = {
        ConflictKind.RESOURCE_CLAIM_LEFT: evidence.left_resource_claims,
        ConflictKind.CDI_SPEC_MISSING: evidence.missing_specs,
    }
    for kind, devices in found.items():
        for device, where in sorted(set(devices)):
            yield Conflict(kind, registry.uuid(device) or device, detail=where)


def of_groups(evidence: Evidence) -> Iterator[Conflict]:
    """What is wrong with GPU groups."""
    for problem in dict.fromkeys(evidence.group_problems):
        yield Conflict(
            problem.kind,
            problem.device,
            problem.pod,
            problem.container,
            detail=problem.detail,
            group=problem.group,
            members=problem.members,
        )


def unreadable(malformed: Iterable[Malformed]) -> Iterator[Conflict]:
    """The unreadable texts, as conflicts."""
    for error in malformed:
        yield Conflict(
            ConflictKind.MALFORMED, pod=error.pod, container=error.container, detail=error.detail
        )


def waiting(wanted: Iterable[Wanted], held: Mapping[str, Sequence[Holding]]) -> Iterator[Wanted]:
    """The requests of containers that hold nothing."""
    for request in wanted:
        holders = {holding.container for holding in held.get(request.pod.uid, ())}
        name = request.request.container
        if not (holders & {"", name} if name else holders):
            yield request
