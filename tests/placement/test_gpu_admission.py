"""gpu-admission's predicate: three nodes of two GPUs with four blocks each, as in its own test."""

import pytest

from vgpu.model.allocation import Claim
from vgpu.model.names import Phase, PodRef, Scheme
from vgpu.model.objects import Container, Node, Pod, holds_devices
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.node_view import node_view
from vgpu.placement.result import Placement, PlacementReason, PlacementRefusal
from vgpu.schemes.gaia.codec import Gaia

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
INDEX, NODE = "tencent.com/predicate-gpu-idx-", "tencent.com/predicate-node"
GAIA = Gaia()
NOW = 1_600_000_000.0
(SCHEME,) = (one for one in scheduler_schemes({}) if one.row.name == "gaia")


def node(name, cores=200, blocks=8, **fields):
    return Node(name, capacity={CORE: cores, MEMORY: blocks}, **fields)


NODES = [node("node0"), node("node1"), node("node2")]


def pod(number, *asked, **fields):
    containers = tuple(
        Container(f"c{at}", {CORE: cores, MEMORY: blocks})
        for at, (cores, blocks) in enumerate(asked)
    )
    ref = PodRef(f"uid-{number}", "test-ns", f"pod-{number}")
    return Pod(ref, containers=containers, **{"phase": "Pending"} | fields)


def changed(one, **fields):
    return Pod(**{name: getattr(one, name) for name in one.__struct_fields__} | fields)


def view(node, pods=()):
    """The node as a scheduler sees it beside these pods, bound to any node."""
    bound = [one for one in pods if one.node == node.name and holds_devices(one)]
    return node_view(node, SCHEME, bound, (), (), now=NOW)


def answers(one, nodes, pods=()):
    """What the predicate makes of each node."""
    _, demand = demand_of(one, [SCHEME])
    return {each.name: SCHEME.dialect.choose(demand, view(each, pods).candidate) for each in nodes}


def best(one, nodes, pods=()):
    """The fullest node that takes the pod, of equals the first by name; and the GPUs there."""
    _, demand = demand_of(one, [SCHEME])
    fitting = {
        name: answer
        for name, answer in answers(one, nodes, pods).items()
        if isinstance(answer, Placement)
    }
    candidates = {each.name: view(each, pods).candidate for each in nodes}
    by_score = sorted(
        fitting, key=lambda name: (-SCHEME.dialect.score(demand, candidates[name]), name)
    )
    return (by_score[0], gpus(fitting[by_score[0]])) if by_score else (None, None)


def placed(one, node, result):
    """The pod once it is bound with the annotations of its placement."""
    claim = Claim(Scheme.GAIA, one.ref, node, result.allocations, assumed_at=NOW)
    devices = {name: gpu for gpu in GAIA.devices(NODES[0]) for name in gpu.names}
    names = [container.name for container in one.containers]
    bound = changed(
        one, annotations=GAIA.annotations(claim, devices, names), node=node, phase="Running"
    )
    named = {name: gpu.name for name, gpu in devices.items()}
    assert [
        (each.container, [named[share.device] for share in each.shares])
        for each in GAIA.claim(bound).allocations
    ] == [(each.container, [share.device for share in each.shares]) for each in result.allocations]
    return bound


def gpus(placement):
    return {
        allocation.container: [share.device for share in allocation.shares]
        for allocation in placement.allocations
    }


FOUR = [
    (pod(0, (10, 1), (10, 1)), "node0", {"c0": ["0"], "c1": ["0"]}),
    (pod(1, (100, 3), (80, 3)), "node1", {"c0": ["0"], "c1": ["1"]}),
    (pod(2, (200, 10), (0, 0)), "node2", {"c0": ["0", "1"]}),
    (pod(3, (10, 2), (0, 0)), "node0", {"c0": ["0"]}),
]


def test_four_pods_fill_the_nodes_as_in_the_originals_test():
    """E3: counted by the node they are bound to."""
    there = []
    for one, where, what in FOUR:
        assert best(one, NODES[::-1], there) == (where, what)
        result = answers(one, NODES, there)[where]
        assert {allocation.phase for allocation in result.allocations} == {Phase.ASSUMED}
        there.append(placed(one, where, result))


