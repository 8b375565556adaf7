"""What one test bed has to itself: a number, a folder, a bridge with addresses, cgroups.

Any number of sessions run side by side; each takes the first free number ``n`` and with it

    <tmp>/vgpu-bed-<n>/           every file of the bed
    vgpubed<n>                    a bridge, whose address 10.(180+n).0.1 the API servers have
    10.(180+n).0.(100+i)          node i, from 1 to 9
    10.(180+n).(100+i).0/24       its pods
    vgpu-bed-<n>-<node>           its cgroup, in every hierarchy

All of this outlives a process, so a sweeper stands by: a process of its own session that waits
until this one is gone, however it ended, and then removes everything. A normal end takes the same
way. Should the sweeper be killed too, the next session sweeps first.

A number is held twice: by an abstract unix socket of the name ``vgpu-bed-<n>``, which like the
bridge belongs to the network namespace, and by a lock (flock(2)) on the folder, which sessions in
other network namespaces share. The kernel frees both with their last holder, the sweeper.

The file is the sweeper's program as well, which is why it needs nothing but the standard library.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

NUMBERS = range(70)
NODES = range(1, 10)

SWEEP_SECONDS = 60.0

INOTIFY_INSTANCES = 1024
"""How many inotify instances a user may have. Debian's default is 128; a control plane with a node
needs about 40, and one that gets none ends with "too many open files"."""


class Workplace:
    """One bed's own place; close() leaves nothing of it behind."""

    def __init__(self) -> None:
        """Take the first free number, and sweep what killed sweepers have left.

        Raises:
            RuntimeError: all are taken.
        """
        _sweep_leftovers()
        _raise_inotify_limit()
        for number in NUMBERS:
            if held := _hold(number):
                break
        else:
            raise RuntimeError("all test beds of this machine are in use")
        self.number, self.bridge, self.folder = number, _bridge(number), _folder(number)
        self.address = f"{self._subnet}.0.1"
        self._nodes = set(NODES)
        self._ports = iter(range(6443, 10000))
        self._sweeper = subprocess.Popen(
            [sys.executable, "-IS", __file__, str(number), self.folder],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=held,  # so that the number stays taken until it has swept
            start_new_session=True,
            cwd="/",
            text=True,
        )
        _release(held)
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

    def take_node(self) -> int:
        """The lowest number that no node has.

        Raises:
            RuntimeError: all are taken.
        """
        if not self._nodes:
            raise RuntimeError(f"a workplace has no room for more than {len(NODES)} nodes")
        number = min(self._nodes)
        self._nodes.remove(number)
        return number

    def give_back_node(self, number: int) -> None:
        """A node is gone."""
        self._nodes.add(number)

    def node_address(self, node: int) -> str:
        """The address of the node with this number."""
        return f"{self._subnet}.0.{100 + node}"

    def pod_subnet(self, node: int) -> str:
        """Where its pods have theirs."""
        return f"{self._subnet}.{100 + node}.0/24"

    def cgroups(self, node: str) -> list[Path]:
        """A node's cgroups, one of each hierarchy, each with a leaf ``init``; they are made."""
        cgroups = []
        for hierarchy in _cgroup_hierarchies():
            if (controllers := hierarchy / "cgroup.controllers").exists():  # version 2
                for controller in controllers.read_text().split():
                    (hierarchy / "cgroup.subtree_control").write_text(f"+{controller}")
            cgroup = hierarchy / f"{_cgroup_prefix(self.number)}{node}"
            for folder in (cgroup, cgroup / "init"):
                _make_cgroup(folder)
            cgroups.append(cgroup)
        return cgroups

    def remove_cgroups(self, node: str) -> None:
        """Remove a node's cgroups with all that they hold."""
        _insist(lambda: _remove_cgroups(f"{_cgroup_prefix(self.number)}{node}"))

    def subfolder(self, name: str) -> Path:
        """A new folder, ``name`` or ``name-2`` and so on."""
        for turn in range(1, 1000):
            folder = self.folder / (name if turn == 1 else f"{name}-{turn}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
        raise RuntimeError(f"too many folders {name}")

    def port(self) -> int:
        """A port of the bridge's address that nobody has, and that is allocated once."""
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


def _cgroup_hierarchies() -> Iterator[Path]:
    """The mount points of the cgroup hierarchies, of either version."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        if kind.split()[0] in ("cgroup", "cgroup2"):
            yield Path(place.split()[4])


def _make_cgroup(cgroup: Path) -> None:
    cgroup.mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):  # in version 1 a new one has none
        own, parents = cgroup / file, cgroup.parent / file
        if own.exists() and parents.exists() and not own.read_text().strip():
            own.write_text(parents.read_text())


def _folder(number: int) -> Path:
    return Path(tempfile.gettempdir()) / f"vgpu-bed-{number}"


def _bridge(number: int) -> str:
    return f"vgpubed{number}"


def _cgroup_prefix(number: int) -> str:
    return f"vgpu-bed-{number}-"


def _hold(number: int) -> list[int] | None:
    """Make the folder, empty, and hold the number while these descriptors are open, here or in a
    child; None when it is taken.
    """
    left = _left(number)
    with socket.socket(socket.AF_UNIX) as name:
        try:
            name.bind(f"\0vgpu-bed-{number}")
        except OSError:
            return None
        if (lock := _lock(number)) is not None and left:  # its sweeper was killed
            _sweep(number, _folder(number))
            os.close(lock)
            lock = _lock(number)
        return None if lock is None else [name.detach(), lock]


def _left(number: int) -> bool:
    return _folder(number).exists() or _bridge(number) in _links()


def _lock(number: int) -> int | None:
    """A descriptor of the folder, made if need be, that alone has its lock; None: another has it.

    The lock belongs to the folder that the path names: a sweeper may have removed the one that
    was opened.
    """
    folder = _folder(number)
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), folder.stat()):
            return held
    os.close(held)
    return None


def _release(held: list[int]) -> None:
    for descriptor in held:
        os.close(descriptor)


def _raise_inotify_limit() -> None:
    """The one setting of the machine that the bed changes, and only upwards."""
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    if int(limit.read_text()) < INOTIFY_INSTANCES:
        limit.write_text(str(INOTIFY_INSTANCES))


# --------------------------------------------------------------------------------- the sweeper


def _sweep_leftovers() -> None:
    """Sweep the beds that nobody holds any more."""
    for number in NUMBERS:
        if _left(number) and (held := _hold(number)):
            _sweep(number, _folder(number))
            _release(held)


def _sweep(number: int, folder: Path) -> None:
    """Remove all of a bed."""

    def sweep() -> None:
        _remove_cgroups(f"{_cgroup_prefix(number)}*")
        if _bridge(number) in _links():
            ip_batch([f"link delete {_bridge(number)}"])
        _refuse_mounts_below(folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    _insist(sweep)


def _links() -> list[str]:
    """The network interfaces of this network namespace."""
    return [name for _, name in socket.if_nameindex()]


def _insist(remove: Callable[[], None]) -> None:
    """Again and again: what was killed needs a moment to be gone, and writes until then."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while True:
        try:
            return remove()
        except (OSError, subprocess.CalledProcessError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _remove_cgroups(pattern: str) -> None:
    for hierarchy in _cgroup_hierarchies():
        for cgroup in hierarchy.glob(pattern):
            _empty(cgroup)


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
