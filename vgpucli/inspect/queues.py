"""``vgpu inspect --by queue``: the tree of quotas that queues have, as a table and a document."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from vgpu.inventory import Units, detect_schemes
from vgpu.inventory.pod_usage import pod_accounts
from vgpu.kube.kueue_kinds import (
    CLUSTER_QUEUES,
    COHORTS,
    LOCAL_QUEUES,
    QUOTA_RESERVED,
    QueuedWorkload,
)
from vgpu.kube.quantities import is_extended
from vgpu.ledger.cluster import cluster as cluster_ledgers
from vgpu.model.declared_quota import QuotaResource
from vgpu.model.durations import age
from vgpu.model.objects import Pod
from vgpu.model.units import count_more
from vgpu.program.output import say
from vgpu.quota.kueue_tree import KueueObjects, PodsInQueues, kueue_tree, local_queue_name
from vgpu.quota.quota_units import QuotaUnit, quota_unit
from vgpu.quota.tree import QuotaLevel, QuotaName, QuotaNode, QuotaTree
from vgpu.schemes.registry import UnitBytes, registry
from vgpucli.document_output import print_document
from vgpucli.group_usage import MeasuredUse
from vgpucli.inspect.document import API_VERSION
from vgpucli.inspect.read import Read
from vgpucli.tabwriter import table


class AmountDocument(msgspec.Struct, frozen=True, rename="camel"):
    """One amount; ``value`` is null if it is unknown, or if there is none."""

    value: int | None
    unit: str
    source: str


class QuotaDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The amounts of one resource; ``flavor`` is "" where it is unknown, or may be any.

    ``limit`` is the most that the queue can have, ``used`` what its system counts, ``held`` what
    the ledger shows, ``driver`` what exporters measured.
    """

    flavor: str
    resource: str
    limit: AmountDocument
    nominal: AmountDocument
    borrowed: AmountDocument
    lent: AmountDocument
    used: AmountDocument
    held: AmountDocument
    driver: AmountDocument
    waiting: AmountDocument


class QueueDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A node of the tree; ``parent`` is "" of a root, ``inactive`` is "" of one that admits."""

    kind: str
    name: str
    parent: str
    depth: int
    inactive: str
    waiting_workloads: int
    quotas: list[QuotaDocument]


class QueuesDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The whole document; a queue follows what is above it."""

    api_version: str
    kind: str
    as_of: datetime
    system: str
    queues: list[QueueDocument]
    remarks: list[str]
    notes: list[str]


class QueuesView(msgspec.Struct, frozen=True):
    """What is shown: the tree, and what names and units need.

    ``idle`` are workloads with reserved quota of GPUs whose pods hold nothing, the longest first;
    ``unknown`` are resources of quotas that no node has and no transformation makes.
    """

    kueue: KueueObjects
    tree: QuotaTree
    unit_bytes: UnitBytes
    is_measured: bool = False
    idle: tuple[QueuedWorkload, ...] = ()
    unknown: tuple[str, ...] = ()
    as_of: float = 0.0

    def unit(self, resource: str) -> QuotaUnit:
        """The unit of a resource."""
        return quota_unit(resource, self.kueue.config, self.unit_bytes)


def print_queues(
    read: Read,
    units: Units,
    output: str,
    namespaces: Sequence[str],
    *,
    measured: Mapping[str, MeasuredUse] | None,
) -> None:
    """Print the queues, of these namespaces if some are named.

    ``measured`` is what pods use by their UID on the node, None if no exporter was asked.
    """
    view, notes = queues_view(read, units, measured)
    nodes = _chosen(view.tree, namespaces)
    if output in ("table", "wide"):
        say(*queues_lines(view, nodes, notes))
        return
    print_document(queues_document(view, nodes, read.as_of, notes), output)


