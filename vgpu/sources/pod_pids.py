"""The pids that a pod's processes have inside their containers, by the kernel.

``NSpid`` of /proc/<pid>/status has a process's pid in each pid namespace from the reader's to its
own (proc(5), since Linux 4.1); the last one is what ``getpid`` returns in the process.
"""

from collections.abc import Collection, Mapping

from vgpu.model.facts import PodPids, ProcessOwner
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.cgroup_processes import container_processes, read_kernel_file
from vgpu.sources.files import printable, translated

_START_TIME = 19
"""Position of starttime in /proc/<pid>/stat, counted from the field behind the program's name."""


class PodPidReader:
    """Reads the pids of pods. What it has read of a process is kept while the process lives."""

    def __init__(self, procfs: str) -> None:
        self._procfs = procfs
        self._kept: dict[int, tuple[bytes, int]] = {}  # pid -> start time, pid inside
        self._asked: set[int] = set()

    def forget_others(self) -> None:
        """Forget the processes that were not asked for since the last call."""
        self._kept = {pid: self._kept[pid] for pid in self._asked & self._kept.keys()}
        self._asked = set()

    def read(
        self,
        wanted: Collection[int],
        known: Mapping[int, ProcessOwner],
        cgroups: Mapping[str, str],
    ) -> PodPids:
        """The processes of one pod, until all of ``wanted``, pids inside, are found.

        ``known`` are processes that are known to be the pod's, by host pid. ``cgroups`` are the
        folders of the pod's containers by container id; without any the pod's processes are
        elsewhere. Where something cannot be read, the result is not complete.
        """
        containers: dict[str, dict[int, int]] = {}
        complete = bool(cgroups)
        pids = ((owner.container_id, iter((pid,))) for pid, owner in known.items())
        trees = ((container, container_processes(folder)) for container, folder in cgroups.items())
        for candidates in (pids, trees):
            for container, members in candidates:
                inside = containers.setdefault(container, {})
                try:
                    for pid in members:
                        own = self._inside(pid)
                        if own is not None:
                            inside[own] = pid
                except SourceError:
                    complete = False
            if all(any(pid in inside for inside in containers.values()) for pid in wanted):
                return PodPids(containers, complete=False)
        return PodPids(containers, complete)

    def _inside(self, pid: int) -> int | None:
        """The process's pid in its own namespace; None if it has ended. Raises SourceError."""
        self._asked.add(pid)
        start = self._start(pid)
        kept = self._kept.get(pid)
        if kept is not None and kept[0] == start:
            return kept[1]
        path = f"{self._procfs}/{pid}/status"
        try:
            content = read_kernel_file(path)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            raise translated(error, path) from error
        own = _namespace_pid(content)
        if own is None:
            raise SourceError(Reason.MALFORMED, printable(path), "no NSpid")
        if start:
            self._kept[pid] = start, own
        return own

    def _start(self, pid: int) -> bytes:
        """When the process began, in clock ticks since boot; empty if that is unknown."""
        try:
            stat = read_kernel_file(f"{self._procfs}/{pid}/stat")
        except OSError:
            return b""
        fields = stat.rpartition(b")")[2].split()
        return fields[_START_TIME] if len(fields) > _START_TIME else b""


def _namespace_pid(status: bytes) -> int | None:
    for line in status.split(b"\n"):
        if line.startswith(b"NSpid:"):
            pids = line.split()[1:]
            return int(pids[-1]) if pids and pids[-1].isdigit() else None
    return None
