"""One pod: the containers of it that hold something, and their conflicts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from vgpu.ledger.conflicts import Conflict, ConflictKind
from vgpu.ledger.device_ids import DeviceIds, reused_ids
from vgpu.ledger.entries import Holding, HoldingSum, ResourceClaimShare
from vgpu.ledger.liveness import NORMAL_LEFTOVERS, Liveness, proves_liveness
from vgpu.ledger.precedence import DeviceStatements, Settled, resolve_container
from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import LIMITS, RANK, Containers, Statement
from vgpu.ledger.totals import held
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Sharing, Source
from vgpu.schemes.nvidia.grant import UNKNOWN


class Known(msgspec.Struct, frozen=True):
    """The facts about a pod apart from the statements.

    Attributes:
        pod: its UID on the node, and its name if a source has it.
        life: whether it may hold anything.
        over: the API server reports that it has ended, or has no such pod.
        named: the node still has a name for it.
        kinds: container -> kind, without app containers.
        order: these containers in the order in which they start.
        succeeded: init containers that hold nothing any more, unless one runs again.
        asked: all sources that may know an allocation reported; else absence is no evidence.
        specified: the API server has the pod, so that the order of its containers is known.
        running: containers with a live process; None if that is unknown.
        started: containers that have run at any time, as far as the node's logs have them.
    """

    pod: PodRef
    life: Liveness
    over: bool = False
    named: bool = False
    kinds: Mapping[str, ContainerKind] = {}
    order: tuple[str, ...] = ()
    succeeded: frozenset[str] = frozenset()
    asked: bool = True
    specified: bool = False
    running: frozenset[str] | None = None
    started: frozenset[str] = frozenset()


class SupportedHolding(msgspec.Struct, frozen=True, gc=False):
    """A holding and the statements that do not contradict it, the most trusted first."""

    holding: Holding
    statements: tuple[Statement, ...]

    @property
    def basis(self) -> tuple[Statement, ...]:
        """The statement to show: the most trusted about an allocation, else the most trusted."""
        allocations = [
            statement for statement in self.statements if statement.source is not Source.PROCESS
        ]
        return tuple(allocations or self.statements)[:1]


class PodResolution(msgspec.Struct, frozen=True, gc=False):
    """The result for one pod's statements.

    ``holders`` are in the order of their containers, ``statements`` is all about these containers.
    ``disputed`` are (device, statement); ``unproven`` are about a pod that may be alive or not, and
    ``leftovers`` are about an ended or deleted pod, about an init container that has succeeded, or
    about one whose device IDs a running container has now.
    """

    holders: tuple[SupportedHolding, ...] = ()
    statements: tuple[Statement, ...] = ()
    disputed: tuple[tuple[str, Statement], ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    unproven: tuple[Statement, ...] = ()
    leftovers: tuple[Statement, ...] = ()


def resolve_pod(known: Known, containers: Containers, registry: Registry) -> PodResolution:
    """Resolve every container of the pod that holds something."""
    lives = _lives(known.life, containers)
    holders: list[SupportedHolding] = []
    statements: list[Statement] = []
    disputed: list[tuple[str, Statement]] = []
    conflicts: list[Conflict] = []
    idle: list[Statement] = []
    of_succeeded: list[Statement] = []
    taken: set[str] = set()
    beside: dict[str, list[Statement]] = {}
    for container, of_container in _vague_last(containers):
        alive = any(statement.alive for statement in of_container)
        if container in known.succeeded and not alive:
            of_succeeded += of_container
            continue
        if not (lives or alive):
            idle += of_container
            continue
        settled = resolve_container(of_container, registry)
        places: Sequence[DeviceStatements] = settled.places
        if taken and _is_vague(container, of_container):
            places = _left_over(places, taken, beside)
        taken.update([place.share.device for place in places])
        resolved = [_holder(known, container, place, of_container, alive) for place in places]
        if any(statement.resource_claim_devices for statement in of_container):
            resolved = _with_resource_claim_shares(resolved, of_container, registry)
        holders += resolved
        statements += of_container
        disputed += settled.disputed
        if resolved:
            conflicts += _conflicts(resolved, of_container, settled, registry, known)
        elif settled.gpus_differ:  # the device may be another container's, but its sources differ
            differ = settled.gpus_differ
            conflicts.append(Conflict(_differing(settled), "", known.pod, container, differ))
    reused = reused_ids(containers)
    if reused:
        holders = [_with_reused_ids(holder, reused) for holder in holders]
        over = _replaced(known, reused, holders)
        of_succeeded += [s for name in sorted(over) for s in containers[name]]
        holders = [holder for holder in holders if holder.holding.container not in over]
        statements = [statement for statement in statements if statement.container not in over]
        disputed = [party for party in disputed if party[1].container not in over]
        conflicts = [conflict for conflict in conflicts if conflict.container not in over]
    if beside:
        holders = [
            _joined(holder, beside.get(holder.holding.share.device, ())) for holder in holders
        ]
    unproven = idle if known.life is Liveness.UNKNOWN else []
    leftovers = [] if unproven else idle
    if leftovers:
        conflicts += _stale(known, leftovers)
    return PodResolution(
        tuple(holders),
        tuple(statements),
        tuple(disputed),
        tuple(conflicts),
        tuple(unproven),
        (*leftovers, *of_succeeded),
    )


def _with_reused_ids(holder: SupportedHolding, reused: Mapping[str, DeviceIds]) -> SupportedHolding:
    own = reused.get(holder.holding.container)
    if own is None:
        return holder
    holding = msgspec.structs.replace(holder.holding, reused_ids=own)
    return SupportedHolding(holding, holder.statements)


def _replaced(
    known: Known, reused: Mapping[str, DeviceIds], holders: Iterable[SupportedHolding]
) -> frozenset[str]:
    """The containers that hold nothing beside a running one with the same device ID.

    An init container that has ended is one. So is a container of which no log shows that it has
    started, but only if the pod's peak is the same without it: it may be about to start. None is
    where the spec is known, which has the order of the containers.
    """
    if known.running is None or known.specified:
        return frozenset()
    holdings = [holder.holding for holder in holders]
    running = known.running | {holding.container for holding in holdings if holding.alive}
    replaced: set[str] = set()
    for name, ids in sorted(reused.items()):
        beside = (other for other in reused if other in running)
        if name in running or all(ids.isdisjoint(reused[other]) for other in beside):
            continue
        others = [holding for holding in holdings if holding.container != name]
        if name in known.started or _peaks(others) == _peaks(holdings):
            replaced.add(name)
            holdings = others
    return frozenset(replaced)


def _peaks(holdings: Iterable[Holding]) -> dict[str, HoldingSum]:
    by_device: dict[str, list[Holding]] = {}
    for holding in holdings:
        by_device.setdefault(holding.share.device, []).append(holding)
    return {device: held(own) for device, own in by_device.items()}


def _lives(life: Liveness, containers: Containers) -> bool:
    """Whether the pod's containers hold what was allocated to them."""
    if life in (Liveness.HOLDS, Liveness.LEFT):
        return True
    everything = (statement for of_container in containers.values() for statement in of_container)
    return life is not Liveness.ENDED and any(map(proves_liveness, everything))


