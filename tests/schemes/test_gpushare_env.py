"""What gpushare's plugin writes into the environment of a container."""

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


def test_the_share_is_in_units_and_the_gpu_an_index():
    assert limits_from_env(env()) == EnvLimits(3, 15, 1, "", refused=False)


def test_a_single_gpu_is_named_by_uuid():
    limits = limits_from_env(env(NVIDIA_VISIBLE_DEVICES=UUID, ALIYUN_COM_GPU_MEM_IDX="0"))
    assert limits == EnvLimits(3, 15, 0, UUID, refused=False)


@pytest.mark.parametrize("poison", ["no-gpu-has-8138MiB-to-run", "no-gpu-has-1GiB-to-run"])
def test_a_poisoned_environment_names_no_gpu(poison):
    limits = limits_from_env(env(NVIDIA_VISIBLE_DEVICES=poison, ALIYUN_COM_GPU_MEM_IDX="-1"))
    assert limits == EnvLimits(3, 15, None, "", refused=True)


def test_an_environment_of_something_else_is_not_gpushares():
    assert limits_from_env({}) is None
    assert limits_from_env({"NVIDIA_VISIBLE_DEVICES": UUID}) is None


@pytest.mark.parametrize("text", ["", "-1", "1.5", "one", "1 ", "²", "1" * 10])
def test_a_text_that_is_no_number_is_unknown(text):
    limits = limits_from_env(env(ALIYUN_COM_GPU_MEM_CONTAINER=text, ALIYUN_COM_GPU_MEM_IDX=text))
    assert (limits.container_units, limits.index) == (None, None)


NAMES = st.sampled_from([*env(), "OTHER"])


@given(st.dictionaries(NAMES, st.text(max_size=50) | st.integers().map(str)))
def test_any_environment_is_read(environment):
    limits = limits_from_env(environment)
    assert (limits is None) == ("ALIYUN_COM_GPU_MEM_CONTAINER" not in environment)


def test_a_written_environment_is_read_back():
    gpu = Device(uuid=UUID, index=2, memory_bytes=15 * GIB)
    limits = limits_from_env(environment([gpu], 3, GIB, isolation=True))
    assert limits == EnvLimits(3, 15, 2, UUID, refused=False)


def test_a_gpu_whose_uuid_is_unknown_is_named_by_index():
    env_ = environment([Device(index=2, memory_bytes=15 * GIB)], 3, GIB, isolation=True)
    assert env_["NVIDIA_VISIBLE_DEVICES"] == "2"


def test_a_program_takes_its_part_of_the_gpu_from_the_environment():
    """G8: TensorFlow's per_process_gpu_memory_fraction for 3 of 15, with 0.7 of it to be used."""
    gpu = Device(uuid=UUID, index=0, memory_bytes=15 * GIB)
    env_ = environment([gpu], 3, GIB, isolation=True)
    container, device = (int(env_[f"ALIYUN_COM_GPU_MEM_{name}"]) for name in ("CONTAINER", "DEV"))
    assert round(container * 0.7 / device, 1) == 0.1


def test_the_part_of_each_of_several_gpus_is_the_part_of_their_sum():
    gpus = [Device(uuid=f"GPU-{n}", index=n, memory_bytes=15 * GIB) for n in (0, 1)]
    env_ = environment(gpus, 8, GIB, isolation=True)
    assert env_["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert env_["ALIYUN_COM_GPU_MEM_IDX"] == "0,1"
    assert (env_["ALIYUN_COM_GPU_MEM_CONTAINER"], env_["ALIYUN_COM_GPU_MEM_DEV"]) == ("8", "30")


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
    env_ = legacy_refusal(units, units, 15, unit)
    assert env_ == {
        "NVIDIA_VISIBLE_DEVICES": text,
        "ALIYUN_COM_GPU_MEM_IDX": "-1",
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    }
    assert limits_from_env(env_) == EnvLimits(units, 15, None, "", refused=True)
