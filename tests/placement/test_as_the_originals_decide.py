"""Requests of which the sources of HAMi and Volcano show what they get, each with its line.

HAMi's are of v2.10.0, ``pkg/device/nvidia/device.go``, whose own functions gave these results.
Volcano's are of v1.15.1: ``utils.go`` in ``pkg/scheduler/api/devices``, and the one in
``nvidia/vgpu`` there.
"""

import json

import pytest
from msgspec import structs

from tests.support.registers import HAMI as HAMI_REGISTER
from tests.support.registers import hami_gpu, volcano_register
from vgpu.model.allocation import RequestDefaults, Share
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import MIB
from vgpu.placement.candidate import with_shares
from vgpu.placement.dialects import PlacementPolicies, demand_of, scheduler_schemes
from vgpu.placement.node_view import node_view
from vgpu.placement.result import PlacementReason, PlacementRefusal

SCHEMES = scheduler_schemes({})

GPU, GPUMEM, PERCENTAGE, GPUCORES = (
    f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores")
)
NUMBER, MEMORY, MEMORY_PERCENTAGE, CORES = (
    f"volcano.sh/vgpu-{name}" for name in ("number", "memory", "memory-percentage", "cores")
)
WHOLE = 16384  # MiB


def hami_node(*gpus):
    """A node with these GPUs, each as what differs from 16 GiB with 10 shares."""
    register = [hami_gpu(f"GPU-{number}", number, **gpu) for number, gpu in enumerate(gpus or [{}])]
    return Node("n1", annotations={HAMI_REGISTER: json.dumps(register)})


def volcano_node():
    return Node("n1", annotations=volcano_register("GPU-0"))


def demand(limits, schemes=SCHEMES, **annotations):
    containers = (Container("main", limits),)
    return demand_of(
        Pod(PodRef("u", "ns", "p"), containers=containers, annotations=annotations), schemes
    )


