"""gpu-manager's own checkpoint, taken over."""

import json

import pytest

from deviceplugin.gaia.migration import read_gpu_manager
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Allocation, Device, Share
from vgpu.model.names import Phase, PodRef
from vgpu.model.reasons import Reason
from vgpu.model.units import GIB

ONE = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
TWO = "GPU-b83f0d62-417e-4c9a-a5d8-e06b3f17c942"
DEVICES = (
    Device(uuid=ONE, index=2, minor=0),
    Device(uuid=TWO, index=0, minor=1),
    Device(index=1, minor=2),
)


def info(*gpus, cores=20, memory=GIB):
    return {"Devices": [f"/dev/nvidia{gpu}" for gpu in gpus], "Cores": cores, "Memory": memory}


def read(tmp_path, pods):
    path = tmp_path / "gpumanager_internal_checkpoint"
    text = pods if isinstance(pods, str) else json.dumps({"PodGPUMapping": pods})
    path.write_text(text)
    return read_gpu_manager(str(path), DEVICES)


def test_its_pods_are_admitted_by_another_plugin_with_gpus_by_uuid(tmp_path):
    found = read(
        tmp_path,
        {
            "u2": {"train": info(0, 1, cores=200)},
            "u1": {"a": info(1), "b": info(0, cores=30, memory=2 * GIB)},
        },
    )
    assert found.problems == ()
    assert found.admitted_pods == (
        AdmittedPod(
            PodRef("u1", "", ""),
            (
                Allocation("a", (Share(TWO, GIB, 200),), Phase.ASSIGNED),
                Allocation("b", (Share(ONE, 2 * GIB, 300),), Phase.ASSIGNED),
            ),
            foreign=True,
        ),
        AdmittedPod(
            PodRef("u2", "", ""),
            (
                Allocation(
                    "train", (Share(ONE, None, 1000), Share(TWO, None, 1000)), Phase.ASSIGNED
                ),
            ),
            foreign=True,
        ),
    )


def test_where_gpu_manager_never_was_there_is_nothing(tmp_path):
    found = read_gpu_manager(str(tmp_path / "none"), DEVICES)
    assert (found.admitted_pods, found.problems) == ((), ())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"PodGPUMapping":{"u":{"c":{"Devices":["x"]}}}}'])
def test_a_broken_one_is_a_problem_that_names_it(tmp_path, text):
    found = read(tmp_path, text)
    assert found.admitted_pods == ()
    (problem,) = found.problems
    assert problem.reason is Reason.MALFORMED
    assert "gpumanager_internal_checkpoint" in problem.object_name


@pytest.mark.parametrize("gpu", [2, 7])
def test_a_pod_on_a_gpu_that_is_not_there_is_a_problem_and_the_others_stand(tmp_path, gpu):
    found = read(tmp_path, {"gone": {"c": info(gpu)}, "u1": {"c": info(0)}})
    assert [admitted_pod.pod.uid for admitted_pod in found.admitted_pods] == ["u1"]
    (problem,) = found.problems
    assert problem.reason is Reason.UNKNOWN_DEVICE
    assert "'gone'" in problem.detail
    assert f"/dev/nvidia{gpu}," in problem.detail


def test_a_folder_in_its_place_is_a_problem(tmp_path):
    (problem,) = read_gpu_manager(str(tmp_path), DEVICES).problems
    assert problem.reason is Reason.NOT_REGULAR_FILE
