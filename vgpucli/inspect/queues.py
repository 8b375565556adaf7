"""``vgpu inspect --by queue``: the tree of quotas that queues have, as a table and a document."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from vgpu.inventory import Units, detect_schemes
from vgpu.inventory.pod_usage import pod_accounts
from vgpu.kube.kueue_kinds import CLUSTER_QUEUES, LOCAL_QUEUES
from vgpu.ledger import Ledger
from vgpu.ledger.cluster import cluster as cluster_ledgers
from vgpu.model.documentation import page
from vgpu.model.objects import Pod
from vgpu.program.output import say
from vgpu.quota.borrowing import borrowing_text
from vgpu.quota.kai_lines import kai_remarks
from vgpu.quota.kai_tree import kai_queue_name
from vgpu.quota.kueue_tree import local_queue_name
from vgpu.quota.queue_findings import (
    FlavorNode,
    FoundInQueues,
    QueueEvidence,
    QueueFinding,
    flavor_node,
    queue_findings,
)
from vgpu.quota.queue_line import AmountKind, QueueLine
from vgpu.quota.queues import Queues, QueueSystems, all_queues
from vgpu.quota.resources import plus
from vgpu.quota.tree import QuotaLevel, QuotaName, QuotaNode, QuotaTree
from vgpu.quota.volcano_lines import volcano_remarks
from vgpu.quota.volcano_tree import queue_name
from vgpu.quota.whole_gpus import with_whole_gpus
from vgpu.schemes.registry import registry
from vgpucli.document_output import print_document
from vgpucli.group_usage import MeasuredUse
from vgpucli.inspect.document import API_VERSION
from vgpucli.inspect.queue_document import (
    AmountDocument,
    QueueDocument,
    QueueFindingDocument,
    QueuesDocument,
    QuotaDocument,
)
from vgpucli.inspect.queue_selection import SelectedQueues, selected_queues, wholly_read
from vgpucli.inspect.read import Read
from vgpucli.tabwriter import table


class QueuesView(msgspec.Struct, frozen=True):
    """What is shown: the queues of all systems, and what is wrong."""

    queues: Queues
    findings: tuple[FoundInQueues, ...] = ()
    pods_read: bool = True
    selected: SelectedQueues = SelectedQueues()
    pods: tuple[Pod, ...] = ()

    @property
    def systems(self) -> list[str]:
        """The systems of which queues were read."""
        return sorted({name.level.system for name in self.queues.tree.nodes})


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
    view, notes = queues_view(read, units, measured, namespaces)
    nodes = [each for each in view.queues.tree.walk() if view.selected.has(each[1].name)]
    if output in ("table", "wide"):
        say(*queues_lines(view, nodes, notes))
        return
    print_document(queues_document(view, nodes, read.as_of, notes), output)


def queues_view(
    read: Read,
    units: Units,
    measured: Mapping[str, MeasuredUse] | None = None,
    namespaces: Sequence[str] = (),
) -> tuple[QueuesView, tuple[str, ...]]:
    """The tree of the objects that were read, and the notes about what is unknown."""
    schemes = detect_schemes(read.objects, units)
    nodes = read.objects.nodes
    ledgers = cluster_ledgers(nodes, schemes.pods, schemes.codecs, read.objects.unhealthy)
    accounts = pod_accounts(nodes, ledgers.ledgers, schemes.pods, schemes.codecs)
    recorded = [(each.pod, each.held) for each in accounts if each.phase is not None]
    held = [*with_whole_gpus(recorded, read.objects.pods, nodes)]
    driver = None if measured is None else {uid: use.used for uid, use in measured.items()}
    unit_bytes, _ = registry().assumed_units(units.by_row, nodes)
    systems = QueueSystems(read.kueue, read.volcano, read.kai)
    scheduling = read.scheduling.nodes  # none of one node that was read alone
    on_nodes = plus(*(each.allocatable for each in scheduling)) if scheduling else None
    queues = all_queues(systems, held, unit_bytes, nodes, driver=driver, on_nodes=on_nodes)
    evidence = QueueEvidence(
        read.kueue,
        read.volcano,
        tuple(held) if queues.are_read else (),
        read.objects.pods if read.pods_read else None,
        tuple(_flavor_nodes(read, ledgers.ledgers)),
        unit_bytes,
        read.as_of,
    )
    notes = (*read.notes, *schemes.notes, *read.kueue.notes, *read.volcano.notes, *read.kai.notes)
    selected = selected_queues(queues, read.objects.pods, namespaces)
    view = QueuesView(
        queues,
        queue_findings(evidence, selected.has_finding),
        read.pods_read,
        selected,
        tuple(read.objects.pods),
    )
    return view, (*notes, *([read.volcano.scheduler.text] if read.volcano.has_queues else ()))


def _flavor_nodes(read: Read, ledgers: Mapping[str, Ledger]) -> Iterator[FlavorNode]:
    """What the nodes have, if all their labels were read."""
    for each in read.scheduling.nodes:
        ledger = ledgers.get(each.node.name)
        entries = () if ledger is None else ledger.devices
        yield flavor_node(each, [entry.device for entry in entries if entry.device is not None])


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
        ", ".join(view.systems),
        [_queue(view, depth, node) for depth, node in nodes],
        [
            QueueFindingDocument(each.reason.value, each.about, each.text, runbook(each.reason))
            for each in view.findings
        ],
        [*remarks(view)],
        [*notes],
    )


def runbook(reason: QueueFinding) -> str:
    """Where the documentation has what to do about a finding."""
    address = page("queue-findings")
    return f"{address}#{reason.value}" if "/" in address else f"{address}, {reason.value}"


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


_NO_QUEUE: Final = "No queue of Kueue, Volcano or KAI Scheduler was read."


def queues_lines(
    view: QueuesView, nodes: Sequence[tuple[int, QuotaNode]], notes: Sequence[str]
) -> list[str]:
    """The table, a line for each remark, and the notes."""
    columns = list(_COLUMNS)
    if view.queues.is_measured:
        columns.insert(columns.index("WAITING"), "DRIVER")
    quotas_of = {node.name: _quotas(view, node) for _, node in nodes}
    has_guarantees = any(
        quota.guaranteed.value for quotas in quotas_of.values() for quota in quotas
    )
    if has_guarantees:
        columns.insert(columns.index("BORROWED"), "GUARANTEED")
    has_requests = any(quota.requested for quotas in quotas_of.values() for quota in quotas)
    if has_requests:
        columns.insert(columns.index("NOMINAL") + 1, "WEIGHT")
        columns.insert(columns.index("WAITING"), "REQUESTED")
    rows = [tuple(columns)] if nodes else [(_none_text(view),)]
    for depth, node in nodes:
        name = f"{'  ' * depth}{node.name.text}"
        quotas = quotas_of[node.name]
        rows += [_row(name, quota, columns) for quota in quotas]
        if not quotas:
            rows.append((name, *["-"] * (len(columns) - 1)))
    codes = {each.text: f" [{each.reason.value}]" for each in view.findings}
    shown = [f"! {remark}{codes.get(remark, '')}" for remark in remarks(view)]
    return [*table(rows), *shown, *(f"note: {note}" for note in notes)]


def _none_text(view: QueuesView) -> str:
    """The line without a queue."""
    if not view.queues.tree.nodes:
        return "No queue of Kueue, Volcano or KAI Scheduler was read."
    return f"No queue of namespace {' or '.join(view.selected.namespaces)} was read."


def _row(name: str, quota: QuotaDocument, columns: Sequence[str]) -> tuple[str, ...]:
    amounts: dict[str, AmountDocument | UnsetType] = {
        "LIMIT": quota.limit,
        "NOMINAL": quota.nominal,
        "GUARANTEED": quota.guaranteed,
        "BORROWED": quota.borrowed,
        "LENT": quota.lent,
        "USED": quota.used,
        "HELD": quota.held,
        "DRIVER": quota.driver,
        "REQUESTED": quota.requested,
        "WAITING": quota.waiting,
    }
    texts = {
        "QUEUE": name,
        "RESOURCE": quota.resource,
        "FLAVOR": quota.flavor,
        "UNIT": quota.limit.unit,
        "WEIGHT": f"{quota.over_quota_weight:g}" if quota.over_quota_weight else "",
    }
    for column, amount in amounts.items():
        value = None if amount is UNSET else amount.value
        texts[column] = "" if value is None else str(value)
    return tuple(texts[column] or "-" for column in columns)


def remarks(view: QueuesView) -> Iterator[str]:
    """What borrows, what admits nothing, what does not sum, and the findings."""
    tree, kueue, selected = view.queues.tree, view.queues.kueue, view.selected
    is_read = LOCAL_QUEUES.name not in kueue.unread
    wholly = wholly_read(kueue, view.pods) if is_read else frozenset()
    for queue in kueue.cluster_queues:
        node = tree.nodes[QuotaName(QuotaLevel.CLUSTER_QUEUE, queue.name)]
        if not selected.has(node.name):
            continue
        for key, borrowed in sorted(node.borrowed.items()):
            if borrowed:
                yield borrowing_text(node, key)
        if queue.inactive:
            yield f"{node.name.text} admits nothing: {queue.inactive}"
        if queue.name in wholly:
            yield from _differing(tree, node)
    known = {queue.name for queue in kueue.cluster_queues}
    for local in kueue.local_queues:
        name = f"LocalQueue {local.namespace}/{local.name}"
        if not selected.has(local_queue_name(local.namespace, local.name)):
            continue
        if local.cluster_queue not in known and CLUSTER_QUEUES.name not in kueue.unread:
            yield f"{name}: its ClusterQueue {local.cluster_queue} does not exist"
        elif local.inactive:
            yield f"{name} admits nothing: {local.inactive}"
    yield from selected.remarks(volcano_remarks(view.queues.volcano), queue_name)
    yield from selected.remarks(kai_remarks(tree, view.queues.kai), kai_queue_name)
    yield from (each.text for each in view.findings)


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


def _queue(view: QueuesView, depth: int, node: QuotaNode) -> QueueDocument:
    return QueueDocument(
        node.name.level.kind,
        node.name.name,
        node.name.level.system,
        "" if node.parent is None else node.parent.name,
        depth,
        _inactive(view, node.name),
        view.queues.tree.waiting_workloads(node.name),
        _quotas(view, node),
    )


def _inactive(view: QueuesView, name: QuotaName) -> str:
    kueue = view.queues.kueue
    if name.level is QuotaLevel.QUEUE:
        queue = view.queues.volcano.queue(name.name)
        return "" if queue is None or queue.is_open else queue.state
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


_NO_PODS: Final = "the pods were not read"


def _quotas(view: QueuesView, node: QuotaNode) -> list[QuotaDocument]:
    quotas = [_quota(line) for line in view.queues.lines(node)]
    if view.pods_read:
        return quotas
    return [
        msgspec.structs.replace(each, held=AmountDocument(None, each.held.unit, _NO_PODS))
        for each in quotas
    ]


def _quota(line: QueueLine) -> QuotaDocument:
    amounts = {
        kind: AmountDocument(each.value, line.unit.text, each.source)
        for kind, each in line.amounts.items()
    }
    return QuotaDocument(
        line.resource.flavor,
        line.resource.resource,
        amounts[AmountKind.LIMIT],
        amounts[AmountKind.NOMINAL],
        amounts[AmountKind.BORROWED],
        amounts[AmountKind.LENT],
        amounts[AmountKind.USED],
        amounts[AmountKind.HELD],
        amounts[AmountKind.DRIVER],
        amounts[AmountKind.WAITING],
        amounts[AmountKind.GUARANTEED],
        amounts.get(AmountKind.REQUESTED, UNSET),
        line.weight if AmountKind.REQUESTED in amounts else UNSET,
    )
