"""What is remembered of rejected pods: whom a changed node wakes; and the memory is bounded."""

import pytest

from scheduler.cluster.demands import DemandShape
from scheduler.filter import rejected_pods as module
from scheduler.filter.rejected_pods import RejectedPods
from vgpu.model.allocation import Request
from vgpu.model.names import PodRef
from vgpu.placement.candidate import PodDemand

REQUESTS = (Request("main", 1),)
SHAPE = DemandShape(0, "hami", REQUESTS)


@pytest.fixture
def pods():
    return RejectedPods()


def reject(pods, name, nodes, now=0.0, **fields):
    demand = PodDemand(PodRef(f"uid-{name}", "ns", name), REQUESTS)
    pods.reject(demand, SHAPE, nodes, now, **fields)


def woken(pods, node):
    return {each.pod.name for each in pods.take(node, lambda _shape, _demand, most: most)}


def test_a_node_wakes_the_pods_that_it_refused_and_no_others(pods):
    reject(pods, "a", ("n1", "n2"))
    reject(pods, "b", ("n2", "n3"))
    assert woken(pods, "n1") == {"a"}
    assert woken(pods, "n2") == {"b"}
    assert (len(pods), pods.names) == (0, 0)


def test_nodes_that_were_offered_before_wake_the_pod_as_well(pods):
    reject(pods, "a", ("n1", "n2"), 1.0)
    reject(pods, "a", ("n3",), 5.0)
    known = pods.get("uid-a")
    assert (known.since, known.rejections, known.offered) == (1.0, 2, 1)
    assert woken(pods, "n1") == {"a"}


def test_a_woken_pod_begins_with_the_nodes_of_its_next_rejection(pods):
    reject(pods, "a", ("n1", "n2"))
    assert woken(pods, "n1") == {"a"}
    reject(pods, "a", ("n2",))
    assert woken(pods, "n1") == set()


def test_a_pod_that_every_node_refused_is_woken_by_any_node_and_keeps_no_names(pods):
    reject(pods, "a", ("n1", "n2"), 1.0)
    for moment in (2.0, 3.0):
        reject(pods, "a", ("n1", "n2", "n3"), moment, everywhere=True)
    known = pods.get("uid-a")
    assert (known.since, known.rejections, known.offered) == (1.0, 3, 3)
    assert (pods.names, len(pods)) == (0, 1)
    assert woken(pods, "n4") == {"a"}
    assert len(pods) == 0


def test_equal_sets_of_nodes_are_kept_once(pods):
    names = [f"n{number}" for number in range(100)]
    for number in range(50):
        reject(pods, f"p{number}", ["".join(name) for name in names])
    assert pods.names == 100
    for number in range(50):
        pods.discard(f"uid-p{number}")
    assert pods.names == 0


def test_beyond_the_maximum_of_names_any_node_wakes_a_pod_and_none_is_missed(pods, monkeypatch):
    monkeypatch.setattr(module, "MOST_NAMES", 3)
    reject(pods, "a", ("n1", "n2"))
    reject(pods, "b", ("n3", "n4"))
    assert (pods.names, pods.get("uid-b").nodes) == (2, None)
    assert woken(pods, "n9") == {"b"}
    assert woken(pods, "n1") == {"a"}
    reject(pods, "b", ("n3", "n4"))
    assert pods.get("uid-b").nodes == {"n3", "n4"}, "there is room again"
