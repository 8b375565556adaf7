"""The served answers against the placement itself, on generated clusters of every system (I13)."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduler.cluster.reservations import PodPlacement, reservation_annotations
from tests.scheduler.generated import (
    POLICIES,
    PREEMPTOR,
    PRIORITIES,
    SCHEMES_OF,
    ModelNode,
    preempted,
    promised,
    scaled,
    states,
    wishes,
)
from tests.scheduler.served import NOW, Served, read
from tests.scheduler.test_promise import NODES, SCHEMES
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.dialects import demand_of
from vgpu.placement.node_view import node_view
from vgpu.placement.pods_without_gpu import UNKNOWN_GPU_SECONDS
from vgpu.placement.result import Placement
from vgpucli.fit.answer import answer as fit
from vgpucli.prediction import ReadObjects, SchedulingSimulation, filled_cache

NAMES = ("n1", "n2", "n3")
QUARTERS = st.integers(1, 4)
"""Of a GPU of 16 GiB."""

FILLERS = st.lists(st.tuples(QUARTERS, st.integers(1, 2)), max_size=5)


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


def filled(node, scheme, fillers, unhealthy=""):
    """The node's pods: as many of these as the placement takes, one after another."""
    pods = []
    for number, (quarters, count) in enumerate(fillers):
        container = Container("main", limits(scheme.row.name, quarters, count))
        ref = PodRef(f"uid-{node.name}-{number}", "ns", f"{node.name}-{number}")
        pod = Pod(ref, containers=(container,), phase="Running")
        placed = scheme.dialect.choose(
            demand_of(pod, SCHEMES)[1], seen(node, scheme, pods, unhealthy)
        )
        if isinstance(placed, Placement):
            devices = {name: gpu.device for gpu in placed.gpus for name in gpu.device.names}
            placement = PodPlacement(scheme, node.name, placed.allocations, devices)
            annotations = reservation_annotations(pod, placement, NOW)
            pods.append(structs.replace(pod, node=node.name, annotations=annotations))
    return pods


def seen(node, scheme, pods, unhealthy=""):
    return node_view(node, scheme, pods, (), (), now=NOW, unhealthy=unhealthy).candidate


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(NODES))
@given(data=st.data())
def test_filter_and_bind_answer_as_the_placement_does(system, data):
    policies = data.draw(st.sampled_from(POLICIES))
    (scheme,) = (each for each in SCHEMES_OF[policies] if each.row.name == system)
    model = {name: drawn_node(data, name, scheme) for name in NAMES}
    asked = limits(system, data.draw(QUARTERS), data.draw(st.integers(1, 3)))
    pod = read(
        new_pod(
            "new",
            asked,
            annotations=data.draw(wishes(system)),
            priority=data.draw(PRIORITIES),
        )
    )
    _, demand = demand_of(pod, SCHEMES)
    with Served(policies=policies) as served:
        for name, node in model.items():
            served.cache.set_node(name, node.node)
        served.cache.set_unhealthy(
            {f"unhealthy-gpu-{name}": node.unhealthy for name, node in model.items()}
        )
        for bound in itertools.chain(*(node.bound.values() for node in model.values())):
            served.show(bound.ref.name, bound)
        keep_for_others(data, served, model, scheme)
        placements = {name: node.place(scheme, demand, NOW) for name, node in model.items()}
        fitting = [name for name in NAMES if isinstance(placements[name], Placement)]
        taken, refused = served.filter(pod, NAMES)
        assert taken == fitting
        assert refused == {name: placements[name] for name in NAMES if name not in fitting}
        answers = [model[name].answer(scheme, demand, NOW) for name in NAMES]
        assert list(served.scores(pod, NAMES).values()) == scaled(answers)
        if fitting:
            node = data.draw(st.sampled_from(fitting))
            assert not served.bind(served.api.store(pod).ref, node)
            written = scheme.codec.claim(served.api.pods[pod.ref.name]).allocations
            placed = placements[node]
            assert shares(written, placed.gpus) == shares(placed.allocations, placed.gpus)


def drawn_node(data, name, scheme):
    """A node in any state, and its bound pods."""
    node, unhealthy = data.draw(states(scheme.row.name))
    fillers = data.draw(FILLERS)
    if node is None:
        return ModelNode()
    node = structs.replace(node, name=name)
    bound = filled(node, scheme, fillers, unhealthy)
    return ModelNode(node, unhealthy, {pod.ref.name: pod for pod in bound})


def keep_for_others(data, served, model, scheme):
    """On one node something may be kept for another pod: by a preemption, or by a promise."""
    system, name = scheme.row.name, data.draw(st.sampled_from(NAMES))
    kind = data.draw(st.sampled_from(("nothing", "held", "promised")))
    pod = new_pod("other", limits(system, data.draw(QUARTERS), 1), priority=PREEMPTOR)
    if kind == "held":
        preempted(served, model, scheme, pod, name, [*model[name].bound])
    elif kind == "promised":
        age = data.draw(st.sampled_from((0.0, UNKNOWN_GPU_SECONDS)))
        promised(served, model, system, pod, name, NOW - age)


def show(served, nodes, pods):
    """The events of these objects."""
    for name, node in nodes.items():
        served.cache.set_node(name, node)
    for pod in pods:
        served.show(pod.ref.name, pod)


def new_pod(name, asked, **fields):
    container = Container("main", asked)
    ref = PodRef(f"uid-{name}", "ns", name)
    return Pod(ref, containers=(container,), phase="Pending", **fields)


def shares(allocations, gpus):
    """By container, with the GPUs by their first name: gpu-manager's annotations have another."""
    named = {name: gpu.device.name for gpu in gpus for name in gpu.device.names}
    return {
        each.container: [
            structs.replace(share, device=named.get(share.device, share.device))
            for share in each.shares
        ]
        for each in allocations
    }


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(NODES))
@given(data=st.data())
def test_as_many_pods_are_bound_as_fit_reports(system, data):
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == system)
    nodes = {name: structs.replace(NODES[system], name=name, ready=True) for name in NAMES[:2]}
    held = {name: filled(node, scheme, data.draw(FILLERS)) for name, node in nodes.items()}
    asked = limits(system, data.draw(QUARTERS), data.draw(st.integers(1, 2)))
    pods = list(itertools.chain(*held.values()))
    demanded = demand_of(new_pod("new", asked), SCHEMES)
    objects = ReadObjects(NOW, nodes.values(), pods)
    fits = fit(simulated(objects, tuple(nodes)), demanded)
    with Served() as served:
        show(served, nodes, pods)
        bound = bound_until_rejected(served, asked, tuple(nodes))
        assert sum(bound.values()) == fits.pods
        assert bound == {node.node: node.pods for node in fits.nodes}
        placed = fit(simulated(objects, tuple(nodes)), demanded, 100)
        assert {node.node: node.pods for node in placed.nodes} == bound
        assert placed.pods == fits.pods


def simulated(objects, names):
    return SchedulingSimulation(filled_cache(SCHEMES, objects), names)


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
    pod = new_pod(name, asked)
    if not served.filter(pod, names)[0]:
        return ""
    scores = served.scores(pod, names)
    node = max(scores, key=scores.get)
    assert not served.bind(served.api.store(pod).ref, node)
    return node
