"""The fake driver of the tests beside the real one, for the same state.

Each difference in shape, error code or unit is a defect of the fake, which all other tests trust.
"""

import os
from collections.abc import Iterator

import msgspec

from deploy.gpu_kit.answers import DriverAnswers
from deploy.gpu_kit.fake_state import differences, state_of
from deploy.gpu_kit.kit import DRIVER_FILE, Kit
from deploy.gpu_kit.processes import module
from deploy.gpu_kit.result import Result, Verdict, equal, not_run


def check(kit: Kit) -> Iterator[Result]:
    """See the module."""
    if kit.fake_library is None:
        yield not_run("fake", "there is no fake driver here")
        return
    real = kit.answers
    if answered := kit.kept.get(DRIVER_FILE):  # with a load, which has entries in the lists
        real = msgspec.json.decode(answered, type=DriverAnswers)
    folder = kit.new_folder("fake")
    state = folder / "nvml.state"
    state.write_text(state_of(real))
    env = {"NVML_FAKE_STATE": str(state), "NVML_FAKE_CALLS": str(folder / "calls")}
    path = os.environ.get("LD_LIBRARY_PATH", "")
    env["LD_LIBRARY_PATH"] = f"{kit.fake_library.parent}:{path}"
    program = module("deploy.gpu_kit.driver_answers")
    printed = kit.processes.output(program, kit.log, seconds=10, env=env)
    fake = msgspec.json.decode(printed, type=DriverAnswers)
    yield equal("fake/GPUs", len(real.gpus), len(fake.gpus))
    found = differences(real, fake)
    for difference in found:
        title = f"fake/{difference.name}"
        yield Result(
            title, Verdict.FAILED, difference.real, difference.fake, reason=difference.reason
        )
    if not found:
        yield equal("fake/differences", 0, 0)
