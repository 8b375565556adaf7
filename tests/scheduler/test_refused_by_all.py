"""A pod that all nodes refuse: the answer is remembered for them together until a node changes."""

import pytest
from msgspec import structs

from tests.scheduler.model_api import gpushare_node
from tests.scheduler.served import Served, filler
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.result import PlacementReason

HELD = {"node-a": 3, "node-b": 4, "node-c": 5}
"""GiB that another pod has of each node's one GPU, which has 8."""


def pod(name):
    container = Container("main", {"aliyun.com/gpu-mem": 6})
    return Pod(PodRef(f"uid-{name}", "ns", name), containers=(container,), phase="Pending")


@pytest.fixture
def served():
    with Served() as served:
        for name, size in HELD.items():
            served.cache.set_node(name, gpushare_node(name, 1))
            served.show(f"filler-{name}", filler(f"filler-{name}", name, 0, size))
        yield served


def refuse(served, name="first"):
    """All nodes refuse a pod."""
    taken, refused = served.filter(pod(name), HELD)
    assert taken == []
    assert set(refused.values()) == {PlacementReason.MEMORY}


def test_each_pod_that_asks_again_gets_the_same_nodes_and_the_same_reasons(served):
    for name in ("first", "second", "second", "third"):
        refuse(served, name)
    (message,) = set(served.events())
    assert message.startswith("3 nodes: ")
    assert "(6.0 GiB requested, the largest free amount is 5.0 GiB)" in message


def test_each_node_has_its_own_cause_however_often_it_is_asked(served):
    served.cache.set_node("node-b", gpushare_node("node-b", 0))
    causes = dict.fromkeys(HELD, PlacementReason.MEMORY) | {"node-b": PlacementReason.NO_GPUS}
    for name in ("first", "second"):
        assert served.filter(pod(name), HELD) == ([], causes)


def test_room_on_any_node_is_found(served):
    for name, size in HELD.items():
        refuse(served, f"before-{name}")
        served.show(f"filler-{name}", None)
        assert served.filter(pod(f"for-{name}"), HELD)[0] == [name]
        served.show(f"for-{name}", None)
        served.show(f"filler-{name}", filler(f"filler-{name}", name, 0, size))


def test_a_node_that_comes_is_asked(served):
    refuse(served)
    served.cache.set_node("node-d", gpushare_node("node-d", 1))
    assert served.filter(pod("second"), [*HELD, "node-d"])[0] == ["node-d"]
    assert served.filter(pod("third"), ["node-d"])[0] == ["node-d"]


def test_a_node_that_no_event_has_shown_is_never_taken(served):
    refuse(served)
    assert served.filter(pod("second"), ["node-a", "node-b", "unknown"])[0] == []
    assert served.filter(pod("second"), [*HELD, "unknown"])[1]["unknown"] is (
        PlacementReason.UNKNOWN_NODE
    )


def test_nodes_that_were_not_offered_before_are_asked(served):
    served.show("filler-node-c", None)
    assert served.filter(pod("first"), ["node-a", "node-b"])[0] == []
    assert served.filter(pod("second"), HELD)[0] == ["node-c"]


def test_a_pod_with_a_reservation_still_fits_where_it_has_it(served):
    served.show("filler-node-c", None)
    bound = served.api.store(pod("first"))
    assert not served.bind(bound.ref, "node-c")
    refuse(served, "second")
    assert served.filter(pod("first"), HELD)[0] == ["node-c"]
    refuse(served, "second")


def test_a_node_whose_status_is_written_again_is_not_read_again(served):
    refuse(served)
    before = served.cache.view("node-a")
    again = structs.replace(served.cache.node("node-a"), resource_version="2")
    served.cache.set_node("node-a", again)
    assert served.cache.view("node-a") is before
    served.cache.set_node("node-a", structs.replace(again, capacity={}, allocatable={}))
    assert served.cache.view("node-a") is not before
