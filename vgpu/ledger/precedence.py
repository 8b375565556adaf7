"""One container: what all sources say of it, settled by precedence.

Where it is: on the devices that the most trusted allocation names, and on every device on which
it has a process, whatever was allocated. How much it has there: what the most trusted allocation
tells, for the kernel knows the device and the claim knows the size. What disagrees is kept.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import LIMITS, PARTIAL, Statement, is_tenants_own
from vgpu.model import Share, Source
from vgpu.units import WHOLE_DEVICE_MILLI, percent

Parties = tuple[str, tuple[Statement, ...]]
"""A device, and the statements that disagree about the container's share of it."""


class DeviceShares(msgspec.Struct, frozen=True, gc=False):
    """A statement, with its shares by device ("" is an unknown one).

    ``alike`` is what each of its shares is like, None if they differ or there are none.
    """

    said: Statement
    shares: Mapping[str, list[Share]]
    named: frozenset[str]
    alike: Share | None


class DeviceStatements(msgspec.Struct, frozen=True, gc=False):
    """The container on one device, "" if on an unknown one.

    ``share`` is all that it has of the device, ``slots`` how many shares that are; ``source``
    decided that it is there, ``agreeing`` do not speak against it. ``sized_by`` told the memory.
    """

    share: Share
    slots: int
    source: Source
    agreeing: tuple[Statement, ...]
    sized_by: Source | None


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What became of the statements about one container.

    ``disputed`` are devices that a statement names and better ones do not, ``foreign`` are
    statements that were meant for another node. The rest are the parties of disagreements;
    ``only_files`` is whether those about the GPU would agree without files of the tenant's own
    that the driver does not confirm.
    """

    places: tuple[DeviceStatements, ...]
    disputed: tuple[tuple[str, Statement], ...] = ()
    cards_differ: tuple[Statement, ...] = ()
    only_files: bool = False
    sizes_differ: tuple[Parties, ...] = ()
    limits_differ: tuple[Parties, ...] = ()
    foreign: tuple[Statement, ...] = ()


class _Amount(msgspec.Struct, frozen=True, gc=False):
    """What one statement reports of the share of one device.

    ``certain`` is whether it speaks of that device; else its shares are meant for others.
    """

    said: Statement
    memory_bytes: int | None
    cores_milli: int | None
    certain: bool


def resolve_container(statements: Sequence[Statement], registry: Registry) -> Settled:
    """Settle the statements about one container, of which the most trusted comes first."""
    return resolve_fast(statements, registry) or resolve_general(statements, registry)


def resolve_fast(statements: Sequence[Statement], registry: Registry) -> Settled | None:
    """The usual case, in which all tell of the same share of one device, and of nothing else.

    It is what :func:`resolve_general` finds, at a fraction of the cost; None if there is more to
    weigh.
    """
    name = device = ""
    source: Source | None = None
    sized_by: Source | None = None
    memory: int | None = None
    cores: int | None = None
    limits: list[Share] = []
    for said in statements:
        if len(said.shares) != 1 or registry.is_for_another_node(said):
            return None
        share = said.shares[0]
        if share.device and share.device != name:
            card = registry.find(share.device)
            if not card or device not in ("", card):
                return None
            name, device = share.device, card
        if share.device and source is None:
            source = said.source
        if said.source in LIMITS:
            limits.append(share)
        elif said.source is not Source.PROCESS:
            if memory is None and share.memory_bytes is not None:
                memory, sized_by = share.memory_bytes, said.source
            cores = share.cores_milli if cores is None else cores
            if share.memory_bytes not in (None, memory) or share.cores_milli not in (None, cores):
                return None
    if source is None or registry.parent(device):
        return None
    for limit in limits:
        if (
            limit.memory_bytes != memory
            or _core_limit(limit.cores_milli) != _core_limit(cores)
            or (cores is None and limit.cores_milli is not None)
        ):
            return None
    share = registry.size(device, memory, cores)
    return Settled((DeviceStatements(share, 1, source, tuple(statements), sized_by),))


def resolve_general(statements: Sequence[Statement], registry: Registry) -> Settled:
    """Whatever they tell."""
    told = [_told(statement, registry) for statement in statements]
    running = frozenset[str]().union(*(t.named for t in told if t.said.source is Source.PROCESS))
    foreign = tuple(said for said in statements if registry.is_for_another_node(said))
    decider, given = _allocation(told)
    devices = _where(running, given, registry)
    if not devices:
        return Settled((_nowhere(statements, registry),), foreign=foreign)
    places: list[DeviceStatements] = []
    sizes: list[Parties] = []
    limits: list[Parties] = []
    for device in sorted(devices):
        slots = given.get(device, 1)
        amounts = [amount for one in told if (amount := _amount(one, device, slots))]
        memory, cores, sized_by = _best(amounts)
        places.append(
            DeviceStatements(
                registry.size(device, memory, cores),
                slots,
                Source.PROCESS if device in running or decider is None else decider,
                tuple(one.said for one in told if device in one.named or not one.named),
                sized_by,
            )
        )
        # A MIG instance is handed out whole, however little of it was asked for.
        if not registry.parent(device):
            sizes += _unequal_sizes(device, amounts)
            limits += _unequal_limits(device, amounts, registry)
    elsewhere = [one for one in told if _is_elsewhere(one, devices, registry)]
    return Settled(
        places=tuple(places),
        disputed=tuple((card, t.said) for t in elsewhere for card in sorted(t.named - devices)),
        cards_differ=tuple(one.said for one in told if one.named) if elsewhere else (),
        only_files=bool(elsewhere) and not _differ_without_files(told, running, registry),
        sizes_differ=tuple(sizes),
        limits_differ=tuple(limits),
        foreign=foreign,
    )


def _told(statement: Statement, registry: Registry) -> DeviceShares:
    shares: dict[str, list[Share]] = {}
    for share, card in zip(statement.shares, registry.cards(statement), strict=True):
        shares.setdefault(card, []).append(share)
    sizes = {(share.memory_bytes, share.cores_milli) for share in statement.shares}
    alike = statement.shares[0] if len(sizes) == 1 else None
    return DeviceShares(statement, shares, frozenset(shares) - {""}, alike)


# ---------------------------------------------------------------- where


def _allocation(told: Iterable[DeviceShares]) -> tuple[Source | None, dict[str, int]]:
    """The most trusted source that names devices, and how many shares of each it names."""
    decider: Source | None = None
    given: dict[str, int] = {}
    for one in told:
        if one.named and one.said.source is not Source.PROCESS:
            decider = decider or one.said.source
            if decider is one.said.source:
                given = {card: len(one.shares[card]) for card in one.named} | given
    return decider, given


def _where(running: frozenset[str], given: Iterable[str], registry: Registry) -> frozenset[str]:
    """The devices on which the container is.

    Processes on other devices than allocated show that the allocation is wrong. If they are on
    as many as it names, they are the answer; if on fewer, no source knows which are wrong, and
    no device is called free that may not be.
    """
    allocated = frozenset(given)
    # The driver may list a MIG instance's processes under its GPU.
    running -= {registry.parent(device) for device in allocated}
    if running <= allocated:
        return allocated
    return running if len(running) >= len(allocated) else running | allocated


def _is_elsewhere(one: DeviceShares, devices: frozenset[str], registry: Registry) -> bool:
    """Whether it places the container differently; a GPU and its MIG instances are one place."""
    if not one.named or one.named == devices:
        return False
    here = {registry.card(device) for device in devices}
    there = {registry.card(device) for device in one.named}
    return not there <= here if one.said.source in PARTIAL else there != here


def _differ_without_files(
    told: Iterable[DeviceShares], running: frozenset[str], registry: Registry
) -> bool:
    """Whether the GPUs differ by what a tenant cannot write, or the driver confirms."""
    believed = [one for one in told if not is_tenants_own(one.said) or one.named <= running]
    devices = _where(running, _allocation(believed)[1], registry)
    return any(_is_elsewhere(one, devices, registry) for one in believed)


def _nowhere(statements: Sequence[Statement], registry: Registry) -> DeviceStatements:
    """It has something, but of which device no statement reports, or none that is known here."""
    best = next((said for said in statements if said.shares), statements[0])
    names = {share.device for share in best.shares}
    told = len(names) == 1 and not registry.is_for_another_node(best)
    share = Share(
        names.pop() if told else "",
        _sum(share.memory_bytes for share in best.shares),
        _sum(share.cores_milli for share in best.shares),
    )
    sized_by = None if share.memory_bytes is None else best.source
    return DeviceStatements(
        share, max(1, len(best.shares)), best.source, tuple(statements), sized_by
    )


# ---------------------------------------------------------------- how much


def _amount(one: DeviceShares, device: str, slots: int) -> _Amount | None:
    """What it tells of the share of ``device``; None if nothing."""
    if one.said.source is Source.PROCESS:
        return None
    shares = one.shares.get(device, [one.alike] * slots if one.alike else [])
    memory = _sum(share.memory_bytes for share in shares)
    cores = _sum(share.cores_milli for share in shares)
    return _Amount(one.said, memory, cores, device in one.shares or not one.named)


def _sum(amounts: Iterable[int | None]) -> int | None:
    """None if one of them is unknown, or there are none."""
    total: int | None = None
    for amount in amounts:
        if amount is None:
            return None
        total = amount + (total or 0)
    return total


def _best(amounts: Iterable[_Amount]) -> tuple[int | None, int | None, Source | None]:
    """Memory and cores by who tells them best: what was given, then what is enforced.

    And whose word the memory is, if it speaks of this very device.
    """
    order = sorted(amounts, key=lambda amount: (amount.said.source in LIMITS, not amount.certain))
    memory = (
        (one.memory_bytes, one.said.source if one.certain else None)
        for one in order
        if one.memory_bytes is not None
    )
    cores = (one.cores_milli for one in order if one.cores_milli is not None)
    size, sized_by = next(memory, (None, None))
    return size, next(cores, None), sized_by


def _unequal_sizes(device: str, amounts: Iterable[_Amount]) -> list[Parties]:
    """Allocations that tell different sizes."""
    tell = [a for a in amounts if a.certain and a.said.source not in LIMITS]
    memory = {a.memory_bytes for a in tell} - {None}
    cores = {percent(a.cores_milli) for a in tell if a.cores_milli is not None}
    unequal = len(memory) > 1 or len(cores) > 1
    return [(device, tuple(a.said for a in tell))] if unequal else []


def _unequal_limits(device: str, amounts: Sequence[_Amount], registry: Registry) -> list[Parties]:
    """Limits that are not the size of the allocation."""
    tell = [a for a in amounts if a.certain and a.said.source not in LIMITS]
    memory, cores, _ = _best(tell)
    odd = [
        amount.said
        for amount in amounts
        if amount.certain
        and amount.said.source in LIMITS
        and (
            (memory is not None and not registry.limits(device, memory, amount.memory_bytes))
            or (cores is not None and _core_limit(amount.cores_milli) != _core_limit(cores))
        )
    ]
    return [(device, tuple(a.said for a in tell) + tuple(odd))] if odd else []


def _core_limit(cores_milli: int | None) -> int | None:
    """Percent; None where it is no limit: none is set, or all cores of a device."""
    if not cores_milli or cores_milli >= WHOLE_DEVICE_MILLI:
        return None
    return percent(cores_milli)
