"""Single checks of the GPU kit on the fake driver: what they find, and what they cannot run."""

import shutil

import msgspec

from deploy.gpu_kit.answers import DriverAnswers
from deploy.gpu_kit.checks import fake_driver, pids, queries
from deploy.gpu_kit.kit import DRIVER_FILE
from deploy.gpu_kit.result import Verdict
from tests.support.fake_nvml.build import build as build_nvml

ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


def failures(results):
    return {result.name for result in results if result.verdict is Verdict.FAILED}


def test_an_nvidia_smi_that_prints_something_else_is_found(kit, programs):
    smi = (programs / "nvidia-smi").rename(programs / "right-smi")
    wrong = f"#!/bin/sh\nexec {smi} \"$@\" | sed 's/P0/P15/; s/1650223/1650224/'\n"
    (programs / "nvidia-smi").write_text(wrong)
    (programs / "nvidia-smi").chmod(0o755)
    expected = {"queries/0/performance_state", "queries/0/serial"}
    assert failures(queries.check(kit)) == expected


def test_without_nvidia_smi_the_queries_are_asked_all_the_same(kit, programs, monkeypatch):
    (programs / "nvidia-smi").unlink()
    monkeypatch.setenv("PATH", str(programs))
    results = {result.name: result for result in queries.check(kit)}
    assert results["queries/0/nvidia-smi"].reason == "nvidia-smi is not installed"
    assert results["queries/0/nvmlDeviceGetPowerUsage"].verdict is Verdict.PASSED
    assert failures(results.values()) == set()
    # A load ran meanwhile: the lists are not empty.
    recorded = msgspec.json.decode(kit.kept[DRIVER_FILE], type=DriverAnswers)
    assert recorded.gpus[0].entries("nvmlDeviceGetComputeRunningProcesses_v3")


def test_a_fake_driver_that_refuses_what_the_real_one_answers_is_found(kit):
    assert failures(queries.check(kit)) == set()
    whole = msgspec.structs.replace(kit, fake_library=build_nvml())
    assert failures(fake_driver.check(whole)) == set()
    lacking = build_nvml(frozenset({ENERGY}))
    failed = failures(fake_driver.check(msgspec.structs.replace(kit, fake_library=lacking)))
    assert failed == {f"fake/0/{ENERGY}"}


def test_without_a_fake_driver_or_unshare_there_is_a_reason(kit, programs, monkeypatch):
    (result,) = fake_driver.check(kit)
    assert (result.verdict, result.reason) == (Verdict.NOT_RUN, "there is no fake driver here")
    sh = shutil.which("sh")
    (programs / "unshare").write_text(f"#!{sh}\necho 'unshare: Operation not permitted' >&2\n")
    (programs / "unshare").chmod(0o755)
    (result,) = pids.check(kit)
    assert result.verdict is Verdict.NOT_RUN
    assert result.reason == "no pid namespace: unshare: Operation not permitted"
    (programs / "unshare").unlink()
    monkeypatch.setenv("PATH", str(programs))
    (result,) = pids.check(kit)
    assert result.reason == "unshare is not installed"
