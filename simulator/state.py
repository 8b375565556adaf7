"""The state of a simulated node at a time: pure functions from a scenario and seconds.

Equal arguments give equal answers: no clock, no randomness, no I/O. ``start`` is the unix time of
second 0, for the one field of a region that is in unix seconds.
"""

import msgspec

from simulator.scenario import End, Process, Scenario, Shim, SimulatedContainer, SimulatedGpu
from vgpu.model.facts import Region, RegionDevice, RegionProcess, RegionUse
from vgpu.model.units import MILLI_PER_PERCENT
from vgpu.schemes.volcano.hami_core import LAYOUTS

LOAD_POWER = 0.9
"""The part of a GPU's power limit that full utilisation draws."""


class Use(msgspec.Struct, frozen=True, gc=False):
    """One living process's use of one GPU (by UUID), as the driver reports it."""

    pid: int
    gpu: str
    used_bytes: int
    sm_percent: int


class GpuState(msgspec.Struct, frozen=True, gc=False):
    """One GPU at a time; used + free + reserved is the GPU's memory. Energy since second 0."""

    gpu: SimulatedGpu
    used_bytes: int
    free_bytes: int
    sm_percent: int
    watts: float
    joules: float


def uses_at(scenario: Scenario, t: float) -> tuple[Use, ...]:
    """The living processes on GPUs."""
    return tuple(
        Use(
            pid=process.pid,
            gpu=scenario.gpus[process.gpu].uuid,
            used_bytes=process.used_bytes(t),
            sm_percent=process.sm_percent(t),
        )
        for process in scenario.processes()
        if process.gpu is not None and process.alive(t)
    )


def alive_at(scenario: Scenario, t: float) -> frozenset[int]:
    """The host pids of all living processes, those on no GPU included."""
    return frozenset(process.pid for process in scenario.processes() if process.alive(t))


def gpus_at(scenario: Scenario, t: float) -> tuple[GpuState, ...]:
    """The GPUs: sums over their living processes, and power with its exact integral."""
    used = [gpu.baseline_bytes for gpu in scenario.gpus]
    percent = [0 for _ in scenario.gpus]
    load = [0.0 for _ in scenario.gpus]
    work = [0.0 for _ in scenario.gpus]
    for process in scenario.processes():
        if process.gpu is None:
            continue
        if process.alive(t):
            used[process.gpu] += process.used_bytes(t)
            percent[process.gpu] += process.sm_percent(t)
            load[process.gpu] += process.sm.value(t)
        begin, end = max(process.since, 0.0), min(process.until, t)
        if begin < end:
            work[process.gpu] += process.sm.integral(begin, end)
    return tuple(
        GpuState(
            gpu=gpu,
            used_bytes=used[gpu.index],
            free_bytes=gpu.memory_bytes - gpu.reserved_bytes - used[gpu.index],
            sm_percent=min(percent[gpu.index], 100),
            watts=gpu.idle_watts + _load_watts(gpu) * load[gpu.index],
            joules=gpu.idle_watts * max(t, 0.0) + _load_watts(gpu) * work[gpu.index],
        )
        for gpu in scenario.gpus
    )


def _load_watts(gpu: SimulatedGpu) -> float:
    return LOAD_POWER * gpu.limit_watts - gpu.idle_watts


def damaged_at(scenario: Scenario, t: float) -> dict[str, int]:
    """The regions that are cut down, by container id."""
    return {
        damage.container_id: damage.size
        for damage in scenario.damages
        if damage.since <= t < damage.until
    }


def regions_at(scenario: Scenario, t: float, start: float = 0.0) -> dict[str, Region]:
    """What each shim has written, by container id; left-over regions included."""
    return {
        container.id: _region(scenario, container, container.shim, t, start)
        for pod, container in scenario.containers()
        if container.shim is not None and pod.admitted
    }


def _region(
    scenario: Scenario, container: SimulatedContainer, shim: Shim, t: float, start: float
) -> Region:
    processes = [p for p in container.processes if p.gpu is not None and p.since <= t]
    running = [process for process in processes if process.sm_percent(t) > 0]
    kernels = [process.sm.last_active(min(t, process.until)) for process in processes]
    last_kernel = max((kernel for kernel in kernels if kernel is not None), default=shim.created)
    major, minor = LAYOUTS[shim.layout].version or (None, None)
    return Region(
        layout=shim.layout,
        devices=tuple(
            RegionDevice(
                uuid=share.device,
                memory_limit_bytes=share.memory_bytes or 0,
                core_limit_percent=(share.cores_milli or 0) // MILLI_PER_PERCENT,
            )
            for share in container.shares
        ),
        processes=tuple(_slot(scenario, container, shim, p, t) for p in processes),
        proc_num=len(processes),
        utilization_switch=1,
        recent_kernel=2 if running else -1 if shim.preemptible else 0,
        priority=shim.priority,
        last_kernel_time=None if major is None else int(start + last_kernel),
        major_version=major,
        minor_version=minor,
    )


def _slot(
    scenario: Scenario, container: SimulatedContainer, shim: Shim, process: Process, t: float
) -> RegionProcess:
    """A process's slot. After a clean exit pid and status are 0 and its use stays; after a kill
    everything stays.
    """
    exited = t >= process.until and process.end is End.EXITED
    data = process.data_bytes(t)
    use = RegionUse(
        context=process.context,
        module=process.module,
        data=data,
        offset=0,
        total=process.context + process.module + data,
        sm_util=round(100 * process.sm.value(min(t, process.until))),
    )
    none = RegionUse(context=0, module=0, data=0, offset=0, total=0, sm_util=0)
    if LAYOUTS[shim.layout].util is None:
        use, none = (msgspec.structs.replace(value, sm_util=None) for value in (use, none))
    gpu = None if process.gpu is None else scenario.gpus[process.gpu].uuid
    return RegionProcess(
        pid=0 if exited else process.container_pid,
        host_pid=process.pid,
        status=0 if exited else 1,
        used=tuple(use if share.device == gpu else none for share in container.shares),
    )
