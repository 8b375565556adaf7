"""What a scheduler sees of a node, and what it makes of a pod's requests, in every system."""

import json

import pytest
from msgspec import structs

from tests.support.registers import HAMI as HAMI_REGISTER
from tests.support.registers import hami_gpu, volcano_register
from vgpu.model.allocation import Claim, Share
from vgpu.model.names import ContainerKind, PodRef, Scheme
from vgpu.model.objects import Container, ContainerState, Node, Pod, Status
from vgpu.model.units import GIB, MIB
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.node_view import (
    Reservation,
    foreign_reservation,
    node_view,
    scheme_of,
)
from vgpu.placement.result import Placement, PlacementReason

NOW = 1_700_000_000.0
SCHEMES = scheduler_schemes({})
BY_NAME = {scheme.row.name: scheme for scheme in SCHEMES}
HAMI, VOLCANO, GPUSHARE, GAIA = (BY_NAME[n] for n in ("hami", "volcano", "gpushare", "gaia"))

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
REGISTER = [hami_gpu(f"GPU-{number}", number) for number in range(2)]


def hami_node(**annotations):
    return Node("n1", annotations={HAMI_REGISTER: json.dumps(REGISTER)} | annotations)


def gpushare_node(units=32, count=2):
    capacity = {"aliyun.com/gpu-mem": units, "aliyun.com/gpu-count": count}
    return Node("n1", capacity=capacity, allocatable=capacity)


def pod(name, *containers, node="n1", **fields):
    """Containers are (name, limits) or (name, limits, kind)."""
    made = tuple(Container(one[0], one[1], *one[2:]) for one in containers)
    return Pod(
        PodRef(f"uid-{name}", "ml", name),
        containers=made,
        node=node,
        **{"phase": "Pending"} | fields,
    )


