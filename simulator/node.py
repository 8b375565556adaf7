"""A simulated node: its driver, and on disk everything that an exporter reads from files.

The driver is a :class:`~vgpu.model.facts.GpuSource` over a scenario and a clock. Its readings have
the names and base units of the real driver's source, and what the modelled GPUs do not have (fans,
NVLink, MIG, page retirement) is absent. Faults can be switched on while it runs.

The files have their real format. ``write(t)`` writes the state at ``t`` into the files;
``set_scenario`` changes the story. Regions are updated in place as the shim does it, with its
seqlock; every other file is replaced at once, and only when it changed.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from simulator import tree
from simulator.scenario import SHIM_ROOTS, Scenario, SimulatedContainer, SimulatedGpu, SimulatedPod
from simulator.state import GpuState, alive_at, damaged_at, gpus_at, regions_at, uses_at
from vgpu.model.facts import CallCost, Gpu, GpuProcess, GpuSample, Region, XidCount
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.model.units import GIB, MIB
from vgpu.schemes.volcano import hami_core
from vgpu.sources.nvml_queries import CLOCK_EVENTS

DRIVER_VERSION = "580.95.05"
CUDA_VERSION = "13.0"

_IDLE_SM_HERTZ = 210e6
_IDLE_MEMORY_HERTZ = 405e6

# What no load changes, on a GPU that is well.
_STEADY: Mapping[tuple[str, ...], float] = {
    ("encoder_utilization_ratio",): 0,
    ("decoder_utilization_ratio",): 0,
    ("temperature_threshold_celsius", "shutdown"): 98,
    ("temperature_threshold_celsius", "slowdown"): 95,
    ("bar1_total_bytes",): 64 * GIB,
    ("bar1_used_bytes",): 2 * MIB,
    ("ecc_errors", "corrected", "volatile"): 0,
    ("ecc_errors", "corrected", "aggregate"): 0,
    ("ecc_errors", "uncorrected", "volatile"): 0,
    ("ecc_errors", "uncorrected", "aggregate"): 0,
    ("remapped_rows", "correctable"): 0,
    ("remapped_rows", "uncorrectable"): 0,
    ("row_remap_pending",): 0,
    ("row_remap_failure",): 0,
    ("pcie_replays",): 0,
    ("pcie_link_generation",): 4,
    ("pcie_link_width",): 16,
    **{("clock_event_active", name): 0 for name in CLOCK_EVENTS},
}


def readings(state: GpuState) -> dict[tuple[str, ...], float]:
    """What the driver reports of a GPU, rounded as NVML rounds it."""
    gpu = state.gpu
    busy = state.sm_percent > 0
    sm_hertz = gpu.sm_hertz if busy else _IDLE_SM_HERTZ
    return {
        **_STEADY,
        ("memory_total_bytes",): gpu.memory_bytes,
        ("memory_used_bytes",): state.used_bytes,
        ("memory_free_bytes",): state.free_bytes,
        ("memory_reserved_bytes",): gpu.reserved_bytes,
        ("utilization_ratio",): state.sm_percent / 100,
        ("memory_utilization_ratio",): state.sm_percent // 2 / 100,
        ("temperature_celsius",): round(31 + 48 * state.watts / gpu.limit_watts),
        ("power_usage_watts",): round(state.watts, 3),
        ("power_limit_watts",): gpu.limit_watts,
        ("energy_joules",): math.floor(state.joules * 1000) / 1000,
        ("performance_state",): 0 if busy else 8,
        ("clock_hertz", "graphics"): sm_hertz,
        ("clock_hertz", "sm"): sm_hertz,
        ("clock_hertz", "memory"): gpu.memory_hertz if busy else _IDLE_MEMORY_HERTZ,
        ("clock_hertz", "video"): sm_hertz,
        ("clock_max_hertz", "graphics"): gpu.sm_hertz,
        ("clock_max_hertz", "sm"): gpu.sm_hertz,
        ("clock_max_hertz", "memory"): gpu.memory_hertz,
        ("clock_max_hertz", "video"): gpu.sm_hertz,
        ("clock_event_active", "gpu_idle"): int(not busy),
    }


def info(gpu: SimulatedGpu) -> dict[str, str]:
    """The constant info of a GPU."""
    return {
        "name": gpu.name,
        "pci_bus_id": gpu.pci_bus_id,
        "minor": str(gpu.index),
        "driver_version": DRIVER_VERSION,
        "cuda_version": CUDA_VERSION,
    }


class SimulatedDriver:
    """The driver. One thread samples and another waits for XIDs, as with the real one.

    Faults may be switched from any thread.
    """

    def __init__(
        self, scenario: Scenario, start: float, clock: Callable[[], float] | None = None
    ) -> None:
        """``start``: unix time of second 0; ``clock`` returns the seconds since, real if None."""
        self._scenario = scenario
        self._start = start
        self._clock = clock or (lambda: time.time() - start)
        self._info = {gpu.uuid: info(gpu) for gpu in scenario.gpus}
        self._opened = self._clock()  # earlier events are not reported, as by the real driver
        self._closed = threading.Event()
        self._xids: tuple[XidCount, ...] = ()
        self._calls: dict[str, CallCost] = {}
        self._failure: Reason | None = None
        self._hang_seconds = 0.0
        self._recovered = threading.Event()
        self._lost: frozenset[str] = frozenset()

    def set_scenario(self, scenario: Scenario) -> None:
        """Replace the scenario; only pods may differ."""
        self._scenario = scenario

    # ------------------------------------------------------------ faults

    def fail(self, reason: Reason) -> None:
        """From now on ``sample`` raises SourceError for this reason."""
        self._failure = reason

    def hang(self, seconds: float) -> None:
        """From now on each ``sample`` blocks for ``seconds``, or until ``recover``."""
        self._recovered.clear()
        self._hang_seconds = seconds

    def lose(self, uuid: str) -> None:
        """The GPU falls off the bus."""
        self._lost |= {uuid}

    def recover(self) -> None:
        """End all faults; a blocked ``sample`` goes on at once."""
        self._failure, self._hang_seconds, self._lost = None, 0.0, frozenset()
        self._recovered.set()

    # ------------------------------------------------------------ GpuSource

    def sample(self, now: float) -> GpuSample:  # noqa: ARG002 - the node has its own clock
        """The node as it is at the clock's time. Raises SourceError after ``fail``."""
        begun = time.perf_counter()
        try:
            if self._hang_seconds:
                self._recovered.wait(self._hang_seconds)
            if self._failure is not None:
                raise SourceError(self._failure, "simulated driver")
            return self._read(self._clock(), self._lost)
        finally:
            self._count("sample", time.perf_counter() - begun)

    def _read(self, t: float, lost: frozenset[str]) -> GpuSample:
        scenario = self._scenario
        uses = [use for use in uses_at(scenario, t) if use.gpu not in lost]
        states = [state for state in gpus_at(scenario, t) if state.gpu.uuid not in lost]
        answering = frozenset(state.gpu.uuid for state in states)
        clients = {
            process.pid
            for _, container in scenario.containers()
            if container.mps
            for process in container.processes
        }
        return GpuSample(
            gpus=tuple(
                Gpu(
                    uuid=state.gpu.uuid,
                    index=state.gpu.index,
                    info=self._info[state.gpu.uuid],
                    readings=readings(state),
                )
                for state in states
            ),
            lost=tuple(gpu.uuid for gpu in scenario.gpus if gpu.uuid in lost),
            counted=len(scenario.gpus),
            processes=tuple(
                GpuProcess(use.pid, use.gpu, use.used_bytes, mps=use.pid in clients) for use in uses
            ),
            processes_known=answering,
            utilization={(use.pid, use.gpu): use.sm_percent / 100 for use in uses},
            utilization_known=answering,
            rejections=tuple(Rejection(uuid, Reason.GPU_LOST) for uuid in sorted(lost)),
        )

    def wait_xids(self, timeout: float) -> None:
        """Block until the next event is due, at most ``timeout`` seconds, and record what came."""
        begun = time.perf_counter()
        now = self._clock()
        due = [event.at - now for event in self._scenario.xids if event.at > now]
        self._closed.wait(min(timeout, *due) if due else timeout)
        arrived = self._clock()
        times: dict[tuple[str, int], list[float]] = {}
        for event in self._scenario.xids:
            if self._opened <= event.at <= arrived:
                key = self._scenario.gpus[event.gpu].uuid, event.xid
                times.setdefault(key, []).append(self._start + event.at)
        self._xids = tuple(
            XidCount(device, xid, len(at), max(at)) for (device, xid), at in times.items()
        )
        self._count("wait_xids", time.perf_counter() - begun)

    def xids(self) -> tuple[XidCount, ...]:
        """The events recorded so far."""
        return self._xids

    def xids_watched(self) -> frozenset[str]:
        """All GPUs."""
        return frozenset(gpu.uuid for gpu in self._scenario.gpus)

    def calls(self) -> Mapping[str, CallCost]:
        """What ``sample`` and ``wait_xids`` cost, under these names: no NVML is called."""
        return dict(self._calls)

    def close(self) -> None:
        """Ends a waiting ``wait_xids``."""
        self._closed.set()

    def _count(self, call: str, seconds: float) -> None:
        """Each call has one caller, so its entry has one writer."""
        cost = self._calls.get(call, CallCost(0, 0.0))
        self._calls[call] = CallCost(cost.count + 1, cost.seconds + seconds)


