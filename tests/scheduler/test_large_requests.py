"""The work of a request grows with its length, whatever names it has; it is counted, not timed."""

import json

import pytest

from scheduler.cluster.cached_node import CachedNode
from scheduler.filter import node_filter
from scheduler.filter.refusals import UNKNOWN, NodeAnswer
from scheduler.verbs.wire import MOST_NODES
from tests.scheduler.model_api import gpushare_node
from tests.scheduler.served import FILTER, PREEMPT, Served
from tests.scheduler.test_preemption import NODE, Preempting
from vgpu.kube.kinds import PODS
from vgpu.model.objects import Namespace
from vgpu.placement.result import PlacementReason

NAMES = [f"unknown-{number}" for number in range(3000)]
POD = json.loads(FILTER)["Pod"]
QUOTA = {"vgpu.dev/quota-memory": "T4=64Gi"}


class Compared(NodeAnswer, frozen=True, eq=False):
    """An answer whose comparisons are counted."""

    comparisons = 0

    def __eq__(self, other):
        type(self).comparisons += 1
        return self is other

    __hash__ = NodeAnswer.__hash__


@pytest.fixture
def served():
    with Served() as served:
        served.cache.set_node("known", gpushare_node("known", 1))
        yield served


@pytest.mark.parametrize("names", [NAMES, NAMES[:1] * len(NAMES)], ids=["distinct", "one"])
def test_unknown_names_cost_work_in_proportion_to_their_number(served, monkeypatch, names):
    monkeypatch.setattr(Compared, "comparisons", 0)
    monkeypatch.setattr(node_filter, "UNKNOWN", Compared(UNKNOWN.refusal))
    offered = ["known", *names, "known"]
    answer = served.post("/filter", {"Pod": POD, "NodeNames": offered})
    unknown = dict.fromkeys(names, PlacementReason.UNKNOWN_NODE.explanation)
    assert set(answer["NodeNames"]) == {"known"}
    assert answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"] == unknown
    scores = served.post("/prioritize", {"Pod": POD, "NodeNames": offered})
    assert [row["Host"] for row in scores] == offered
    assert [row["Score"] for row in scores] == [10, *[0] * len(names), 10]
    assert Compared.comparisons <= 8 * len(names)


def test_a_node_is_asked_once_however_often_its_name_is_sent(served, calls):
    asked = calls(CachedNode, "place")
    answer = served.post("/filter", {"Pod": POD, "NodeNames": ["known"] * 500})
    assert set(answer["NodeNames"]) == {"known"}
    assert len(asked) == 1


def test_a_node_is_placed_once_for_a_quota_however_often_its_name_is_sent(served, calls):
    """Bound, so that what is reserved there is the pod's own, and no answer is remembered."""
    namespace = POD["metadata"]["namespace"]
    served.cache.set_namespace(namespace, Namespace(namespace, annotations=QUOTA))
    pod = PODS.one(json.dumps(POD).encode())
    served.api.store(pod)
    assert not served.bind(pod.ref, "known")
    placed = calls(CachedNode, "place")
    answer = served.post("/filter", {"Pod": POD, "NodeNames": ["known"] * 500})
    assert answer["NodeNames"]
    assert 1 <= len(placed) <= 2


def test_victims_that_a_node_does_not_have_cost_its_placements_nothing(calls):
    with Preempting() as bed:
        for gpu in (0, 1):
            bed.bound(f"low-{gpu}", gpu, priority=0)
        found = calls(CachedNode, "as_found_by")
        victims = {"Pods": [{"UID": each} for each in NAMES], "NumPDBViolations": 0}
        body = json.loads(PREEMPT) | {"NodeNameToMetaVictims": {NODE: victims}}
        bed.post("/preempt", body)
    sizes = [len(gone) for _, _, *rest in found for gone in rest]
    assert sizes
    assert max(sizes) <= 2


def test_a_size_that_no_node_has_answered_yet_asks_no_node_by_itself(served, calls):
    names = [f"node-{number}" for number in range(2 * node_filter.MOST_ALONE)]
    for number, name in enumerate(names):
        served.cache.set_node(name, gpushare_node(name, 1 + number % 3))
    asked = calls(CachedNode, "place")
    answer = served.post("/filter", {"Pod": POD, "NodeNames": names})
    assert set(answer["NodeNames"]) == set(names)
    assert asked == []


def test_more_nodes_than_a_cluster_can_have_are_refused(served):
    answer = served.post("/filter", {"Pod": POD, "NodeNames": ["n"] * (MOST_NODES + 1)})
    assert f"{MOST_NODES + 1} nodes: more than {MOST_NODES}" in answer["Error"]


@pytest.fixture
def calls(monkeypatch):
    """``calls(class, method)`` is the list of the arguments of all calls from then on."""

    def counted(owner, name):
        made, method = [], getattr(owner, name)

        def call(*args):
            made.append(args)
            return method(*args)

        monkeypatch.setattr(owner, name, call)
        return made

    return counted
