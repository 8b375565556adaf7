"""gpu-manager's evaluators, on the six GPUs of its own tests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.topologies import ONE, TOPO6, tree_of
from vgpu.model.allocation import Request, Share
from vgpu.model.names import DEVICE_NODE, device_node
from vgpu.model.topology import LinkLevel, TopologyGpu, grow
from vgpu.model.units import GAIA_MEMORY_BLOCK
from vgpu.placement.gaia import (
    GaiaRules,
    allocate,
    choose,
    fragment,
    least_free,
    link,
    share,
)
from vgpu.placement.result import PlacementReason, PlacementRefusal

SIX = tree_of(TOPO6)
SHARING = GaiaRules(share_mode=True)
DERIVING = GaiaRules(share_mode=True, derive_again=True)


def whole(index):
    return Share(device_node(index), None, 1000)


def part(index, cores, blocks=1):
    return Share(device_node(index), blocks * GAIA_MEMORY_BLOCK, 10 * cores)


def asking(cores, blocks=1):
    """The request for so many cores, as the language makes it."""
    if cores >= 100:
        return Request("main", cores // 100, cores_milli=1000)
    return Request("main", 1, blocks * GAIA_MEMORY_BLOCK, cores_milli=10 * cores)


def indices(gpus):
    return [gpu.index for gpu in gpus]


# ---------------------------------------------------------------- the evaluators


def test_link_takes_the_nearest_group_that_is_large_enough():
    """T1: three GPUs of the four below one host bridge."""
    assert indices(link(SIX, 3)) == [0, 1, 2]


def test_link_prefers_a_pair_that_is_still_together():
    """T2: GPU 2 is taken."""
    assert indices(link(SIX.holding([whole(2)]), 2)) == [0, 1]


def test_link_prefers_the_nearer_of_two_groups_with_as_many_free_gpus():
    """GPUs 1 and 3 are below one host bridge, 4 and 5 below one switch."""
    assert indices(link(SIX.holding([whole(0), whole(2)]), 2)) == [4, 5]


def test_link_takes_gpus_of_all_corners_where_no_group_is_large_enough():
    assert indices(link(SIX, 5)) == [0, 1, 2, 3, 4]
    assert link(SIX.holding([whole(0)]), 6) == ()


def test_link_prefers_among_equally_near_groups_the_idle_and_then_the_first():
    busy = tree_of(TOPO6, {0: ((9,), 0)})
    assert indices(link(busy, 2)) == [2, 3]
    assert indices(link(SIX, 2)) == [0, 1]


def test_fragment_takes_the_corner_with_the_fewest_gpus_that_are_enough():
    """T3: the pair of GPUs 4 and 5; with 4 taken, GPU 5."""
    assert indices(fragment(SIX, 2)) == [4, 5]
    assert indices(fragment(SIX.holding([whole(4)]), 1)) == [5]


def test_fragment_on_a_single_gpu():
    """T3."""
    assert indices(fragment(tree_of(ONE), 1)) == [0]
    assert fragment(tree_of(ONE).holding([whole(0)]), 1) == ()


def test_share_takes_the_gpu_with_the_least_that_is_enough():
    """T4: 50 fit on GPU 0; then 60 no longer do."""
    assert indices(share(SIX.gpus, 500, 0)) == [0]
    half = SIX.holding([part(0, 50)])
    assert indices(share(half.gpus, 600, 0)) == [1]
    assert indices(share(half.gpus, 500, 0)) == [0]


def test_share_needs_the_memory_too():
    tight = SIX.holding([part(0, 10, blocks=3)])
    assert indices(share(tight.gpus, 100, GAIA_MEMORY_BLOCK)) == [0]
    assert indices(share(tight.gpus, 100, 2 * GAIA_MEMORY_BLOCK)) == [1]
    assert share(SIX.gpus, 100, 2**31) == ()


def test_memory_is_compared_in_blocks():
    """T5: GPU 5 is taken; the others have 1024, 1023, … bytes, all less than a block."""
    gpus = [TopologyGpu(index, index, memory_bytes=1024 - index) for index in range(6)]
    tree = grow(gpus, lambda *_: LinkLevel.PIX).holding([whole(5)])
    assert indices(least_free(tree.gpus)) == [5, 0, 1, 2, 3, 4]


def test_a_gpu_with_fewer_processes_comes_first():
    gpus = [TopologyGpu(0, 0, pids=(1, 2)), TopologyGpu(1, 1, pids=(3,))]
    assert indices(least_free(gpus)) == [1, 0]


def test_three_gpus_are_placed_like_any_number():
    """A node of three GPUs has confused schedulers: a pair below a switch, and one alone."""
    levels = {(0, 1): LinkLevel.SYS, (0, 2): LinkLevel.SYS, (1, 2): LinkLevel.PIX}
    three = grow(
        [TopologyGpu(at, at, memory_bytes=2**30) for at in range(3)], lambda *at: levels[at]
    )
    assert indices(link(three, 2)) == [1, 2]
    assert indices(link(three, 3)) == [0, 1, 2]
    # The original goes into inner nodes only: it breaks the pair and leaves the single GPU.
    assert indices(fragment(three, 1)) == [1]
    assert indices(fragment(three.holding([whole(1), whole(2)]), 1)) == [0]


TAKEN = st.lists(
    st.builds(part, st.integers(0, 5), st.integers(1, 99)) | st.builds(whole, st.integers(0, 5)),
    max_size=6,
)


@given(TAKEN, st.integers(1, 7))
def test_free_gpus_are_found_whenever_there_are_enough(taken, count):
    tree = SIX.holding(taken)
    available = tree.available(tree.root)
    for evaluate in (link, fragment):
        chosen = evaluate(tree, count)
        assert len(chosen) == (count if len(available) >= count else 0)
        assert set(chosen) <= set(available)


@given(TAKEN, st.integers(1, 99), st.integers(1, 5))
def test_a_part_goes_where_it_fits_or_nowhere(taken, cores, blocks):
    gpus = SIX.holding(taken).gpus
    memory = blocks * GAIA_MEMORY_BLOCK
    enough = [c for c in gpus if c.free_milli >= 10 * cores and c.free_bytes >= memory]
    chosen = share(gpus, 10 * cores, memory)
    assert bool(chosen) == bool(enough)
    assert all(chosen[0].free_milli <= gpu.free_milli for gpu in enough)


# ---------------------------------------------------------------- allocations


class Node:
    """A node of six GPUs that serves pods one after another."""

    def __init__(self, rules=SHARING):
        self.rules, self.held = rules, {}

    def serve(self, pod, *cores, predicates=None):
        """The GPUs of each container of the pod."""
        chosen = []
        for number, asked in enumerate(cores):
            container = (pod, f"c{number}")
            predicate = predicates[number] if predicates else None
            shares = allocate(
                SIX, self.held, container, asking(asked), rules=self.rules, predicate=predicate
            )
            self.held[container] = shares
            chosen.append([int(one.device.removeprefix(DEVICE_NODE)) for one in shares])
        return chosen

    def delete(self, pod):
        self.held = {key: shares for key, shares in self.held.items() if key[0] != pod}

    @property
    def tree(self):
        return SIX.holding(one for shares in self.held.values() for one in shares)


@pytest.mark.parametrize("predicated", [False, True])
@pytest.mark.parametrize("rules", [SHARING, DERIVING])
def test_pods_come_and_go_until_all_six_gpus_are_full(rules, predicated):
    """T7, without gpu-admission and with its choices, honoured and derived again."""
    node = Node(rules)

    def serve(pod, *served):
        cores = [asked for asked, _ in served]
        predicates = [gpus for _, gpus in served] if predicated else None
        assert node.serve(pod, *cores, predicates=predicates) == [gpus for _, gpus in served]

    serve("pod-1", (300, [0, 1, 2]))
    serve("pod-2", (100, [3]), (100, [4]))
    serve("pod-3", (100, [5]))
    node.delete("pod-2")
    serve("pod-4", (50, [3]))
    serve("pod-5", (60, [4]))
    serve("pod-6", (50, [3]))
    node.delete("pod-5")
    serve("pod-7", (100, [4]))
    assert [gpu.free_milli for gpu in node.tree.gpus] == [0] * 6


def test_a_container_that_asks_again_gets_the_same_and_takes_nothing_more():
    """T10."""
    node = Node()
    first = node.serve("pod-1", 600)
    before = node.tree
    assert node.serve("pod-1", 600) == first == [[0, 1, 2, 3, 4, 5]]
    assert node.tree == before


def test_a_reservation_is_kept_while_it_is_legal():
    """T9: the original would choose GPU 0 and refuse the pod."""
    chosen = choose(SIX, asking(5, 3), SHARING, predicate=[5])
    assert indices(chosen) == [5]
    assert indices(choose(SIX, asking(200), SHARING, predicate=[1, 4])) == [1, 4]


def test_the_originals_mismatch_is_there_on_demand():
    """T9, GM#18."""
    refused = choose(SIX, asking(5, 3), DERIVING, predicate=[5])
    assert refused == PlacementRefusal(
        PlacementReason.RESERVATION_DIFFERS,
        "Nvidia node mismatch, pick up:/dev/nvidia0  predicate: /dev/nvidia5",
    )
    assert indices(choose(SIX, asking(200), DERIVING, predicate=[1, 4])) == [0, 1]


