"""Requests of which the sources of HAMi and Volcano show what they get, each with its line.

HAMi's are of v2.10.0, ``pkg/device/nvidia/device.go``, whose own functions gave these results.
Volcano's are of v1.15.1: ``utils.go`` in ``pkg/scheduler/api/devices``, and the one in
``nvidia/vgpu`` there.
"""

import json

import pytest

from tests.support.registers import HAMI as HAMI_REGISTER
from tests.support.registers import hami_gpu, volcano_register
from vgpu.model.allocation import Share
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import MIB
from vgpu.placement.candidate import with_shares
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.node_view import node_view
from vgpu.placement.result import PlacementReason, PlacementRefusal

SCHEMES = scheduler_schemes({})
BY_NAME = {scheme.row.name: scheme for scheme in SCHEMES}

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


def demand(limits, **annotations):
    containers = (Container("main", limits),)
    return demand_of(
        Pod(PodRef("u", "ns", "p"), containers=containers, annotations=annotations), SCHEMES
    )


def placed(node, limits, *used, **annotations):
    """The shares of one pod after another that fit, as (GPU, MiB, percent); the reason of the last.

    ``used`` is in use before, in the same form.
    """
    scheme, request = demand(limits, **annotations)
    candidate = node_view(node, scheme, (), (), (), now=0.0).candidate
    before = [Share(device, mib * MIB, percent * 10) for device, mib, percent in used]
    gpus, result = with_shares(candidate.gpus, before), []
    while len(result) < 99:
        placement = scheme.dialect.choose(
            request, type(candidate)(candidate.name, gpus, candidate.mode)
        )
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
