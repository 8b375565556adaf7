"""The served answers against the placement itself, on generated clusters of every system (I13)."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduler.node_cache import PodPlacement
from scheduler.promise import promise_annotations
from scheduler.read_once import ReadObjects, filled_cache
from scheduler.simulation import SchedulingSimulation
from tests.scheduler.test_promise import NODES, SCHEMES
from tests.scheduler.test_verbs import FILTER, NOW, Served
from vgpu.commands.fit_answer import answer as fit
from vgpu.kube.kinds import PODS
from vgpu.kube.objects import Container, Pod
from vgpu.model import PodRef
from vgpu.placement.dialects import demand_of
from vgpu.placement.node_view import node_view
from vgpu.placement.result import Placement

NAMES = ("n1", "n2", "n3")
QUARTERS = st.integers(1, 4)
"""Of a GPU of 16 GiB."""


def limits(system, quarters, count):
    """What a container requests of so many GPUs, where the system has several a container."""
    return {
        "gpushare": {"aliyun.com/gpu-mem": 4 * quarters},
        "gaia": {"tencent.com/vcuda-core": 25 * quarters, "tencent.com/vcuda-memory": 16 * quarters}
        if quarters < 4
        else {"tencent.com/vcuda-core": 100 * count},
        "hami": {"nvidia.com/gpu": count, "nvidia.com/gpumem": 4096 * quarters},
        "volcano": {
            "volcano.sh/vgpu-number": count,
            "volcano.sh/vgpu-memory": 4096 * quarters,
            "volcano.sh/vgpu-cores": 25 * quarters,
        },
    }[system]


def filled(node, scheme, fillers):
    """The node's pods: as many of these as the placement takes, one after another."""
    pods = []
    for number, (quarters, count) in enumerate(fillers):
        container = Container("main", limits(scheme.row.name, quarters, count))
        ref = PodRef(f"uid-{node.name}-{number}", "ns", f"{node.name}-{number}")
        pod = Pod(ref, containers=(container,), phase="Running")
        placed = scheme.dialect.choose(demand_of(pod, SCHEMES)[1], seen(node, scheme, pods))
        if isinstance(placed, Placement):
            devices = {name: gpu.device for gpu in placed.gpus for name in gpu.device.names}
            placement = PodPlacement(scheme, node.name, placed.allocations, devices)
            annotations = promise_annotations(pod, placement, NOW)
            pods.append(structs.replace(pod, node=node.name, annotations=annotations))
    return pods


def seen(node, scheme, pods):
    return node_view(node, scheme, pods, (), (), now=NOW).candidate


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(NODES))
@given(data=st.data())
def test_filter_and_bind_answer_as_the_placement_does(system, data):
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == system)
    fillers = st.lists(st.tuples(QUARTERS, st.integers(1, 2)), max_size=5)
    nodes = {name: structs.replace(NODES[system], name=name) for name in NAMES}
    pods = {name: filled(node, scheme, data.draw(fillers)) for name, node in nodes.items()}
    wanted = json.loads(FILTER)
    asked = limits(system, data.draw(QUARTERS), data.draw(st.integers(1, 3)))
    texts = {name: str(amount) for name, amount in asked.items()}
    wanted["Pod"]["spec"]["containers"][0]["resources"] = {"limits": texts}
    wanted["NodeNames"] = list(NAMES)
    pod = PODS.one(json.dumps(wanted["Pod"]).encode())
    demand = demand_of(pod, SCHEMES)[1]
    placements = {
        name: scheme.dialect.choose(demand, seen(node, scheme, pods[name]))
        for name, node in nodes.items()
    }
    fitting = [name for name in NAMES if isinstance(placements[name], Placement)]
    served = Served()
    try:
        for name, node in nodes.items():
            served.cache.set_node(name, node)
            for each in pods[name]:
                served.cache.set_pod(f"ns/{each.ref.name}", each)
        body = json.dumps(wanted).encode()
        answer = served.post("/filter", body)
        assert answer["NodeNames"] == fitting
        refused = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
        assert refused == {
            name: placements[name].cause.explanation for name in NAMES if name not in fitting
        }
        scores = {row["Host"]: row["Score"] for row in served.post("/prioritize", body)}
        candidates = {name: seen(nodes[name], scheme, pods[name]) for name in NAMES}
        assert scores == {name: scheme.dialect.score(demand, candidates[name]) for name in NAMES}
        if fitting:
            node = data.draw(st.sampled_from(fitting))
            served.api.store(pod)
            ref = pod.ref
            binding = {
                "PodName": ref.name,
                "PodNamespace": ref.namespace,
                "PodUID": ref.uid,
                "Node": node,
            }
            assert served.post("/bind", json.dumps(binding).encode()) == {"Error": ""}
            bound = served.api.pods[ref.name]
            written = scheme.codec.claim(bound).allocations
            assert shares(written) == shares(placements[node].allocations)
    finally:
        served.server.stop()


