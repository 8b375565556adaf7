"""The pages: each path with its view and its template. Pure.

A view is a value: ``PATH`` shows it as HTML, ``PATH.json`` as it is. Parts of a path in ``{}`` are
names, each percent-encoded.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final
from urllib.parse import quote, unquote

import msgspec
from msgspec import structs

from fleet.fit_form import FitView, fit_view
from fleet.history import HistoryView, of_gpu, of_namespace, of_pod
from fleet.measured import MeasuredSource, use_document, used_of_gpus
from fleet.nodes import NodesView, nodes_view, page_of, used_on
from fleet.nvidia import NvidiaHolding, NvidiaSum, holdings_of, nvidia_sums
from fleet.overview import ModelCapacity, Sentence, Tab, model_capacities, sentence, tabs
from fleet.problems import FleetProblem, is_only_absent, problems
from fleet.repairs import Repairs
from fleet.rights import RIGHTS
from fleet.snapshot import FleetSnapshot
from fleet.waiting import PodTab, SimilarPods, in_turns, similar_pods, with_conclusions
from vgpucli.doctor.report import FindingDocument
from vgpucli.explain.document import ExplanationDocument
from vgpucli.inspect.document import DeviceDocument, HoldingDocument, NodeDocument, NvidiaDocument
from vgpucli.inspect.groups import GroupDocument, GroupsDocument, UseDocument
from vgpucli.inspect.queue_document import QueueDocument, QueuesDocument

JSON: Final = ".json"
"""The end of the path of a page's JSON form."""

FIRST_PROBLEMS: Final = 20
"""Number of problems on the first page."""

FIRST_GROUPS: Final = 10
"""Number of groups of pods on the first page."""

FIRST_NODES: Final = 20
"""Number of nodes, and of namespaces, on the first page."""

MOST_GROUPS: Final = 200
"""Number of groups of pods on a page."""


class Answered:
    """A snapshot with what all pages compute of it, once."""

    def __init__(self, snapshot: FleetSnapshot) -> None:
        self.snapshot = snapshot

    @cached_property
    def problems(self) -> tuple[FleetProblem, ...]:
        """What needs action, the worst first."""
        return problems(self.snapshot)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What could not be read; also what a dump does not have, which is no problem."""
        absent = (
            ": ".join((finding.about, *finding.evidence))
            for finding in self.snapshot.diagnosis.findings
            if is_only_absent(self.snapshot, finding)
        )
        return (*self.snapshot.notes, *absent)

    @cached_property
    def groups(self) -> tuple[SimilarPods, ...]:
        """The pods by state and owner, without their explanations."""
        return similar_pods(self.snapshot)

    @cached_property
    def used(self) -> Mapping[tuple[str, str], int]:
        """The bytes that pods use, by node and GPU."""
        measured = self.snapshot.measured
        if measured is None:
            return {}
        return used_of_gpus(self.snapshot.inspect.nodes, measured.pods)

    @cached_property
    def models(self) -> tuple[ModelCapacity, ...]:
        """The capacity by model."""
        return model_capacities(self.snapshot, self.used)

    def prepare(self) -> None:
        """Compute what the first page needs, before somebody waits for it."""
        _ = self.problems, self.groups, self.models

    def history(self, selectors: tuple[str, ...], query: Mapping[str, str]) -> HistoryView | None:
        """What was used over the range of the query; None without a Prometheus."""
        history = self.snapshot.history
        return None if history is None else history.lines(selectors, query.get("range", ""))

    def problems_of(self, choose: Callable[[FleetProblem], bool]) -> tuple[FleetProblem, ...]:
        """The problems that are chosen."""
        return tuple(filter(choose, self.problems))

    def explained(self, groups: Sequence[SimilarPods]) -> tuple[SimilarPods, ...]:
        """The groups with their explanations, as far as there are some."""
        return with_conclusions(self.snapshot, groups)


class _View(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all views."""


# ---------------------------------------------------------------- the first page


