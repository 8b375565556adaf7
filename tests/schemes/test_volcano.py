"""What Volcano's and HAMi's plugins tell a container."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.schemes.volcano import is_shared, memory_limit, visible_uuids


@pytest.mark.parametrize(
    ("env", "position", "limit"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT_1": "10240m"}, 1, 10737418240),  # a published example
        ({"CUDA_DEVICE_MEMORY_LIMIT": "2G"}, 0, 2 * 2**30),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "512k"}, 0, 512 * 2**10),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "1048576"}, 0, 2**20),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "1m", "CUDA_DEVICE_MEMORY_LIMIT": "2m"}, 0, 2**20),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "0"}, 0, None),
        ({}, 0, None),
    ],
)
def test_limits_as_the_plugins_write_them(env, position, limit):
    assert memory_limit(env, position) == limit


@given(st.text(max_size=30))
def test_any_other_text_is_no_limit(text):
    limit = memory_limit({"CUDA_DEVICE_MEMORY_LIMIT_0": text}, 0)
    assert limit is None or text.rstrip("kmgKMG").isdigit()


def test_devices_are_named_by_uuid_or_not_at_all():
    assert visible_uuids({"NVIDIA_VISIBLE_DEVICES": "GPU-a, MIG-b"}) == ("GPU-a", "MIG-b")
    assert visible_uuids({"NVIDIA_VISIBLE_DEVICES": "GPU-a,1"}) == ()
    assert visible_uuids({"NVIDIA_VISIBLE_DEVICES": "all"}) == ()
    assert visible_uuids({}) == ()


def test_a_whole_card_has_no_limit_in_its_environment():
    assert is_shared({"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/vgpu/x.cache"})
    assert not is_shared({"NVIDIA_VISIBLE_DEVICES": "GPU-a"})
