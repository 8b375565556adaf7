"""One container: what all sources report about it, resolved by precedence.

The container is on the devices that the most trusted allocation names, and on every device on
which it has a process, whatever was allocated. The amounts are those of the most trusted
allocation: the kernel knows the device, the claim knows the size. Disagreements are kept.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from vgpu.ledger.registry import Registry
from vgpu.ledger.statements import LIMITS, PARTIAL, Statement, is_tenants_own
from vgpu.model.allocation import Share
from vgpu.model.names import Source
from vgpu.model.units import WHOLE_DEVICE_MILLI, percent

Parties = tuple[str, tuple[Statement, ...]]
"""A device, and the statements that disagree about the container's share of it."""


class DeviceShares(msgspec.Struct, frozen=True, gc=False):
    """A statement, with its shares by device ("" is an unknown one).

    ``alike`` is a share that all its shares are equal to, None if they differ or there are none.
    """

    statement: Statement
    shares: Mapping[str, list[Share]]
    named: frozenset[str]
    alike: Share | None


class DeviceStatements(msgspec.Struct, frozen=True, gc=False):
    """The container on one device, "" if on an unknown one.

    ``share`` is all that it has of the device, ``slots`` the number of shares; ``source`` decided
    that it is there, ``agreeing`` do not contradict it. ``sized_by`` reported the memory.
    """

    share: Share
    slots: int
    source: Source
    agreeing: tuple[Statement, ...]
    sized_by: Source | None


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The result for the statements about one container.

    ``disputed`` are devices that a statement names and more trusted ones do not, ``foreign`` are
    statements that were meant for another node. The rest are the parties of disagreements;
    ``only_files`` is whether those about the GPU would agree without files that the tenant can
    write and the driver does not confirm.
    """

    places: tuple[DeviceStatements, ...]
    disputed: tuple[tuple[str, Statement], ...] = ()
    gpus_differ: tuple[Statement, ...] = ()
    only_files: bool = False
    sizes_differ: tuple[Parties, ...] = ()
    limits_differ: tuple[Parties, ...] = ()
    foreign: tuple[Statement, ...] = ()


class _Amount(msgspec.Struct, frozen=True, gc=False):
    """The amounts that one statement reports for the share of one device.

    ``certain`` is whether it names that device; else its shares are meant for others.
    """

    statement: Statement
    memory_bytes: int | None
    cores_milli: int | None
    certain: bool


def resolve_container(statements: Sequence[Statement], registry: Registry) -> Settled:
    """Resolve the statements about one container, of which the most trusted comes first."""
    return resolve_fast(statements, registry) or resolve_general(statements, registry)


def resolve_fast(statements: Sequence[Statement], registry: Registry) -> Settled | None:
    """The usual case, in which all statements report the same share of one device.

    The result is that of :func:`resolve_general`, at a fraction of the cost; None in other cases.
    """
    name = device = ""
    source: Source | None = None
    sized_by: Source | None = None
    memory: int | None = None
    cores: int | None = None
    limits: list[Share] = []
    for statement in statements:
        if len(statement.shares) != 1 or registry.is_for_another_node(statement):
            return None
        share = statement.shares[0]
        if share.device and share.device != name:
            other = registry.find(share.device)
            if not other or device not in ("", other):
                return None
            name, device = share.device, other
        if share.device and source is None:
            source = statement.source
        if statement.source in LIMITS:
            limits.append(share)
        elif statement.source is not Source.PROCESS:
            if memory is None and share.memory_bytes is not None:
                memory, sized_by = share.memory_bytes, statement.source
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
    is_unlimited = memory is None and any(0 in statement.limits for statement in statements)
    share = registry.size(device, memory, cores, is_unlimited=is_unlimited)
    return Settled((DeviceStatements(share, 1, source, tuple(statements), sized_by),))


def resolve_general(statements: Sequence[Statement], registry: Registry) -> Settled:
    """Resolve any statements."""
    all_shares = [_device_shares(statement, registry) for statement in statements]
    running = frozenset[str]().union(
        *(reported.named for reported in all_shares if reported.statement.source is Source.PROCESS)
    )
    foreign = tuple(
        statement for statement in statements if registry.is_for_another_node(statement)
    )
    decider, slots_by_device = _allocation(all_shares)
    devices = _where(running, slots_by_device, registry)
    if not devices:
        return Settled((_nowhere(statements, registry),), foreign=foreign)
    places: list[DeviceStatements] = []
    sizes: list[Parties] = []
    limits: list[Parties] = []
    for device in sorted(devices):
        slots = slots_by_device.get(device, 1)
        amounts = [amount for shares in all_shares if (amount := _amount(shares, device, slots))]
        memory, cores, sized_by = _best(amounts)
        places.append(
            DeviceStatements(
                registry.size(
                    device, memory, cores, is_unlimited=_has_no_limit(device, all_shares)
                ),
                slots,
                Source.PROCESS if device in running or decider is None else decider,
                tuple(
                    shares.statement
                    for shares in all_shares
                    if device in shares.named or not shares.named
                ),
                sized_by,
            )
        )
        # A MIG instance is allocated as a whole, whatever part of it was requested.
        if not registry.parent(device):
            sizes += _unequal_sizes(device, amounts)
            limits += _unequal_limits(device, amounts, registry)
    elsewhere = [shares for shares in all_shares if _is_elsewhere(shares, devices, registry)]
    return Settled(
        places=tuple(places),
        disputed=tuple(
            (other, shares.statement)
            for shares in elsewhere
            for other in sorted(shares.named - devices)
        ),
        gpus_differ=tuple(shares.statement for shares in all_shares if shares.named)
        if elsewhere
        else (),
        only_files=bool(elsewhere) and not _differ_without_files(all_shares, running, registry),
        sizes_differ=tuple(sizes),
        limits_differ=tuple(limits),
        foreign=foreign,
    )


def _device_shares(statement: Statement, registry: Registry) -> DeviceShares:
    shares: dict[str, list[Share]] = {}
    for share, device in zip(statement.shares, registry.gpus(statement), strict=True):
        shares.setdefault(device, []).append(share)
    sizes = {(share.memory_bytes, share.cores_milli) for share in statement.shares}
    alike = statement.shares[0] if len(sizes) == 1 else None
    return DeviceShares(statement, shares, frozenset(shares) - {""}, alike)


# ---------------------------------------------------------------- where


def _allocation(all_shares: Iterable[DeviceShares]) -> tuple[Source | None, dict[str, int]]:
    """The most trusted source that names devices, and how many shares of each it names."""
    decider: Source | None = None
    slots: dict[str, int] = {}
    for reported in all_shares:
        if reported.named and reported.statement.source is not Source.PROCESS:
            decider = decider or reported.statement.source
            if decider is reported.statement.source:
                slots = {device: len(reported.shares[device]) for device in reported.named} | slots
    return decider, slots


def _where(running: frozenset[str], named: Iterable[str], registry: Registry) -> frozenset[str]:
    """The devices on which the container is.

    Processes on other devices than allocated show that the allocation is wrong. If they are on
    as many as it names, they are the answer; if on fewer, no source knows which are wrong, and
    no device is called free that may not be.
    """
    allocated = frozenset(named)
    # The driver may list a MIG instance's processes under its GPU.
    running -= {registry.parent(device) for device in allocated}
    if running <= allocated:
        return allocated
    return running if len(running) >= len(allocated) else running | allocated


def _is_elsewhere(reported: DeviceShares, devices: frozenset[str], registry: Registry) -> bool:
    """Whether the statement names other GPUs; a GPU and its MIG instances are one GPU."""
    if not reported.named or reported.named == devices:
        return False
    here = {registry.gpu(device) for device in devices}
    there = {registry.gpu(device) for device in reported.named}
    return not there <= here if reported.statement.source in PARTIAL else there != here


def _differ_without_files(
    all_shares: Iterable[DeviceShares], running: frozenset[str], registry: Registry
) -> bool:
    """Whether the GPUs differ in statements that no tenant can write or the driver confirms."""
    trusted = [
        reported
        for reported in all_shares
        if not is_tenants_own(reported.statement) or reported.named <= running
    ]
    devices = _where(running, _allocation(trusted)[1], registry)
    return any(_is_elsewhere(reported, devices, registry) for reported in trusted)


def _nowhere(statements: Sequence[Statement], registry: Registry) -> DeviceStatements:
    """The container on an unknown device: no statement names one that is known here."""
    best = next((statement for statement in statements if statement.shares), statements[0])
    names = {share.device for share in best.shares}
    is_named = len(names) == 1 and not registry.is_for_another_node(best)
    share = Share(
        names.pop() if is_named else "",
        _sum(share.memory_bytes for share in best.shares),
        _sum(share.cores_milli for share in best.shares),
    )
    sized_by = None if share.memory_bytes is None else best.source
    return DeviceStatements(
        share, max(1, len(best.shares)), best.source, tuple(statements), sized_by
    )


# ---------------------------------------------------------------- how much


def _amount(reported: DeviceShares, device: str, slots: int) -> _Amount | None:
    """The amounts that the statement reports for ``device``; None for a process."""
    if reported.statement.source is Source.PROCESS:
        return None
    shares = reported.shares.get(device, [reported.alike] * slots if reported.alike else [])
    memory = _sum(share.memory_bytes for share in shares)
    cores = _sum(share.cores_milli for share in shares)
    return _Amount(
        reported.statement, memory, cores, device in reported.shares or not reported.named
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is unknown, or there are none."""
    total: int | None = None
    for amount in amounts:
        if amount is None:
            return None
        total = amount + (total or 0)
    return total