class IndexView(_View, frozen=True):
    """The first page; problems, groups of pods, nodes and namespaces are the first ones."""

    sentence: Sentence
    problems: tuple[FleetProblem, ...]
    problem_count: int
    tabs: tuple[Tab, ...]
    similar_pods: tuple[SimilarPods, ...]
    models: tuple[ModelCapacity, ...]
    nvidia_sums: tuple[NvidiaSum, ...]
    nodes: NodesView
    namespaces: tuple[GroupDocument, ...]
    findings: tuple[FindingDocument, ...]
    notes: tuple[str, ...]


def index(answered: Answered, _: Sequence[str], query: Mapping[str, str]) -> IndexView:
    """The first page."""
    snapshot, groups = answered.snapshot, answered.groups
    nodes = nodes_view(snapshot, answered.problems, answered.used, query)
    ill = in_turns(each for each in groups if each.tab in (PodTab.WAITING, PodTab.ABNORMAL))
    return IndexView(
        sentence(answered.problems, groups, answered.models),
        answered.problems[:FIRST_PROBLEMS],
        len(answered.problems),
        tabs(groups),
        answered.explained(ill[:FIRST_GROUPS]),
        answered.models,
        nvidia_sums(snapshot.inspect.nvidia),
        structs.replace(nodes, rows=nodes.rows[:FIRST_NODES]),
        tuple(snapshot.groups["namespace"].groups[:FIRST_NODES]),
        tuple(each for each in snapshot.diagnosis.findings if each.reason == "installed"),
        answered.notes,
    )


class ProblemsView(_View, frozen=True):
    """One page of all that needs action, of ``total`` problems."""

    problems: tuple[FleetProblem, ...]
    total: int
    page: int
    pages: int


def all_problems(answered: Answered, _: Sequence[str], query: Mapping[str, str]) -> ProblemsView:
    """The page of problems that the query asks for."""
    shown, page, pages = page_of(answered.problems, query)
    return ProblemsView(tuple(shown), len(answered.problems), page, pages)


# ---------------------------------------------------------------- pods


class PodsView(_View, frozen=True):
    """The groups of one tab; ``cut`` of them are not shown."""

    tab: str
    tabs: tuple[Tab, ...]
    similar_pods: tuple[SimilarPods, ...]
    cut: int


def pods(answered: Answered, _: Sequence[str], query: Mapping[str, str]) -> PodsView:
    """The groups of a tab; an unknown tab is the first one."""
    tab = query.get("tab", "")
    tab = tab if tab in set(PodTab) else PodTab.WAITING.value
    groups = [each for each in answered.groups if each.tab == tab]
    if namespace := query.get("namespace", ""):
        groups = [each for each in groups if each.namespace == namespace]
    shown = answered.explained(groups[:MOST_GROUPS])
    return PodsView(tab, tabs(answered.groups), shown, len(groups) - len(shown))


class PodView(_View, frozen=True):
    """A pod: what it holds and uses, why it does not run, what is wrong; null is not measured."""

    explanation: ExplanationDocument
    holdings: tuple[HoldingDocument, ...]
    nvidia_units: tuple[NvidiaHolding, ...]
    problems: tuple[FleetProblem, ...]
    use: UseDocument | None
    history: HistoryView | None


def pod(answered: Answered, names: Sequence[str], query: Mapping[str, str]) -> PodView | None:
    """The page of a pod; None if there is none."""
    namespace, name = names
    explanation = answered.snapshot.answers.pod(namespace, name)
    if explanation is None:
        return None
    holdings = tuple(
        held
        for node in answered.snapshot.inspect.nodes
        for held in _holdings(node)
        if (held.pod.namespace, held.pod.name) == (namespace, name)
    )
    measured = answered.snapshot.measured
    uid = next((held.pod.uid for held in holdings), "")
    return PodView(
        explanation,
        holdings,
        holdings_of(answered.snapshot.inspect.nvidia, namespace, name),
        answered.problems_of(lambda each: each.is_about_pod(namespace, name)),
        use_document(measured.pods.get(uid)) if measured else None,
        answered.history(of_pod(uid), query) if uid else None,
    )


def _holdings(node: NodeDocument) -> list[HoldingDocument]:
    return [*(held for device in node.devices for held in device.holdings), *node.unplaced]


class WorkloadView(_View, frozen=True):
    """A workload that waits in a queue."""

    explanation: ExplanationDocument