def asking(scheme, memory, cores=0, kind=APP, name="main"):
    """A container of a scheme that asks for so many of its units."""
    number = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory, "nvidia.com/gpucores": cores}
    limits = {
        "hami": number,
        "volcano": {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": memory},
        "gpushare": {"aliyun.com/gpu-mem": memory},
        "gaia": {"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": memory},
    }
    return (name, limits[scheme], kind)


def choose(one, node, bound=(), reservations=(), promised=()):
    scheme, demand = demand_of(one, SCHEMES)
    view = node_view(node, scheme, bound, promised, reservations, now=NOW)
    return scheme.dialect.choose(demand, view.candidate)


def bind(one, node, *bound):
    """The pod as it is once it is bound by its placement."""
    scheme, _ = demand_of(one, SCHEMES)
    result = choose(one, node, bound)
    assert isinstance(result, Placement), result
    claim = Claim(
        scheme.row.scheme,
        one.ref,
        node.name,
        result.allocations,
        assumed_at=NOW,
        unserved=tuple(each.container for each in result.allocations)
        if scheme.row.scheme is Scheme.VOLCANO
        else (),
    )
    devices = {name: each for each in scheme.codec.devices(node) for name in each.names}
    others = [c.name for c in one.containers if c.kind is not APP]
    named = [a.container for a in result.allocations]
    names = (*others, *one.apps) if set(named) & set(others) else one.apps
    annotations = scheme.codec.annotations(claim, devices, names)
    return structs.replace(one, annotations=annotations, node=node.name)


@pytest.mark.parametrize(
    ("node", "one"),
    [
        (hami_node(), pod("a", asking("hami", 4096, 30))),
        (gpushare_node(), pod("a", asking("gpushare", 5))),
        (
            Node("n1", capacity={"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 128}),
            pod("a", asking("gaia", 10, 30)),
        ),
        (
            Node("n1", annotations=volcano_register("GPU-0", "GPU-1")),
            pod("a", asking("volcano", 4096)),
        ),
    ],
)
def test_what_a_placement_takes_is_what_the_bound_pod_holds_afterwards(node, one):
    result = choose(one, node)
    bound = bind(one, node)
    scheme = scheme_of(node, SCHEMES)
    after = node_view(node, scheme, [bound], (), (), now=NOW)
    assert (after.reason, after.candidate.gpus) == (None, result.gpus)
    reserved = node_view(node, scheme, (), (), [Reservation(result.allocations)], now=NOW)
    assert reserved.candidate.gpus == result.gpus


def test_a_node_of_two_systems_or_of_none_has_no_scheme():
    mixed = Node("n1", capacity={"tencent.com/vcuda-core": 100, "aliyun.com/gpu-count": 1})
    assert scheme_of(mixed, SCHEMES) is PlacementReason.MIXED_NODE
    assert scheme_of(Node("n1"), SCHEMES) is PlacementReason.NO_GPUS


def test_an_init_container_of_hami_holds_its_share_until_it_has_succeeded():
    node = hami_node()
    one = pod("a", asking("hami", 4096), asking("hami", 12288, 0, INIT, "setup"))
    bound = bind(one, node)
    waiting = pod("b", asking("hami", 16384))

    def free(bound):
        view = node_view(node, HAMI, [bound], (), (), now=NOW)
        return sorted(gpu.free_bytes // MIB for gpu in view.candidate.gpus)

    shares = {share.device for share in HAMI.codec.claim(bound).allocations[0].shares}
    assert len(shares) == 1
    assert sum(free(bound)) in (2 * 16384 - 12288, 2 * 16384 - 12288 - 4096)
    done = (
        Status("setup", ContainerState.TERMINATED, kind=INIT, reason="Completed", finished_at=NOW),
    )
    later = Pod(**{n: getattr(bound, n) for n in bound.__struct_fields__} | {"statuses": done})
    assert free(later) == [12288, 16384]
    assert isinstance(choose(waiting, node, [later]), Placement)


@pytest.mark.parametrize(
    ("containers", "fits"),
    [
        ([asking("gpushare", 4), asking("gpushare", 4, 0, INIT, "setup")], True),
        ([asking("gpushare", 4), asking("gpushare", 5, 0, INIT, "setup")], False),
        ([asking("gaia", 4, 10), asking("gaia", 4, 20, INIT, "setup")], False),
        ([asking("gaia", 4, 10), asking("gaia", 4, 10, INIT, "setup")], True),
        ([asking("gaia", 4, 10), asking("gaia", 4, 10, SIDECAR, "proxy")], False),
        ([asking("gpushare", 4), asking("gpushare", 9, 0, SIDECAR, "proxy")], True),
        ([asking("hami", 1), asking("hami", 5, 0, INIT, "setup")], True),
    ],
)
def test_an_init_container_that_the_system_cannot_reserve_for_is_refused(containers, fits):
    demand = demand_of(pod("a", *containers), SCHEMES)
    assert isinstance(demand, tuple) == fits
    if not fits:
        assert demand.reason is PlacementReason.INIT_CONTAINER


@pytest.mark.parametrize(
    ("containers", "reason"),
    [
        ([("main", {})], PlacementReason.NOTHING_REQUESTED),
        ([("main", {"aliyun.com/gpu-mem": 0})], PlacementReason.NOTHING_REQUESTED),
        (
            [asking("gpushare", 4), asking("gaia", 4, 10, APP, "b")],
            PlacementReason.SEVERAL_SYSTEMS,
        ),
        ([asking("gaia", 0, 150)], PlacementReason.MALFORMED_REQUEST),
    ],
)
def test_a_pod_without_a_request_that_can_be_placed_is_refused(containers, reason):
    assert demand_of(pod("a", *containers), SCHEMES).reason is reason


def test_unhealthy_and_cordoned_gpus_get_no_new_shares():
    one = pod("a", asking("gpushare", 4))
    scheme, demand = demand_of(one, SCHEMES)
    view = node_view(gpushare_node(), scheme, (), (), (), now=NOW, unhealthy="0")
    (allocation,) = scheme.dialect.choose(demand, view.candidate).allocations
    assert allocation.shares == (Share("1", 4 * GIB),)
    broken = node_view(gpushare_node(), scheme, (), (), (), now=NOW, unhealthy="0,x")
    assert broken.reason is PlacementReason.UNREADABLE
    cordoned = hami_node(**{"hami.io/device-cordon": "GPU-1, GPU-7"})
    (allocation,) = choose(pod("b", asking("hami", 4)), cordoned).allocations
    assert allocation.shares[0].device == "GPU-0"


def test_a_bound_pod_without_a_gpu_is_taken_off_what_is_free():
    """Of every GPU for five minutes after it was bound, then of the one with the most free memory.

    Held amounts have it on no GPU.
    """
    bound = pod("a", asking("hami", 4096), scheduled_at=NOW - 10)
    small = bind(pod("s", asking("hami", 1024)), hami_node())
    view = node_view(hami_node(), HAMI, [bound, small], (), (), now=NOW)
    assert (view.reason, view.standing_reason) == (None, PlacementReason.POD_WITHOUT_GPU)
    assert "ml/a" in view.detail
    assert view.until == NOW + 290

    def free(view):
        return [gpu.free_bytes // MIB for gpu in view.candidate.gpus]

    assert sorted(free(view)) == [16384 - 4096 - 1024, 16384 - 4096]
    later = node_view(hami_node(), HAMI, [bound, small], (), (), now=NOW + 290)
    assert sorted(free(later)) == [16384 - 4096, 16384 - 1024]
    assert later.until is None
    for each in (view, later):
        assert sorted(gpu.memory_bytes // MIB for gpu in each.held_gpus) == [0, 1024]
    other = pod("b", asking("gpushare", 1))
    assert node_view(hami_node(), HAMI, [other], (), (), now=NOW).standing == ()


def test_without_a_time_of_the_api_server_the_five_minutes_begin_when_the_pod_is_first_seen():
    for bound, began in (
        (pod("a", asking("hami", 4096)), NOW),
        (pod("a", asking("hami", 4096), started_at=NOW + 10_000), NOW),
        (pod("a", asking("hami", 4096), started_at=NOW - 100), NOW - 100),
    ):
        seen = {bound.ref.uid: NOW}
        view = node_view(hami_node(), HAMI, [bound], (), (), now=NOW + 5, seen=seen)
        assert view.until == began + 300


def test_another_schedulers_reservation_holds_the_gpus_that_it_names():
    annotations = {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": str(int(NOW - 10)),
        "hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,4096,0:;",
    }
    waiting = pod("a", asking("hami", 4096), node="", annotations=annotations)
    promise = foreign_reservation(waiting, SCHEMES)
    assert (promise.node, promise.system) == ("n1", "hami")
    view = node_view(hami_node(), HAMI, (), [promise], (), now=NOW)
    assert [gpu.memory_bytes // MIB for gpu in view.candidate.gpus] == [4096, 0]
    assert (view.reason, view.standing_reason) == (None, PlacementReason.OTHER_SCHEDULER)
    assert foreign_reservation(pod("b", asking("hami", 1), node=""), SCHEMES) is None
    assert foreign_reservation(structs.replace(waiting, gated=True), SCHEMES) is None
    assert foreign_reservation(structs.replace(waiting, containers=()), SCHEMES) is None


def test_hami_tries_idle_gpus_first_and_full_ones_where_the_pod_asks_for_it():
    node = hami_node()
    first = bind(pod("a", asking("hami", 4096)), node)
    (used,) = {s.device for each in HAMI.codec.claim(first).allocations for s in each.shares}
    spread = choose(pod("b", asking("hami", 4096)), node, [first])
    assert spread.allocations[0].shares[0].device != used
    packed = pod(
        "c",
        asking("hami", 4096),
        annotations={"hami.io/gpu-scheduler-policy": "binpack"},
    )
    assert choose(packed, node, [first]).allocations[0].shares[0].device == used
