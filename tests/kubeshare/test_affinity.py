"""Affinity by the paper: SharePods of one label are on one virtual GPU, or wait for it.

for all labels L: |{virtual GPUs that a scheduler has made and that carry L}| ≤ 1
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kubeshare.model import ConditionType, NodeAmounts, NodeNeeds, VirtualGpuName
from kubeshare.place_choice import Unplaced, choose_place, place_name
from kubeshare.placement import KubeShareAlgorithm
from kubeshare.reasons import SharePodReason, UnplacedReason
from kubeshare.share_pod_cluster import SharePodCluster
from tests.kubeshare.model_cluster import INSUFFICIENT, ModelCluster, labelled, node, share_pod
from tests.kubeshare.model_controllers import (
    Controllers,
    require_labels_together,
    settle,
    settled,
)
from tests.kubeshare.test_followed_objects import serving, share_pod_json
from tests.kubeshare.test_malformed_share_pods import running
from tests.support.waiting import wait_until
from vgpu.kube.kinds import EVENTS, NODES, SHARE_PODS
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject
from vgpu.model.taints import Taint
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.node import GPU_INFO
from vgpu.schemes.kubeshare.sharepod import AFFINITY, GPUID

PAPER, RELEASE_1 = KubeShareAlgorithm.PAPER, KubeShareAlgorithm.KUBESHARE_1
RED = labelled(affinity="red")
TAINT = (Taint("gpu", "yes", "NoSchedule"),)


def with_red(algorithm=PAPER, **fields):
    """A red SharePod that runs on n1, of two nodes."""
    cluster = ModelCluster(node("n1", 2, labels={"zone": "a"}))
    controllers = Controllers(cluster, algorithm=algorithm)
    cluster.store(share_pod("first", 300, locality=RED, **fields))
    settled(cluster, controllers)
    cluster.set_node(node("n2", 2))
    cluster.deliver(controllers.state)
    return cluster, controllers


def refusal(controllers, wanted):
    """Why a SharePod is not placed; a placement otherwise."""
    state = controllers.state
    algorithm = controllers.algorithm
    return choose_place(wanted, state.placement_nodes(), algorithm, state.lost_gpus())


def change_node(**fields):
    def change(cluster):
        cluster.set_node(structs.replace(cluster.nodes["n1"], **fields))

    return change


def fill(**amounts):
    """Take what is left of an amount of the node."""

    def change(cluster):
        plain = share_pod("plain", node="n1", needs=NodeNeeds(NodeAmounts(**amounts)))
        cluster.store(structs.replace(plain, request=None))

    return change


def tear(cluster):
    """The holder pod has another GPU than the pods."""
    (holder,) = cluster.holders()
    cluster.store(structs.replace(holder, uuid="GPU-n1-1"))


def refuse_holder(cluster):
    """The holder pod was lost, and kube-scheduler finds no GPU for the next one."""
    (holder,) = cluster.holders()
    waits = structs.replace(holder.pod, phase="Pending", node="", unschedulable=INSUFFICIENT)
    cluster.store(structs.replace(holder, pod=waits, uuid="", unschedulable_since=cluster.now))


def end_share_pod(cluster):
    """The SharePod is gone and its pod still ends."""
    cluster.remove(cluster.share_pods["ns/first"])
    (pod,) = cluster.real_pods()
    cluster.store(structs.replace(pod, pod=structs.replace(pod.pod, deleted_at=cluster.now)))
    change_node(is_cordoned=True)(cluster)


def delete_share_pod(cluster):
    """The SharePod has a finalizer, and is deleted."""
    found = cluster.share_pods["ns/first"]
    cluster.store(structs.replace(found, pod=structs.replace(found.pod, deleted_at=cluster.now)))
    change_node(is_cordoned=True)(cluster)


CLOSED = {
    "cordoned": (change_node(is_cordoned=True), UnplacedReason.CORDONED),
    "not ready": (change_node(is_ready=False), UnplacedReason.NODE_NOT_READY),
    "tainted": (change_node(taints=TAINT), UnplacedReason.TAINT),
    "without GPUs": (
        change_node(allocatable=NodeAmounts(4000, 16 * GIB, 0, 110)),
        UnplacedReason.NO_GPUS,
    ),
    "of unknown size": (change_node(gpu_bytes={}), UnplacedReason.UNKNOWN_SIZE),
    "without CPU": (fill(cpu_milli=4000), UnplacedReason.CPU),
    "without memory": (fill(memory_bytes=16 * GIB), UnplacedReason.MEMORY),
    "full of pods": (fill(pods=110), UnplacedReason.PODS),
    "gone": (lambda cluster: cluster.remove_node("n1"), None),
    "torn": (tear, UnplacedReason.AFFINITY),
    "without a GPU for its holder": (refuse_holder, UnplacedReason.AFFINITY),
    "of a pod that ends": (end_share_pod, UnplacedReason.CORDONED),
    "of a SharePod that is deleted": (delete_share_pod, UnplacedReason.CORDONED),
}
"""Ways by which the virtual GPU of the label takes no SharePod, with the reason of its node."""


@pytest.mark.parametrize("way", CLOSED)
def test_a_label_whose_virtual_gpu_is_closed_opens_no_other(way):
    close, reason = CLOSED[way]
    cluster, controllers = with_red()
    place = cluster.share_pods["ns/first"].place
    close(cluster)
    cluster.deliver(controllers.state)
    needs = NodeNeeds(NodeAmounts(100, GIB, pods=1))
    unplaced = refusal(controllers, share_pod("second", 200, locality=RED, needs=needs))
    assert isinstance(unplaced, Unplaced)
    assert unplaced.cause == UnplacedReason.AFFINITY
    assert f"virtual GPU {place.gpuid} of node n1" in unplaced.text
    assert unplaced.reasons[UnplacedReason.AFFINITY] >= 1, "n2"
    if reason is not None:
        assert unplaced.reasons[reason] >= 1, "n1"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"node": "n2"}, UnplacedReason.OTHER_NODE),
        ({"needs": NodeNeeds(selector={"zone": "b"})}, UnplacedReason.SELECTOR),
        ({"needs": NodeNeeds(terms=())}, UnplacedReason.SELECTOR),
        ({"milli": 800}, UnplacedReason.AFFINITY),
        ({"gib": 16}, UnplacedReason.AFFINITY),
        ({"locality": labelled(affinity="red", exclusion="blue")}, UnplacedReason.AFFINITY),
    ],
    ids=str,
)
def test_a_share_pod_that_its_labels_virtual_gpu_cannot_take_goes_nowhere_else(fields, reason):
    _, controllers = with_red()
    unplaced = refusal(controllers, share_pod("second", **{"locality": RED, **fields}))
    assert unplaced.cause == UnplacedReason.AFFINITY
    assert unplaced.reasons[reason] >= 1


def test_an_unbound_virtual_gpu_has_its_label_already():
    cluster = ModelCluster(node("n1", 2))
    controllers = Controllers(cluster)
    for name in ("first", "second"):
        cluster.store(share_pod(name, 300, locality=RED))
    cluster.deliver(controllers.state)
    assert [controllers.place(f"ns/{name}") for name in ("first", "second")] == [True, True]
    assert len({each.place for each in cluster.share_pods.values()}) == 1
    assert not cluster.pods, "no holder pod yet"


@pytest.mark.parametrize(("at", "decides"), [("n1", True), (None, True), ("", False)])
def test_a_placed_share_pod_that_cannot_be_read_has_its_label(at, decides):
    cluster = ModelCluster(node("n2"))
    controllers = Controllers(cluster)
    marks = {AFFINITY: "red", GPUID: "abcde"}
    broken = MalformedObject("SharePod", PodRef("u", "ns", "bad"), "wrong", at, marks)
    controllers.state.set_share_pod("ns/bad", broken)
    found = refusal(controllers, share_pod("second", locality=RED))
    assert (getattr(found, "cause", None) == UnplacedReason.AFFINITY) == decides


def scheduled(cluster, name):
    return cluster.share_pods[f"ns/{name}"].condition(ConditionType.SCHEDULED)


@pytest.mark.parametrize("change", [{"is_cordoned": True}, {"is_ready": False}])
def test_it_waits_with_the_reason_and_joins_when_the_node_is_back(change):
    cluster, controllers = with_red()
    usable = cluster.nodes["n1"]
    cluster.set_node(structs.replace(usable, **change))
    cluster.store(share_pod("second", 200, locality=RED))
    settle(cluster, controllers)
    condition = scheduled(cluster, "second")
    assert (condition.status, condition.reason) == ("False", SharePodReason.UNSCHEDULABLE)
    assert "affinity label is on virtual GPU" in condition.message
    cluster.set_node(usable)
    (affected,) = cluster.deliver(controllers.state)
    assert affected.frees, "those that wait are tried again"
    settled(cluster, controllers)
    assert cluster.share_pods["ns/second"].place == cluster.share_pods["ns/first"].place


def test_it_goes_elsewhere_when_the_last_of_its_label_is_gone():
    cluster, controllers = with_red()
    change_node(is_cordoned=True)(cluster)
    cluster.store(share_pod("second", 200, locality=RED))
    settle(cluster, controllers)
    cluster.remove(cluster.share_pods["ns/first"])
    settled(cluster, controllers)
    assert cluster.share_pods["ns/second"].node == "n2"


def test_the_share_pods_of_a_lost_node_go_to_one_virtual_gpu_again():
    cluster, controllers = with_red()
    cluster.store(share_pod("second", 200, locality=RED))
    settled(cluster, controllers)
    cluster.remove_node("n1")
    for pod in list(cluster.pods.values()):
        cluster.remove(pod)
    settled(cluster, controllers)
    assert {each.node for each in cluster.share_pods.values()} == {"n2"}
    require_labels_together(cluster)


@pytest.mark.parametrize("way", ["cordoned", "not ready", "full of pods", "torn"])
def test_release_1_opens_another_virtual_gpu(way):
    """README of release 1: a SharePod goes to one of its label, or to an idle GPU."""
    close, _ = CLOSED[way]
    cluster, controllers = with_red(RELEASE_1)
    close(cluster)
    cluster.deliver(controllers.state)
    choice = refusal(controllers, share_pod("second", 200, locality=RED))
    assert choice.gpuid is None
    assert choice.node == ("n1" if way == "torn" else "n2")


@pytest.mark.parametrize("algorithm", KubeShareAlgorithm)
def test_a_new_label_takes_an_idle_virtual_gpu(algorithm):
    cluster = ModelCluster(node("n1", 1))
    controllers = Controllers(cluster, keep_idle=1, algorithm=algorithm)
    cluster.store(share_pod("first"))
    settled(cluster, controllers)
    cluster.remove(cluster.share_pods["ns/first"])
    settle(cluster, controllers)
    (idle,) = controllers.state.virtual_gpus()
    choice = refusal(controllers, share_pod("second", locality=RED))
    assert VirtualGpuName(choice.node, choice.gpuid) == idle.name


# ---------------------------------------------------------------- the program


def usable_node(name, **spec):
    amounts = {"cpu": "4", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "2"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "annotations": {GPU_INFO: f"GPU-{name}:16384,"}},
        "spec": spec,
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def red_json(name, **spec):
    numbers = {"gpu_request": "0.2", "gpu_limit": "1.0", "gpu_mem": "1", "sched_affinity": "red"}
    annotations = {f"kubeshare/{key}": text for key, text in numbers.items()}
    annotations |= {GPUID: "abcde"} if spec else {}
    made = share_pod_json(name)
    return {
        **made,
        "metadata": {**made["metadata"], "annotations": annotations},
        "spec": {**made["spec"], **spec},
    }


def test_condition_event_and_metric_have_the_affinity():
    nodes = [usable_node("n1", unschedulable=True), usable_node("n2")]
    red = [red_json("first", nodeName="n1"), red_json("second")]
    with serving(*nodes, *red) as (store, client), running(client) as program:

        def condition():
            status = store.get(SHARE_PODS, "ns", "second").get("status") or {}
            return next(iter(status.get("conditions") or ()), {})

        wait_until(lambda: condition().get("reason") == "Unschedulable", "the condition")
        assert "its affinity label is on virtual GPU abcde of node n1" in condition()["message"]
        assert program.view().unplaced == {UnplacedReason.AFFINITY: 1}

        def events():
            listed = store.list(EVENTS).items
            return [each for each in listed if each["reason"] == "FailedScheduling"]

        wait_until(events, "the event")
        store.patch(NODES, "", "n1", {"spec": {"unschedulable": None}})
        wait_until(
            lambda: store.get(SHARE_PODS, "ns", "second")["spec"].get("nodeName") == "n1",
            "it joins when the node is back",
        )
        placed = store.get(SHARE_PODS, "ns", "second")
        assert placed["metadata"]["annotations"][GPUID] == "abcde"
        assert not program.view().unplaced


# ---------------------------------------------------------------- any order

LABELS = ("", "red", "red", "sun")
USABLE = (
    {},
    {},
    {"is_cordoned": True},
    {"is_ready": False},
    {"taints": TAINT},
    {"gpu_bytes": {}},
    {"allocatable": NodeAmounts(4000, 16 * GIB, 2, 3)},
    None,
)
"""Changes of a node; None is that it is gone."""

ACTS = st.tuples(
    st.sampled_from(LABELS),
    st.sampled_from((100, 300, 600)),
    st.sampled_from(("", "", "n1", "n2")),
    st.tuples(st.sampled_from(USABLE), st.sampled_from(USABLE)),
    st.integers(-1, 5),
)


@given(st.lists(ACTS, max_size=12))
def test_no_order_of_changes_puts_a_label_on_two_virtual_gpus(acts):
    """SharePods come and go while nodes close and open; nothing is ever moved."""
    state, nodes = SharePodCluster(), {name: node(name, 2) for name in ("n1", "n2")}
    for number, (label, milli, chosen, changes, leaves) in enumerate(acts):
        for (name, each), change in zip(nodes.items(), changes, strict=True):
            state.set_node(name, None if change is None else structs.replace(each, **change))
        if leaves >= 0 and state.share_pods:
            keys = sorted(state.share_pods)
            state.set_share_pod(keys[leaves % len(keys)], None)
        wish = labelled(affinity=label)
        wanted = share_pod(f"s{number}", milli, node=chosen, locality=wish)
        choice = choose_place(wanted, state.placement_nodes(), PAPER, state.lost_gpus())
        if isinstance(choice, Unplaced):
            continue
        name = place_name(choice, f"gpu{number}")
        pod = structs.replace(wanted.pod, node=name.node)
        state.set_share_pod(wanted.key, structs.replace(wanted, pod=pod, gpuid=name.gpuid))
        places = {}
        for placed in state.share_pods.values():
            places.setdefault(placed.locality.affinity, set()).add(placed.place)
        assert all(len(found) == 1 for label, found in places.items() if label)