def placed(node, limits, *used, schemes=SCHEMES, **annotations):
    """The shares of one pod after another that fit, as (GPU, MiB, percent); the reason of the last.

    ``used`` is in use before, in the same form.
    """
    scheme, request = demand(limits, schemes, **annotations)
    candidate = node_view(node, scheme, (), (), (), now=0.0).candidate
    before = [Share(device, mib * MIB, percent * 10) for device, mib, percent in used]
    gpus, result = with_shares(candidate.gpus, before), []
    while len(result) < 99:
        placement = scheme.dialect.choose(request, structs.replace(candidate, gpus=gpus))
        if isinstance(placement, PlacementRefusal):
            return result, placement.cause
        gpus = placement.gpus
        result += [
            (share.device, share.memory_bytes // MIB, share.cores_milli // 10)
            for each in placement.allocations
            for share in each.shares
        ]
    raise AssertionError(result)


@pytest.mark.parametrize(
    ("limits", "mib", "percent"),
    [
        pytest.param({PERCENTAGE: 0}, WHOLE, 0, id="563: 0 percent request nothing"),
        pytest.param({PERCENTAGE: 0, GPUMEM: 7}, 7, 0, id="563: memory beside 0 percent"),
        pytest.param({PERCENTAGE: 1}, 163, 0, id="782: a percentage is rounded down"),
        pytest.param({PERCENTAGE: 100}, WHOLE, 0, id="782: all memory"),
        pytest.param({GPUMEM: 0}, WHOLE, 0, id="572: memory of 0 requests nothing"),
        pytest.param({GPUMEM: 0, PERCENTAGE: 30}, 4915, 0, id="572: a percentage beside it"),
        pytest.param({GPUMEM: 7, GPUCORES: 0}, 7, 0, id="587: cores of 0 reserve none"),
        pytest.param({GPUMEM: 7, GPUCORES: 130}, 7, 100, id="772: more cores than a GPU has"),
    ],
)
def test_hami_reserves_for_a_request_of_zero_or_too_much(limits, mib, percent):
    shares, _ = placed(hami_node(), {GPU: 1} | limits)
    assert shares[0] == ("GPU-0", mib, percent)


@pytest.mark.parametrize("memory", [{PERCENTAGE: 0}, {GPUMEM: 0}, {}])
def test_hami_places_no_request_of_zero_on_a_gpu_that_is_in_use(memory):
    """Line 789: there is no room for a whole GPU."""
    shares, cause = placed(hami_node(), {GPU: 1} | memory, ("GPU-0", 1, 0))
    assert (shares, cause) == ([], PlacementReason.MEMORY)


@pytest.mark.parametrize("percentage", [101, 102, 150, 2**31 - 1, -1])
@pytest.mark.parametrize("also", [{}, {GPUMEM: 7}])
def test_hami_refuses_a_percentage_outside_0_to_100(percentage, also):
    """Line 391: its webhook does."""
    refusal = demand({GPU: 1, PERCENTAGE: percentage} | also)
    assert refusal.reason is PlacementReason.MALFORMED_REQUEST
    assert PERCENTAGE in refusal.text
    assert str(percentage) in refusal.text


@pytest.mark.parametrize(
    ("limits", "mib", "percent"),
    [
        pytest.param({NUMBER: 1, MEMORY: 0}, WHOLE, 0, id="248: memory of 0 is all memory"),
        pytest.param({NUMBER: 1, MEMORY: 7, CORES: 0}, 7, 0, id="251: cores of 0 reserve none"),
        pytest.param({NUMBER: 1, MEMORY_PERCENTAGE: 101}, WHOLE, 0, id="234: 101 stands for none"),
        pytest.param({MEMORY: 7, MEMORY_PERCENTAGE: 101}, 7, 0, id="234: memory beside it"),
        pytest.param({MEMORY: 7, MEMORY_PERCENTAGE: 50}, WHOLE // 2, 0, id="412: it wins"),
    ],
)
def test_volcano_reserves_for_a_request_of_zero_or_too_much(limits, mib, percent):
    shares, _ = placed(volcano_node(), limits)
    assert shares[0] == ("GPU-0", mib, percent)


@pytest.mark.parametrize("percentage", [0, 102, 150, -1])
@pytest.mark.parametrize("also", [{}, {MEMORY: 7}])
def test_a_percentage_for_which_volcano_reserves_nothing_or_never_fits_is_refused(percentage, also):
    """Line 412: 0 bytes, of which Volcano's plugin makes no limit, or more than a GPU has."""
    refusal = demand({NUMBER: 1, MEMORY_PERCENTAGE: percentage} | also)
    assert refusal.reason is PlacementReason.MALFORMED_REQUEST


# ---------------------------------------------------------------- types, UUIDs, NUMA nodes

TWO_TYPES = ({"type": "NVIDIA-A100-SXM4-40GB"}, {"type": "NVIDIA-A100-SXM4-80GB"})
USE_TYPE, AVOID_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, AVOID_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"


@pytest.mark.parametrize(
    ("annotations", "gpus"),
    [
        ({USE_TYPE: "A100", AVOID_TYPE: "80gb"}, {"GPU-0"}),
        ({USE_TYPE: "a100,H100", AVOID_TYPE: "H100, 40GB"}, {"GPU-1"}),
        ({USE_TYPE: "A100", AVOID_TYPE: "A100"}, set()),
        ({USE_TYPE: "A100", AVOID_TYPE: ""}, {"GPU-0", "GPU-1"}),
        ({USE_TYPE: " ", AVOID_TYPE: "80GB"}, {"GPU-0"}),
        ({USE_UUID: "GPU-0,GPU-1", AVOID_UUID: "GPU-1"}, {"GPU-0"}),
        ({USE_UUID: "GPU-1", AVOID_UUID: "GPU-1"}, set()),
        ({USE_TYPE: "A100", AVOID_UUID: "GPU-0"}, {"GPU-1"}),
        ({USE_UUID: "GPU-0", AVOID_TYPE: "40GB"}, set()),
    ],
)
def test_lists_of_gpus_to_use_and_to_avoid_both_hold(annotations, gpus):
    """``pkg/device/devices.go``, lines 693 (UUIDs) and 719 (types)."""
    shares, _ = placed(hami_node(*TWO_TYPES), {GPU: 1, GPUMEM: 7}, **annotations)
    assert {device for device, _, _ in shares} == gpus


@pytest.mark.parametrize(
    ("text", "is_bound"),
    [
        *((text, True) for text in ("1", "t", "T", "TRUE", "true", "True")),
        *((text, False) for text in ("0", "f", "False", "yes", " true", "tRUE", "")),
    ],
)
def test_numa_bind_is_a_boolean_of_go(text, is_bound):
    """Line 485: ``strconv.ParseBool``. The two GPUs are of two NUMA nodes."""
    node = hami_node({"numa": 0}, {"numa": 1})
    shares, cause = placed(node, {GPU: 2, GPUMEM: 7}, **{"nvidia.com/numa-bind": text})
    assert bool(shares) is not is_bound
    assert (cause is PlacementReason.NUMA) is is_bound


# ---------------------------------------------------------------- cores beyond 100, and of 0


@pytest.mark.parametrize(
    ("total", "used", "cores", "times", "cause"),
    [
        pytest.param(500, (7, 100), 100, 4, PlacementReason.CORES, id="800: not exclusive of 500"),
        pytest.param(400, None, 100, 4, PlacementReason.CORES, id="800: not exclusive of 400"),
        pytest.param(200, (7, 0), 130, 2, PlacementReason.CORES, id="772: 130 are 100"),
        pytest.param(100, (7, 0), 100, 0, PlacementReason.EXCLUSIVE, id="800: exclusive of 100"),
        pytest.param(100, (7, 100), 0, 0, PlacementReason.EXCLUSIVELY_USED, id="806: no core left"),
        pytest.param(50, (7, 50), 0, 0, PlacementReason.EXCLUSIVELY_USED, id="806: of 50"),
        pytest.param(200, (7, 100), 0, 9, PlacementReason.SLOTS, id="806: 100 of 200 are left"),
        pytest.param(0, None, 0, 10, PlacementReason.SLOTS, id="806: cores are not counted"),
        pytest.param(0, None, 10, 0, PlacementReason.CORES, id="794: there are no cores"),
        pytest.param(0, None, 100, 0, PlacementReason.CORES, id="794: there is no whole GPU"),
    ],
)
def test_cores_of_a_gpu_are_those_of_its_register(total, used, cores, times, cause):
    before = [("GPU-0", *used)] if used else []
    limits = {GPU: 1, GPUMEM: 7, GPUCORES: cores}
    shares, why = placed(hami_node({"devcore": total}), limits, *before)
    assert (len(shares), why) == (times, cause)


# ---------------------------------------------------------------- init containers


def test_an_init_container_alone_gets_its_gpu():
    """``pkg/scheduler/score.go``, line 313: init containers are placed first, by themselves."""
    containers = (
        Container("main"),
        Container("setup", {GPU: 2, GPUMEM: 7}, ContainerKind.INIT),
        Container("fetch", {GPU: 1, GPUMEM: WHOLE}, ContainerKind.INIT),
    )
    scheme, request = demand_of(Pod(PodRef("u", "ns", "p"), containers=containers), SCHEMES)
    candidate = node_view(hami_node({}, {}), scheme, (), (), (), now=0.0).candidate
    placement = scheme.dialect.choose(request, candidate)
    assert [(each.container, len(each.shares)) for each in placement.allocations] == [
        ("setup", 2),
        ("fetch", 1),
    ]
    assert max(gpu.memory_bytes for gpu in placement.gpus) == WHOLE * MIB
    full = with_shares(candidate.gpus, [Share("GPU-0", WHOLE * MIB), Share("GPU-1", MIB)])
    refusal = scheme.dialect.choose(request, structs.replace(candidate, gpus=full))
    assert (refusal.cause, refusal.container) == (PlacementReason.MEMORY, "setup")


@pytest.mark.parametrize("limits", [{NUMBER: 1}, {"aliyun.com/gpu-mem": 1}])
def test_an_init_container_alone_is_refused_where_its_system_places_none(limits):
    containers = (Container("main"), Container("setup", limits, ContainerKind.INIT))
    refusal = demand_of(Pod(PodRef("u", "ns", "p"), containers=containers), SCHEMES)
    assert refusal.reason is PlacementReason.INIT_CONTAINER


# ---------------------------------------------------------------- defaults of HAMi's configuration


def with_defaults(**defaults):
    return scheduler_schemes({}, PlacementPolicies(hami=RequestDefaults(**defaults)))


@pytest.mark.parametrize(
    ("limits", "defaults", "times", "share"),
    [
        pytest.param({}, {"memory_mib": 4000}, 4, (4000, 0), id="573: no memory"),
        pytest.param({GPUMEM: 0}, {"memory_mib": 4000}, 4, (4000, 0), id="573: memory of 0"),
        pytest.param({PERCENTAGE: 0}, {"memory_mib": 4000}, 4, (4000, 0), id="573: 0 percent"),
        pytest.param({PERCENTAGE: 100}, {"memory_mib": 4000}, 1, (WHOLE, 0), id="573: 100 percent"),
        pytest.param({GPUMEM: 7}, {"cores_percent": 30}, 3, (7, 30), id="579: no cores"),
        pytest.param({GPUMEM: 7, GPUCORES: 0}, {"cores_percent": 30}, 10, (7, 0), id="587: of 0"),
        pytest.param({GPUMEM: 7, GPUCORES: 50}, {"cores_percent": 30}, 2, (7, 50), id="587: of 50"),
    ],
)
def test_what_a_container_does_not_request_is_the_default(limits, defaults, times, share):
    schemes = with_defaults(**defaults)
    shares, _ = placed(hami_node(), {GPU: 1} | limits, schemes=schemes)
    assert (len(shares), shares[0]) == (times, ("GPU-0", *share))


def test_a_part_of_a_gpu_without_a_number_is_of_as_many_gpus_as_the_default():
    """Line 406, which is of HAMi's webhook; a number of 0 stays."""
    _, request = demand({GPUMEM: 7}, with_defaults(count=2))
    assert [each.count for each in request.requests] == [2]
    for limits, count in (({GPUMEM: 7}, 0), ({GPUMEM: 7, GPU: 0}, 2)):
        refusal = demand(limits, with_defaults(count=count))
        assert refusal.reason is PlacementReason.MALFORMED_REQUEST