@pytest.mark.parametrize(
    ("cores", "predicate"),
    [(5, [9]), (5, []), (5, [0, 1]), (60, [0]), (100, [0]), (200, [1]), (200, [1, 1])],
)
def test_an_illegal_reservation_is_refused(cores, predicate):
    refused = choose(SIX.holding([part(0, 50)]), asking(cores), SHARING, predicate)
    assert refused.reason is PlacementReason.RESERVATION_ILLEGAL


@pytest.mark.parametrize(
    ("request_", "rules", "words"),
    [
        (asking(700), SHARING, "no free node"),
        (asking(100, 0), SHARING, "no free node"),
        (asking(90), SHARING, "no free node"),
        (asking(10, 5), SHARING, "request memory 1342177280 is larger than 1073741824"),
        (asking(10), GaiaRules(), "share mode is not enabled"),
        (asking(10, 0), SHARING, "that cores or memory is zero is not permitted in share mode"),
        (asking(0), SHARING, "that cores or memory is zero is not permitted in share mode"),
    ],
)
def test_what_cannot_be_served_is_refused_in_the_originals_words(request_, rules, words):
    full = SIX.holding([part(index, 20) for index in range(6)])
    assert choose(full, request_, rules).message == words


def test_whole_gpus_need_no_share_mode():
    assert indices(choose(SIX, asking(100), GaiaRules())) == [4]
