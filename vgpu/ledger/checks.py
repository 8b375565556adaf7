"""What is wrong beyond a single container, seen when all are settled."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vgpu.ledger.conflicts import Conflict, ConflictKind
from vgpu.ledger.containers import Containers
from vgpu.ledger.entries import Holding
from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import KUBELET, Malformed, Statement, Wanted
from vgpu.model import Source

MAX_NAMED = 8
"""Maximum number of device IDs named in one conflict; the others are counted."""


def double_booked(
    said: Iterable[Statement], held: Mapping[str, Sequence[Holding]]
) -> Iterator[Conflict]:
    """The same slice in the hands of two pods; ``held`` is what each pod holds, by UID.

    Containers of one pod may share slices: app containers take over the init containers'.
    """
    granted = [statement for statement in said if statement.slices]
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
                statements=tuple(s for s in granted if _is_given(s, resource, ids)),
                detail=f"{resource}: {named}{more}",
            )


def _is_given(statement: Statement, resource: str, ids: frozenset[str]) -> bool:
    return any(of == resource and not ids.isdisjoint(own) for of, own in statement.slices)


def _clashes(given: Iterable[tuple[str, tuple[str, ...]]]) -> dict[tuple[str, ...], list[str]]:
    """UIDs of pods -> the IDs that all of them have, and no other."""
    pods: dict[str, set[str]] = {}
    for uid, ids in given:
        pods.setdefault(uid, set()).update(ids)
    seen: set[str] = set()
    twice: set[str] = set()
    for own in pods.values():
        twice |= seen & own
        seen |= own
    owners: dict[str, list[str]] = {}
    for uid, own in sorted(pods.items()):
        for one in own & twice:
            owners.setdefault(one, []).append(uid)
    clashes: dict[tuple[str, ...], list[str]] = {}
    for one, uids in sorted(owners.items()):
        clashes.setdefault(tuple(uids), []).append(one)
    return clashes


def without_device(
    wanted: Iterable[Wanted], said: Mapping[str, Containers], read: frozenset[Source]
) -> Iterator[Conflict]:
    """Containers that run and to which the kubelet should have given a device, but did not.

    It happens when the kubelet starts without its checkpoint: it does not know the resource then
    and admits the pod as it is. ``read`` are the sources that told all they could.
    """
    if not read & KUBELET:
        return
    for one in wanted:
        name = one.request.container
        containers = said.get(one.pod.uid, {})
        about = (*containers.get(name, ()), *(containers.get("", ()) if name else ()))
        given = any(s.source in KUBELET and s.container == name for s in about)
        if one.resource and one.running and not given:
            kind = ConflictKind.RUNNING_WITHOUT_DEVICE
            yield Conflict(kind, pod=one.pod, container=name, statements=about)


def by_no_container(statements: Iterable[Statement], registry: Registry) -> Iterator[Conflict]:
    """Processes on devices that belong to no container."""
    for statement in statements:
        for device in dict.fromkeys(registry.cards(statement)):
            kind = ConflictKind.PROCESS_WITHOUT_ALLOCATION
            yield Conflict(kind, device, statements=(statement,))


def unreadable(malformed: Iterable[Malformed]) -> Iterator[Conflict]:
    """What could not be read, as conflicts."""
    for one in malformed:
        yield Conflict(
            ConflictKind.MALFORMED, pod=one.pod, container=one.container, detail=one.detail
        )


def waiting(wanted: Iterable[Wanted], held: Mapping[str, Sequence[Holding]]) -> Iterator[Wanted]:
    """What is asked for by containers that hold nothing."""
    for one in wanted:
        holders = {holding.container for holding in held.get(one.pod.uid, ())}
        name = one.request.container
        if not (holders & {"", name} if name else holders):
            yield one