def workload(answered: Answered, names: Sequence[str], _: Mapping[str, str]) -> WorkloadView | None:
    """The page of a workload; None if there is none."""
    explanation = answered.snapshot.answers.workload(*names)
    return None if explanation is None else WorkloadView(explanation)


# ---------------------------------------------------------------- nodes, GPUs


def nodes(answered: Answered, _: Sequence[str], query: Mapping[str, str]) -> NodesView:
    """A page of nodes."""
    return nodes_view(answered.snapshot, answered.problems, answered.used, query)


class NodePageView(_View, frozen=True):
    """A node: its GPUs, whether it takes pods, what is wrong."""

    node: NodeDocument
    nvidia: tuple[NvidiaDocument, ...]
    explanation: ExplanationDocument | None
    problems: tuple[FleetProblem, ...]
    used: Mapping[str, int]


def node(answered: Answered, names: Sequence[str], _: Mapping[str, str]) -> NodePageView | None:
    """The page of a node; None if there is none."""
    (name,) = names
    found = _node(answered, name)
    if found is None:
        return None
    return NodePageView(
        found,
        tuple(each for each in answered.snapshot.inspect.nvidia if each.node == name),
        answered.snapshot.answers.node(name),
        answered.problems_of(lambda each: each.is_on_node(name)),
        used_on(found, answered.used),
    )


def _node(answered: Answered, name: str) -> NodeDocument | None:
    return next((each for each in answered.snapshot.nodes if each.name == name), None)


class GpuView(_View, frozen=True):
    """A GPU: who holds it, what they use, whether it takes shares, what is wrong."""

    node: str
    device: DeviceDocument
    explanation: ExplanationDocument | None
    problems: tuple[FleetProblem, ...]
    used: Mapping[str, int]
    history: HistoryView | None


def gpu(answered: Answered, names: Sequence[str], query: Mapping[str, str]) -> GpuView | None:
    """The page of a GPU; None if there is none."""
    node_name, name = names
    found = _node(answered, node_name)
    devices = found.devices if found is not None else []
    device = next((each for each in devices if name in (each.uuid, each.name)), None)
    if found is None or device is None:
        return None
    known_as = {device.uuid, device.name} - {""}
    return GpuView(
        node_name,
        device,
        answered.snapshot.answers.gpu(node_name, device.uuid or device.name),
        answered.problems_of(lambda each: each.is_about_gpu(node_name, known_as)),
        used_on(structs.replace(found, devices=[device]), answered.used),
        answered.history(of_gpu(device.uuid), query) if device.uuid else None,
    )


def fit(answered: Answered, _: Sequence[str], query: Mapping[str, str]) -> FitView:
    """How many more pods fit."""
    return fit_view(answered.snapshot, query)


# ---------------------------------------------------------------- teams, queues, systems


class TeamsView(_View, frozen=True):
    """The sums of namespaces, teams and queues."""

    namespaces: GroupsDocument
    teams: GroupsDocument
    queues: QueuesDocument


def teams(answered: Answered, _: Sequence[str], __: Mapping[str, str]) -> TeamsView:
    """The sums of namespaces, teams and queues."""
    groups = answered.snapshot.groups
    return TeamsView(groups["namespace"], groups["team"], answered.snapshot.queues)


class NamespaceView(_View, frozen=True):
    """A namespace: its sums and quota, its queues, its pods, what is wrong."""

    namespace: GroupDocument
    queues: tuple[QueueDocument, ...]
    similar_pods: tuple[SimilarPods, ...]
    problems: tuple[FleetProblem, ...]
    history: HistoryView | None


def namespace(
    answered: Answered, names: Sequence[str], query: Mapping[str, str]
) -> NamespaceView | None:
    """The page of a namespace; None if none of its pods shares GPUs and it has no quota."""
    (name,) = names
    groups = answered.snapshot.groups["namespace"].groups
    found = next((each for each in groups if each.name == name), None)
    if found is None:
        return None
    own = [each for each in answered.groups if each.namespace == name]
    queues = answered.snapshot.queues.queues
    return NamespaceView(
        found,
        tuple(each for each in queues if each.name.startswith(f"{name}/")),
        answered.explained(own[:MOST_GROUPS]),
        answered.problems_of(lambda each: each.is_in_namespace(name)),
        answered.history(of_namespace(name), query),
    )


