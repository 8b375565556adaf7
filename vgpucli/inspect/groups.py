"""``vgpu inspect --by``: the pods of each namespace, team or owner, as a table and a document."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from vgpu.inventory import Units, detect_schemes
from vgpu.inventory.marked_pods import marked_note
from vgpu.inventory.pod_usage import pod_accounts
from vgpu.ledger.cluster import cluster as cluster_ledgers
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.units import percentage, rounded_size
from vgpu.program.output import say_wrapped
from vgpu.quota.check import Overrun
from vgpu.quota.limits import cluster_quotas
from vgpu.quota.resources import CORES, GPUS, MEMORY, Amounts, amount_text
from vgpu.schemes.limit_ways import NOT_ENFORCED
from vgpucli.document_output import print_document
from vgpucli.group_usage import GroupUsage, GroupUse, MeasuredUse, group_usage, owner_of
from vgpucli.inspect.document import API_VERSION
from vgpucli.inspect.queues import print_queues
from vgpucli.inspect.read import Read
from vgpucli.tabwriter import table

_UNASKED: Final = (
    "used and idle are not shown, since the API server does not know them: --prometheus or"
    " --exporter asks who measures"
)


class AmountsDocument(msgspec.Struct, frozen=True, rename="camel"):
    """Amounts of shares."""

    gpus: int
    memory_bytes: int
    cores_milli: int


class LimitDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A limit of a quota, in the unit of its resource; ``model`` is "" for all models."""

    resource: str
    model: str
    limit: int
    used: int
    declared_in: str
    contradicted_by: list[str]


class UseDocument(msgspec.Struct, frozen=True, rename="camel"):
    """What exporters measured of ``pods`` pods; null is not measured of any of them."""

    pods: int
    used_memory_bytes: int | None
    idle_memory_bytes: int | None
    used_cores_milli: int | None
    idle_cores_milli: int | None


class GroupDocument(msgspec.Struct, frozen=True, rename="camel"):
    """One group; ``name`` is "" for the pods of no group.

    ``measured`` is null if no exporter was asked. ``not_enforced_memory_bytes`` is what nothing
    limits the pods to; absent if there is none.
    """

    name: str
    pods: int
    waiting_pods: int
    requested: AmountsDocument
    waiting: AmountsDocument
    assumed: AmountsDocument
    assigned: AmountsDocument
    quota: list[LimitDocument]
    unreadable_quota: list[str]
    nvidia: dict[str, int]
    measured: UseDocument | None
    not_enforced_memory_bytes: int | msgspec.UnsetType = msgspec.UNSET


class GroupsDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The whole document."""

    api_version: str
    kind: str
    as_of: datetime
    by: str
    groups: list[GroupDocument]
    notes: list[str]


def groups_document(
    groups: Sequence[GroupUsage], by: str, as_of: float, notes: Sequence[str]
) -> GroupsDocument:
    """The document; ``as_of`` is in unix seconds."""
    return GroupsDocument(
        API_VERSION,
        "InventoryGroups",
        datetime.fromtimestamp(as_of, UTC),
        by,
        [_group(group) for group in groups],
        list(notes),
    )


def groups_lines(groups: Sequence[GroupUsage], by: str, notes: Sequence[str]) -> list[str]:
    """The table, a line for each limit that is exceeded or contradicted, and the notes."""
    measured = ["USED", "IDLE", "MEASURED"] if any(group.use for group in groups) else []
    columns = ["PODS", "WAITING", "GPUS", "MEMORY", "RESERVED", "CORES", *measured, "QUOTA"]
    observes = any(group.nvidia for group in groups)
    columns += ["NVIDIA"] * observes
    rows = [(by.upper(), *columns)] if groups else [("No pod shares GPUs.",)]
    rows += [(*_cells(group), *([_nvidia(group)] if observes else [])) for group in groups]
    remarks = [remark for group in groups for remark in _remarks(group)]
    return [*table(rows), *remarks, *_notes(notes)]


def _cells(group: GroupUsage) -> Iterator[str]:
    requested = group.requested
    gpus, memory, cores = (
        group.assumed[name] + group.assigned[name] for name in (GPUS, MEMORY, CORES)
    )
    yield group.name or "(none)"
    yield str(group.pods)
    yield str(group.waiting_pods)
    yield f"{gpus}/{requested[GPUS]}"
    yield f"{rounded_size(memory)}/{rounded_size(requested[MEMORY])}"
    yield rounded_size(group.assumed[MEMORY])
    yield f"{percentage(cores)}/{percentage(requested[CORES])}"
    if group.use is not None:
        yield _use(group.use.used)
        yield _use(group.use.idle)
        yield f"{group.use.pods}/{group.use.holding_pods}"
    yield _tightest(group.limits)


def _nvidia(group: GroupUsage) -> str:
    """The units of NVIDIA's own plugin, such as ``3 gpu, 1 mig-1g.10gb, 2 example.com/gpu``."""
    units = {name.removeprefix("nvidia.com/"): number for name, number in group.nvidia.items()}
    return ", ".join(f"{number} {name}" for name, number in units.items()) or "-"


def _use(amounts: Amounts) -> str:
    """Memory, and the part of cores where it is measured."""
    if MEMORY not in amounts:
        return "-"
    cores = f" {percentage(amounts[CORES])}" if CORES in amounts else ""
    return rounded_size(amounts[MEMORY]) + cores


def _tightest(limits: Sequence[Overrun]) -> str:
    """The limit of which most is used."""
    if not limits:
        return "-"
    tightest = max(limits, key=_part)
    limit = tightest.limit
    used, most = (
        amount_text(limit.resource, each, rounded_size) for each in (tightest.used, limit.amount)
    )
    over = " EXCEEDED" if tightest.used > limit.amount else ""
    return f"{limit.name} {used}/{most}{over}"


