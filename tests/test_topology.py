"""The tree of a node's GPUs: read from nvidia-smi's matrix, what is taken of it, its drawing."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.topologies import ONE, TOPO6, WHOLE, tree_of
from vgpu.model.allocation import Share
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.topology import (
    LinkLevel,
    TopologyGpu,
    TopologyNode,
    draw,
    grow,
    holding,
    parse_matrix,
)

GIB = 2**30


def free(tree):
    return [gpu.index for gpu in tree.available(tree.root)]


# ---------------------------------------------------------------- T6: what is available


@pytest.mark.parametrize(("matrix", "count"), [(TOPO6, 6), (ONE, 1)])
def test_a_gpu_of_which_any_part_is_taken_is_not_available(matrix, count):
    """T6: 6, or 1 with a single GPU; one less with half or all of a GPU; then all again."""
    tree = tree_of(matrix)
    assert free(tree) == list(range(count))
    for share in (Share("/dev/nvidia0", 2**28, 500), Share("/dev/nvidia0", None, 1000)):
        assert free(tree.holding([share])) == list(range(1, count))
    assert free(tree) == list(range(count))


def test_half_a_gpu_leaves_half_and_a_whole_one_nothing():
    gpus = holding([TopologyGpu(0, 0, memory_bytes=GIB), TopologyGpu(1, 1, memory_bytes=GIB)], [])
    half, whole = holding(gpus, [Share("/dev/nvidia0", 2**28, 500), Share("/dev/nvidia1", 5, 1000)])
    assert (half.free_milli, half.free_bytes) == (500, GIB - 2**28)
    assert (whole.free_milli, whole.free_bytes) == (0, 0)


def test_what_a_share_does_not_limit_it_takes_whole():
    gpus = [TopologyGpu(0, 0, memory_bytes=GIB)]
    assert holding(gpus, [Share("/dev/nvidia0", 2**28, None)])[0].free_milli == 0
    assert holding(gpus, [Share("/dev/nvidia0", 2**28, None)])[0].free_bytes == GIB - 2**28
    assert holding(gpus, [Share("/dev/nvidia0", None, 10)])[0].free_bytes == 0


def test_more_than_a_gpu_has_leaves_nothing_and_never_less():
    gpu = holding([TopologyGpu(0, 0, memory_bytes=GIB)], [Share("/dev/nvidia0", GIB, 800)] * 2)[0]
    assert (gpu.free_milli, gpu.free_bytes) == (0, 0)


def test_a_share_names_its_gpu_by_uuid_or_by_the_number_of_its_device_node():
    gpus = [TopologyGpu(0, 7, uuid="GPU-a", memory_bytes=GIB), TopologyGpu(1, 0, memory_bytes=GIB)]
    named = holding(
        gpus, [Share("GPU-a", 1, 100), Share("/dev/nvidia7", 1, 100), Share("/dev/nvidia0", 1, 300)]
    )
    assert [gpu.held_milli for gpu in named] == [200, 300]


def test_shares_of_other_devices_change_nothing():
    gpus = (TopologyGpu(0, 0),)
    assert holding(gpus, [Share("/dev/nvidia1"), Share(""), Share("GPU-x")]) == gpus


# ---------------------------------------------------------------- the tree


def test_the_six_gpus_are_joined_by_pairs_by_four_and_all():
    leaves = [TopologyNode(LinkLevel.GPU, (at,)) for at in range(6)]
    pairs = [
        TopologyNode(LinkLevel.PIX, (at, at + 1), tuple(leaves[at : at + 2])) for at in (0, 2, 4)
    ]
    four = TopologyNode(LinkLevel.PHB, (0, 1, 2, 3), (pairs[0], pairs[1]))
    top = TopologyNode(LinkLevel.CPU, (0, 1, 2, 3, 4, 5), (four, pairs[2]))
    assert tree_of(TOPO6).root == TopologyNode(LinkLevel.ROOT, (0, 1, 2, 3, 4, 5), (top,))


def test_a_single_gpu_hangs_from_the_root_and_no_gpu_is_an_empty_tree():
    assert tree_of(ONE).root == TopologyNode(
        LinkLevel.ROOT, (0,), (TopologyNode(LinkLevel.GPU, (0,)),)
    )
    assert draw(grow([], lambda *_: LinkLevel.PIX)) == "ROOT:0\n"


def test_three_gpus_make_a_tree_of_a_pair_and_one():
    levels = {(0, 1): LinkLevel.SYS, (0, 2): LinkLevel.PIX, (1, 2): LinkLevel.SYS}
    tree = grow([TopologyGpu(at, at) for at in range(3)], lambda *pair: levels[pair])
    leaves = [TopologyNode(LinkLevel.GPU, (at,)) for at in range(3)]
    pair = TopologyNode(LinkLevel.PIX, (0, 2), (leaves[0], leaves[2]))
    assert tree.root.children == (TopologyNode(LinkLevel.SYS, (0, 1, 2), (pair, leaves[1])),)


def test_two_gpus_of_one_board_are_joined_at_the_nearest_level():
    tree = grow([TopologyGpu(0, 0), TopologyGpu(1, 1)], lambda *_: LinkLevel.GPU)
    assert [child.level for child in tree.root.children] == [LinkLevel.PIX]


LEVELS = st.sampled_from([level for level in LinkLevel if level is not LinkLevel.ROOT])


@st.composite
def trees(draw):
    count = draw(st.integers(0, 8))
    levels = {pair: draw(LEVELS) for pair in combinations(range(count), 2)}
    tree = grow(
        [TopologyGpu(at, at, memory_bytes=GIB) for at in range(count)], lambda *pair: levels[pair]
    )
    return levels, tree


@given(trees())
def test_every_gpu_is_below_the_root_once_and_two_gpus_meet_at_their_level_or_nearer(drawn):
    levels, tree = drawn
    paths = list(tree.paths())
    for at, path in enumerate(paths):
        assert path[0] == TopologyNode(LinkLevel.GPU, (at,))
        assert all(at in group.gpus for group in path)
        assert [group.level for group in path] == sorted({group.level for group in path})
    for (low, high), level in levels.items():
        met = next(group for group in paths[low] if high in group.gpus)
        assert met.level <= max(level, LinkLevel.PIX)


# ---------------------------------------------------------------- nvidia-smi topo -m


NEWER = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tNODE\tSYS\tPXB\t0-31\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tNODE\tSYS\tPXB\t0-31\t0\t\tN/A\n"
    "GPU2\tNODE\tNODE\t X \tSYS\tNODE\t0-31\t0\t\tN/A\n"
    "GPU3\tSYS\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A\r\n"
    "NIC0\tPXB\tPXB\tNODE\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)


def test_the_matrix_of_newer_drivers_is_read_with_colours_network_gpus_and_legend():
    assert parse_matrix(NEWER) == (
        (LinkLevel.GPU, LinkLevel.NVLINK, LinkLevel.CPU, LinkLevel.SYS),
        (LinkLevel.NVLINK, LinkLevel.GPU, LinkLevel.CPU, LinkLevel.SYS),
        (LinkLevel.CPU, LinkLevel.CPU, LinkLevel.GPU, LinkLevel.SYS),
        (LinkLevel.SYS, LinkLevel.SYS, LinkLevel.SYS, LinkLevel.GPU),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "GPU",
        " GPU0",
        " GPU1\nGPU1 X",
        " GPU0 GPU0\nGPU0 X PIX\nGPU0 PIX X",
        " GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX",
        " GPU0 GPU1\nGPU0 X PIX",
        " GPU0 GPU1\nGPU0 X PIX\nGPU1 PHB X",
        " GPU0 GPU1\nGPU0 X X\nGPU1 X X",
        " GPU0 GPU1\nGPU0 PIX PIX\nGPU1 PIX PIX",
        " GPU0 GPU1\nGPU0 X XYZ\nGPU1 XYZ X",
        " GPU0 GPU1\nGPU0 X NV\nGPU1 NV X",
        "".join(f" GPU{number}" for number in range(65)),
    ],
)
def test_another_text_is_malformed(text):
    with pytest.raises(SourceError) as error:
        parse_matrix(text, "file")
    assert (error.value.reason, error.value.object_name) == (Reason.MALFORMED, "file")


def test_a_text_without_end_is_not_read():
    with pytest.raises(SourceError) as error:
        parse_matrix(" GPU0" * 20_000)
    assert error.value.reason is Reason.TOO_LARGE


@given(
    st.text(max_size=60)
    | st.tuples(
        st.sampled_from((TOPO6, NEWER)), st.integers(0, 600), st.text(max_size=4), st.integers(0, 4)
    ).map(lambda cut: cut[0][: cut[1]] + cut[2] + cut[0][cut[1] + cut[3] :])
)
def test_any_text_gives_a_square_matrix_or_the_typed_error(text):
    try:
        matrix = parse_matrix(text)
    except SourceError:
        return
    assert {len(row) for row in matrix} == {len(matrix)}


# ---------------------------------------------------------------- the drawing


def line(indent, name, *, aval=None, pids="", used=0, total=GIB, cores=0, memory=0):
    free = "" if aval is None else f"aval: {aval}, "
    return (
        f"{'|   ' * indent}|---{name} ({free}pids: [{pids}], usedMemory: {used}, "
        f"totalMemory: {total}, allocatableCores: {cores}, allocatableMemory: {memory})\n"
    )


def test_the_drawing_is_that_of_gpu_manager():
    """TOPO6 with GPU 1 allocated whole, GPU 2 by half, and processes on GPUs 1 and 4."""
    tree = tree_of(TOPO6, {1: ((9, 12), 2**20), 4: ((7,), 5)}).holding(
        [Share("/dev/nvidia1", None, 1000), Share("/dev/nvidia2", 2**28, 500)]
    )
    assert draw(tree) == "".join(
        [
            "ROOT:4\n",
            line(0, "CPU", aval=4, pids="9 12 7", used=2**20 + 5, total=6 * GIB),
            line(1, "PIX", aval=2, pids="7", used=5, total=2 * GIB),
            line(2, "GPU4", pids="7", used=5, **WHOLE),
            line(2, "GPU5", **WHOLE),
            line(1, "PHB", aval=2, pids="9 12", used=2**20, total=4 * GIB),
            line(2, "PIX", aval=1, pids="9 12", used=2**20, total=2 * GIB),
            line(3, "GPU1", pids="9 12", used=2**20),
            line(3, "GPU0", **WHOLE),
            line(2, "PIX", aval=1, total=2 * GIB),
            line(3, "GPU2", cores=50, memory=GIB - 2**28),
            line(3, "GPU3", **WHOLE),
        ]
    )


def test_a_gpu_is_drawn_with_the_drivers_index_and_sorted_by_its_device_node():
    tree = grow([TopologyGpu(0, 1), TopologyGpu(1, 0)], lambda *_: LinkLevel.PIX)
    assert [text[:12] for text in draw(tree).splitlines()] == [
        "ROOT:2",
        "|---PIX (ava",
        "|   |---GPU1",
        "|   |---GPU0",
    ]


def test_one_gpu_is_drawn_below_the_root():
    assert draw(tree_of(ONE)) == "ROOT:1\n" + line(0, "GPU0", **WHOLE)