def shares(allocations):
    return {each.container: each.shares for each in allocations}


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(NODES))
@given(data=st.data())
def test_as_many_pods_are_bound_as_fit_reports(system, data):
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == system)
    fillers = st.lists(st.tuples(QUARTERS, st.integers(1, 2)), max_size=5)
    nodes = {name: structs.replace(NODES[system], name=name, ready=True) for name in NAMES[:2]}
    held = {name: filled(node, scheme, data.draw(fillers)) for name, node in nodes.items()}
    asked = limits(system, data.draw(QUARTERS), data.draw(st.integers(1, 2)))
    pod = Pod(PodRef("uid", "ns", "new"), containers=(Container("main", asked),))
    read = ReadObjects(NOW, nodes.values(), [pod for pods in held.values() for pod in pods])
    fits = fit(simulated(read, tuple(nodes)), demand_of(pod, SCHEMES))
    served = Served()
    try:
        for name, node in nodes.items():
            served.cache.set_node(name, node)
            for each in held[name]:
                served.cache.set_pod(f"ns/{each.ref.name}", each)
        bound = bound_until_rejected(served, asked, tuple(nodes))
        assert sum(bound.values()) == fits.pods
        assert bound == {node.node: node.pods for node in fits.nodes}
        placed = fit(simulated(read, tuple(nodes)), demand_of(pod, SCHEMES), 100)
        assert {node.node: node.pods for node in placed.nodes} == bound
        assert placed.pods == fits.pods
    finally:
        served.server.stop()


def simulated(read, names):
    return SchedulingSimulation(filled_cache(SCHEMES, read), names)


def bound_until_rejected(served, asked, names):
    """The number of pods that are bound on each node until one is rejected."""
    bound = Counter()
    for number in range(200):
        node = bound_to(served, f"new-{number}", asked, names)
        if not node:
            return bound
        bound[node] += 1
    raise AssertionError("no pod was rejected")


def bound_to(served, name, asked, names):
    """The node that a new pod is bound to over HTTP, "" if it is rejected."""
    document = json.loads(FILTER)
    metadata = document["Pod"]["metadata"]
    metadata |= {"name": name, "namespace": "ns", "uid": f"uid-{name}"}
    texts = {name: str(amount) for name, amount in asked.items()}
    document["Pod"]["spec"]["containers"][0]["resources"] = {"limits": texts}
    document["NodeNames"] = list(names)
    body = json.dumps(document).encode()
    if not served.post("/filter", body)["NodeNames"]:
        return ""
    scores = served.post("/prioritize", body)
    node = max(scores, key=lambda row: row["Score"])["Host"]
    served.api.store(PODS.one(json.dumps(document["Pod"]).encode()))
    binding = {
        "PodName": name,
        "PodNamespace": "ns",
        "PodUID": metadata["uid"],
        "Node": node,
    }
    assert served.post("/bind", json.dumps(binding).encode()) == {"Error": ""}
    return node