def _part(limit: Overrun) -> tuple[bool, int]:
    """How much of a limit is used, in thousandths; any use of a limit of 0 is the most."""
    amount = limit.limit.amount
    return limit.used > amount, limit.used * 1000 // amount if amount else 0


def _remarks(group: GroupUsage) -> Iterator[str]:
    if group.not_enforced_bytes:
        size = rounded_size(group.not_enforced_bytes)
        yield f"{group.name or '(none)'}: {size} of GPU memory: {NOT_ENFORCED}"
    for each in group.limits:
        if each.used > each.limit.amount:
            yield f"! {group.name}: over its quota: {each.text}"
        for other in each.limit.contradicted_by:
            amount = amount_text(other.resource, other.amount)
            contradiction = f"contradicted by {amount} ({other.declared_in})"
            yield f"! {group.name}: {each.limit.text} is {contradiction}"
    for unreadable in group.quota.unreadable if group.quota else ():
        yield f"! {group.name}: {unreadable.declared_in} cannot be read: {unreadable.detail}"


def _notes(notes: Sequence[str]) -> Iterator[str]:
    for note in notes:
        yield f"note: {note}"


def _group(group: GroupUsage) -> GroupDocument:
    return GroupDocument(
        group.name,
        group.pods,
        group.waiting_pods,
        _amounts(group.requested),
        _amounts(group.waiting),
        _amounts(group.assumed),
        _amounts(group.assigned),
        [
            LimitDocument(
                each.limit.resource,
                each.limit.model,
                each.limit.amount,
                each.used,
                each.limit.declared[0].declared_in,
                [other.declared_in for other in each.limit.contradicted_by],
            )
            for each in group.limits
        ],
        [
            f"{unreadable.declared_in}: {unreadable.detail}"
            for unreadable in (group.quota.unreadable if group.quota else ())
        ],
        dict(group.nvidia),
        None if group.use is None else _measured(group.use),
        group.not_enforced_bytes or msgspec.UNSET,
    )


def _measured(use: GroupUse) -> UseDocument:
    return UseDocument(
        use.pods,
        *(each.get(name) for name in (MEMORY, CORES) for each in (use.used, use.idle)),
    )


def _amounts(amounts: Amounts) -> AmountsDocument:
    return AmountsDocument(amounts[GPUS], amounts[MEMORY], amounts[CORES])


def print_groups(
    read: Read,
    units: Units,
    by: str,
    output: str,
    namespaces: Sequence[str],
    *,
    measured: Mapping[str, MeasuredUse] | None,
) -> None:
    """Print the groups of the pods in these namespaces, of all pods if none is named.

    Queues are a tree. ``measured`` is what pods use by their UID on the node, None if no exporter
    was asked.
    """
    if by == "queue":
        print_queues(read, units, output, namespaces, measured=measured)
        return
    groups, notes = groups_of(read, units, by, namespaces, measured)
    if output in ("table", "wide"):
        say_wrapped(*groups_lines(groups, by, notes))
        return
    print_document(groups_document(groups, by, read.as_of, notes), output)


def groups_of(
    read: Read,
    units: Units,
    by: str,
    namespaces: Sequence[str] = (),
    measured: Mapping[str, MeasuredUse] | None = None,
) -> tuple[list[GroupUsage], tuple[str, ...]]:
    """The groups of the objects that were read, and the notes; arguments as above."""
    scope = _Scope(tuple(namespaces))
    schemes = detect_schemes(read.objects, units)
    ledgers = cluster_ledgers(
        read.objects.nodes,
        schemes.pods,
        schemes.codecs,
        read.objects.unhealthy,
        bind_requests=read.objects.bind_requests,
        config_maps=read.objects.config_maps,
    )
    accounts = pod_accounts(read.objects.nodes, ledgers.ledgers, schemes.pods, schemes.codecs)
    chosen = [account for account in accounts if scope.has(account.pod, read.selected)]
    quotas = None
    if by == "namespace" and read.selected is None:
        spaces = {account.pod.ref.namespace for account in chosen}
        declared = cluster_quotas(read.namespaces, read.quotas, read.gpu_quota, spaces)
        quotas = {name: quota for name, quota in declared.items() if scope.has_namespace(name)}
    group_of: Callable[[Pod], str] = {
        "namespace": lambda pod: pod.ref.namespace,
        "owner": owner_of,
        "team": lambda pod: team_of(pod.ref, read.marks),
    }[by]
    nvidia = [
        pod
        for pod in read.objects.pods
        if pod.ref.uid in schemes.nvidia and scope.has(pod, read.selected)
    ]
    groups = group_usage(chosen, group_of, quotas, nvidia, measured)
    unasked = (_UNASKED,) if measured is None else ()
    marked = marked_note(pod for pod in read.objects.pods if scope.has(pod, read.selected))
    return groups, (*read.notes, *schemes.notes, *marked, *unasked)


def team_of(ref: PodRef, marks: Mapping[str, str]) -> str:
    """The pod's own team, else that of its Namespace."""
    return marks.get(f"{ref.namespace}/{ref.name}") or marks.get(f"/{ref.namespace}", "")


class _Scope(msgspec.Struct, frozen=True):
    """The namespaces of ``-n``; none are all."""

    namespaces: tuple[str, ...]

    def has_namespace(self, name: str) -> bool:
        return not self.namespaces or name in self.namespaces

    def has(self, pod: Pod, selected: frozenset[str] | None) -> bool:
        in_it = selected is None or pod.ref.uid in selected
        return in_it and self.has_namespace(pod.ref.namespace)
