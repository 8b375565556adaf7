"""The length of a device plugin's list, against protobuf's own encoding, and units that fit."""

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.list_size import KUBELET_LIMIT, Series, SharedMemory, list_bytes, smallest_unit
from vgpu.model.units import GIB, MIB

UUID = "GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa"
GPUSHARE = len(f"{UUID}-_-")
VOLCANO = len(f"{UUID}-memory-")


def response_type():
    """deviceplugin/v1beta1's ListAndWatchResponse, as far as it matters here."""
    file = descriptor_pb2.FileDescriptorProto(name="list.proto", package="v1beta1")
    device = file.message_type.add(name="Device")
    device.field.add(name="ID", number=1, type=9, label=1)
    device.field.add(name="health", number=2, type=9, label=1)
    response = file.message_type.add(name="ListAndWatchResponse")
    response.field.add(name="devices", number=1, type=11, label=3, type_name=".v1beta1.Device")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    described = pool.FindMessageTypeByName("v1beta1.ListAndWatchResponse")
    return message_factory.GetMessageClass(described)


RESPONSE = response_type()


@given(st.lists(st.builds(Series, st.integers(0, 300), st.integers(0, 1100)), max_size=3))
def test_the_length_is_that_of_the_encoded_message(devices):
    message = RESPONSE()
    for device in devices:
        for number in range(device.count):
            message.devices.add(ID="x" * device.prefix_bytes + str(number), health="Unhealthy")
    assert list_bytes(devices) == message.ByteSize()


def test_numbers_of_more_digits_are_longer():
    assert list_bytes([Series(0, 10)]) * 10 < list_bytes([Series(0, 100)])
    assert list_bytes([]) == 0


def test_about_sixty_five_thousand_ids_of_gpushare_fit():
    assert list_bytes([Series(GPUSHARE, 65_000)]) <= KUBELET_LIMIT
    assert list_bytes([Series(GPUSHARE, 70_000)]) > KUBELET_LIMIT


@pytest.mark.parametrize(
    ("gpus", "gib", "prefix", "megabytes"),
    [(1, 16, GPUSHARE, 1), (8, 16, GPUSHARE, 2), (8, 140, VOLCANO, 19), (16, 180, VOLCANO, 47)],
)
def test_the_smallest_unit_fits_and_the_next_smaller_does_not(gpus, gib, prefix, megabytes):
    devices = [SharedMemory(prefix, gib * GIB)] * gpus
    unit = smallest_unit(devices)
    assert unit == megabytes * MIB

    def size(unit):
        return list_bytes(Series(prefix, gib * GIB // unit) for _ in range(gpus))

    assert size(unit) <= KUBELET_LIMIT
    assert unit == MIB or size(unit - MIB) > KUBELET_LIMIT


def test_the_unit_is_a_multiple_of_what_is_asked_for():
    assert smallest_unit([SharedMemory(VOLCANO, 140 * GIB)] * 8, granularity=10 * MIB) == 20 * MIB


def test_no_unit_may_leave_a_device_without_any():
    """A GPU of 16 MiB beside large ones: units above its size would make it vanish."""
    small, large = SharedMemory(GPUSHARE, 16 * MIB), SharedMemory(GPUSHARE, 100_000 * GIB)
    assert smallest_unit([large, small]) is None
    assert smallest_unit([large]) is not None


def test_nothing_to_list_fits_in_the_smallest_unit():
    assert smallest_unit([]) == MIB
