"""What gpushare's plugin tells a container in its environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Device
from vgpu.model.units import GIB, MIB
from vgpu.schemes.gpushare.env import EnvLimits, environment, legacy_refusal, limits_from_env

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


def test_a_single_gpu_is_told_by_uuid():
    told = limits_from_env(env(NVIDIA_VISIBLE_DEVICES=UUID, ALIYUN_COM_GPU_MEM_IDX="0"))
    assert told == EnvLimits(3, 15, 0, UUID, refused=False)


@pytest.mark.parametrize("poison", ["no-gpu-has-8138MiB-to-run", "no-gpu-has-1GiB-to-run"])
def test_a_poisoned_environment_names_no_gpu(poison):
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


def test_what_is_told_is_read_back():
    gpu = Device(uuid=UUID, index=2, memory_bytes=15 * GIB)
    told = limits_from_env(environment([gpu], 3, GIB, isolation=True))
    assert told == EnvLimits(3, 15, 2, UUID, refused=False)


def test_a_gpu_whose_uuid_is_unknown_is_told_by_index():
    told = environment([Device(index=2, memory_bytes=15 * GIB)], 3, GIB, isolation=True)
    assert told["NVIDIA_VISIBLE_DEVICES"] == "2"


def test_a_program_takes_its_part_of_the_gpu_from_the_environment():
    """G8: TensorFlow's per_process_gpu_memory_fraction for 3 of 15, with 0.7 of it to be used."""
    gpu = Device(uuid=UUID, index=0, memory_bytes=15 * GIB)
    told = environment([gpu], 3, GIB, isolation=True)
    container, device = (int(told[f"ALIYUN_COM_GPU_MEM_{name}"]) for name in ("CONTAINER", "DEV"))
    assert round(container * 0.7 / device, 1) == 0.1


def test_the_part_of_each_of_several_gpus_is_the_part_of_their_sum():
    gpus = [Device(uuid=f"GPU-{n}", index=n, memory_bytes=15 * GIB) for n in (0, 1)]
    told = environment(gpus, 8, GIB, isolation=True)
    assert told["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert told["ALIYUN_COM_GPU_MEM_IDX"] == "0,1"
    assert (told["ALIYUN_COM_GPU_MEM_CONTAINER"], told["ALIYUN_COM_GPU_MEM_DEV"]) == ("8", "30")


def test_isolation_is_switched_off_by_name():
    gpu = Device(index=0, memory_bytes=GIB)
    assert "CGPU_DISABLE" not in environment([gpu], 1, GIB, isolation=True)
    assert environment([gpu], 1, GIB, isolation=False)["CGPU_DISABLE"] == "true"


@pytest.mark.parametrize(
    ("units", "unit", "text"),
    [
        pytest.param(1, GIB, "no-gpu-has-1GiB-to-run", id="G9"),
        (8138, MIB, "no-gpu-has-8138MiB-to-run"),
        (4, 256 * MIB, "no-gpu-has-1024MiB-to-run"),
    ],
)
def test_the_original_refuses_with_an_environment_that_cannot_start(units, unit, text):
    told = legacy_refusal(units, units, 15, unit)
    assert told == {
        "NVIDIA_VISIBLE_DEVICES": text,
        "ALIYUN_COM_GPU_MEM_IDX": "-1",
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    }
    assert limits_from_env(told) == EnvLimits(units, 15, None, "", refused=True)