def _is_vague(container: str, statements: Iterable[Statement]) -> bool:
    """Whether the statements may be about another container of the pod.

    Both HAMi's and Volcano's plugins miscount the containers of some pods, and name the folder of
    a region after the wrong container.
    """
    return all(
        statement.source in LIMITS or (not container and statement.source is Source.PROCESS)
        for statement in statements
    )


def _vague_last(containers: Containers) -> Iterable[tuple[str, tuple[Statement, ...]]]:
    """The containers in order, but vague ones last, to be compared with the others."""
    if len(containers) == 1:
        return containers.items()
    return sorted(containers.items(), key=lambda item: (_is_vague(*item), item[0]))


def _left_over(
    places: Iterable[DeviceStatements], taken: set[str], beside: dict[str, list[Statement]]
) -> list[DeviceStatements]:
    """The places without another container of the pod; other statements go to ``beside``."""
    own = []
    for place in places:
        if place.share.device in taken:
            beside.setdefault(place.share.device, []).extend(place.agreeing)
        else:
            own.append(place)
    return own


def _only_processes(statements: Sequence[Statement]) -> bool:
    """Whether all statements are of processes, which come first, so that the last one decides."""
    return statements[-1].source is Source.PROCESS


def _joined(holder: SupportedHolding, vague: Sequence[Statement]) -> SupportedHolding:
    """The holder with statements that may be about it or another container on the same device."""
    if not vague:
        return holder
    statements = tuple(
        sorted((*holder.statements, *vague), key=lambda statement: RANK[statement.source])
    )
    sources = tuple(dict.fromkeys([statement.source for statement in statements]))
    return SupportedHolding(msgspec.structs.replace(holder.holding, sources=sources), statements)


def _holder(
    known: Known,
    container: str,
    place: DeviceStatements,
    statements: Iterable[Statement],
    alive: bool,
) -> SupportedHolding:
    agreeing = place.agreeing
    granted = [statement for statement in agreeing if statement.phase is Phase.ASSIGNED]
    times = [statement.since for statement in granted or agreeing if statement.since is not None]
    schemes = [
        statement.scheme
        for statement in (*agreeing, *statements)
        if statement.scheme is not Scheme.NONE
    ]
    known_schemes = (scheme for scheme in schemes if scheme is not UNKNOWN)
    holding = Holding(
        pod=known.pod,
        container=container,
        share=place.share,
        scheme=next(known_schemes, schemes[0] if schemes else Scheme.NONE),
        phase=Phase.ASSIGNED if granted else Phase.ASSUMED,
        source=place.source,
        sources=tuple(dict.fromkeys([statement.source for statement in agreeing])),
        since=min(times) if times else None,
        slots=place.slots,
        alive=alive,
        kind=known.kinds.get(container, ContainerKind.APP),
        order=known.order.index(container) if container in known.order else 0,
        sized_by=place.sized_by,
        sharing=_sharing(agreeing),
    )
    return SupportedHolding(holding, agreeing)


