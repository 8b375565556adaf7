"""Which nodes take a demand, and how well: answers, remembered until a node changes; pure.

A node answers equal demands alike until the view of its GPUs changes. So filter looks most answers
up, and asks only the nodes that have changed since the last pod: few of hundreds. Nodes that answer
alike share one answer, so that an answer is looked up without touching the node itself.

Pods that passed filter and are not bound yet are remembered, too: the next filter comes before
their bind ends.
"""

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import compress
from operator import not_
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from msgspec import structs

from scheduler.cluster.cached_node import CachedNode
from scheduler.cluster.cluster_state import ClusterState
from scheduler.cluster.demands import DemandShape
from scheduler.filter.node_columns import NodeColumns
from scheduler.filter.refusals import UNKNOWN, NodeAnswer, RefusedNodes
from vgpu.model.objects import Node
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import CandidateView
from vgpu.placement.result import PlacementReason, PlacementRefusal, PlacementResult

MOST_KEYS: Final = 128
"""Maximum number of keys whose answers are remembered; the least recently used are forgotten."""

MOST_ALONE: Final = 64
"""Maximum number of nodes that are asked one by one for a demand that stands alone."""

MOST_DISTINCT: Final = 10_000
"""Maximum number of different answers that nodes share."""

MOST_ASKED: Final = 32
"""Maximum number of nodes that are asked whether they take a pod beside pods under way."""

UNDER_WAY_SECONDS: Final = 10.0
"""Maximum time between filter and bind for which a pod is expected to be bound, in seconds."""

MOST_UNDER_WAY: Final = 4
"""Maximum number of pods that may come to several nodes and that filter counts beside a pod."""

MOST_ON_A_NODE: Final = 16
"""Maximum number of pods that are being bound to one node and that filter counts beside a pod."""

MOST_REMEMBERED: Final = 64
"""Maximum number of pods that are remembered, each with its nodes; the oldest are forgotten."""

ShapeKey = tuple[int, ...]
"""Numbers of shapes: those of pods that are placed before, and that of the pod."""

_Value = TypeVar("_Value")

_UNKNOWN: Final = PlacementRefusal.of(PlacementReason.UNKNOWN_NODE)


class NodeMemo(Generic[_Value]):
    """What was computed of nodes that have not changed since. Not for several threads."""

    def __init__(self, most: int) -> None:
        """``most`` is the maximum number of keys; the least recently used are forgotten."""
        self._most = most
        self._by_key: OrderedDict[Hashable, dict[str, _Value]] = OrderedDict()

    def of(self, key: Hashable) -> dict[str, _Value]:
        """The values of a key by the node's name, to be read and to be added to."""
        values = self._by_key.get(key)
        if values is None:
            if len(self._by_key) >= self._most:
                self._by_key.popitem(last=False)
            values = self._by_key[key] = {}
        self._by_key.move_to_end(key)
        return values

    def forget(self, node: str) -> None:
        """The node has changed."""
        for values in self._by_key.values():
            values.pop(node, None)