def queues_view(
    read: Read, units: Units, measured: Mapping[str, MeasuredUse] | None = None
) -> tuple[QueuesView, tuple[str, ...]]:
    """The tree of the objects that were read, and the notes about what is unknown."""
    schemes = detect_schemes(read.objects, units)
    nodes = read.objects.nodes
    ledgers = cluster_ledgers(nodes, schemes.pods, schemes.codecs, read.objects.unhealthy)
    accounts = pod_accounts(nodes, ledgers.ledgers, schemes.pods, schemes.codecs)
    held = [(each.pod, each.held) for each in accounts if each.phase is not None]
    if not read.kueue.has_queues:
        held = []  # labels alone name no limit
    driver = None if measured is None else {uid: use.used for uid, use in measured.items()}
    unit_bytes, _ = registry().assumed_units(units.by_row, nodes)
    tree = kueue_tree(read.kueue, held, driver)
    view = QueuesView(read.kueue, tree, unit_bytes, measured is not None, as_of=read.as_of)
    if read.pods_read:
        view = msgspec.structs.replace(view, idle=_idle(view, [pod for pod, _ in held]))
    if nodes and not read.kueue.config.problem:
        advertised = frozenset(name for node in nodes for name in node.advertised)
        view = msgspec.structs.replace(view, unknown=_unknown(view, advertised))
    return view, (*read.notes, *schemes.notes, *read.kueue.notes)


def _unknown(view: QueuesView, advertised: Collection[str]) -> tuple[str, ...]:
    """The extended resources of quotas of which no pod can ever count anything that runs.

    What a scheduler alone counts, such as HAMi's memory, no node advertises either.
    """
    names = {key.resource for queue in view.kueue.cluster_queues for key in queue.quotas}
    made = {name for each in view.kueue.config.transformations.values() for name in each.outputs}
    return tuple(
        sorted(
            name
            for name in names - made - set(advertised)
            if is_extended(name) and not view.unit(name).amount
        )
    )


def _idle(view: QueuesView, holding: Iterable[Pod]) -> tuple[QueuedWorkload, ...]:
    """The workloads with quota of resources that the ledger knows, and without a holding.

    A pod that holds something and whose workload is unknown may be of any in its queue.
    """
    pods = PodsInQueues(view.kueue)
    queued = [each for each in map(pods.of, holding) if each is not None]
    running = {each.workload.uid for each in queued if each.workload is not None}
    unclear = {each.local_queue for each in queued if each.workload is None}
    idle = [
        each
        for each in view.kueue.workloads
        if each.admitted_by
        and not each.has_finished
        and each.uid not in running
        and local_queue_name(each.namespace, each.queue) not in unclear
        and any(view.unit(key.resource).amount for key, amount in each.reserved.items() if amount)
    ]
    return tuple(sorted(idle, key=lambda each: (_reserved_at(each), each.namespace, each.name)))


def _reserved_at(workload: QueuedWorkload) -> float:
    condition = workload.conditions.get(QUOTA_RESERVED)
    return (condition.since if condition is not None else None) or 0.0


def queues_document(
    view: QueuesView,
    nodes: Sequence[tuple[int, QuotaNode]],
    as_of: float,
    notes: Sequence[str],
) -> QueuesDocument:
    """The document; ``as_of`` is in unix seconds."""
    return QueuesDocument(
        API_VERSION,
        "QuotaTree",
        datetime.fromtimestamp(as_of, UTC),
        "Kueue" if view.kueue.has_queues else "",
        [_queue(view, depth, node) for depth, node in nodes],
        [*remarks(view)],
        [*notes],
    )


_MOST_IDLE: Final = 5

_COLUMNS: Final = (
    "QUEUE",
    "RESOURCE",
    "FLAVOR",
    "LIMIT",
    "NOMINAL",
    "BORROWED",
    "LENT",
    "USED",
    "HELD",
    "WAITING",
    "UNIT",
)


def queues_lines(
    view: QueuesView, nodes: Sequence[tuple[int, QuotaNode]], notes: Sequence[str]
) -> list[str]:
    """The table, a line for each remark, and the notes."""
    columns = list(_COLUMNS)
    if view.is_measured:
        columns.insert(columns.index("WAITING"), "DRIVER")
    rows = [tuple(columns)] if nodes else [("No queue of Kueue was read.",)]
    for depth, node in nodes:
        name = f"{'  ' * depth}{node.name.text}"
        quotas = _quotas(view, node)
        rows += [_row(name, quota, measured=view.is_measured) for quota in quotas]
        if not quotas:
            rows.append((name, *["-"] * (len(columns) - 1)))
    shown = [f"! {remark}" for remark in remarks(view)]
    return [*table(rows), *shown, *(f"note: {note}" for note in notes)]


