"""What one test bed has to itself: a number, a folder, a bridge with addresses, cgroups.

Any number of sessions run side by side; each takes the first free number ``n`` and with it

    <tmp>/vgpu-bed-<n>/           every file of the bed
    vgpubed<n>                    a bridge, whose address 10.(180+n).0.1 the API servers have
    10.(180+n).0.(100+i)          node i, from 1 to 9
    10.(180+n).(100+i).0/24       its pods
    vgpu-bed-<n>-<node>           its cgroup, in every hierarchy

All of this outlives a process, so a sweeper stands by: a process of its own session that waits
until this one is gone, however it ended, and then removes everything. A normal end takes the same
way. Should the sweeper be killed too, the next session that takes the number sweeps first.

A number is held by an abstract unix socket of the name ``vgpu-bed-<n>``: like the bridge it
belongs to the network namespace, and the kernel frees it with its last holder, the sweeper.

The file is the sweeper's program as well, which is why it needs nothing but the standard library.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

NUMBERS = range(70)
NODES = range(1, 10)

SWEEP_SECONDS = 60.0


class Workplace:
    """One bed's own place; close() leaves nothing of it behind."""

    def __init__(self) -> None:
        """Take the first free number.

        Raises:
            RuntimeError: all are taken.
        """
        number, held = _free_number()
        self.number, self.bridge = number, _bridge(number)
        self.folder = Path(tempfile.gettempdir()) / f"vgpu-bed-{number}"
        self.address = f"{self._subnet}.0.1"
        self._ports = iter(range(6443, 10000))
        self._sweeper = subprocess.Popen(
            [sys.executable, "-IS", __file__, str(number), self.folder],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[held.fileno()],  # so that the number stays taken until it has swept
            start_new_session=True,
            cwd="/",
            text=True,
        )
        held.close()
        routes = [
            f"route add {self.pod_subnet(node)} via {self.node_address(node)} dev {self.bridge}"
            for node in NODES
        ]
        up = [
            f"link add {self.bridge} type bridge",
            f"addr add {self.address}/24 dev {self.bridge}",
            f"link set {self.bridge} up",
        ]
        try:
            _sweep(number, self.folder)  # what a killed sweeper left
            self.folder.mkdir(mode=0o700)
            ip_batch([*up, *routes])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _subnet(self) -> str:
        return f"10.{180 + self.number}"

    def node_address(self, node: int) -> str:
        """The address of the node with this number."""
        return f"{self._subnet}.0.{100 + node}"

    def pod_subnet(self, node: int) -> str:
        """Where its pods have theirs."""
        return f"{self._subnet}.{100 + node}.0/24"

    def cgroup(self, node: str) -> str:
        """The name of a node's cgroup, which is made."""
        name = f"{_cgroup_prefix(self.number)}{node}"
        for hierarchy in cgroup_hierarchies():
            _make_cgroup(hierarchy / name)
        return name

    def subfolder(self, name: str) -> Path:
        """A new folder, ``name`` or ``name-2`` and so on."""
        for turn in range(1, 1000):
            folder = self.folder / (name if turn == 1 else f"{name}-{turn}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
        raise RuntimeError(f"too many folders {name}")

    def port(self) -> int:
        """A port of the bridge's address that nobody has, and that is given out once."""
        for port in self._ports:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind((self.address, port))
                return port
        raise RuntimeError("no port is free")

    def close(self) -> None:
        """Remove everything. What still runs in the nodes' cgroups is killed.

        Raises:
            RuntimeError: something stayed.
        """
        said = self._sweeper.communicate()[1]
        if self._sweeper.returncode:
            raise RuntimeError(f"the test bed was not removed: {said}")


def ip_batch(commands: list[str], *, enter: tuple[str, ...] = ()) -> None:
    """Run commands of ip(8), where ``enter`` leads to."""
    subprocess.run(
        [*enter, "ip", "-batch", "-"],
        input="\n".join(commands),
        text=True,
        check=True,
        capture_output=True,
    )


def cgroup_hierarchies() -> Iterator[Path]:
    """The mount points of the cgroup hierarchies, of either version."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        if kind.split()[0] in ("cgroup", "cgroup2"):
            yield Path(place.split()[4])


def _make_cgroup(cgroup: Path) -> None:
    parent = cgroup.parent
    if (controllers := parent / "cgroup.controllers").exists():  # version 2
        for controller in controllers.read_text().split():
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")
    cgroup.mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new one of version 1
        if (cgroup / file).exists() and not controllers.exists():
            (cgroup / file).write_text((parent / file).read_text())


def _free_number() -> tuple[int, socket.socket]:
    for number in NUMBERS:
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0vgpu-bed-{number}")
        except OSError:
            held.close()
        else:
            return number, held
    raise RuntimeError(f"all {len(NUMBERS)} test beds of this machine are in use")


def _bridge(number: int) -> str:
    return f"vgpubed{number}"


def _cgroup_prefix(number: int) -> str:
    return f"vgpu-bed-{number}-"


# --------------------------------------------------------------------------------- the sweeper


def _sweep(number: int, folder: Path) -> None:
    """Remove all of a bed, as soon as what was killed with it is gone."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while True:
        try:
            for hierarchy in cgroup_hierarchies():
                for cgroup in hierarchy.glob(f"{_cgroup_prefix(number)}*"):
                    _empty(cgroup)
            if _bridge(number) in (name for _, name in socket.if_nameindex()):
                ip_batch([f"link delete {_bridge(number)}"])
            _refuse_mounts_below(folder)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
        except (OSError, subprocess.CalledProcessError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _empty(cgroup: Path) -> None:
    """Kill what runs in a cgroup and remove it, if nothing does any more."""
    for folder in [*sorted(cgroup.rglob("*/"), reverse=True), cgroup]:
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        folder.rmdir()


def _refuse_mounts_below(folder: Path) -> None:
    """Never delete through a mount: what is below would be the machine's own files."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if line.split()[4].startswith(f"{folder}/"):
            raise OSError(f"still mounted: {line}")


def main() -> None:
    """The sweeper: wait until whoever holds the other end of stdin is gone."""
    sys.stdin.read()
    _sweep(int(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