class SystemsView(_View, frozen=True):
    """All findings of ``vgpu doctor``."""

    counts: Mapping[str, int]
    findings: tuple[FindingDocument, ...]


def systems(answered: Answered, _: Sequence[str], __: Mapping[str, str]) -> SystemsView:
    """What is installed, and what is wrong with it."""
    diagnosis = answered.snapshot.diagnosis
    return SystemsView(diagnosis.counts, tuple(diagnosis.findings))


class RepairsView(_View, frozen=True):
    """What the reconciler did lately; null of a dump."""

    repairs: Repairs | None


def all_repairs(answered: Answered, _: Sequence[str], __: Mapping[str, str]) -> RepairsView:
    """What the reconciler did lately."""
    return RepairsView(answered.snapshot.repairs)


class RightView(_View, frozen=True):
    """Verbs on a resource, and what they are for; "" if the page cannot do without them."""

    group: str
    resource: str
    namespace: str
    name: str
    verbs: tuple[str, ...]
    need: str


class ReadView(_View, frozen=True):
    """What was read.

    Attributes:
        name: the cluster, or the files.
        is_dump: whether files were read.
        source: who measured what pods use; null if nobody was asked.
        notes: what could not be read, and what else a reader must know.
        rights: with which the API server is read.
    """

    name: str
    is_dump: bool
    source: MeasuredSource | None
    notes: tuple[str, ...]
    rights: tuple[RightView, ...]


def what_is_read(answered: Answered, _: Sequence[str], __: Mapping[str, str]) -> ReadView:
    """What was read, and what was not."""
    snapshot = answered.snapshot
    rights = tuple(
        RightView(each.group, each.resource, each.namespace, each.name, each.verbs, each.need)
        for each in RIGHTS
    )
    return ReadView(snapshot.name, snapshot.is_dump, snapshot.source, answered.notes, rights)


# ---------------------------------------------------------------- the table

MakeView = Callable[[Answered, Sequence[str], Mapping[str, str]], object]
"""Makes the view of a page, of the names in its path and of its query; None is not found."""


class SitePage(msgspec.Struct, frozen=True):
    """A page.

    Attributes:
        path: a pattern, ``{}`` stands for one name.
        view: makes its view.
        template: shows it.
        title: in the navigation; "" if it is not there.
    """

    path: str
    view: MakeView
    template: str
    title: str = ""


PAGES: Final = (
    SitePage("/", index, "index.html", "Overview"),
    SitePage("/problems", all_problems, "problems.html", "Needs action"),
    SitePage("/pods", pods, "pods.html", "Pods"),
    SitePage("/nodes", nodes, "nodes.html", "Nodes"),
    SitePage("/fit", fit, "fit.html", "What fits"),
    SitePage("/teams", teams, "teams.html", "Teams and queues"),
    SitePage("/systems", systems, "systems.html", "Systems"),
    SitePage("/repairs", all_repairs, "repairs.html", "The reconciler"),
    SitePage("/read", what_is_read, "read.html", "What is read"),
    SitePage("/pods/{}/{}", pod, "pod.html"),
    SitePage("/workloads/{}/{}", workload, "workload.html"),
    SitePage("/nodes/{}", node, "node.html"),
    SitePage("/gpus/{}/{}", gpu, "gpu.html"),
    SitePage("/namespaces/{}", namespace, "namespace.html"),
)
"""All pages; those with a title in the order of the navigation."""


def link(pattern: str, *names: str) -> str:
    """The path of a page with these names in it; ``.json`` at the end of a name is no page's."""
    path = pattern.format(*(quote(name, safe="") for name in names))
    return f"{path.removesuffix(JSON)}%2Ejson" if path.endswith(JSON) else path


def find_page(path: str) -> tuple[SitePage, tuple[str, ...]] | None:
    """The page of a path without ``.json``, and the names in it; None if there is none."""
    parts = path.split("/")
    for page in PAGES:
        pattern = page.path.split("/")
        if len(pattern) != len(parts):
            continue
        pairs = list(zip(pattern, parts, strict=True))
        if all(want in ("{}", has) for want, has in pairs):
            names = tuple(unquote(has) for want, has in pairs if want == "{}")
            return (page, names) if all(names) else None
    return None
