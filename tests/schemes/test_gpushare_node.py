"""gpushare on a node: GPUs by index, device IDs, the ConfigMap of unhealthy GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Device
from vgpu.model.objects import Node
from vgpu.model.units import GIB, MIB
from vgpu.schemes.codec import ClaimError, Slot
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.gpushare.node import (
    MOST_GPUS,
    MOST_UNITS,
    NAMES,
    isolation,
    unhealthy_data,
    unhealthy_gpus,
    with_health,
)

UUID = "GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa"


def node(units, gpus, **more):
    resources = {NAMES.memory: units, NAMES.count: gpus}
    return Node("n1", capacity=resources, allocatable=more.pop("allocatable", resources), **more)


def test_the_memory_of_a_node_is_that_of_equal_gpus():
    """G1: two GPUs of 16276 MiB."""
    gpus = Gpushare(memory_unit=MIB).devices(node(32552, 2))
    assert gpus == (
        Device(index=0, memory_bytes=16276 * MIB),
        Device(index=1, memory_bytes=16276 * MIB),
    )


def test_gpus_of_unknown_sizes_are_counted_with_the_whole_average():
    assert [gpu.memory_bytes for gpu in Gpushare().devices(node(38, 4))] == [9 * GIB] * 4


def test_a_node_without_gpushare_has_no_gpus():
    assert Gpushare().devices(Node("n1")) == ()


def test_gpus_whose_plugin_is_gone_take_nothing_new():
    gone = node(30, 2, allocatable={NAMES.memory: 0, NAMES.count: 2})
    assert Gpushare().devices(gone) == tuple(
        Device(index=index, memory_bytes=15 * GIB, healthy=False) for index in range(2)
    )


def test_the_count_outlives_the_resource_so_the_size_is_then_unknown():
    for capacity in ({NAMES.memory: 0, NAMES.count: 2}, {NAMES.count: 2}):
        left = Node("n1", capacity=capacity, allocatable=capacity)
        assert {(gpu.memory_bytes, gpu.healthy) for gpu in Gpushare().devices(left)} == {
            (None, False)
        }


@pytest.mark.parametrize(
    ("units", "gpus", "key"),
    [
        (30, 0, NAMES.count),
        (30, 10**9, NAMES.count),
        (30, -1, NAMES.count),
        (-1, 1, NAMES.memory),
        (10**18, 1, NAMES.memory),
    ],
)
def test_impossible_numbers_of_a_node_are_refused_by_name(units, gpus, key):
    with pytest.raises(ClaimError, match="node n1") as refused:
        Gpushare().devices(node(units, gpus))
    assert refused.value.key == key


def test_a_label_of_the_node_switches_isolation_off():
    assert isolation(Node("n1"))
    assert not isolation(Node("n1", labels={"cgpu.disable.isolation": "true"}))


def test_gpushare_locks_no_node():
    assert Gpushare().locks(Node("n1", annotations={"hamivgpu": "2024-01-01T00:00:00Z"})) == ()


# ---------------------------------------------------------------- unhealthy GPUs


def test_the_unhealthy_gpus_are_excluded_by_index():
    """G10."""
    gpus = Gpushare().devices(node(60, 4))
    unhealthy = unhealthy_gpus("0,2", "n1")
    assert [gpu.healthy for gpu in with_health(gpus, unhealthy)] == [False, True, False, True]


def test_a_gpu_is_not_healed_by_a_list_without_it():
    lost = (Device(index=0, healthy=False),)
    assert with_health(lost, frozenset()) == lost


def test_an_empty_list_means_no_gpu_not_gpu_0():
    assert unhealthy_gpus("", "n1") == frozenset()
    assert unhealthy_data(frozenset()) == {}


def test_spaces_after_commas_are_understood():
    assert unhealthy_gpus("0, 2", "n1") == {0, 2}


@pytest.mark.parametrize("text", ["x", "0,", ",", "0,x", "-1", "0;2", "1.0", "00", "²", "9" * 9999])
def test_a_bad_token_is_refused_and_never_gpu_0(text):
    with pytest.raises(ClaimError) as refused:
        unhealthy_gpus(text, "n1")
    assert refused.value.object_name == "configmap kube-system/unhealthy-gpu-n1"
    assert (refused.value.key, refused.value.text) == ("gpus", text)


@given(st.frozensets(st.integers(0, MOST_GPUS - 1), min_size=1, max_size=8))
def test_the_unhealthy_gpus_that_were_written_are_read(gpus):
    assert unhealthy_gpus(unhealthy_data(gpus)["gpus"], "n1") == gpus


@given(st.text() | st.text("0123456789, -x"))
def test_any_text_gives_unhealthy_gpus_or_the_typed_error(text):
    try:
        gpus = unhealthy_gpus(text, "n1")
    except ClaimError as error:
        assert error.text == text  # noqa: PT017
    else:
        assert all(f"{gpu}" in text for gpu in gpus)


# ---------------------------------------------------------------- device IDs


def test_a_device_id_names_the_gpu_and_the_unit():
    assert Gpushare().slot(NAMES.memory, f"{UUID}-_-12") == Slot(NAMES.memory, UUID, 12)


def test_each_gpu_is_listed_with_its_own_memory():
    small = Device(uuid="GPU-a", memory_bytes=2 * GIB + 5)
    large = Device(uuid="GPU-b", memory_bytes=3 * GIB)
    assert list(Gpushare().device_ids(NAMES.memory, (small, large))) == [
        *("GPU-a-_-0", "GPU-a-_-1"),
        *("GPU-b-_-0", "GPU-b-_-1", "GPU-b-_-2"),
    ]


@pytest.mark.parametrize("device", [Device(index=0, memory_bytes=GIB), Device(uuid=UUID)])
def test_a_gpu_without_uuid_or_size_cannot_be_listed(device):
    with pytest.raises(ClaimError):
        list(Gpushare().device_ids(NAMES.memory, (device,)))


def test_gpus_are_no_resource_of_the_plugin():
    with pytest.raises(ClaimError):
        list(Gpushare().device_ids(NAMES.count, ()))
    with pytest.raises(ClaimError) as refused:
        Gpushare().slot(NAMES.count, f"{UUID}-_-1")
    assert (refused.value.key, refused.value.text) == (NAMES.count, f"{UUID}-_-1")


@given(st.integers(0, 40), st.sampled_from([MIB, 256 * MIB, GIB]))
def test_every_id_that_is_listed_is_read(units, unit):
    codec = Gpushare(memory_unit=unit)
    ids = list(codec.device_ids(NAMES.memory, (Device(uuid=UUID, memory_bytes=units * unit),)))
    assert [codec.slot(NAMES.memory, each) for each in ids] == [
        Slot(NAMES.memory, UUID, ordinal) for ordinal in range(units)
    ]


@given(
    st.text()
    | st.text("GPU-_0123abcd", max_size=70)
    | st.tuples(st.just(UUID + "-_-"), st.text(max_size=12)).map("".join)
)
def test_any_device_id_is_read_exactly_or_refused(text):
    try:
        slot = Gpushare().slot(NAMES.memory, text)
    except ClaimError as error:
        assert (error.key, error.text) == (NAMES.memory, text)  # noqa: PT017
    else:
        assert f"{slot.device}-_-{slot.ordinal}" == text
        assert slot.ordinal <= MOST_UNITS
