"""The output of ``kubectl inspect gpushare``, byte for byte.

Two golden files are the live tool's; the texts here were printed by its rules in Go, on Go's own
tabwriter. A ``$`` marks the end of each line, since many end in blanks.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.environment import GOLDEN_FILES
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.gpushare.annotations import ALLOCATION, INDEX
from vgpu.schemes.gpushare.node import NAMES
from vgpucli.inspect.legacy import details, summary


def node(name, units, gpus, address=""):
    """The capacity is larger than the allocatable amount, so that the two differ."""
    allocatable = {NAMES.memory: units, NAMES.count: gpus}
    return Node(
        name, address=address, capacity={NAMES.memory: 999, NAMES.count: 9}, allocatable=allocatable
    )


def pod(name, on, units, index=None, allocation=None, *, namespace="default", phase="Running"):
    annotations = {INDEX: index, ALLOCATION: allocation}
    return Pod(
        PodRef(f"uid-of-{name}", namespace, name),
        node=on,
        phase=phase,
        annotations={key: text for key, text in annotations.items() if text is not None},
        containers=(Container("c", {NAMES.memory: units}),),
    )


def marked(text):
    return text.replace("\n", "$\n")


def test_the_live_details():
    """G7: the nodes and the pod are allocated of order."""
    nodes = [
        node("10.0.33.21", 77, 7, "10.0.33.21"),
        node("10.0.20.250", 88, 4, "10.0.20.250"),
    ]
    pods = [pod("binpack-1-767bddd4b5-gzqk7", "10.0.20.250", 1, "0")]
    golden = GOLDEN_FILES / "gpushare-inspect" / "details.txt"
    assert details(nodes, pods).encode() == golden.read_bytes()


def test_the_user_guides_summary():
    """G6."""
    first, second = "cn-shanghai.i-uf61h64dz1tmlob9hmtb", "cn-shanghai.i-uf61h64dz1tmlob9hmtc"
    nodes = [node(second, 15, 1, "192.168.0.70"), node(first, 15, 1, "192.168.0.71")]
    pods = [pod(f"binpack-{n}", on, 3, "0") for n, on in enumerate((first, second, first))]
    golden = GOLDEN_FILES / "gpushare-inspect" / "summary.txt"
    assert summary(nodes, pods).encode() == golden.read_bytes()


NODES = (
    node("node-b", 15, 1),
    node("node-a", 32552, 2, "10.0.0.1"),
    node("no-gpu", 0, 0),
)
PODS = (
    pod("one", "node-a", 8138, "1"),
    pod("both-cards", "node-a", 3000, "0", '{"0":{"0":1000,"1":2000}}', namespace="ml"),
    pod("not-annotated", "node-a", 500, namespace="ml"),
    pod("broken-index", "node-a", 70, "x", namespace="ml"),
    pod("lost-card", "node-b", 4, "1", namespace="ml"),
    pod("done", "node-a", 8138, "0", phase="Succeeded"),
    pod("failed", "node-a", 8138, "0", phase="Failed"),
    pod("asks-for-nothing", "node-a", 0, "0"),
    pod("not-bound", "", 8138, "0"),
)

SUMMARY = """\
NAME    IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  \
GPU Memory(MiB)$
node-a  10.0.0.1   1000/16276             10138/16276            570                 11708/32552$
node-b  unknown    0/15                   4/15                                       4/15$
---------------------------------------------------------------------------$
Allocated/Total GPU Memory In Cluster:$
11712/32567 (35%)  $
"""

DETAILS = """\
$
NAME:       node-a$
IPADDRESS:  10.0.0.1$
$
NAME           NAMESPACE    GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)  $
both-cards     ml           1000             2000             0                   $
broken-index   ml           0                0                70                  $
not-annotated  ml           0                0                500                 $
one            default      0                8138             0                   $
Allocated :    11708 (35%)  $
Total :        32552        $
{dashes}$
$
NAME:       node-b$
IPADDRESS:  unknown$
$
NAME         NAMESPACE  GPU0(Allocated)  $
lost-card    ml         0                $
Allocated :  4 (26%)    $
Total :      15         $
{dashes}$
$
$
Allocated/Total GPU Memory In Cluster:  11712/32567 (35%)  $
"""


def test_the_summary_of_pods_in_every_state():
    assert marked(summary(NODES, PODS)) == SUMMARY


def test_the_details_of_pods_in_every_state():
    assert marked(details(NODES, PODS)) == DETAILS.format(dashes="-" * 109)


def test_a_cluster_without_shared_gpus():
    for nodes in ((), NODES[2:]):
        assert marked(summary(nodes, ())) == (
            "NAME  IPADDRESS  GPU Memory()$\n$\n"
            "Allocated/Total GPU Memory In Cluster:$\n0/0 (0%)  $\n"
        )
        assert marked(details(nodes, ())) == (
            "$\n$\nAllocated/Total GPU Memory In Cluster:  0/0 (0%)  $\n"
        )


def test_the_unit_is_guessed_from_the_first_node():
    by_unit = {
        unit: f"GPU Memory({unit})" in summary([node("a", units, 1), node("b", 15, 1)], ())
        for unit, units in (("GiB", 100), ("MiB", 101))
    }
    assert by_unit == {"GiB": True, "MiB": True}


@pytest.mark.parametrize(("used", "percent"), [(29, 28), (58, 57), (57, 56), (50, 50), (100, 100)])
def test_percents_are_truncated_after_a_division_of_floats(used, percent):
    text = summary([node("a", 100, 1)], [pod("p", "a", used, "0")])
    assert f"{used}/100 ({percent}%)" in text


def test_init_containers_are_not_counted():
    more = Container("init", {NAMES.memory: 9}, ContainerKind.INIT)
    one = pod("p", "a", 3, "0")
    both = Pod(one.ref, node="a", annotations=one.annotations, containers=(*one.containers, more))
    assert summary(NODES, [both]) == summary(NODES, [one])


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ('{"0":{"0":1},"1":{"0":2}}', "3 0"),
        ('{"+0":{"00":3}}', "3 0"),
        ('{"0":{"0":3},"00":{"1":2}}', "0 2"),
        ('{"0":{"0":null,"1":4}}', "0 4"),
        ('{"0":{"2":4}}', "0 0"),
        *((broken, "0 7") for broken in ("", "null", "{}", "[1]", '{"0":null}', '{"0":"1"}')),
        *((broken, "0 7") for broken in ('{"0":{"0":1.0}}', '{"0":{"x":1}}', '{"x":{"0":1}}')),
        ('{"0":{"0":99999999999999999999}}', "0 7"),
    ],
)
def test_an_allocation_is_read_as_go_reads_it_and_else_the_index(text, gpus):
    shown = details([node("a", 30, 2)], [pod("p", "a", 7, "1", text)])
    (row,) = (line.split() for line in shown.splitlines() if line.startswith("p "))
    assert " ".join(row[2:]) == gpus


def test_an_impossible_number_of_gpus_is_refused():
    with pytest.raises(ClaimError, match="node a"):
        summary([node("a", 30, 10**9)], ())


TEXTS = st.none() | st.text(max_size=12) | st.sampled_from(["0", "1", '{"0":{"0":1}}', "9" * 5000])


@given(st.lists(st.tuples(TEXTS, TEXTS, st.integers(-5, 9)), max_size=4), st.integers(0, 3))
def test_any_annotations_are_shown(pods, gpus):
    made = [
        pod(f"p{n}", "a", units, index, allocation)
        for n, (index, allocation, units) in enumerate(pods)
    ]
    nodes = [node("a", 15, gpus)]
    assert summary(nodes, made) == summary(nodes, made[::-1])
    rows = [line for line in details(nodes, made).splitlines() if line.startswith("p")]
    assert len(rows) == sum(units > 0 for _, _, units in pods)
