"""Containers without a container runtime: processes under the names of pods, for the exporter.

A kubelet's files are those of a simulated node. A process is put into a cgroup of its container's
name; where cgroups cannot be made, or this is not the host's pid namespace, the simulated node has
a procfs and a cgroup file system, too, with the real pids.
"""

import contextlib
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from deploy.gpu_kit.answers import GpuAnswers
from deploy.gpu_kit.processes import KitError
from simulator.node import SimulatedNode
from simulator.scenario import (
    Process,
    Scenario,
    SimulatedContainer,
    SimulatedGpu,
    SimulatedPod,
    container_id,
    identity,
)
from simulator.tree import cgroup_of
from vgpu.model.allocation import Share
from vgpu.model.names import PodRef
from vgpu.model.reasons import SourceError
from vgpu.schemes.nvidia.grant import NVIDIA
from vgpu.sources.runtime import (
    V1_CONTROLLERS,
    parse_cgroup,
    read_live_pods,
    sees_host_processes,
)

NAMESPACE: Final = "gpu-kit"
CONTAINER: Final = "main"
CGROUPFS: Final = Path("/sys/fs/cgroup")


class Cgroups(StrEnum):
    """How a process becomes one of a container."""

    KERNEL = "kernel"
    SIMULATED = "simulated"


def cgroups_of_this_machine() -> Cgroups:
    """The kernel's where they can be made and nobody else has pods there.

    The kit itself may be in a pod; and a kubelet ends processes in pods that it does not know.
    """
    try:
        own = parse_cgroup(Path("/proc/self/cgroup").read_text())
        kubelet = read_live_pods(str(CGROUPFS)) is not None
        if own is not None or kubelet or not sees_host_processes("/proc"):
            return Cgroups.SIMULATED
        probe = hierarchy() / f"vgpu-gpu-kit-probe-{identity('probe')}"
        probe.mkdir()
        probe.rmdir()
    except (OSError, SourceError):
        return Cgroups.SIMULATED
    return Cgroups.KERNEL


def hierarchy() -> Path:
    """The folder of cgroups in which the kit makes its own."""
    if (CGROUPFS / "cgroup.controllers").exists():
        return CGROUPFS
    present = [CGROUPFS / name for name in ("pids", *V1_CONTROLLERS) if (CGROUPFS / name).is_dir()]
    return present[0] if present else CGROUPFS


def pod_name(number: int) -> str:
    """The name of the kit's pod of this number."""
    return f"load-{number}"


class Containers:
    """The pods of a node, each with one container that holds a replica of a GPU."""

    def __init__(
        self, folder: Path, gpus: Sequence[GpuAnswers], gpu: str, count: int, cgroups: Cgroups
    ) -> None:
        """``count`` pods, whose containers all share the GPU with this UUID."""
        self.cgroups = cgroups
        self._pids: dict[int, list[int]] = {}
        self._outside: list[int] = []
        self._gpu, self._count = gpu, count
        self._gpus = tuple(_gpu(answers) for answers in gpus)
        self._made: list[Path] = []
        self._node = SimulatedNode(self._scenario(), folder)
        if cgroups is Cgroups.KERNEL:
            for number in range(count):  # also of a container in which nothing runs
                self._cgroup(number)
        self._write()

    def put(self, number: int, pid: int) -> None:
        """Let a process run in the container of a pod. Raises KitError."""
        self._pids.setdefault(number, []).append(pid)
        if self.cgroups is Cgroups.KERNEL:
            try:
                (self._cgroup(number) / "cgroup.procs").write_text(str(pid))
            except OSError as error:
                raise KitError(f"process {pid} cannot be put into a cgroup: {error}") from error
        self._write()

    def put_outside(self, pid: int) -> None:
        """Let a process run in no container."""
        self._outside.append(pid)
        self._write()

    def flags(self, off: Collection[str] = ()) -> list[str]:
        """The exporter's flags for this node; sources that are ``off`` have none."""
        paths = self._node.paths
        procfs, cgroupfs = paths.procfs, paths.cgroupfs
        if self.cgroups is Cgroups.KERNEL:
            procfs, cgroupfs = "/proc", str(CGROUPFS)
        return [
            *(f"--shim.root={root}" for root in paths.shim_roots),
            f"--kubelet.log-dir={paths.log_dir}",
            "--node-name=gpu-kit",
            "--compat=none",
            *(
                flag
                for source, flags in {
                    "limits": (
                        f"--limits.gaia-dir={paths.gaia_dir}",
                        f"--limits.kubeshare-dir={paths.kubeshare_dir}",
                        f"--limits.mps-dir={paths.mps_dir}",
                    ),
                    "plugin": (f"--plugin.state-dir={paths.state_dir}",),
                    "process": (f"--path.procfs={procfs}", f"--path.cgroupfs={cgroupfs}"),
                    "checkpoint": (f"--kubelet.checkpoint={paths.checkpoint}",),
                }.items()
                if source not in off
                for flag in flags
            ),
        ]

    def close(self) -> None:
        """Remove the cgroups; their processes have to be gone."""
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()

    # ------------------------------------------------------------ the node

    def _pod(self, number: int) -> SimulatedPod:
        name = pod_name(number)
        ref = PodRef(uid=identity(f"gpu-kit/{name}"), name=name, namespace=NAMESPACE)
        return SimulatedPod(ref, (self._container(number),), qos="besteffort")

    def _container(self, number: int) -> SimulatedContainer:
        pids = self._pids.get(number, [])
        return SimulatedContainer(
            CONTAINER,
            container_id(f"gpu-kit/{pod_name(number)}"),
            scheme=NVIDIA,
            shares=(Share(self._gpu),),
            processes=tuple(Process(pid) for pid in pids if Path(f"/proc/{pid}").exists()),
        )

    def _scenario(self) -> Scenario:
        pods = tuple(self._pod(number) for number in range(self._count))
        living = tuple(Process(pid) for pid in self._outside if Path(f"/proc/{pid}").exists())
        return Scenario("gpu-kit", self._gpus, pods, host_processes=living)

    def _write(self) -> None:
        self._node.set_scenario(self._scenario(), b'{"kind": "List", "items": []}')
        self._node.write(0.0)

    # ------------------------------------------------------------ cgroups

    def _cgroup(self, number: int) -> Path:
        """The cgroup of a pod's container, made if it is not there. Raises KitError."""
        folder = hierarchy()
        for part in cgroup_of(self._pod(number), self._container(number)).split("/"):
            folder /= part
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise KitError(f"{folder}: {error.strerror}") from error
            self._made.append(folder)
        return folder


def _gpu(answers: GpuAnswers) -> SimulatedGpu:
    """A GPU of the node: only its names are used, for the kubelet's files."""
    readings = answers.readings()
    return SimulatedGpu(
        uuid=answers.uuid,
        index=answers.index,
        name=answers.info.get("name", ""),
        pci_bus_id=answers.info.get("pci_bus_id", ""),
        memory_bytes=int(readings.get("memory_total_bytes", 0)),
        reserved_bytes=0,
        baseline_bytes=0,
        idle_watts=0,
        limit_watts=0,
        sm_hertz=0,
        memory_hertz=0,
    )
