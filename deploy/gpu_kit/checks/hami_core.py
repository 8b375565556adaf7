"""HAMi-core on a real process: its limit, its region as we read it, the host pid in it.

Its source is a folder of the user; ``make`` there has to build ``libvgpu.so``. Names of
variables are those that HAMi-core reads (Project-HAMi/HAMi-core, README).
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deploy.gpu_kit.kit import Kit
from deploy.gpu_kit.loads import MIB, LoadPlan
from deploy.gpu_kit.processes import KitError
from deploy.gpu_kit.result import Result, equal, holds, near, not_run
from vgpu.model.facts import Region
from vgpu.model.reasons import SourceError
from vgpu.sources.regions import read_region

LIBRARY: Final = "libvgpu.so"
LIMIT_MIB: Final = 1024
HELD_MIB: Final = 256
BUILD_SECONDS: Final = 45
CONTEXT_BYTES: Final = 700 * MIB
"""Maximum of what HAMi-core accounts for a context and its code."""


def check(kit: Kit) -> Iterator[Result]:
    """See the module."""
    if kit.hami_core is None:
        yield not_run("hami-core", "HAMI_CORE names no folder of its source")
        return
    if shutil.which("nvcc") is None and not any(kit.hami_core.rglob(LIBRARY)):
        yield not_run("hami-core", "nvcc is not installed")
        return
    try:
        library = _library(kit, kit.hami_core)
    except KitError as error:
        yield not_run("hami-core", str(error))
        return
    cache = kit.new_folder("hami-core") / "cudevshr.cache"
    env = {
        "LD_PRELOAD": str(library),
        "CUDA_DEVICE_MEMORY_LIMIT_0": f"{LIMIT_MIB}m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(cache),
        "LIBCUDA_LOG_LEVEL": "1",
    }
    plan = LoadPlan(mib=HELD_MIB, busy=0.1, more_mib=LIMIT_MIB)
    (load,) = kit.loads().start([plan], env)
    try:
        refusal = load.first_line.get("more")
        expected = "CUDA_ERROR_OUT_OF_MEMORY"
        yield equal("hami-core/allocation beyond the limit", expected, refusal)
        try:
            region = read_region(str(cache))
        except SourceError as error:
            yield holds("hami-core/region", "it can be read", str(error), true=False)
            return
        kit.facts["hami_core_layout"] = region.layout
        yield from compared(region, kit.gpu.uuid, load.pid)
    finally:
        kit.loads().kill(load)


def compared(region: Region, gpu: str, pid: int) -> Iterator[Result]:
    """The region of a load with the host pid ``pid`` on the GPU with this UUID."""
    device = region.devices[0] if region.devices else None
    limit = device.memory_limit_bytes if device else None
    yield equal("hami-core/limit in the region", LIMIT_MIB * MIB, limit)
    yield equal("hami-core/GPU of the region", gpu, device.uuid if device else None)
    slots = [slot for slot in region.processes if slot.pid == pid]
    yield equal("hami-core/processes in the region", 1, len(slots))
    for slot in slots:
        verdict = "right" if slot.host_pid == pid else "unset" if not slot.host_pid else "wrong"
        yield equal("hami-core/host pid in the region", "right", verdict)
        total = slot.used[0].total if slot.used else None
        half = CONTEXT_BYTES // 2
        yield near("hami-core/memory that it accounts", HELD_MIB * MIB + half, total, half, "bytes")


def _library(kit: Kit, folder: Path) -> Path:
    """The library, built if it is not there yet. Raises KitError."""
    if not (built := sorted(folder.rglob(LIBRARY))):
        command = ["make", f"--directory={folder}", f"--jobs={os.cpu_count() or 1}"]
        kit.processes.output(command, kit.log, seconds=BUILD_SECONDS)
        built = sorted(folder.rglob(LIBRARY))
    if not built:
        raise KitError(f"make in {folder} has built no {LIBRARY}")
    return built[0]