class NodeAnswers(NodeMemo[NodeAnswer]):
    """The answers of nodes by shapes. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        super().__init__(MOST_KEYS)
        self._distinct: dict[Hashable, NodeAnswer] = {}

    def shared(self, answer: NodeAnswer) -> NodeAnswer:
        """The one object of all equal answers."""
        refusal = answer.refusal
        content = (
            None if refusal is None else refusal.reason,
            None if refusal is None else refusal.message,
            None if refusal is None else refusal.free_bytes,
            answer.score,
        )
        if len(self._distinct) >= MOST_DISTINCT:
            self._distinct.clear()
        return self._distinct.setdefault(content, answer)


class UnderWay(msgspec.Struct, frozen=True):
    """A pod that passed filter.

    Attributes:
        shape, demand: what it requests.
        nodes: the nodes that it may be bound to.
        since: when it passed, in unix seconds.
        best: the node to which it comes by its scores; "" if that is not known.
    """

    shape: DemandShape
    demand: PodDemand
    nodes: frozenset[str]
    since: float
    best: str = ""

    @property
    def node(self) -> str:
        """The node to which it comes for certain; "" if it may come to several."""
        return next(iter(self.nodes)) if len(self.nodes) == 1 else ""

    @property
    def expected(self) -> str:
        """The node to which it comes, for certain or by its scores; "" if that is not known."""
        return self.node or self.best


class PodsUnderWay:
    """The pods under way, by UID. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        self._pods: dict[str, UnderWay] = {}

    def add(self, uid: str, pod: UnderWay) -> None:
        """Remember a pod; a new filter replaces the last one."""
        self._pods.pop(uid, None)
        if len(self._pods) >= MOST_REMEMBERED:
            del self._pods[next(iter(self._pods))]
        self._pods[uid] = pod

    def set_node(self, uid: str, node: str) -> None:
        """The pod is being bound to this node."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._pods[uid] = structs.replace(pod, nodes=frozenset((node,)))

    def set_best(self, uid: str, node: str) -> None:
        """The node is better for the pod than any other."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._pods[uid] = structs.replace(pod, best=node)

    def beside(self, uid: str) -> list[UnderWay]:
        """The other pods."""
        return [pod for other, pod in self._pods.items() if other != uid]

    def discard(self, uid: str) -> None:
        """Forget a pod: it is bound, rejected or gone."""
        self._pods.pop(uid, None)

    def newest(self, uid: str, now: float) -> list[UnderWay]:
        """Those that are to be counted beside the pod of this UID, and forget old ones."""
        for other, pod in list(self._pods.items()):
            if now - pod.since > UNDER_WAY_SECONDS:
                del self._pods[other]
        others = [pod for other, pod in self._pods.items() if other != uid]
        undecided = [pod for pod in others if not pod.node][-MOST_UNDER_WAY:]
        decided: dict[str, list[UnderWay]] = {}
        for pod in reversed(others):
            if pod.node:
                decided.setdefault(pod.node, []).append(pod)
        counted = (pods[:MOST_ON_A_NODE] for pods in decided.values())
        return [*undecided, *itertools.chain.from_iterable(counted)]


class AnsweredNode(msgspec.Struct, frozen=True):
    """All that the answers of a node depend on, beside the demand."""

    node: Node | None
    scheme: SchedulerScheme | PlacementReason
    view: CandidateView | None

    def is_like(self, other: "AnsweredNode") -> bool:
        """Whether the answers are the same; a node that has changed is another object."""
        return self.node is other.node and self.scheme is other.scheme and self.view == other.view