def _sharing(statements: Iterable[Statement]) -> Sharing | None:
    """How the kubelet's statements report the container's devices to be shared: all alike."""
    ways = (way for statement in statements for way in statement.sharing)
    return next((way for way in ways if way is not Sharing.UNKNOWN), None)


def _with_resource_claim_shares(
    holders: Sequence[SupportedHolding], statements: Iterable[Statement], registry: Registry
) -> list[SupportedHolding]:
    """The holders with their parts of ResourceClaims, from the most trusted source that has any.

    What is on no known device is at the first holder.
    """
    resource_claim_statements = [
        statement for statement in statements if statement.resource_claim_devices
    ]
    parts: dict[str, dict[ResourceClaimShare, None]] = {}
    for statement in resource_claim_statements:
        if statement.source is resource_claim_statements[0].source:
            for device, share, resource_claim_device in zip(
                registry.gpus(statement),
                statement.shares,
                statement.resource_claim_devices,
                strict=True,
            ):
                size = registry.size(device, share.memory_bytes, share.cores_milli)
                part = ResourceClaimShare(
                    resource_claim_device, size.memory_bytes, size.cores_milli
                )
                parts.setdefault(device, {})[part] = None
    unplaced = parts.pop("", {})
    result = []
    for holder in holders:
        holding = holder.holding
        own = (*parts.get(holding.share.device, ()), *unplaced)
        unplaced = {}
        with_parts = msgspec.structs.replace(holding, resource_claim_shares=own)
        result.append(msgspec.structs.replace(holder, holding=with_parts))
    return result


# ---------------------------------------------------------------- what is wrong


def _conflict(
    kind: ConflictKind, holder: SupportedHolding, statements: Iterable[Statement], detail: str = ""
) -> Conflict:
    holding = holder.holding
    device = holding.share.device
    return Conflict(kind, device, holding.pod, holding.container, tuple(statements), detail)


def _conflicts(
    holders: Sequence[SupportedHolding],
    statements: Sequence[Statement],
    settled: Settled,
    registry: Registry,
    known: Known,
) -> Iterator[Conflict]:
    """The conflicts of one container; ``holders`` has one for each of its devices."""
    first = holders[0]
    if known.over:
        yield _conflict(ConflictKind.OUTLIVES_POD, first, statements)
    if settled.gpus_differ:
        yield _conflict(_differing(settled), first, settled.gpus_differ)
    if settled.foreign:
        meant = ", ".join(sorted({statement.node for statement in settled.foreign}))
        yield _conflict(ConflictKind.NODE_DIFFERS, first, settled.foreign, meant)
    on = {holder.holding.share.device: holder for holder in holders}
    for device, parties in settled.sizes_differ:
        yield _conflict(ConflictKind.SIZE_DIFFERS, on[device], parties)
    for device, parties in settled.limits_differ:
        yield _conflict(ConflictKind.LIMIT_DIFFERS, on[device], parties)
    unallocated = known.asked and _only_processes(statements)
    for device, holder in on.items():
        if unallocated:
            yield _conflict(ConflictKind.PROCESS_WITHOUT_ALLOCATION, holder, statements)
        if registry.is_missing(device):
            yield _conflict(ConflictKind.DEVICE_MISSING, holder, holder.statements)
        elif registry.is_unhealthy(device):
            yield _conflict(ConflictKind.DEVICE_UNHEALTHY, holder, holder.basis)


def _differing(settled: Settled) -> ConflictKind:
    """The conflict of sources that name different devices."""
    return ConflictKind.FILE_DIFFERS if settled.only_files else ConflictKind.GPU_DIFFERS


def _stale(known: Known, idle: Iterable[Statement]) -> Iterator[Conflict]:
    """Statements about an ended or deleted pod, of sources that should not have it any more."""
    life = Liveness.ENDED if known.named else known.life
    normal = NORMAL_LEFTOVERS.get(life, frozenset())
    containers: dict[str, list[Statement]] = {}
    for statement in idle:
        if statement.source not in normal:
            containers.setdefault(statement.container, []).append(statement)
    for container, statements in containers.items():
        yield Conflict(
            ConflictKind.HELD_BY_NOBODY_ALIVE,
            pod=known.pod,
            container=container,
            statements=tuple(statements),
        )
