"""What HAMi's pods request in annotations: never placed against it."""

import json
from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.registers import HAMI as HAMI_REGISTER
from tests.support.registers import hami_gpu
from vgpu.model.allocation import Share
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.placement.candidate import with_shares
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.hami import MOST_COMBINATIONS, best_connected
from vgpu.placement.node_view import node_view
from vgpu.placement.result import Placement, PlacementReason

SCHEMES = scheduler_schemes({})
(HAMI,) = (scheme for scheme in SCHEMES if scheme.row.name == "hami")
POLICY, BIND = "hami.io/gpu-scheduler-policy", "nvidia.com/numa-bind"


def node(numas, modes=(), scores=""):
    """A node with a GPU of 16 GiB on each of these NUMA nodes; the first ones have ``modes``.

    ``scores`` is HAMi's annotation of how they are connected.
    """
    gpus = [
        hami_gpu(
            f"GPU-{number}",
            number,
            numa=numa,
            mode=modes[number] if number < len(modes) else "hami-core",
        )
        for number, numa in enumerate(numas)
    ]
    annotations = {HAMI_REGISTER: json.dumps(gpus)}
    return Node("n1", annotations=annotations | {"hami.io/node-nvidia-score": scores})


def chosen(gpus_of, used, count, **annotations):
    """The result for a container of 8 GiB a GPU; ``used`` is GiB by GPU, of several shares a
    tuple.
    """
    view = node_view(gpus_of, HAMI, (), (), (), now=0.0)
    shares = [
        Share(f"GPU-{number}", gib << 30, 0)
        for number, sizes in enumerate(used)
        for gib in (sizes if isinstance(sizes, tuple) else (sizes,))
        if gib
    ]
    candidate = view.candidate
    candidate = structs.replace(candidate, gpus=with_shares(candidate.gpus, shares))
    container = Container("main", {"nvidia.com/gpu": count, "nvidia.com/gpumem": 8192})
    pod = Pod(PodRef("u", "ns", "p"), containers=(container,), annotations=annotations)
    _, demand = demand_of(pod, SCHEMES)
    return HAMI.dialect.choose(demand, candidate)


def names(placement):
    return sorted(share.device for each in placement.allocations for share in each.shares)


@pytest.mark.parametrize("policy", ["mutex", "mutex,binpack", " binpack , mutex "])
def test_mutex_takes_idle_gpus_only(policy):
    assert names(chosen(node([0, 0]), [1, 0], 1, **{POLICY: policy})) == ["GPU-1"]
    refused = chosen(node([0, 0]), [1, 1], 1, **{POLICY: policy})
    assert refused.cause is PlacementReason.EXCLUSIVE


@pytest.mark.parametrize(
    ("policy", "device"),
    [
        ("binpack", "GPU-0"),
        ("binpack,spread", "GPU-0"),
        ("numa,binpack", "GPU-0"),
        ("spread", "GPU-1"),
        ("topology-aware", "GPU-1"),  # the cluster's is spread
        ("unknown", "GPU-1"),
    ],
)
def test_the_first_policy_of_a_list_that_orders_gpus_is_the_order(policy, device):
    assert names(chosen(node([0, 0]), [1, 0], 1, **{POLICY: policy})) == [device]


@given(
    gpus=st.lists(st.tuples(st.integers(0, 2), st.sampled_from((0, 4, 12))), max_size=6),
    count=st.integers(1, 3),
    policy=st.sampled_from(("", "binpack", "mutex")),
)
def test_a_bound_container_has_its_gpus_of_one_numa_node_wherever_enough_fit(gpus, count, policy):
    numas, used = [numa for numa, _ in gpus], [gib for _, gib in gpus]
    result = chosen(node(numas), used, count, **{BIND: "true", POLICY: policy})
    fitting = [numa for numa, gib in gpus if (gib == 0 if policy == "mutex" else gib <= 8)]
    is_possible = any(fitting.count(numa) >= count for numa in set(fitting))
    assert isinstance(result, Placement) == is_possible
    if is_possible:
        taken = [int(name.removeprefix("GPU-")) for name in names(result)]
        assert len(set(taken)) == count
        assert len({numas[number] for number in taken}) == 1
        assert all(used[number] <= 8 for number in taken)
    elif len(fitting) >= count:
        assert result.cause is PlacementReason.NUMA


@given(
    gpus=st.lists(st.tuples(st.integers(0, 2), st.sampled_from((0, 4, 12))), max_size=6),
    count=st.integers(1, 3),
    policy=st.sampled_from(("numa", "numa,binpack", "spread, numa")),
)
def test_a_preferred_numa_node_orders_the_gpus_and_excludes_none(gpus, count, policy):
    numas, used = [numa for numa, _ in gpus], [gib for _, gib in gpus]
    result = chosen(node(numas), used, count, **{POLICY: policy})
    fitting = [number for number, gib in enumerate(used) if gib <= 8]
    assert isinstance(result, Placement) == (len(fitting) >= count)
    if isinstance(result, Placement):
        taken = {int(name.removeprefix("GPU-")) for name in names(result)}
        key = {
            "numa": lambda number: (numas[number],),
            "numa,binpack": lambda number: (numas[number], used[number]),
            "spread, numa": lambda number: (-used[number], numas[number]),
        }[policy]
        left = set(fitting) - taken
        assert all(key(one) >= key(other) for one in taken for other in left)


