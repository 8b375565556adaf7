"""What HAMi's pods request in annotations: never placed against it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.kube.objects import Container, Node, Pod
from vgpu.model import PodRef, Share
from vgpu.placement.candidate import with_shares
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.node_view import node_view
from vgpu.placement.result import Placement, PlacementReason

SCHEMES = scheduler_schemes({})
(HAMI,) = (scheme for scheme in SCHEMES if scheme.row.name == "hami")
POLICY, BIND = "hami.io/gpu-scheduler-policy", "nvidia.com/numa-bind"


def node(numas, mode="hami-core"):
    """A node with a GPU of 16 GiB on each of these NUMA nodes."""
    gpus = [
        {
            "id": f"GPU-{number}",
            "count": 10,
            "devmem": 16384,
            "devcore": 100,
            "type": "NVIDIA-T4",
            "mode": mode,
            "numa": numa,
            "health": True,
            "index": number,
        }
        for number, numa in enumerate(numas)
    ]
    return Node("n1", annotations={"hami.io/node-nvidia-register": json.dumps(gpus)})


def chosen(gpus_of, used, count, **annotations):
    """The result for a container of 8 GiB a GPU; ``used`` is GiB by GPU."""
    view = node_view(gpus_of, HAMI, (), (), (), now=0.0)
    shares = [Share(f"GPU-{number}", gib << 30, 0) for number, gib in enumerate(used) if gib]
    candidate = view.candidate
    candidate = type(candidate)(candidate.name, with_shares(candidate.gpus, shares), candidate.mode)
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


def test_gpus_in_mig_mode_take_no_pod_while_their_geometry_is_unknown():
    refused = chosen(node([0, 0], mode="mig"), [0, 0], 1)
    assert refused.cause is PlacementReason.MIG_GEOMETRY
