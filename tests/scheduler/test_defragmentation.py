"""The defragmentation plan: enough, allowed, and never worse than the best of a single node."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduler.cluster.reservations import PodPlacement
from tests.scheduler.served import NOW, Served
from tests.scheduler.test_differential import (
    bound_to,
    filled,
    limits,
    show,
)
from tests.scheduler.test_promise import NODES, SCHEMES
from vgpu.kube.disruption import DisruptionBudget, Requirement
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, OwnerReference, Pod
from vgpu.placement.dialects import demand_of
from vgpucli.fit.defragmentation import defragment
from vgpucli.fit.model import Budgets
from vgpucli.prediction import ReadObjects, SchedulingSimulation, filled_cache

NAMES = ("n1", "n2", "n3")
"""Of two GPUs each."""

PRIORITY = 5
"""Of the wanted pods."""

FILLERS = st.lists(st.tuples(st.integers(1, 3), st.just(1)), min_size=2, max_size=4)
MARKS = st.tuples(
    st.sampled_from((0, 0, 0, PRIORITY, PRIORITY, 9)),
    st.sampled_from((*("ReplicaSet",) * 4, "StatefulSet", "Job")),
    st.sampled_from(("", "", "", "web", "web", "db")),
)
"""A pod's priority, the kind of its owner, and its label ``app``."""

BUDGETS = (
    DisruptionBudget("ns", "web", 1, (Requirement("app", "In", frozenset({"web"})),)),
    DisruptionBudget("ns", "db", 0, (Requirement("app", "In", frozenset({"db"})),)),
)


def marked(pod, priority, kind, app):
    group = "batch/v1" if kind == "Job" else "apps/v1"
    owner = OwnerReference(kind, "owner", "owner-uid", group)
    return structs.replace(pod, priority=priority, owner=owner, labels={"app": app} if app else {})


@st.composite
def clusters(draw, system):
    """Nodes, their pods, what a wanted pod requests, and how many are wanted."""
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == system)
    names = NAMES[: draw(st.integers(1, 3))]
    nodes = {name: structs.replace(NODES[system], name=name, ready=True) for name in names}
    pods = []
    for node in nodes.values():
        pods += (marked(pod, *draw(MARKS)) for pod in filled(node, scheme, draw(FILLERS)))
    requested = limits(system, draw(st.integers(3, 4)), draw(st.integers(1, 2)))
    return nodes, pods, requested, draw(st.integers(1, 3))


def wanted_pod(requested):
    container = Container("main", requested)
    return Pod(PodRef("uid", "ns", "new"), containers=(container,), priority=PRIORITY)


def simulated(nodes, pods):
    return SchedulingSimulation(
        filled_cache(SCHEMES, ReadObjects(NOW, nodes.values(), pods)), tuple(nodes)
    )


def planned(nodes, pods, requested, number):
    budgets = Budgets(BUDGETS, {pod.ref.uid: pod.labels for pod in pods})
    demanded = demand_of(wanted_pod(requested), SCHEMES)
    return defragment(simulated(nodes, pods), demanded, number, pods, budgets)


def unplaced_without(nodes, pods, evicted, requested, number):
    """The evicted pods without another place; None if the wanted pods do not fit."""
    staying = [pod for pod in pods if pod not in evicted]
    simulation = simulated(nodes, staying)
    scheme, demand = demand_of(wanted_pod(requested), SCHEMES)
    for each in range(number):
        ref = PodRef(f"new-{each}", "ns", f"new-{each}")
        if not isinstance(simulation.place(scheme, structs.replace(demand, pod=ref)), PodPlacement):
            return None
    order = sorted(evicted, key=lambda pod: (-pod.priority, pod.created_at or 0.0, pod.ref))
    return [
        pod
        for pod in order
        if not isinstance(simulation.place(*simulation.replacement(pod)), PodPlacement)
    ]


def is_allowed(evicted):
    apps = [pod.labels.get("app") for pod in evicted]
    return (
        all(pod.owner.kind != "Job" and pod.priority <= PRIORITY for pod in evicted)
        and apps.count("web") <= 1
        and "db" not in apps
    )


def best_of_one_node(nodes, pods, requested, number):
    """The fewest pods without another place, and then evictions, of any set of one node's pods."""
    best = None
    for name in nodes:
        own = [pod for pod in pods if pod.node == name]
        for size in range(len(own) + 1):
            for evicted in itertools.combinations(own, size):
                if not is_allowed(evicted):
                    continue
                unplaced = unplaced_without(nodes, pods, evicted, requested, number)
                if unplaced is None or any(pod.priority >= PRIORITY for pod in unplaced):
                    continue
                cost = len(unplaced), size
                best = cost if best is None else min(best, cost)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("system", ["gpushare", "volcano"])
@given(data=st.data())
def test_a_plan_is_never_worse_than_the_best_of_one_node(system, data):
    nodes, pods, requested, number = data.draw(clusters(system))
    plan = planned(nodes, pods, requested, number)
    best = best_of_one_node(nodes, pods, requested, number)
    if not plan.fits:
        assert best is None
        return
    evicted = [each.pod for each in plan.evictions]
    assert is_allowed(evicted)
    unplaced = unplaced_without(nodes, pods, evicted, requested, number)
    assert unplaced is not None
    assert {pod.ref for pod in unplaced} == {
        each.pod.ref for each in plan.evictions if not each.replacement.target
    }
    assert all(pod.priority < PRIORITY for pod in unplaced)
    assert best is None or (len(unplaced), len(evicted)) <= best


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(NODES))
@given(data=st.data())
def test_after_the_planned_evictions_the_extender_binds_the_wanted_pods(system, data):
    nodes, pods, requested, number = data.draw(clusters(system))
    plan = planned(nodes, pods, requested, number)
    evicted = {each.pod.ref.uid for each in plan.evictions}
    with Served() as served:
        show(served, nodes, pods)
        for pod in pods:
            if pod.ref.uid in evicted:
                served.show(pod.ref.name, None)
        bound = [bound_to(served, f"new-{each}", requested, nodes) for each in range(number)]
        assert all(bound) == plan.fits
        assert not plan.fits or Counter(bound) == {node.node: node.pods for node in plan.nodes}
        targets = {each.pod.ref.uid: each.replacement.target for each in plan.evictions}
        for pod in sorted(pods, key=lambda pod: (-pod.priority, pod.ref)):
            if pod.ref.uid in evicted:
                (container,) = pod.containers
                name = f"{pod.ref.name}-again"
                target = bound_to(served, name, container.limits, nodes)
                assert target == targets[pod.ref.uid]