def _row(name: str, quota: QuotaDocument, *, measured: bool) -> tuple[str, ...]:
    amounts = [
        quota.limit,
        quota.nominal,
        quota.borrowed,
        quota.lent,
        quota.used,
        quota.held,
        *([quota.driver] if measured else []),
        quota.waiting,
    ]
    values = ("-" if each.value is None else str(each.value) for each in amounts)
    return name, quota.resource, quota.flavor or "-", *values, quota.limit.unit


def remarks(view: QueuesView) -> Iterator[str]:
    """What borrows, what admits nothing, and what does not sum."""
    tree, kueue = view.tree, view.kueue
    for queue in kueue.cluster_queues:
        node = tree.nodes[QuotaName(QuotaLevel.CLUSTER_QUEUE, queue.name)]
        for key, borrowed in sorted(node.borrowed.items()):
            if borrowed:
                yield borrowing_text(node, key)
        if queue.inactive:
            yield f"{node.name.text} admits nothing: {queue.inactive}"
        if LOCAL_QUEUES.name not in kueue.unread:
            yield from _differing(tree, node)
    known = {queue.name for queue in kueue.cluster_queues}
    for local in kueue.local_queues:
        name = f"LocalQueue {local.namespace}/{local.name}"
        if local.cluster_queue not in known and CLUSTER_QUEUES.name not in kueue.unread:
            yield f"{name}: its ClusterQueue {local.cluster_queue} does not exist"
        elif local.inactive:
            yield f"{name} admits nothing: {local.inactive}"
    yield from _idle_texts(view)
    for name in view.unknown:
        yield f"{name}: a quota names it, no node has it, and no transformation of Kueue makes it"


def _idle_texts(view: QueuesView) -> Iterator[str]:
    """The workloads that have quota and hold nothing, with how long they have it."""
    for each in view.idle[:_MOST_IDLE]:
        amounts = ", ".join(
            f"{amount} {key.text}" for key, amount in sorted(each.reserved.items()) if amount
        )
        since = f" for {age(view.as_of - _reserved_at(each))}" if _reserved_at(each) else ""
        name = f"Workload {each.namespace}/{each.name}"
        yield f"{name} has reserved {amounts}{since}, and its pods hold nothing"
    more = len(view.idle) - _MOST_IDLE
    if more > 0:
        yield f"{count_more(more, 'workload')} with reserved quota hold nothing"


def borrowing_text(node: QuotaNode, key: QuotaResource) -> str:
    """How much of its use a queue has borrowed, and from which cohort."""
    declared = node.declared.get(key)
    own = declared.nominal if declared is not None else 0
    borrowed = node.borrowed.get(key, 0)
    cohort = "its cohort" if node.parent is None else f"cohort {node.parent.name}"
    verb = "is" if borrowed == 1 else "are"
    return (
        f"{node.name.text} uses {node.used.get(key, 0)} of its own {own} {key.text};"
        f" {borrowed} {verb} borrowed from {cohort}"
    )


def _differing(tree: QuotaTree, node: QuotaNode) -> Iterator[str]:
    """Where what Kueue counts for a ClusterQueue is not the sum of its LocalQueues."""
    children = tree.children(node.name)
    for key, used in sorted(node.used.items()):
        below = sum(child.used.get(key, 0) for child in children)
        if below != used:
            yield (
                f"{node.name.text} uses {used} {key.text}, and its LocalQueues use {below}:"
                " Kueue's own counts differ"
            )


# ---------------------------------------------------------------- the nodes


def _chosen(tree: QuotaTree, namespaces: Sequence[str]) -> list[tuple[int, QuotaNode]]:
    """The nodes with their depth, each below its parent; with namespaces those on their paths."""
    wanted = None
    if namespaces:
        own = [
            name
            for name in tree.nodes
            if name.level is QuotaLevel.LOCAL_QUEUE and name.name.partition("/")[0] in namespaces
        ]
        wanted = {node.name for name in own for node in tree.path(name)}
    return [(depth, node) for depth, node in tree.walk() if wanted is None or node.name in wanted]


