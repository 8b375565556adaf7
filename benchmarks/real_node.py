"""A node whose containers are real: sleeping processes in cgroups of the kernel, where it allows.

    with RealNode(folder, size) as node:
        node.move(seconds)         # new readings and regions, as ``seconds`` after the start
        node.replace_a_pod()       # the oldest pod ends, a new one starts
        node.leak(count)           # so many pods have ended and left their folders

The GPUs are those of the C fake driver, and everything else is in files. Where this user may not
make cgroups, the kernel's part is a simulated tree, and ``kernel`` is False.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from simulator import tree
from simulator.node import SimulatedNode
from simulator.scenario import Scenario, SimulatedContainer, SimulatedPod, identity
from tests.support import nvml_fake
from tests.support.fleet_node import Fleet, fleet_node
from tests.support.live import fake_devices

GPUS = 8
"""Number of GPUs of the node."""
PROCESSES, GPUS_EACH = 3, 2
"""Numbers for each container."""
CGROUPFS = Path("/sys/fs/cgroup")
VERSION_1 = "pids"
"""The hierarchy of cgroup version 1 that the containers are in."""


class RealNode:
    """``size`` containers, each with three processes on two of eight GPUs."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size
        self._first = 0
        self._sleepers: dict[str, list[int]] = {}
        self._group = _make_group()
        self.kernel = self._group is not None
        """Whether the containers are cgroups of the kernel."""
        self.node = SimulatedNode(self._scenario(), folder / "node")
        folder.joinpath("driver").mkdir(parents=True, exist_ok=True)
        self.driver = nvml_fake.FakeDriver(folder / "driver")
        self.move(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for container in list(self._sleepers):
            self._end(container)
        if self._group is not None:
            for parent, _, _ in os.walk(self._group, topdown=False):
                _remove(Path(parent))

    def flags(self) -> list[str]:
        """The exporter's flags for this node."""
        paths = self.node.paths
        procfs, cgroupfs = paths.procfs, paths.cgroupfs
        if self._group is not None:
            procfs, cgroupfs = "/proc", str(self._cgroupfs())
        return [
            *(f"--shim.root={root}" for root in paths.shim_roots),
            f"--kubelet.log-dir={paths.log_dir}",
            f"--kubelet.checkpoint={paths.checkpoint}",
            f"--limits.gaia-dir={paths.gaia_dir}",
            f"--limits.kubeshare-dir={paths.kubeshare_dir}",
            f"--limits.mps-dir={paths.mps_dir}",
            f"--plugin.state-dir={paths.state_dir}",
            f"--path.procfs={procfs}",
            f"--path.cgroupfs={cgroupfs}",
            f"--node-name={self.node.scenario.node}",
        ]

    def environment(self) -> dict[str, str]:
        """The environment of a program that uses the node's driver."""
        return {**os.environ, **self.driver.env()}

    def move(self, seconds: float) -> None:
        """The node ``seconds`` after its start: memory and utilisation have changed."""
        self.node.write(seconds)
        sample = self.node.driver(lambda: seconds).sample(0.0)
        self.driver.write(fake_devices(sample), list(self._processes(seconds)))

    def replace_a_pod(self) -> None:
        """End the oldest pod and start a new one; they take effect with the next move."""
        oldest = self.node.scenario.pods[self._first % self._size]
        self._first += 1
        scenario = self._scenario()
        pods = tree.tree(scenario, frozenset(), self.node.start).files[tree.PODS_FILE]
        self.node.set_scenario(scenario, pods)
        for container in oldest.containers:
            self._end(container.id)
            for folder in self.node.folder.glob(f"usr/local/vgpu/containers/{oldest.ref.uid}_*"):
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()
        if self._group is not None:
            group = self._group / tree.cgroup_of(oldest, oldest.containers[0])
            _remove(group)
            _remove(group.parent)

    def leak(self, count: int) -> None:
        """Leave the folders of so many pods that have ended, each with a region."""
        (first, *_) = self.node.folder.glob("usr/local/vgpu/containers/*/*.cache")
        region = self._folder / first.name
        shutil.copyfile(first, region)
        for number in range(count):
            folder = first.parent.parent / f"{identity(f'leaked pod {number}')}_main"
            folder.mkdir()
            folder.joinpath(region.name).hardlink_to(region)

    def _processes(self, seconds: float) -> Iterator[nvml_fake.Process]:
        """Each process on all GPUs of its container, with the same memory and load on each."""
        for _, container in self.node.scenario.containers():
            for process in container.processes:
                used, percent = process.used_bytes(seconds), process.sm_percent(seconds)
                for share in container.shares:
                    size = used // len(container.shares)
                    yield nvml_fake.Process(share.device, process.pid, size, percent)

    # ------------------------------------------------------------ containers

    def _scenario(self) -> Scenario:
        """The node's story with the pids of the real processes."""
        scenario = fleet_node(GPUS, self._size, fleet=Fleet(PROCESSES, GPUS_EACH, self._first))
        # A new pod takes the place of the one that has ended: the others keep their devices' IDs.
        turned = self._size - self._first % self._size
        pods = tuple(
            msgspec.structs.replace(
                pod, containers=tuple(self._run(pod, container) for container in pod.containers)
            )
            for pod in (*scenario.pods[turned:], *scenario.pods[:turned])
        )
        return msgspec.structs.replace(scenario, pods=pods)

    def _run(self, pod: SimulatedPod, container: SimulatedContainer) -> SimulatedContainer:
        """The container, with processes that run."""
        if container.id not in self._sleepers:
            sleepers = [_sleeper() for _ in container.processes]
            self._sleepers[container.id] = sleepers
            if self._group is not None:
                group = self._group / tree.cgroup_of(pod, container)
                group.mkdir(parents=True)
                for pid in sleepers:
                    group.joinpath("cgroup.procs").write_text(str(pid))
        processes = tuple(
            msgspec.structs.replace(process, pid=pid)
            for process, pid in zip(container.processes, self._sleepers[container.id], strict=True)
        )
        return msgspec.structs.replace(container, processes=processes)

    def _end(self, container_id: str) -> None:
        for pid in self._sleepers.pop(container_id):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _cgroupfs(self) -> Path:
        """The folder that the exporter takes for the root of the cgroup file system."""
        assert self._group is not None
        if _is_version_2():
            return self._group
        root = self._folder / "cgroupfs"
        root.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            root.joinpath(VERSION_1).symlink_to(self._group)
        return root


def _is_version_2() -> bool:
    return CGROUPFS.joinpath("cgroup.controllers").exists()


def _make_group() -> Path | None:
    """A new cgroup for the node's tree; None if that is not allowed."""
    hierarchy = CGROUPFS if _is_version_2() else CGROUPFS / VERSION_1
    try:
        return Path(tempfile.mkdtemp(prefix="vgpu-bench-", dir=hierarchy))
    except OSError:
        return None


def _remove(group: Path) -> None:
    """Remove a cgroup whose processes have just ended: the kernel needs a moment."""
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.02)
        else:
            return


def _sleeper() -> int:
    return os.posix_spawn("/bin/sleep", ["sleep", "infinity"], {})


def nodes_processes(pid: int) -> list[int]:
    """The process and all that it has started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children = task.joinpath("children").read_text().split()
            found += [one for child in children for one in nodes_processes(int(child))]
    return found


def start(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A program of the measurement, its output in ``log``."""
    with log.open("ab") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out)
