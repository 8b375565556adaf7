"""What gpushare's plugin tells a container in its environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.schemes.gpushare import EnvLimits, limits_from_env

UUID = "GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa"


def env(**changes):
    return {
        "NVIDIA_VISIBLE_DEVICES": "1",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    } | changes


def test_the_share_is_told_in_units_by_index():
    assert limits_from_env(env()) == EnvLimits(3, 15, 1, "", refused=False)


def test_a_single_card_is_told_by_uuid():
    told = limits_from_env(env(NVIDIA_VISIBLE_DEVICES=UUID, ALIYUN_COM_GPU_MEM_IDX="0"))
    assert told == EnvLimits(3, 15, 0, UUID, refused=False)


@pytest.mark.parametrize("poison", ["no-gpu-has-8138MiB-to-run", "no-gpu-has-1GiB-to-run"])
def test_a_poisoned_environment_names_no_card(poison):
    told = limits_from_env(env(NVIDIA_VISIBLE_DEVICES=poison, ALIYUN_COM_GPU_MEM_IDX="-1"))
    assert told == EnvLimits(3, 15, None, "", refused=True)


def test_an_environment_of_something_else_is_not_gpushares():
    assert limits_from_env({}) is None
    assert limits_from_env({"NVIDIA_VISIBLE_DEVICES": UUID}) is None


@pytest.mark.parametrize("text", ["", "-1", "1.5", "one", "1 ", "²", "1" * 10])
def test_a_number_that_is_none_is_not_told(text):
    told = limits_from_env(env(ALIYUN_COM_GPU_MEM_CONTAINER=text, ALIYUN_COM_GPU_MEM_IDX=text))
    assert (told.container_units, told.index) == (None, None)


NAMES = st.sampled_from([*env(), "OTHER"])


@given(st.dictionaries(NAMES, st.text(max_size=50) | st.integers().map(str)))
def test_any_environment_is_read(environment):
    told = limits_from_env(environment)
    assert (told is None) == ("ALIYUN_COM_GPU_MEM_CONTAINER" not in environment)