@pytest.mark.parametrize(
    ("weights", "device"),
    [
        ("", "GPU-0"),
        ("slot=1,core=1,memory=3", "GPU-0"),
        ("slot=1, core=1, memory=0", "GPU-1"),
        ("slot=0,core=0,memory=0", "GPU-0"),
        ("slot=1,core=1", "GPU-0"),
        ("slot=1,core=1,memory=-1", "GPU-0"),
        ("slot=1,core=1,memory=0,more=1", "GPU-0"),
    ],
)
def test_a_pod_weighs_what_is_in_use_of_a_gpu(weights, device):
    """GPU 0 has 8 GiB in use by one share, GPU 1 has two shares of 1 GiB."""
    wishes = {POLICY: "binpack", "hami.io/device-scoring-weights": weights}
    assert names(chosen(node([0, 0]), [8, (1, 1)], 1, **wishes)) == [device]


def scored(number_of, scores):
    """HAMi's annotation with the scores of the pairs of so many GPUs."""
    pairs = dict(zip(combinations(range(number_of), 2), scores, strict=False))
    return {
        f"GPU-{one}": {
            f"GPU-{other}": pairs.get((min(one, other), max(one, other)), 0)
            for other in range(number_of)
            if other != one
        }
        for one in range(number_of)
    }


@given(
    used=st.lists(st.sampled_from((0, 4, 12)), max_size=6),
    count=st.integers(1, 4),
    scores=st.lists(st.integers(0, 5), min_size=15, max_size=15),
)
def test_a_container_has_the_best_connected_of_the_gpus_that_fit(used, count, scores):
    links = scored(len(used), scores)
    annotation = json.dumps([{"uuid": name, "score": score} for name, score in links.items()])
    gpus_of = node([0] * len(used), scores=annotation)
    result = chosen(gpus_of, used, count, **{POLICY: "topology-aware"})
    fitting = [f"GPU-{number}" for number, gib in enumerate(used) if gib <= 8]
    assert isinstance(result, Placement) == (len(fitting) >= count)
    if not isinstance(result, Placement):
        return

    def total(gpus):
        return sum(links[one][other] for one, other in combinations(sorted(gpus), 2))

    def misses(gpu):
        return sum(links[gpu][other] for other in fitting if other != gpu)

    taken = names(result)
    assert len(set(taken)) == count
    if count == 1:
        assert misses(taken[0]) == min(map(misses, fitting))
    else:
        assert total(taken) == max(map(total, combinations(fitting, count)))


def test_of_too_many_combinations_those_of_one_island_are_found():
    """Two islands of twelve GPUs, in which each is connected to each."""
    gpus = [f"GPU-{number}" for number in range(24)]
    links = {
        one: {
            other: 100 if index % 2 == place % 2 else 10
            for place, other in enumerate(gpus)
            if other != one
        }
        for index, one in enumerate(gpus)
    }
    assert comb(24, 12) > MOST_COMBINATIONS
    island = best_connected(gpus, 12, links)
    assert len({position % 2 for position in island}) == 1
    assert len(set(island)) == 12


def test_a_node_with_too_many_gpus_costs_no_more_than_one_with_many():
    gpus = [f"GPU-{number}" for number in range(100_000)]
    links = {"GPU-5": {"GPU-7": 3}}
    assert best_connected(gpus, 2, links) == (5, 7)
    assert best_connected(gpus, 70, links) == tuple(range(70))


@pytest.mark.parametrize("scores", ["", "{", "[1]", '[{"uuid":"GPU-0","score":{"GPU-1":"x"}}]'])
def test_scores_that_cannot_be_read_prefer_no_gpu_and_refuse_no_pod(scores):
    result = chosen(node([0, 0], scores=scores), [1, 0], 1, **{POLICY: "topology-aware"})
    assert isinstance(result, Placement)


def test_a_gpu_in_mig_mode_takes_no_pod_and_the_others_of_its_node_do():
    assert not isinstance(chosen(node([0, 0], ["mig"]), [0, 9], 1), Placement)
    assert names(chosen(node([0, 0], ["mig"]), [0, 1], 1)) == ["GPU-1"]
    refused = chosen(node([0, 0], ["mig", "mig"]), [0, 0], 1)
    assert refused.cause is PlacementReason.MIG_GEOMETRY
    assert "reserves no MIG instances" in refused.cause.explanation


@pytest.mark.parametrize(
    ("mode", "device"), [("hami-core", "GPU-1"), ("hami-core,mig", "GPU-1"), ("mig", None)]
)
def test_a_mode_that_the_pod_requests_is_that_of_the_gpu(mode, device):
    result = chosen(node([0, 0], ["mig"]), [0, 0], 1, **{"nvidia.com/vgpu-mode": mode})
    if device is None:
        assert {reason for _, reason in result.skipped} == {
            PlacementReason.SHARING_MODE,
            PlacementReason.MIG_GEOMETRY,
        }
    else:
        assert names(result) == [device]
