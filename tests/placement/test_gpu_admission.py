"""gpu-admission's predicate: three nodes of two cards with four blocks each, as in its own test."""

import pytest

from vgpu.kube.objects import Container, Node, Pod
from vgpu.model import Phase, PodRef
from vgpu.placement.gpu_admission import predicate
from vgpu.schemes.gaia.codec import Gaia

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
INDEX, NODE = "tencent.com/predicate-gpu-idx-", "tencent.com/predicate-node"
GAIA = Gaia()
NOW = 1_600_000_000.0


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


def promised(one, claim):
    """The pod as it is once the promise was written."""
    devices = {name: gpu for gpu in GAIA.devices(NODES[0]) for name in gpu.names}
    names = [container.name for container in one.containers]
    return changed(one, annotations=GAIA.annotations(claim, devices, names))


def gpus(claim):
    return {
        allocation.container: [share.device for share in allocation.shares]
        for allocation in claim.allocations
    }


FOUR = [
    (pod(0, (10, 1), (10, 1)), "node0", {"c0": ["0"], "c1": ["0"]}),
    (pod(1, (100, 3), (80, 3)), "node1", {"c0": ["0"], "c1": ["1"]}),
    (pod(2, (200, 10), (0, 0)), "node2", {"c0": ["0", "1"]}),
    (pod(3, (10, 2), (0, 0)), "node0", {"c0": ["0"]}),
]


@pytest.mark.parametrize("bound", [True, False])
def test_four_pods_fill_the_nodes_as_in_the_originals_test(bound):
    """E3: counted by the node they are bound to, or, before that, by the promise."""
    there = []
    for one, where, what in FOUR:
        verdict = predicate(one, NODES, there, NOW)
        assert (verdict.nodes, verdict.error) == ((where,), "")
        assert (verdict.claim.node, gpus(verdict.claim)) == (where, what)
        assert verdict.claim.assumed_at == NOW
        assert {allocation.phase for allocation in verdict.claim.allocations} == {Phase.ASSUMED}
        placed = promised(one, verdict.claim)
        assert GAIA.claim(placed) == verdict.claim
        there.append(changed(placed, node=where, phase="Running") if bound else placed)


def test_other_nodes_are_refused_in_the_originals_words():
    nodes = [*NODES, Node("cpu-only"), node("dead", allocatable={CORE: 0})]
    verdict = predicate(pod(0, (10, 1)), nodes, [], NOW)
    elsewhere = "pod uid-0 has already been matched to another node"
    assert verdict.refused == {
        "node1": elsewhere,
        "node2": elsewhere,
        "cpu-only": "no GPU device",
        "dead": "no GPU device",
    }
    verdict = predicate(pod(0, (300, 1)), NODES, [], NOW)
    assert (verdict.nodes, verdict.claim) == ((), None)
    assert set(verdict.refused.values()) == {"pod uid-0 does not match with this node"}


def test_a_pod_that_asks_for_nothing_may_go_anywhere():
    verdict = predicate(pod(0, (0, 0)), NODES, [], NOW)
    assert verdict.nodes == ("node0", "node1", "node2")
    assert (verdict.claim, verdict.refused) == (None, {})


@pytest.mark.parametrize("asked", [(50, 0), (0, 4), (150, 0)])
def test_a_request_that_gaia_would_never_serve_is_refused_with_its_reason(asked):
    verdict = predicate(pod(0, asked), NODES, [], NOW)
    assert verdict.nodes == ()
    assert "container c0" in verdict.error


# ---------------------------------------------------------------- promises made before


def test_a_pod_that_comes_again_gets_the_same_answer():
    one = pod(0, (10, 1), (100, 0))
    first = predicate(one, NODES, [], NOW)
    again = promised(one, first.claim)
    assert predicate(again, NODES, [again], NOW + 60) == first


def test_the_original_refuses_a_pod_that_comes_again():
    one = pod(0, (10, 1))
    again = promised(one, predicate(one, NODES, [], NOW).claim)
    verdict = predicate(again, NODES, [], NOW, once_only=True)
    assert (verdict.nodes, verdict.error) == ((), "pod pod-0 had been predicated!")


def test_a_promise_is_made_anew_when_its_node_is_no_candidate():
    one = pod(0, (10, 1))
    again = promised(one, predicate(one, NODES, [], NOW).claim)
    verdict = predicate(again, NODES[1:], [], NOW + 60)
    assert (verdict.nodes, verdict.claim.assumed_at) == (("node1",), NOW + 60)


@pytest.mark.parametrize(
    "annotations",
    [
        {NODE: "node0", f"{INDEX}0": "7"},
        {NODE: "node0", f"{INDEX}0": "0,1"},
        {NODE: "node0", f"{INDEX}0": "x"},
        {NODE: "node0"},
        {NODE: "node0", f"{INDEX}0": "1"},
        {f"{INDEX}0": "0"},
    ],
)
def test_a_promise_is_made_anew_when_it_cannot_be_kept(annotations):
    tenant = pod(1, (95, 1), node="node0", phase="Running", annotations={f"{INDEX}0": "1"})
    again = pod(0, (10, 1), annotations=annotations)
    verdict = predicate(again, NODES, [tenant], NOW)
    assert (verdict.nodes, gpus(verdict.claim)) == (("node0",), {"c0": ["0"]})
    assert verdict.claim.assumed_at == NOW


# ---------------------------------------------------------------- who counts


def test_only_pods_that_hold_devices_count():
    taken = {f"{INDEX}0": "0,1"}
    ended = [
        pod(1, (200, 0), node="node0", phase="Succeeded", annotations=taken),
        pod(2, (200, 0), node="node0", phase="Failed", annotations=taken),
        pod(3, (200, 0), annotations=taken | {NODE: "node0"}, deleted_at=NOW),
    ]
    assert predicate(pod(0, (200, 0)), NODES[:1], ended, NOW).nodes == ("node0",)
    running = pod(4, (100, 0), node="node0", phase="Running", annotations={f"{INDEX}0": "1"})
    assert predicate(pod(0, (200, 0)), NODES[:1], [running], NOW).nodes == ()


def test_a_bound_pod_counts_where_it_is_and_not_where_it_was_promised():
    moved = pod(1, (200, 0), node="node1", annotations={f"{INDEX}0": "0,1", NODE: "node0"})
    assert predicate(pod(0, (200, 0)), NODES[:2], [moved], NOW).nodes == ("node0",)


def test_a_node_is_not_used_while_the_claim_of_a_pod_there_cannot_be_read():
    riddle = pod(1, (50, 1), node="node0", phase="Running", annotations={f"{INDEX}0": "zero"})
    verdict = predicate(pod(0, (10, 1)), NODES, [riddle], NOW)
    assert verdict.nodes == ("node1",)
    assert "zero" in verdict.refused["node0"]
    assert "test-ns/pod-1" in verdict.refused["node0"]


def test_the_fullest_node_that_fits_comes_first_and_equal_ones_by_name():
    tenant = pod(1, (50, 2), node="node2", phase="Running", annotations={f"{INDEX}0": "1"})
    backwards = NODES[::-1]
    assert predicate(pod(0, (50, 2)), backwards, [tenant], NOW).nodes == ("node2",)
    assert gpus(predicate(pod(0, (50, 2)), backwards, [tenant], NOW).claim) == {"c0": ["1"]}
    assert predicate(pod(0, (200, 0)), backwards, [tenant], NOW).nodes == ("node0",)
