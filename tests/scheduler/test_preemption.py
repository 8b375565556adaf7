"""The verb preempt over HTTP, with kube-scheduler's recorded requests.

The recorded pod requests a whole GPU of Volcano's; kube-scheduler has chosen two victims, each on
another GPU, so that both GPUs keep a pod of 8 GiB.
"""

import copy
import json

import pytest
from msgspec import structs

from tests.scheduler.model_api import UNITS, gpushare_node
from tests.scheduler.served import PREEMPT, WHOLE_PODS, Served, filler, query
from tests.support.registers import volcano_register
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.disruption import DisruptionBudget, Requirement
from vgpu.kube.kinds import PODS
from vgpu.model.objects import Node

NODE = "volcano-p"


class Preempting(Served):
    """The node of the recorded request; the API server has disruption budgets."""

    def __init__(self):
        super().__init__()
        self.cache.set_node(NODE, Node(NODE, annotations=volcano_register("GPU-0", "GPU-1")))
        self.budgets, self.labels = [], {}
        self.api.budgets = self.read_budgets
        self.api.pod_labels = lambda _, name: (f"uid-{name}", self.labels.get(name, {}))

    def read_budgets(self, namespace):
        if isinstance(self.budgets, Exception):
            raise self.budgets
        return [budget for budget in self.budgets if budget.namespace == namespace]

    def bound(self, name, gpu, priority, uid="", gib=8):
        """A pod on a GPU of the node."""
        pod = {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": uid or f"uid-{name}",
                "annotations": {
                    "volcano.sh/vgpu-node": NODE,
                    "volcano.sh/vgpu-ids-new": f"GPU-{gpu},NVIDIA,{gib * 1024},0:",
                },
            },
            "spec": {
                "nodeName": NODE,
                "priority": priority,
                "containers": [
                    {"name": "main", "resources": {"limits": {"volcano.sh/vgpu-number": "1"}}}
                ],
            },
            "status": {"phase": "Running"},
        }
        self.cache.set_pod(f"ns/{name}", PODS.one(json.dumps(pod).encode()))

    def victims(self, body=PREEMPT):
        """The victims beside kube-scheduler's; None if the node is no candidate."""
        answer = self.post("/preempt", body)
        assert answer.keys() == {"NodeNameToMetaVictims"}
        nodes = answer["NodeNameToMetaVictims"]
        if not nodes:
            return None
        assert nodes.keys() == {NODE}
        uids = [pod["UID"] for pod in nodes[NODE]["Pods"]]
        assert set(CHOSEN) <= set(uids)
        return sorted(set(uids) - set(CHOSEN))


CHOSEN = [pod["UID"] for pod in json.loads(PREEMPT)["NodeNameToMetaVictims"][NODE]["Pods"]]


@pytest.fixture
def bed():
    """GPU 0 and GPU 1 have one of kube-scheduler's victims each, and one pod of 8 GiB more."""
    with Preempting() as bed:
        for gpu, uid in enumerate(CHOSEN):
            bed.bound(f"chosen{gpu}", gpu, 1, uid)
        bed.bound("important", 0, 4)
        bed.bound("low", 1, 3)
        yield bed


def test_the_least_important_pods_that_free_one_gpu_are_added(bed):
    assert bed.victims() == ["uid-low"]


def test_victims_that_free_a_gpu_are_enough(bed):
    bed.cache.set_pod("ns/low", None)
    assert bed.victims() == []


@pytest.mark.parametrize("priority", [100, 101])
def test_no_pod_ends_for_one_that_is_not_more_important(bed, priority):
    """The recorded pod has priority 100."""
    bed.bound("low", 1, priority)
    assert bed.victims() == ["uid-important"]
    bed.bound("important", 0, priority)
    assert bed.victims() is None


OUTRANKED = "1 node would take the pod without pods of lower priority"


@pytest.mark.parametrize(
    ("priorities", "is_outranked"), [((1, 1), True), ((100, 101), False), ((99, 101), True)]
)
def test_the_event_counts_nodes_that_only_pods_of_lower_priority_keep_from_the_pod(
    bed, priorities, is_outranked
):
    for name in ("chosen0", "chosen1", "important", "low"):
        bed.show(name, None)
    for gpu, priority in enumerate(priorities):
        bed.bound(f"full{gpu}", gpu, priority, gib=16)
    names = ["somewhere", NODE]
    assert not bed.post("/filter", query(json.loads(PREEMPT)["Pod"], names))["NodeNames"]
    (message,) = bed.events()
    assert (OUTRANKED in message) == is_outranked


def budget(allowed, namespace="ns", app="web"):
    requirements = (Requirement("app", "In", frozenset({app})),)
    return DisruptionBudget(namespace, "b", allowed, requirements)


@pytest.mark.parametrize(
    ("budgets", "added"),
    [
        ([budget(2)], ["uid-important"]),  # the two chosen victims may count against it, too
        ([budget(3)], ["uid-low"]),
        ([budget(0, namespace="other")], ["uid-low"]),
        ([budget(0, app="db")], ["uid-low"]),
        (ClusterError(403, "Forbidden", "no"), None),
    ],
)
def test_no_added_victim_violates_a_disruption_budget(bed, budgets, added):
    bed.labels["low"] = {"app": "web"}
    bed.budgets = budgets
    assert bed.victims() == added