class SimulatedPaths(msgspec.Struct, frozen=True):
    """The paths of the sources' files on the simulated node; absolute."""

    shim_roots: tuple[str, ...]
    procfs: str
    cgroupfs: str
    log_dir: str
    checkpoint: str
    pods_file: str
    gaia_dir: str
    kubeshare_dir: str
    mps_dir: str
    state_dir: str

    @property
    def limit_dirs(self) -> dict[str, str]:
        """Folders of limit files, by the name of the registry's row."""
        return {"gaia": self.gaia_dir, "kubeshare": self.kubeshare_dir}


def region_path(pod: SimulatedPod, container: SimulatedContainer) -> str:
    """The path of a container's region, relative to the node's root; "" if it has none."""
    shim = container.shim
    if shim is None:
        return ""
    return f"{shim.root}/{pod.ref.uid}_{container.name}/{shim.cache}.cache"


class SimulatedNode:
    """The files of ``scenario`` below ``folder``, and its driver. Second 0 is ``start``.

    One thread calls ``write``. The folder stays; its owner removes it.
    """

    def __init__(
        self, scenario: Scenario, folder: str | os.PathLike[str], start: float | None = None
    ) -> None:
        """``start`` is unix seconds; now if not set. Nothing is written yet."""
        self.scenario = scenario
        self.folder = Path(folder).absolute()
        self.start = time.time() if start is None else start
        self.paths = SimulatedPaths(
            shim_roots=tuple(str(self.folder / root) for root in SHIM_ROOTS),
            procfs=str(self.folder / tree.PROCFS),
            cgroupfs=str(self.folder / tree.CGROUPFS),
            log_dir=str(self.folder / tree.LOG_DIR),
            checkpoint=str(self.folder / tree.CHECKPOINT),
            pods_file=str(self.folder / tree.PODS_FILE),
            gaia_dir=str(self.folder / tree.GAIA_DIR),
            kubeshare_dir=str(self.folder / tree.KUBESHARE_DIR),
            mps_dir=str(self.folder / tree.MPS_DIR),
            state_dir=str(self.folder / tree.STATE_DIR),
        )
        self._pods: bytes | None = None
        self._alive: frozenset[int] | None = None
        self._tree = tree.FileTree({}, {})
        self._regions: dict[str, Region] = {}
        self._damaged: dict[str, int] = {}
        self._updates = 0

    def driver(self, clock: Callable[[], float] | None = None) -> SimulatedDriver:
        """The node's driver; ``clock`` returns the seconds since ``start``, real if None."""
        return SimulatedDriver(self.scenario, self.start, clock)

    def set_scenario(self, scenario: Scenario, pods: bytes) -> None:
        """The node from the next ``write`` on; ``pods`` is the list of its pods.

        Only pods may differ.
        """
        self.scenario = scenario
        self._pods = pods
        self._alive = None

    def write(self, t: float) -> None:
        """Write the state ``t`` seconds after the start into the files."""
        alive = alive_at(self.scenario, t)
        if alive != self._alive:
            new = tree.tree(self.scenario, alive, self.start)
            if self._pods is not None:
                new.files[tree.PODS_FILE] = self._pods
            self._replace(new)
            self._alive = alive
        self._write_regions(regions_at(self.scenario, t, self.start), damaged_at(self.scenario, t))

    # ------------------------------------------------------------ files

    def _replace(self, new: tree.FileTree) -> None:
        old = self._tree
        for path, content in new.files.items():
            if old.files.get(path) != content:
                self._put(path, content)
        for path, target in new.links.items():
            if old.links.get(path) != target:
                link = self.folder / path
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(target)
        for path in (old.files.keys() | old.links.keys()) - (new.files.keys() | new.links.keys()):
            gone = self.folder / path
            gone.unlink()
            with contextlib.suppress(OSError):  # not empty yet
                os.removedirs(gone.parent)
        self._tree = new

    def _put(self, path: str, content: bytes) -> None:
        """Write beside the tree and rename into it, so that no reader sees half a file."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = self.folder / ".draft"
        draft.write_bytes(content)
        draft.rename(target)

    # ------------------------------------------------------------ regions

    def _write_regions(self, regions: dict[str, Region], damaged: dict[str, int]) -> None:
        self._updates += 1
        paths = {
            container.id: self.folder / region_path(pod, container)
            for pod, container in self.scenario.containers()
        }
        for container_id, region in regions.items():
            path = paths[container_id]
            cut, was_cut = container_id in damaged, container_id in self._damaged
            if container_id not in self._regions or (was_cut and not cut):
                _create(path, region)
            elif not cut and region != self._regions[container_id]:
                _update(path, region, self._updates)
            if cut and not was_cut:
                os.truncate(path, damaged[container_id])
        self._regions, self._damaged = regions, damaged


def _create(path: Path, region: Region) -> None:
    """A new region, as the shim makes it: a sparse file of full size, its magic written last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        file.truncate(hami_core.LAYOUTS[region.layout].frame.file_size)
        _patch(file.fileno(), hami_core.creation(region, region.layout))


def _update(path: Path, region: Region, generation: int) -> None:
    with path.open("r+b", buffering=0) as file:
        _patch(file.fileno(), hami_core.patches(region, region.layout, generation))


def _patch(fd: int, patches: list[hami_core.Patch]) -> None:
    for offset, data in patches:
        os.pwrite(fd, data, offset)
