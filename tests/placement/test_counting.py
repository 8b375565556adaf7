"""How many pods a node takes: counted by GPU, and one after another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.scheduler.test_differential import QUARTERS, filled, limits, seen
from tests.scheduler.test_promise import NODES, SCHEMES
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.candidate import CandidateNode
from vgpu.placement.dialects import PlacementPolicies, demand_of, scheduler_schemes
from vgpu.placement.pod_count import PodCounter, count_pods

MOST = 100


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@pytest.mark.parametrize("system", sorted(NODES))
@given(
    fillers=st.lists(st.tuples(QUARTERS, st.integers(1, 2)), max_size=5),
    quarters=QUARTERS,
    gpus=st.integers(1, 2),
    unhealthy=st.booleans(),
)
def test_equal_gpus_are_counted_once_and_all_pods_are_counted(
    system, policy, fillers, quarters, gpus, unhealthy
):
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == system)
    node = NODES[system]
    candidate = seen(node, scheme, filled(node, scheme, fillers))
    if unhealthy:
        first, *others = candidate.gpus
        device = structs.replace(first.device, healthy=False)
        candidate = structs.replace(
            candidate, gpus=(structs.replace(first, device=device), *others)
        )
    schemes = scheduler_schemes({}, PlacementPolicies(policy, policy))
    pod = Pod(
        PodRef("u", "ns", "p"), containers=(Container("main", limits(system, quarters, gpus)),)
    )
    placing, demand = demand_of(pod, schemes)
    counter = PodCounter(placing.dialect, demand, MOST)
    for node_again in (candidate, structs.replace(candidate, name="n2")):
        counted = counter.count(node_again)
        one_by_one = count_pods(placing.dialect, demand, node_again, MOST)
        assert counted == one_by_one
        assert counter.first(node_again, 2) == count_pods(placing.dialect, demand, node_again, 2)


def test_the_count_ends_at_its_maximum():
    scheme, demand = demand_of(
        Pod(PodRef("u", "ns", "p"), containers=(Container("main", {"aliyun.com/gpu-mem": 1}),)),
        SCHEMES,
    )
    gpus = seen(NODES["gpushare"], scheme, []).gpus
    counted = count_pods(scheme.dialect, demand, CandidateNode("n1", gpus), 3)
    assert (counted.pods, sum(counted.shares), counted.refusal) == (3, 3, None)
