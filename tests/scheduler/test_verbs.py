"""The verbs over HTTP, with kube-scheduler's recorded requests and with those of nobody."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.routes import MOST_QUERY
from tests.scheduler.model_api import gpushare_node
from tests.scheduler.served import BIND, FILTER, NOW, WHOLE_NODES, Served, filler
from tests.support.web_helpers import exchange, status_of
from vgpu.kube.kinds import PODS
from vgpu.model.objects import Node
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.node_view import node_view
from vgpu.placement.result import Placement, PlacementReason

SCHEMES = scheduler_schemes({})


@pytest.fixture
def served():
    with Served() as served:
        yield served


def test_a_recorded_filter_is_answered_with_exactly_the_types_of_the_protocol(served):
    served.cache.set_node("gpushare-a", gpushare_node("gpushare-a", 1))
    answer = served.post("/filter", FILTER)
    assert answer == {
        "Nodes": None,
        "NodeNames": ["gpushare-a"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"gpushare-b": PlacementReason.UNKNOWN_NODE.explanation},
        "Error": "",
    }
    assert served.post("/prioritize", FILTER) == [
        {"Host": "gpushare-a", "Score": 10},
        {"Host": "gpushare-b", "Score": 0},
    ]


def test_whole_nodes_come_back_as_they_were_sent(served):
    for name in ("gpushare-a", "gpushare-b"):
        served.cache.set_node(name, gpushare_node(name, 2))
    answer = served.post("/gpushare-scheduler/filter", WHOLE_NODES)
    sent = json.loads(WHOLE_NODES)["Nodes"]["items"]
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == sent
    assert sorted(node["metadata"]["name"] for node in sent) == ["gpushare-a", "gpushare-b"]


def test_a_recorded_bind_writes_the_reservation_and_is_idempotent(served):
    served.cache.set_node("gpushare-a", gpushare_node("gpushare-a", 1))
    pod = PODS.one(json.dumps(json.loads(FILTER)["Pod"]).encode())
    served.api.store(pod)
    for _ in range(2):
        assert served.post("/bind", BIND) == {"Error": ""}
    bound = served.api.pods["train"]
    assert bound.node == "gpushare-a"
    assert bound.annotations["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert bound.annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"


def test_a_cache_that_cannot_be_used_answers_nothing(served):
    served.cache.set_node("gpushare-a", gpushare_node("gpushare-a", 2))
    served.program.problem = "the last event is old"
    assert "the last event is old" in served.post("/filter", FILTER)["Error"]
    assert "the last event is old" in served.post("/bind", BIND)["Error"]
    assert {row["Score"] for row in served.post("/prioritize", FILTER)} == {0}


def test_whole_nodes_beyond_the_maximum_are_refused_with_a_reason_that_is_read(served):
    """kube-scheduler reads no answer but one of status 200."""
    for path, has_error in (("/filter", True), ("/prioritize", False), ("/preempt", False)):
        length = b"Content-Length: %d" % (MOST_QUERY + 1)
        head = (b"POST " + path.encode() + b" HTTP/1.1", b"Host: a", length, b"", b"{")
        answer = exchange(served.server.addresses[0], b"\r\n".join(head))
        assert status_of(answer) == 200
        body = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert ("nodeCacheCapable: true" in str(body)) == has_error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"Pod":null,"NodeNames":["a"]}',
        b'{"Pod":{"metadata":{"name":1}},"NodeNames":["a"]}',
        b'{"Pod":{"metadata":{"name":"a","uid":"u"}}}',
        b'{"Pod":' + b'{"a":' * 2000 + b"1" + b"}" * 2000 + b',"NodeNames":[]}',
        b'{"PodName":"a"}',
    ],
)
def test_a_malformed_request_is_an_error_in_the_answer(served, body):
    assert served.post("/filter", body)["Error"]
    assert served.post("/bind", body)["Error"]
    assert served.post("/prioritize", body) == []


# ---------------------------------------------------------------- differential: I13

SIZES = st.lists(st.integers(0, 8), min_size=1, max_size=4)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    nodes=st.lists(st.tuples(SIZES, st.booleans()), min_size=1, max_size=4),
    asked=st.integers(1, 9),
)
def test_the_answer_is_that_of_the_placement_on_each_node(served, nodes, asked):
    """Clusters of gpushare: pods fill each GPU up to a size; some nodes are of another system."""
    names = [f"n{number}" for number in range(len(nodes))]
    pods = {}
    objects = {}
    for name, (sizes, is_other) in zip(names, nodes, strict=True):
        node = gpushare_node(name, len(sizes))
        if is_other:
            node = Node(name, capacity={"tencent.com/vcuda-core": 100})
        objects[name] = node
        served.cache.set_node(name, node)
        for index, size in enumerate(sizes if not is_other else ()):
            key = f"{name}-{index}"
            pods[key] = filler(key, name, index, size) if size else None
            served.cache.set_pod(f"ns/{key}", pods[key])
    wanted = json.loads(FILTER)
    limits = {"aliyun.com/gpu-mem": str(asked)}
    wanted["Pod"]["spec"]["containers"][0]["resources"] = {"limits": limits}
    wanted["NodeNames"] = names
    answer = served.post("/filter", json.dumps(wanted).encode())
    scheme, demand = demand_of(PODS.one(json.dumps(wanted["Pod"]).encode()), SCHEMES)
    fitting = []
    for name in names:
        here = [pod for pod in pods.values() if pod and pod.node == name]
        view = node_view(objects[name], scheme, here, (), (), now=NOW)
        is_gpushare = scheme.row.has_devices(objects[name])
        if is_gpushare and isinstance(scheme.dialect.choose(demand, view.candidate), Placement):
            fitting.append(name)
    assert answer["NodeNames"] == fitting
    refused = {*answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]}
    assert refused == set(names) - set(fitting)
    for key in pods:
        served.cache.set_pod(f"ns/{key}", None)
    for name in names:
        served.cache.set_node(name, None)
