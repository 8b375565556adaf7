"""The host's pids of a pod's containers, for gpu-manager's library; from the kernel."""

from typing import Final

from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.cgroup_processes import container_processes
from vgpu.sources.files import list_folder
from vgpu.sources.runtime import ProcessSource, read_containers

_MOST_ENTRIES: Final = 2**23
"""Maximum number of entries of procfs; the kernel allows half as many processes."""


def pids_of(
    uid: str, procfs: str = "/proc", cgroupfs: str = "/sys/fs/cgroup"
) -> dict[str, set[int]]:
    """The pids of each container of a pod, by container ID; the pod's sandbox is among them.

    If the containers' cgroups are not below the pod's (the kubelet uses systemd and the runtime
    does not), this reads the cgroup of every process. Raises SourceError, FOREIGN_PIDS where the
    host's pids are not visible.
    """
    folders = read_containers(cgroupfs, uid)
    if folders:
        return {container: _pids(folder) for container, folder in folders.items()}
    names = (entry.name for entry in list_folder(procfs, _MOST_ENTRIES)[0])
    pids = [int(name) for name in names if name.isascii() and name.isdigit()]
    sample = ProcessSource(procfs, cgroupfs, watch=False).sample(pids)
    if not sample.sees_host:
        raise SourceError(Reason.FOREIGN_PIDS, procfs)
    found: dict[str, set[int]] = {}
    for pid, owner in sample.owners.items():
        if owner and owner.pod_uid == uid:
            found.setdefault(owner.container_id, set()).add(pid)
    return found


def _pids(folder: str) -> set[int]:
    """The pids of a container, of at most so many cgroups. Raises SourceError."""
    pids: set[int] = set()
    try:
        for pid in container_processes(folder):
            pids.add(pid)
    except SourceError as error:
        if error.reason is not Reason.TOO_MANY_FILES:
            raise
    return pids
