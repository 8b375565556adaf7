"""The victims of a preemption: nobody ends for nothing, and nobody as important as the pod."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from scheduler.cache import SchedulerCache
from tests.scheduler.test_binder_machine import SCHEMES, UNITS, gpushare_node
from tests.scheduler.test_verbs import filler
from vgpu.kube.objects import Container, Pod
from vgpu.model import PodRef
from vgpu.placement.dialects import demand_of

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


@given(filling=FILLING, asked=st.integers(1, UNITS), spared=st.sets(st.integers(0, 5)))
def test_the_victims_are_enough_and_each_is_needed(filling, asked, spared):
    asked_for, filling = filling, []
    for pod in asked_for:
        if room(filling)[pod[0]] >= pod[1]:
            filling.append(pod)
    cache = SchedulerCache(SCHEMES, lambda: 0.0)
    cache.set_node("n", gpushare_node("n", GPUS))
    pods = {}
    for number, (index, size, priority, _) in enumerate(filling):
        pod = filler(f"p{number}", "n", index, size, priority=priority)
        pods[pod.ref.uid] = filling[number]
        cache.set_pod(f"ns/p{number}", pod)
    uids = list(pods)
    chosen = {uid for uid in uids if pods[uid][3] and pods[uid][2] < PRIORITY}
    kept = {uids[number] for number in spared if number < len(uids)} - chosen
    container = Container("main", {"aliyun.com/gpu-mem": asked})
    new = Pod(PodRef("new", "ns", "new"), containers=(container,), priority=PRIORITY)
    found = cache.preempt(*demand_of(new, SCHEMES), "n", chosen, kept)

    def fits(gone):
        return max(room([pods[uid] for uid in uids if uid not in gone])) >= asked

    may_end = {uid for uid in uids if pods[uid][2] < PRIORITY and uid not in kept} - chosen
    assert (found is not None) == fits(chosen | may_end)
    if found is not None:
        added = {pod.ref.uid for pod in found.added}
        assert added <= may_end
        assert fits(chosen | added)
        for fewer in itertools.combinations(added, max(0, len(added) - 1)):
            assert not added or not fits(chosen | set(fewer))
        (allocation,) = found.placement.allocations
        index = int(allocation.shares[0].device)
        free = room([pods[uid] for uid in uids if uid not in chosen | added])
        assert free[index] >= asked