def _best(amounts: Iterable[_Amount]) -> tuple[int | None, int | None, Source | None]:
    """Memory and cores of the most trusted source: allocations first, then enforced limits.

    The third value is the source of the memory, if it names this very device.
    """
    order = sorted(
        amounts, key=lambda amount: (amount.statement.source in LIMITS, not amount.certain)
    )
    memory = (
        (reported.memory_bytes, reported.statement.source if reported.certain else None)
        for reported in order
        if reported.memory_bytes is not None
    )
    cores = (reported.cores_milli for reported in order if reported.cores_milli is not None)
    size, sized_by = next(memory, (None, None))
    return size, next(cores, None), sized_by


def _has_no_limit(device: str, all_shares: Iterable[DeviceShares]) -> bool:
    """Whether a plugin's answer lifts a limit for this device, or for one that it does not name."""
    return any(
        0 in reported.statement.limits and (device in reported.named or not reported.named)
        for reported in all_shares
    )


def _unequal_sizes(device: str, amounts: Iterable[_Amount]) -> list[Parties]:
    """Allocations with different sizes."""
    allocated = [
        amount for amount in amounts if amount.certain and amount.statement.source not in LIMITS
    ]
    memory = {amount.memory_bytes for amount in allocated} - {None}
    cores = {percent(amount.cores_milli) for amount in allocated if amount.cores_milli is not None}
    unequal = len(memory) > 1 or len(cores) > 1
    return [(device, tuple(amount.statement for amount in allocated))] if unequal else []


def _unequal_limits(device: str, amounts: Sequence[_Amount], registry: Registry) -> list[Parties]:
    """Limits that differ from the size of the allocation."""
    allocated = [a for a in amounts if a.certain and a.statement.source not in LIMITS]
    memory, cores, _ = _best(allocated)
    odd = [
        amount.statement
        for amount in amounts
        if amount.certain
        and amount.statement.source in LIMITS
        and (
            (memory is not None and not registry.limits(device, memory, amount.memory_bytes))
            or (cores is not None and _core_limit(amount.cores_milli) != _core_limit(cores))
        )
    ]
    return [(device, tuple(a.statement for a in allocated) + tuple(odd))] if odd else []


def _core_limit(cores_milli: int | None) -> int | None:
    """The limit in percent; None where nothing limits: unset, or all cores of a device."""
    if not cores_milli or cores_milli >= WHOLE_DEVICE_MILLI:
        return None
    return percent(cores_milli)