def _queue(view: QueuesView, depth: int, node: QuotaNode) -> QueueDocument:
    return QueueDocument(
        node.name.level,
        node.name.name,
        "" if node.parent is None else node.parent.name,
        depth,
        _inactive(view.kueue, node.name),
        view.tree.waiting_workloads(node.name),
        _quotas(view, node),
    )


def _inactive(kueue: KueueObjects, name: QuotaName) -> str:
    if name.level is QuotaLevel.CLUSTER_QUEUE:
        return next((each.inactive for each in kueue.cluster_queues if each.name == name.name), "")
    if name.level is QuotaLevel.LOCAL_QUEUE:
        names = (
            each.inactive
            for each in kueue.local_queues
            if f"{each.namespace}/{each.name}" == name.name
        )
        return next(names, "")
    return ""


_NOT_COUNTED: Final = "Kueue counts no use of a Cohort"
_NO_LIMIT: Final = "nothing on its path limits it"


def _quotas(view: QueuesView, node: QuotaNode) -> list[QuotaDocument]:
    """The amounts by resource and flavor.

    What waits has no flavor yet: it stands beside the only flavor of its resource, else in a line
    without one. So does what pods hold without a flavor that is known.
    """
    tree, name = view.tree, node.name
    keys = [*tree.resources(name)]
    waiting = {each: amount for each, amount in tree.waiting(name).items() if amount}
    resources = {key.resource for key in keys}
    alone = {each for each in resources if sum(key.resource == each for key in keys) == 1}
    keys += (QuotaResource("", each) for each in sorted(waiting.keys() - alone))
    if "" in tree.flavors_held(name):
        held = tree.held(name, "")
        keys += (
            QuotaResource("", each)
            for each in sorted(resources - (waiting.keys() - alone))
            if view.unit(each).of_ledger(held)
        )
    return [
        _quota(view, node, key, waiting.get(key.resource, 0) if _waits_at(key, alone) else None)
        for key in keys
    ]


def _unread_above(view: QueuesView, name: QuotaName) -> str:
    """What decides the limit of a node and was not read, for people; "" if all was."""
    path = [node.name.level for node in view.tree.path(name)]
    unread = view.kueue.unread
    if QuotaLevel.COHORT in path and COHORTS.name in unread:
        return "Cohorts were not read"
    if path[-1] is QuotaLevel.LOCAL_QUEUE and unread & {CLUSTER_QUEUES.name, LOCAL_QUEUES.name}:
        return "the ClusterQueue was not read"
    return ""


def _waits_at(key: QuotaResource, alone: set[str]) -> bool:
    return (key.resource in alone) == bool(key.flavor)


def _quota(
    view: QueuesView, node: QuotaNode, key: QuotaResource, waiting: int | None
) -> QuotaDocument:
    tree, name = view.tree, node.name
    unit = view.unit(key.resource)

    def amount(value: int | None, source: str) -> AmountDocument:
        return AmountDocument(value, unit.text, source)

    declared = node.declared.get(key)
    where = f"{name.text}: spec.resourceGroups" if declared else f"{name.text} has no quota of it"
    levels = tree.levels(name, key) if key.flavor else ()
    least = min(levels, key=lambda level: level.limit, default=None)
    unread = _unread_above(view, name)
    status = f"{name.text}: status.flavorsReservation"
    is_counted = name.level is not QuotaLevel.COHORT
    driver = tree.driver(name, key.flavor)
    lent = tree.lent(name, key) if key.flavor and declared and not unread else None
    return QuotaDocument(
        key.flavor,
        key.resource,
        amount(least.limit, f"computed, at {least.name.text}")
        if least is not None and not unread
        else amount(None, unread or _NO_LIMIT),
        amount(declared.nominal if declared else None, where),
        amount(node.borrowed.get(key), status if is_counted else _NOT_COUNTED),
        amount(lent, f"computed: what others have taken of {name.text}, at least"),
        amount(node.used.get(key), status if is_counted else _NOT_COUNTED),
        amount(
            unit.of_ledger(tree.held(name, key.flavor)),
            "the ledger" if unit.amount else "the ledger has no amount of this resource",
        ),
        amount(
            None if driver is None else unit.of_ledger(driver),
            "exporters" if view.is_measured else "no exporter was asked",
        ),
        amount(waiting, "Workloads without reserved quota"),
    )