def test_other_nodes_are_refused_in_the_originals_words():
    nodes = [*NODES, Node("cpu-only"), node("dead", allocatable={CORE: 0})]
    refused = answers(pod(0, (10, 1)), nodes)
    assert refused["cpu-only"].message == "no GPU device"
    assert refused["dead"].cause is PlacementReason.UNHEALTHY
    assert {type(refused[name]) for name in ("node0", "node1", "node2")} == {Placement}
    for answer in answers(pod(0, (300, 1)), NODES).values():
        assert answer.message == "pod uid-0 does not match with this node"


def test_a_share_and_a_whole_gpu_beside_it_need_two_gpus():
    """50+60 cores with a block each on two GPUs; 100 and 10 on a node of one GPU."""
    assert best(pod(0, (50, 1), (60, 1)), NODES[:1]) == ("node0", {"c0": ["0"], "c1": ["1"]})
    one_gpu = node("node0", cores=100, blocks=4)
    refused = answers(pod(0, (100, 0), (10, 1)), [one_gpu])["node0"]
    assert (refused.container, refused.cause) == ("c1", PlacementReason.CORES)


@pytest.mark.parametrize("asked", [(50, 0), (0, 4), (150, 0)])
def test_a_request_that_gpu_manager_would_never_serve_is_refused_with_its_reason(asked):
    refused = demand_of(pod(0, asked), [SCHEME])
    assert isinstance(refused, PlacementRefusal)
    assert refused.reason is PlacementReason.MALFORMED_REQUEST
    assert "container c0" in refused.message


def test_a_reservation_that_is_on_the_pod_already_changes_nothing():
    one = pod(0, (10, 1), annotations={NODE: "node2", f"{INDEX}0": "1"})
    assert best(one, NODES) == ("node0", {"c0": ["0"]})


# ---------------------------------------------------------------- who counts


def test_only_pods_that_hold_devices_count():
    taken = {f"{INDEX}0": "0,1"}
    ended = [
        pod(1, (200, 0), node="node0", phase="Succeeded", annotations=taken),
        pod(2, (200, 0), node="node0", phase="Failed", annotations=taken),
        pod(3, (200, 0), annotations=taken | {NODE: "node0"}, deleted_at=NOW),
    ]
    assert best(pod(0, (200, 0)), NODES[:1], ended)[0] == "node0"
    running = pod(4, (100, 0), node="node0", phase="Running", annotations={f"{INDEX}0": "1"})
    assert best(pod(0, (200, 0)), NODES[:1], [running])[0] is None


def test_a_bound_pod_counts_on_its_node_and_not_where_it_was_reserved():
    moved = pod(1, (200, 0), node="node1", annotations={f"{INDEX}0": "0,1", NODE: "node0"})
    assert best(pod(0, (200, 0)), NODES[:2], [moved])[0] == "node0"


def test_a_pod_whose_claim_cannot_be_read_takes_its_request_off_what_is_free():
    riddle = pod(1, (50, 1), node="node0", phase="Running", annotations={f"{INDEX}0": "zero"})
    seen = view(NODES[0], [riddle])
    assert (seen.reason, seen.standing_reason) == (None, PlacementReason.POD_WITHOUT_GPU)
    assert "test-ns/pod-1" in seen.detail
    assert {gpu.free_milli for gpu in seen.candidate.gpus} == {500}
    assert best(pod(0, (200, 0)), NODES, [riddle])[0] == "node1"


def test_the_fullest_node_that_fits_comes_first_and_equal_ones_by_name():
    tenant = pod(1, (50, 2), node="node2", phase="Running", annotations={f"{INDEX}0": "1"})
    backwards = NODES[::-1]
    assert best(pod(0, (50, 2)), backwards, [tenant]) == ("node2", {"c0": ["1"]})
    assert best(pod(0, (200, 0)), backwards, [tenant])[0] == "node0"