class NodeFilter:
    """Asks nodes, and remembers their answers. Not for several threads: the cache locks."""

    def __init__(
        self,
        schemes: Mapping[str, SchedulerScheme],
        state: ClusterState,
        changed: set[str],
    ) -> None:
        """``schemes`` are by the name of their row.

        ``changed`` are the names of the nodes of which anything has changed; they are removed once
        their answers are forgotten.
        """
        self._schemes = schemes
        self._state = state
        self._changed = changed
        self._answered: dict[str, AnsweredNode] = {}
        self._names: dict[str, str] = {}
        """The keys of remembered answers: the strings of one request, which lie side by side in
        memory. Among the nodes' own objects each look-up would wait for the memory."""
        self._known = NodeAnswers()
        self._of_all: dict[int, AbstractSet[NodeAnswer]] = {}
        """The answers of all nodes by the shape's number, where each refuses for the same cause."""
        self._memos: list[NodeMemo[Any]] = [self._known]
        self._columns = {name: NodeColumns() for name in schemes}
        self._systems: dict[str, str | PlacementReason] = {}
        """The name of each node's sharing system, or why it has none, by the node's name."""

    def forget_also(self, memo: NodeMemo[Any]) -> None:
        """Forget a node in this memo, too, whenever the answers of the node are forgotten."""
        self._memos.append(memo)

    def found_by(self, demand: PodDemand, name: str) -> CachedNode | None:
        """The node as the pod finds it; None if nothing is known of it."""
        cached = self._state.nodes.get(name)
        return None if cached is None else cached.as_found_by(demand)

    def place(
        self, name: str, scheme: SchedulerScheme, demand: PodDemand, now: float
    ) -> PlacementResult:
        """The placement of the pod on the node, which is computed each time."""
        found = self.found_by(demand, name)
        return _UNKNOWN if found is None else found.place(scheme, demand, now)

    def only_device(self, name: str) -> Hashable | None:
        """Memory and model of the node's GPUs, None if they differ or may be cut into parts."""
        columns = self._columns.get(self._systems.get(name, ""))
        return None if columns is None else columns.only_device(name)

    def answers(
        self,
        names: Sequence[str],
        shape: DemandShape,
        demand: PodDemand,
        now: float,
        before: Sequence[UnderWay] = (),
    ) -> tuple[list[NodeAnswer], set[NodeAnswer]]:
        """Whether each node takes the demand after those of ``before``, and its score; and each of
        these answers once.

        What a node answers is the same for all pods of a shape, unless something is kept on it for
        a pod: then it is asked each time.
        """
        self.forget_changed(now)
        known = self._known.of(_key(shape, before))
        nodes, own = self._state.nodes, self._state.reserved_on(demand.pod.uid)
        demands = [pod.demand for pod in before]
        scheme = self._schemes[shape.scheme]

        def ask(name: str) -> NodeAnswer:
            cached = nodes.get(name)
            if cached is None:
                return UNKNOWN
            found = cached.as_found_by(demand)
            answer = self._known.shared(_answer(found, scheme, demand, now, demands))
            if cached.is_alike_for(demand):
                known[self._names.setdefault(name, name)] = answer
            return answer

        answers = list(map(known.get, names))
        if not before and answers.count(None) > MOST_ALONE:
            missing = {name for name, answer in zip(names, answers, strict=True) if answer is None}
            if sum(map(self._columns[shape.scheme].__contains__, missing)) > MOST_ALONE:
                self._answer_all(known, scheme, demand)
                answers = list(map(known.get, names))
        if own:
            answers = [None if name in own else known.get(name) for name in names]
        distinct = set(answers)
        if None in distinct:  # few nodes have changed since the last pod
            asked: dict[str, NodeAnswer] = {}  # a name may be sent many times
            for number, answer in enumerate(answers):
                if answer is None:
                    name = names[number]
                    if name not in asked:
                        asked[name] = ask(name)
                    answers[number] = asked[name]
            distinct = set(answers)
        return cast("list[NodeAnswer]", answers), cast("set[NodeAnswer]", distinct)

    def _answer_all(
        self, known: dict[str, NodeAnswer], scheme: SchedulerScheme, demand: PodDemand
    ) -> None:
        """Add the answers of all nodes that need not be asked one by one."""
        system = scheme.row.name
        answers = self._columns[system].answers(scheme, demand)
        refusals: dict[PlacementReason, NodeAnswer] = {}
        for name, other in self._systems.items():
            if other != system:
                reason = other if isinstance(other, PlacementReason) else PlacementReason.NO_GPUS
                if reason not in refusals:
                    refusals[reason] = NodeAnswer.refused(PlacementRefusal.of(reason))
                answers[name] = refusals[reason]
        # Demands share refusals; that a node takes two demands equally well is chance.
        refusing = {answer for answer in answers.values() if answer.refusal is not None}
        shared = {answer: self._known.shared(answer) for answer in refusing}
        key = self._names.get
        for name, answer in answers.items():
            known[key(name, name)] = shared.get(answer, answer)

    def split(
        self, names: Sequence[str], shape: DemandShape, demand: PodDemand, now: float
    ) -> tuple[Sequence[str], RefusedNodes]:
        """The nodes that take the demand, and why the others do not."""
        of_all = self._refusals_of_all(names, shape, demand, now)
        if of_all is not None:
            return (), RefusedNodes.for_one_cause(names, of_all)
        answers, distinct = self.answers(names, shape, demand, now)
        refusing = {answer for answer in distinct if answer.refusal is not None}
        if len(refusing) == len(distinct):
            self._note_refusals(shape)
            return (), RefusedNodes(names, answers, distinct)
        if not refusing:
            return names, RefusedNodes()
        refuses = list(map(refusing.__contains__, answers))
        refused = RefusedNodes(list(compress(names, refuses)), list(compress(answers, refuses)))
        return list(compress(names, map(not_, refuses))), refused

    def answers_beside(
        self,
        pods: Sequence[UnderWay],
        names: Sequence[str],
        shape: DemandShape,
        demand: PodDemand,
        now: float,
    ) -> list[NodeAnswer]:
        """The answer of each node after the pods under way that are expected on it."""
        answers, _ = self.answers(names, shape, demand, now)
        expected: dict[str, list[UnderWay]] = {}
        for pod in pods:
            expected.setdefault(pod.expected, []).append(pod)
        beside: dict[str, NodeAnswer] = {}
        for target in (expected.keys() - {""}).intersection(names):
            before = expected[target][-MOST_ON_A_NODE:]
            (beside[target],), _ = self.answers([target], shape, demand, now, before)
        if not beside:
            return answers
        return [beside.get(name, answer) for name, answer in zip(names, answers, strict=True)]

    def kept_for(
        self,
        newest: Sequence[UnderWay],
        names: Sequence[str],
        shape: DemandShape,
        demand: PodDemand,
        now: float,
    ) -> set[str]:
        """Those of the nodes that do not take the pod beside pods that passed filter before it.

        Only the best nodes are asked: pods go there first, and a bind decides for itself.
        """
        if not newest:
            return set()
        answers, _ = self.answers(names, shape, demand, now)
        scores = {name: answer.score for name, answer in zip(names, answers, strict=True)}
        best = sorted(names, key=scores.__getitem__, reverse=True)[:MOST_ASKED]

        alike: dict[tuple[bool, ...], list[str]] = {}
        for name in best:
            alike.setdefault(tuple(name in pod.nodes for pod in newest), []).append(name)
        kept: set[str] = set()
        for may_come, group in alike.items():
            before = list(compress(newest, may_come))
            answers, _ = self.answers(group, shape, demand, now, before)
            kept.update(
                name
                for name, answer in zip(group, answers, strict=True)
                if answer.refusal is not None
            )
        return kept

    def forget_changed(self, now: float) -> None:
        """Forget the answers of nodes that a pod finds in another state than when they answered.

        Most changes of a node are none: a reservation becomes a bound pod.
        """
        while self._changed:
            name = self._changed.pop()
            cached = self._state.nodes.get(name)
            before = self._answered.pop(name, None)
            self._note(name, cached, now)
            if cached is not None:
                answered = AnsweredNode(cached.node, cached.scheme, cached.view(now))
                self._answered[name] = answered
                # What is held is free for more important pods: they see another view.
                if before is not None and not cached.held and before.is_like(answered):
                    continue
            else:
                self._names.pop(name, None)
            self._of_all.clear()
            for memo in self._memos:
                memo.forget(name)

    def _note(self, name: str, cached: CachedNode | None, now: float) -> None:
        """Write the node into the columns of its sharing system."""
        before = self._systems.pop(name, None)
        if cached is not None:
            scheme = cached.scheme
            own = scheme if isinstance(scheme, PlacementReason) else scheme.row.name
            self._systems[name] = own
            if own in self._columns:
                self._columns[own].set(name, cached.plain_candidate(now))
        if before in self._columns and before != self._systems.get(name):
            self._columns[before].set(name, None)

    def _refusals_of_all(
        self, names: Sequence[str], shape: DemandShape, demand: PodDemand, now: float
    ) -> AbstractSet[NodeAnswer] | None:
        """The answers of all nodes if that is the same for this pod, whatever their names are.

        A pod that fits nowhere is rejected again and again: then no name is looked up while no node
        changes. As many names as there are nodes are taken for these nodes. At worst the answer has
        a wrong cause for a node that no event has shown yet.
        """
        self.forget_changed(now)
        if len(names) != len(self._state.nodes) or self._state.reserved_on(demand.pod.uid):
            return None
        return self._of_all.get(shape.number)

    def _note_refusals(self, shape: DemandShape) -> None:
        """Remember the answers of all nodes if each is known and they have one cause."""
        known = self._known.of(_key(shape))
        if len(known) != len(self._state.nodes):
            return
        distinct = set(known.values())
        causes = {answer.refusal and answer.refusal.cause for answer in distinct}
        if len(causes) == 1 and None not in causes:
            if len(self._of_all) >= MOST_KEYS:
                self._of_all.clear()
            self._of_all[shape.number] = distinct


def _answer(
    node: CachedNode,
    scheme: SchedulerScheme,
    demand: PodDemand,
    now: float,
    before: Sequence[PodDemand],
) -> NodeAnswer:
    """Whether the node takes a demand, after those of ``before``, and its score."""
    result = node.place(scheme, demand, now, before)
    if isinstance(result, PlacementRefusal):
        return NodeAnswer.refused(result)
    return NodeAnswer(score=scheme.dialect.rank(demand, result))


def _key(shape: DemandShape, before: Sequence[UnderWay] = ()) -> ShapeKey:
    return (*(pod.shape.number for pod in before), shape.number)
