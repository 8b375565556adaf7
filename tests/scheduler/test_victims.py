"""The victims of a preemption: nobody ends for nothing, and nobody as important as the pod."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.model_api import UNITS, gpushare_node
from tests.scheduler.served import Served, filler
from vgpu.kube.disruption import DisruptionBudget, Requirement
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod

GPUS = 3
PRIORITY = 5

FILLING = st.lists(
    st.tuples(st.integers(0, GPUS - 1), st.integers(1, UNITS), st.integers(0, 8), st.booleans()),
    max_size=6,
)
"""Pods: GPU, units, priority, and whether kube-scheduler chose the pod."""


def room(pods):
    """The free units of each GPU beside these pods."""
    free = [UNITS] * GPUS
    for index, size, *_ in pods:
        free[index] -= size
    return free


def budgets(kept):
    """Disruption budgets by which these pods must not end, and the labels that they go by."""
    app = Requirement("app", "In", frozenset({"kept"}))
    return (
        lambda _: [DisruptionBudget("ns", "kept", 0, (app,))] if kept else [],
        lambda _, name: (f"uid-{name}", {"app": "kept"} if f"uid-{name}" in kept else {}),
    )


@given(filling=FILLING, asked=st.integers(1, UNITS), spared=st.sets(st.integers(0, 5)))
def test_the_victims_are_enough_and_each_is_needed(filling, asked, spared):
    asked_for, filling = filling, []
    for pod in asked_for:
        if room(filling)[pod[0]] >= pod[1]:
            filling.append(pod)
    pods = {f"uid-p{number}": pod for number, pod in enumerate(filling)}
    uids = list(pods)
    chosen = {uid for uid in uids if pods[uid][3] and pods[uid][2] < PRIORITY}
    kept = {uids[number] for number in spared if number < len(uids)} - chosen
    container = Container("main", {"aliyun.com/gpu-mem": asked})
    new = Pod(PodRef("new", "ns", "new"), containers=(container,), priority=PRIORITY)
    with Served() as served:
        served.api.budgets, served.api.pod_labels = budgets(kept)
        served.cache.set_node("n", gpushare_node("n", GPUS))
        for number, (index, size, priority, _) in enumerate(filling):
            served.show(f"p{number}", filler(f"p{number}", "n", index, size, priority=priority))
        answer = served.preempt(new, {"n": sorted(chosen)})

    def fits(gone):
        return max(room([pods[uid] for uid in uids if uid not in gone])) >= asked

    may_end = {uid for uid in uids if pods[uid][2] < PRIORITY and uid not in kept} - chosen
    assert bool(answer) == fits(chosen | may_end)
    if answer:
        victims = set(answer["n"])
        assert chosen <= victims
        added = victims - chosen
        assert added <= may_end
        assert fits(victims)
        for fewer in itertools.combinations(added, max(0, len(added) - 1)):
            assert not added or not fits(chosen | set(fewer))
