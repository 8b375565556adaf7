"""A demand compared with all nodes at once has the answers of the nodes asked one by one."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduler.filter.node_columns import MOST_GPUS, NodeColumns
from scheduler.filter.refusals import NodeAnswer
from tests.scheduler.generated import SCHEMES_OF
from vgpu.model.allocation import Device, Request
from vgpu.model.names import PodRef
from vgpu.model.units import GIB
from vgpu.placement.candidate import NO_WISHES, CandidateNode, PlacementWishes, PodDemand, UsedGpu
from vgpu.placement.result import PlacementRefusal

AMOUNTS = st.sampled_from((0, 1, 2, 4, 5)).map(GIB.__mul__)
CORES = st.sampled_from((0, 100, 300, 1000))

PLAIN = UsedGpu(Device(index=0, memory_bytes=4 * GIB, slots=3, model="NVIDIA-T4"))
OF_DEVICE = {
    "memory_bytes": AMOUNTS,
    "cores_milli": st.sampled_from((0, 1000, 2000)),
    "slots": st.sampled_from((None, 0, 2)),
    "healthy": st.just(False),
    "model": st.just("NVIDIA-A100"),
}
OF_USE = {
    "users": st.integers(1, 3),
    "memory_bytes": AMOUNTS,
    "cores_milli": CORES,
    "cordoned": st.just(True),
}


def changed(of):
    """Few fields with other values: GPUs that differ in one are what a mistake mixes up."""
    field = st.sampled_from(sorted(of)).flatmap(lambda name: of[name].map(lambda it: {name: it}))
    return st.just({}) | field


@st.composite
def gpus(draw, of_device=OF_DEVICE):
    device = structs.replace(
        PLAIN.device, index=draw(st.integers(0, 3)), **draw(changed(of_device))
    )
    use = {**draw(changed(OF_USE)), **draw(changed(OF_USE))}
    return structs.replace(PLAIN, device=device, **use)


usable = gpus({"model": OF_DEVICE["model"]})
nodes = st.lists(st.lists(gpus(), max_size=4).map(tuple), min_size=2, max_size=5).map(
    lambda listed: [CandidateNode(f"n{at}", each) for at, each in enumerate(listed)]
)
REQUESTS = [
    Request("main", count, memory, percentage, cores)
    for count in (1, 2)
    for memory, percentage in ((0, None), (GIB, None), (4 * GIB, None), (None, None), (None, 50))
    for cores in (0, 300, 1000)
]
wishes = st.one_of(
    st.just(NO_WISHES),
    st.builds(
        PlacementWishes,
        use_types=st.sampled_from(((), ("T4",))),
        avoid_types=st.sampled_from(((), ("A100",))),
        gpu_order=st.sampled_from(((), ("binpack",), ("spread",))),
        node_policy=st.sampled_from(("", "binpack", "spread")),
        idle_gpus=st.booleans(),
    ),
)
schemes = st.sampled_from([scheme for of_policy in SCHEMES_OF.values() for scheme in of_policy])


def asked(scheme, demand, node):
    result = scheme.dialect.choose(demand, node)
    if isinstance(result, PlacementRefusal):
        return content(NodeAnswer.refused(result))
    return content(NodeAnswer(score=scheme.dialect.rank(demand, result)))


def content(answer):
    return answer.refusal, answer.score


def demand_of(request, wishes=NO_WISHES):
    return PodDemand(PodRef("uid", "ns", "pod"), (request,), wishes)


def answers_of(columns, scheme, demand):
    found = columns.answers(scheme, demand)
    return {name: content(answer) for name, answer in found.items()}


@given(nodes, nodes, schemes, wishes)
def test_columns_answer_as_the_nodes_do(before, now, scheme, wished):
    columns = NodeColumns()
    for node in before:
        columns.set(node.name, node)
    there = {node.name: node for node in before} | {node.name: node for node in now[1:]}
    for node in now[1:]:
        columns.set(node.name, node)
    there.pop(now[0].name, None)
    columns.set(now[0].name, None)
    for request in REQUESTS:
        demand = demand_of(request, wished)
        answers = answers_of(columns, scheme, demand)
        assert answers == {name: asked(scheme, demand, there[name]) for name in answers}


@given(st.lists(usable, min_size=1, max_size=4).map(tuple), schemes)
def test_columns_answer_for_every_plain_node_and_pod(gpus, scheme):
    columns = NodeColumns()
    columns.set("n", CandidateNode("n", gpus))
    for request in REQUESTS:
        assert set(columns.answers(scheme, demand_of(request))) == {"n"}


def test_a_node_with_very_many_gpus_is_asked():
    device = Device("GPU-0", 0, GIB)
    many = CandidateNode("n", (UsedGpu(device),) * (MOST_GPUS + 1))
    columns = NodeColumns()
    columns.set("n", many)
    for scheme in next(iter(SCHEMES_OF.values())):
        assert columns.answers(scheme, demand_of(Request("main", 1, GIB))) == {}


def test_a_wish_for_one_gpu_or_a_second_container_asks_the_nodes():
    columns = NodeColumns()
    columns.set("n", CandidateNode("n", (UsedGpu(Device("GPU-0", 0, GIB)),)))
    hami = next(each for each in next(iter(SCHEMES_OF.values())) if each.row.name == "hami")
    request = Request("main", 1, 1)
    assert not columns.answers(hami, demand_of(request, PlacementWishes(use_uuids=("GPU-0",))))
    assert not columns.answers(hami, PodDemand(PodRef("u", "n", "p"), (request, request)))
