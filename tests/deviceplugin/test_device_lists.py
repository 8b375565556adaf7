"""The lists that the kubelet gets: all IDs in order, health by GPU, and the bound of 4 MiB."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.kubelet.device_lists import AdvertisedList, IdUnit, TooLong, offered
from deviceplugin.list_size import KUBELET_LIMIT
from vgpu.model.allocation import Device
from vgpu.model.reasons import SourceError
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB, MIB
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.volcano.codec import Volcano

VOLCANO, GPUSHARE, GAIA = Volcano(memory_factor=1), Gpushare(memory_unit=MIB), Gaia()
FACTOR = IdUnit(MIB, "--volcano.memory-factor")


def gpu(number, memory=40 * MIB, healthy=True):
    uuid = f"GPU-ad63c684-5593-111a-cbb1-{number:012d}"
    return Device(uuid, number, memory, slots=10, healthy=healthy)


def ids(listed):
    """ID -> whether it is healthy, in the list's order."""
    words = {"Healthy": True, "Unhealthy": False}
    message = pb.ListAndWatchResponse.FromString(listed.message)
    return {device.ID: words[device.health] for device in message.devices}


OFFERS = [
    (VOLCANO, "volcano.sh/vgpu-number"),
    (VOLCANO, "volcano.sh/vgpu-memory"),
    (VOLCANO, "volcano.sh/vgpu-cores"),
    (GPUSHARE, "aliyun.com/gpu-mem"),
    (GAIA, "tencent.com/vcuda-core"),
    (GAIA, "tencent.com/vcuda-memory"),
]
GPUS = st.lists(st.builds(dict, memory=st.integers(0, 300).map(MIB.__mul__), healthy=st.booleans()))


@pytest.mark.parametrize(("codec", "resource"), OFFERS, ids=[name for _, name in OFFERS])
@given(GPUS)
def test_all_ids_are_listed_in_order_and_counted(codec, resource, drawn):
    gpus = tuple(gpu(number, **fields) for number, fields in enumerate(drawn))
    listed = offered(codec, resource, gpus)
    health_by_id = ids(listed)
    assert list(health_by_id) == list(codec.device_ids(resource, gpus))
    assert (listed.healthy, listed.unhealthy) == (
        sum(health_by_id.values()),
        len(health_by_id) - sum(health_by_id.values()),
    )


@pytest.mark.parametrize(("codec", "resource"), OFFERS, ids=[name for _, name in OFFERS])
@given(GPUS)
def test_so_many_ids_are_healthy_as_the_healthy_gpus_alone_have(codec, resource, drawn):
    gpus = tuple(gpu(number, **fields) for number, fields in enumerate(drawn))
    healthy = tuple(one for one in gpus if one.healthy)
    assert offered(codec, resource, gpus).healthy == len(list(codec.device_ids(resource, healthy)))


@pytest.mark.parametrize(("codec", "resource"), OFFERS[:4], ids=[n for _, n in OFFERS[:4]])
def test_all_ids_of_an_unhealthy_gpu_are_unhealthy_and_no_others(codec, resource):
    gpus = (gpu(0), gpu(1, healthy=False), gpu(2))
    for device_id, healthy in ids(offered(codec, resource, gpus)).items():
        assert healthy is (gpus[1].uuid not in device_id)


def test_ids_that_name_no_gpu_are_unhealthy_from_the_end():
    gpus = (gpu(0, GIB, healthy=False), gpu(1, 3 * GIB))
    health = list(ids(offered(GAIA, "tencent.com/vcuda-memory", gpus)).values())
    assert health == [True] * 12 + [False] * (GIB // GAIA_MEMORY_BLOCK)


def test_nothing_to_list_is_an_empty_list():
    assert offered(VOLCANO, "volcano.sh/vgpu-number", ()) == AdvertisedList(b"", 0, 0, 0)


def test_a_gpu_that_cannot_be_listed_is_reported():
    with pytest.raises(SourceError):
        offered(GPUSHARE, "aliyun.com/gpu-mem", (Device("GPU-x", 0),))


def test_the_longest_length_is_that_of_the_list_when_all_is_lost():
    lost = tuple(gpu(number, healthy=False) for number in range(3))
    listed = offered(VOLCANO, "volcano.sh/vgpu-memory", lost)
    assert listed.longest_bytes == len(listed.message)
    well = offered(VOLCANO, "volcano.sh/vgpu-memory", tuple(map(gpu, range(3))))
    assert well.longest_bytes == listed.longest_bytes > len(well.message)


# ---------------------------------------------------------------- the bound


def eight(gib):
    return tuple(gpu(number, gib * GIB) for number in range(8))


def test_eight_large_gpus_in_units_of_one_mib_are_too_long():
    refused = offered(VOLCANO, "volcano.sh/vgpu-memory", eight(140), FACTOR)
    assert refused == TooLong(
        "volcano.sh/vgpu-memory", 1_146_880, 78_245_840, FACTOR, fitting_mib=19
    )
    assert str(refused) == (
        "volcano.sh/vgpu-memory is not registered: 1,146,880 devices of 1 MiB make a list of"
        " 78,245,840 bytes, and the kubelet takes 4,194,304;"
        " the smallest --volcano.memory-factor that fits is 19"
    )


def test_the_suggested_unit_fits_and_the_next_smaller_does_not():
    fitting = offered(Volcano(memory_factor=19), "volcano.sh/vgpu-memory", eight(140))
    assert len(fitting.message) <= fitting.longest_bytes <= KUBELET_LIMIT
    assert isinstance(
        offered(Volcano(memory_factor=18), "volcano.sh/vgpu-memory", eight(140)), TooLong
    )


def test_a_list_is_too_long_even_if_it_fits_while_all_is_well():
    """It would vanish just when the GPU is lost."""
    refused = offered(GPUSHARE, "aliyun.com/gpu-mem", (gpu(0, 67_500 * MIB),))
    words = len("Unhealthy") - len("Healthy")
    assert refused.longest_bytes - words * refused.count < KUBELET_LIMIT < refused.longest_bytes


def test_a_flag_with_a_suffix_is_printed_as_it_is_typed():
    unit = IdUnit(MIB, "--gpushare.memory-unit", "MiB")
    problem = str(offered(GPUSHARE, "aliyun.com/gpu-mem", eight(16), unit))
    assert problem.endswith("the smallest --gpushare.memory-unit that fits is 2MiB")


def test_where_no_unit_fits_that_is_reported():
    gpus = (gpu(0, 2 * MIB), gpu(1, 200 * GIB))
    problem = str(offered(VOLCANO, "volcano.sh/vgpu-memory", gpus, FACTOR))
    assert problem.endswith("; no --volcano.memory-factor fits that leaves every device one")


def test_a_list_that_is_not_of_memory_is_too_long_without_advice():
    gpus = (Device(gpu(0).uuid, slots=200_000),)
    problem = str(offered(VOLCANO, "volcano.sh/vgpu-number", gpus))
    assert problem.startswith(
        "volcano.sh/vgpu-number is not registered: 200,000 devices make a list"
    )
    assert problem.endswith("and the kubelet takes 4,194,304")