def test_budgets_that_protect_every_pod_leave_no_candidate(bed):
    bed.labels = {"low": {"app": "web"}, "important": {"app": "web"}}
    bed.budgets = [budget(0)]
    assert bed.victims() is None


def test_budgets_that_cannot_be_read_cost_only_nodes_that_need_more_victims(bed):
    bed.budgets = ClusterError(403, "Forbidden", "no")
    bed.cache.set_pod("ns/low", None)
    assert bed.victims() == []


def test_whole_pods_are_victims_by_their_uids(bed):
    sent = json.loads(WHOLE_PODS)
    assert sent["NodeNameToMetaVictims"] is None
    uids = [pod["metadata"]["uid"] for pod in sent["NodeNameToVictims"][NODE]["Pods"]]
    answer = bed.post("/preempt", WHOLE_PODS)["NodeNameToMetaVictims"]
    bed.bound("chosen0", 0, 1, uids[0])
    bed.bound("chosen1", 1, 1, uids[1])
    answer = bed.post("/preempt", WHOLE_PODS)["NodeNameToMetaVictims"]
    assert [pod["UID"] for pod in answer[NODE]["Pods"]] == [*uids, "uid-low"]


def test_a_node_that_the_cache_does_not_know_is_no_candidate(bed):
    bed.cache.set_node(NODE, None)
    assert bed.victims() is None


def test_a_stale_cache_and_a_request_that_cannot_be_read_preempt_nobody(bed):
    for body in (b"", b"{}", b'{"Pod":null}', b'{"Pod":{"metadata":{"name":1}}}'):
        assert bed.post("/preempt", body) == {"NodeNameToMetaVictims": {}}
    bed.program.problem = "the last event is old"
    assert bed.victims() is None


def test_a_pod_of_no_sharing_system_keeps_kube_schedulers_victims(bed):
    """Where managedResources is empty, every pod is sent."""
    sent = json.loads(PREEMPT)
    sent["Pod"]["spec"]["containers"][0]["resources"] = {}
    sent["NodeNameToMetaVictims"][NODE]["NumPDBViolations"] = 2
    answer = bed.post("/preempt", json.dumps(sent).encode())
    assert answer["NodeNameToMetaVictims"] == sent["NodeNameToMetaVictims"]


def test_a_more_important_pod_finds_what_is_held_in_place_of_a_pod_just_like_the_victim(bed):
    """The node's GPUs are as much in use as before, and yet it answers otherwise."""
    recorded = json.loads(PREEMPT)["Pod"]
    bed.show("low", None)
    bed.show("important", None)
    for gpu, uid in enumerate(CHOSEN):
        bed.bound(f"chosen{gpu}", gpu, 1, uid, gib=16)
    urgent = copy.deepcopy(recorded)
    urgent["metadata"] |= {"name": "urgent", "uid": "uid-urgent"}
    urgent["spec"]["priority"] = 200
    assert bed.filter(urgent, [NODE])[0] == []
    assert bed.victims() == []
    nominated = PODS.one(json.dumps(recorded).encode())
    bed.show(nominated.ref.name, structs.replace(nominated, nominated_node=NODE))
    bed.show("chosen1", None)
    assert bed.filter(urgent, [NODE])[0] == [NODE]


def test_a_bind_before_the_victims_are_gone_is_refused_and_ends_nothing_that_is_held(bed):
    ref = bed.api.store(PODS.one(json.dumps(json.loads(PREEMPT)["Pod"]).encode())).ref
    assert bed.victims() == ["uid-low"]
    bed.show(ref.name, structs.replace(bed.api.pods[ref.name], nominated_node=NODE))
    assert bed.bind(ref, NODE) == "memory"
    for name in ("chosen1", "low"):
        bed.show(name, None)
    rival = copy.deepcopy(json.loads(PREEMPT)["Pod"])
    rival["metadata"] |= {"name": "rival", "uid": "uid-rival"}
    assert bed.filter(rival, [NODE])[0] == []
    assert not bed.bind(ref, NODE)


def test_a_pod_that_outranks_what_is_held_gets_no_unhealthy_gpu():
    with Served() as served:
        served.cache.set_node("n1", gpushare_node("n1", 2))
        served.cache.set_unhealthy({"unhealthy-gpu-n1": "1"})
        served.show("victim", filler("victim", "n1", 0, UNITS))
        for name, priority in (("nominee", 5), ("urgent", 9)):
            served.api.pending(name, UNITS, priority)
        nominee = structs.replace(served.api.pods["nominee"], nominated_node="n1")
        assert served.preempt(nominee, {"n1": ["uid-victim"]}).keys() == {"n1"}
        served.show("nominee", nominee)
        assert served.filter(served.api.pods["urgent"], ["n1"])[0] == []
        served.show("victim", None)
        assert served.filter(served.api.pods["urgent"], ["n1"])[0] == ["n1"]
