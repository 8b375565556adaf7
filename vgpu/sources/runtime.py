"""Processes and the containers they run in, by the kernel's cgroups.

A process's cgroup names its container, and the pod's UID if Kubernetes made it. Both cgroup
versions, both cgroup drivers, and kubelets that themselves run in a container are understood.
"""

import errno
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from vgpu.model.facts import (
    SLOT_DEAD,
    LinkedProcess,
    MpsClientLimits,
    NodeLibrary,
    PodPids,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionFile,
)
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.sources import regions
from vgpu.sources.container_processes import PodPidReader, read_kernel_file
from vgpu.sources.files import list_folder, printable, translated
from vgpu.sources.linked_libraries import LinkedLibraries, is_static
from vgpu.sources.mps import MpsClients, is_mps_server
from vgpu.sources.pid_watch import PidWatch

HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The first pid namespace of every Linux (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""

MAX_CGROUP_BYTES = 16_384
MAX_FOLDERS = 8_192
"""Bounds of one /proc/<pid>/cgroup, and of one folder of the cgroup tree."""

MAX_PARSED = 512
"""Maximum number of contents of /proc/<pid>/cgroup that are kept with their owner, and of names of
cgroups with their pod: more than a node usually runs, and little memory for what has gone."""

SAMPLES_OF_TRUST = 20
"""Number of samples after which the cgroup of a living process is read again."""

RUNTIMES = {"cri-containerd": "containerd", "crio": "cri-o", "libpod": "podman"}
"""Prefix of a systemd scope -> the runtime; other runtimes use their own name."""

V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuset", "systemd")
"""Hierarchies in which the kubelet makes its tree, the likeliest first."""

QOS_CLASSES = ("burstable", "besteffort")

_CGPU = b"cgpu_km "
"""How the line of the kernel module of Aliyun's cGPU begins in /proc/modules, which lsmod shows
(Alibaba Cloud, "Install and use cGPU on GPU-accelerated instances")."""

_SCOPE = re.compile(r"(?:(?P<prefix>[a-z][a-z0-9-]{0,62})-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_ANY_UID = re.compile(r"[0-9A-Za-z-]{1,64}")

# ---------------------------------------------------------------- names of cgroups


def parse_cgroup(text: str) -> ProcessOwner | None:
    """The owner of a process, from its /proc/<pid>/cgroup; None if it is in no container.

    In version 1 every hierarchy has a line of its own, and not all need name the container: a
    line that names a pod's comes first.
    """
    # Not splitlines(): a cgroup's name may hold the other characters that end a line for it.
    paths = dict.fromkeys(line.split(":", 2)[-1] for line in text.split("\n"))
    owners = [owner for path in paths if (owner := parse_cgroup_path(path))]
    return next((owner for owner in owners if owner.pod_uid), owners[0] if owners else None)


def parse_cgroup_path(path: str) -> ProcessOwner | None:
    """The owner of a cgroup. The outermost pod counts, else the outermost container.

    The outermost, because a container may start cgroups of its own; a pod before a
    container, because the kubelet may itself run in one (kind, k3d).
    """
    parts = path.removesuffix(" (deleted)").split("/")
    in_kubernetes = False
    for number, part in enumerate(parts):
        in_kubernetes = in_kubernetes or "kubepods" in part
        # The kubelet uses systemd's names but the runtime does not: "<slice>:<runtime>:<id>"
        slice_name, _, misfit = part.partition(":")
        if uid := pod_uid(slice_name, in_kubernetes):
            inner = misfit.replace(":", "-") or "".join(parts[number + 1 : number + 2])
            container = _container(inner)
            return ProcessOwner(container[0], uid, container[1]) if container else None
    for number, part in enumerate(parts):
        if container := _container(part):
            parent = parts[number - 1] if number else ""
            runtime = container[1] or ("docker" if parent == "docker" else "")
            return ProcessOwner(container[0], "", runtime)
    return None


@functools.lru_cache(maxsize=MAX_PARSED)
def pod_uid(name: str, in_kubernetes: bool) -> str:
    """The UID in the name of a pod's cgroup; "" for any other name.

    ``pod<uid>``, or for systemd ``<parents>-pod<uid with _ for ->.slice``. Outside the
    kubelet's tree, or where it is not visible (a relative path), only a UUID or a static pod's
    hash counts.
    """
    if name.endswith(".slice"):
        uid = name.removesuffix(".slice").partition("-pod")[2].replace("_", "-")
    else:
        uid = name.removeprefix("pod") if name.startswith("pod") else ""
    shape = _ANY_UID if in_kubernetes else _UUID
    return uid if shape.fullmatch(uid) else ""


def _container(name: str) -> tuple[str, str] | None:
    """(id, runtime) from ``<id>``, ``<prefix>-<id>`` or ``<prefix>-<id>.scope``."""
    match = _SCOPE.fullmatch(name)
    prefix = (match["prefix"] or "") if match else ""
    # crio-conmon, libpod-conmon: the runtime's watchers, not the container
    if not match or prefix.endswith("conmon"):
        return None
    return match["id"], RUNTIMES.get(prefix, prefix)


# ---------------------------------------------------------------- the source


class ProcessSource:
    """The processes and cgroups of one node."""

    def __init__(
        self,
        procfs: str = "/proc",
        cgroupfs: str = "/sys/fs/cgroup",
        *,
        bare: bool = False,
        watch: bool = True,
    ) -> None:
        """``bare`` also reads inside containers: region files, and limits in the environment.

        Without ``watch`` it opens no descriptors for processes: for a single sample.
        """
        self._procfs = procfs
        self._cgroupfs = cgroupfs
        self._bare = bare
        self._watch = PidWatch() if watch else None
        self._owners: dict[int, ProcessOwner | None] = {}
        self._ended: frozenset[int] = frozenset()
        self._pod_pids = PodPidReader(procfs)
        self._parsed: dict[bytes, ProcessOwner | None] = {}
        self._clients = MpsClients(procfs)
        self._libraries = LinkedLibraries(procfs)
        self._has_cgpu: bool | None = None
        self._static: frozenset[int] = frozenset()
        self._checked: frozenset[int] = frozenset()
        self._samples = 0

    def sample(self, pids: Iterable[int], regions: Iterable[RegionFile] = ()) -> ProcessSample:
        """Ask for these host pids, and for the processes in the slots of ``regions``.

        A pid that may not be read makes ``sees_host`` false: others could then be hidden too.
        May block as long as the kernel does; the caller has a deadline.

        Raises SourceError where there is no procfs.
        """
        if not Path(self._procfs, "self").is_dir():
            raise SourceError(Reason.ABSENT, printable(self._procfs), "no procfs here")
        wanted = frozenset(pids)
        rejections: list[Rejection] = []
        owners, hidden = self._read_owners(wanted, rejections)
        live_pods = None
        try:
            live_pods = read_pod_folders(self._cgroupfs)
        except SourceError as error:
            rejections.append(error.rejection())
        bare = tuple(self._bare_regions(owners, rejections)) if self._bare else ()
        clients = self._mps_clients(owners, rejections) if self._bare else {}
        linked: dict[int, LinkedProcess] = {}
        libraries: tuple[NodeLibrary, ...] | None = None
        if self._bare:
            in_pods = [pid for pid, owner in owners.items() if owner and owner.pod_uid]
            linked = self._libraries.sample(in_pods, rejections)
            libraries = self._libraries.node_files(rejections)
        sees_host = sees_host_processes(self._procfs)
        if not sees_host:
            rejections.append(Rejection(printable(self._procfs), Reason.FOREIGN_PIDS))
        return ProcessSample(
            owners,
            sees_host and not hidden,
            None if live_pods is None else frozenset(live_pods),
            bare,
            clients,
            tuple(rejections),
            self._ended,
            self._pids_of_pods(regions, bare, live_pods or {}) if sees_host else {},
            self._mps_servers(owners),
            self._bare,
            linked,
            libraries,
            frozenset() if self._bare else self._static_pids(owners),
            self._cgpu(),
        )

    def _pids_of_pods(
        self,
        regions: Iterable[RegionFile],
        bare: Iterable[tuple[ProcessOwner, str, Region]],
        folders: Mapping[str, str],
    ) -> dict[str, PodPids]:
        """The pids inside of pods with a slot that no process of its pod has as its host pid.

        ``folders`` are the cgroups of pods. A pod without one, and without a known process, has
        ended: thousands of them may have left a region.
        """
        owners = self._owners
        of_processes: set[str] | None = None  # not needed where each pod has a cgroup
        wanted: dict[str, set[int]] = {}
        of_pods = (
            *((file.pod_uid, file.region) for file in regions),
            *((owner.pod_uid, region) for owner, _, region in bare),
        )
        for uid, region in of_pods:
            if uid not in folders:
                if of_processes is None:
                    of_processes = {owner.pod_uid for owner in owners.values() if owner}
                if not uid or uid not in of_processes:
                    continue
            for slot in region.processes:
                if slot.status != SLOT_DEAD:
                    owner = owners.get(slot.host_pid)
                    if owner is None or owner.pod_uid != uid:
                        wanted.setdefault(uid, set()).add(slot.pid)
        known: dict[str, dict[int, ProcessOwner]] = {}
        for pid, owner in owners.items() if wanted else ():
            if owner is not None:
                known.setdefault(owner.pod_uid, {})[pid] = owner
        found = {
            uid: self._pod_pids.read(pids, known.get(uid, {}), _container_folders(folders.get(uid)))
            for uid, pids in wanted.items()
        }
        self._pod_pids.forget_others()
        return found

    def _read_owners(
        self, pids: frozenset[int], rejections: list[Rejection]
    ) -> tuple[dict[int, ProcessOwner | None], bool]:
        """The owners by pid, without processes that are gone; and whether one may not be read.

        The container of a process that has not ended since is known; but a process may move to
        another cgroup, so a few are read again in each sample, and those in no container are: a
        runtime moves its child into the container. It is the mapping of the sample before if
        nothing has changed.
        """
        self._samples += 1
        before = self._owners
        watch = self._watch if is_own_procfs(self._procfs) else None
        if watch is not None:
            watch.forget_ended()
            watch.keep_only(pids)
        owners: dict[int, ProcessOwner | None] = {}
        hidden = False
        for pid in pids:
            if watch is not None:
                owner, is_turn = before.get(pid), not (pid + self._samples) % SAMPLES_OF_TRUST
                if owner is not None and pid in watch and not is_turn:
                    owners[pid] = owner
                    continue
                watch.add(pid)
            path = f"{self._procfs}/{pid}/cgroup"
            try:
                owners[pid] = self._parse(read_cgroup(path))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESRCH):
                    hidden = True
                    rejections.append(translated(error, path).rejection())
        if owners != before:
            self._owners = owners
        self._ended = ((self._ended | before.keys()) & pids) - owners.keys()
        return self._owners, hidden

    def _cgpu(self) -> bool | None:
        """Whether the kernel has the module of cGPU, read at times; None if that is unknown."""
        if self._has_cgpu is None or not self._samples % SAMPLES_OF_TRUST:
            try:
                modules = read_kernel_file(f"{self._procfs}/modules")
            except OSError:
                return None
            self._has_cgpu = any(line.startswith(_CGPU) for line in modules.split(b"\n"))
        return self._has_cgpu

    def _static_pids(self, owners: Mapping[int, ProcessOwner | None]) -> frozenset[int]:
        """The processes in pods that run a static binary; read again as often as their cgroups."""
        watch = self._watch if is_own_procfs(self._procfs) else None
        static = set()
        for pid, owner in owners.items():
            if owner is None or not owner.pod_uid:
                continue
            is_turn = not (pid + self._samples) % SAMPLES_OF_TRUST
            if watch is None or pid not in watch or pid not in self._checked or is_turn:
                if is_static(self._procfs, pid):
                    static.add(pid)
            elif pid in self._static:
                static.add(pid)
        self._checked = frozenset(owners)
        self._static = frozenset(static)
        return self._static

    def _parse(self, content: bytes) -> ProcessOwner | None:
        if content not in self._parsed:
            if len(self._parsed) >= MAX_PARSED:
                self._parsed.clear()
            self._parsed[content] = parse_cgroup(content.decode("utf-8", "replace"))
        return self._parsed[content]

    def _mps_servers(self, owners: Mapping[int, ProcessOwner | None]) -> frozenset[int]:
        """The servers of MPS that run outside of containers, as GKE's do."""
        outside = (pid for pid, owner in owners.items() if owner is None)
        return frozenset(pid for pid in outside if is_mps_server(self._procfs, pid))

    def _mps_clients(
        self, owners: dict[int, ProcessOwner | None], rejections: list[Rejection]
    ) -> dict[int, MpsClientLimits]:
        """The limits in the environments of processes in containers."""
        watch = self._watch if is_own_procfs(self._procfs) else None
        pids = [pid for pid, owner in owners.items() if owner]
        return self._clients.sample(
            pids, lambda pid: watch is not None and pid in watch, rejections
        )

    def _bare_regions(
        self, owners: dict[int, ProcessOwner | None], rejections: list[Rejection]
    ) -> Iterator[tuple[ProcessOwner, str, Region]]:
        """Read the region in each container, through one of its processes."""
        containers = {owner: pid for pid, owner in owners.items() if owner}
        for owner, pid in containers.items():
            try:
                region = regions.read_bare(self._procfs, pid)
            except SourceError as error:
                if error.reason is not Reason.ABSENT:
                    rejections.append(error.rejection())
            else:
                path = f"{self._procfs}/{pid}/root/{regions.BARE_FOLDER}/{regions.BARE_CACHE}"
                yield owner, path, region


def sees_host_processes(procfs: str) -> bool:
    """Whether our pids are the host's, and hidepid hides no other processes."""
    try:
        namespace = Path(procfs, "self/ns/pid").readlink()
    except OSError:
        return False
    return str(namespace) == HOST_PID_NAMESPACE and Path(procfs, "1").exists()


def is_own_procfs(procfs: str) -> bool:
    """Whether it has this process under its own pid, so that its pids are those of our calls."""
    try:
        return str(Path(procfs, "self").readlink()) == str(os.getpid())
    except OSError:
        return False


def read_cgroup(path: str) -> bytes:
    """The content of a process's file ``cgroup``, bounded. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, MAX_CGROUP_BYTES)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- pods that have a cgroup


def read_live_pods(cgroupfs: str) -> frozenset[str] | None:
    """UIDs of the pods that have a cgroup; None if no kubelet's tree is visible.

    Raises SourceError where the tree cannot be read whole: a part would call live pods dead.
    """
    folders = read_pod_folders(cgroupfs)
    return None if folders is None else frozenset(folders)


def read_pod_folders(cgroupfs: str) -> dict[str, str] | None:
    """The pods that have a cgroup: UID -> the cgroup's folder; otherwise as read_live_pods."""
    trees = _kubelet_trees(cgroupfs)
    return dict(pod for tree in trees for pod in _pods_below(tree)) if trees else None


def read_containers(cgroupfs: str, uid: str) -> dict[str, str]:
    """The containers of a pod that have a cgroup below the pod's own: ID -> the cgroup's folder.

    The pod's sandbox is among them. Raises SourceError.
    """
    return _containers((read_pod_folders(cgroupfs) or {}).get(uid))


def _container_folders(pod_folder: str | None) -> dict[str, str]:
    """As :func:`_containers`; none if they cannot be read."""
    try:
        return _containers(pod_folder)
    except SourceError:
        return {}


def _containers(pod_folder: str | None) -> dict[str, str]:
    """The folders of containers by ID in the folder of a pod's cgroup. Raises SourceError."""
    folders = _folders(pod_folder) if pod_folder else []
    containers = ((_container(folder.rpartition("/")[2]), folder) for folder in folders)
    return {container[0]: folder for container, folder in containers if container}


def _kubelet_trees(cgroupfs: str) -> list[str]:
    """The kubelet's folders in the first hierarchy that has any.

    They are at the hierarchy's root, or one level below it: kind's "kubelet", --cgroup-root.
    """
    unified = Path(cgroupfs, "cgroup.controllers").exists()
    for hierarchy in [cgroupfs] if unified else [f"{cgroupfs}/{name}" for name in V1_CONTROLLERS]:
        children = _folders(hierarchy)
        trees = [child for child in children if _is_tree(child)] or [
            grandchild
            for child in children
            for grandchild in _folders(child)
            if _is_tree(grandchild)
        ]
        if trees:
            return trees
    return []


def _is_tree(path: str) -> bool:
    """``kubepods``, ``kubepods.slice``, or with parents ``kubelet-kubepods.slice``."""
    name = path.rpartition("/")[2].removesuffix(".slice")
    return name.rpartition("-")[2] == "kubepods"


def _pods_below(tree: str) -> Iterator[tuple[str, str]]:
    """UIDs, with the pods' folders, in the tree and in those of the QoS classes.

    Guaranteed pods have no such class.
    """
    for child in _folders(tree):
        name = child.rpartition("/")[2]
        if uid := pod_uid(name, in_kubernetes=True):
            yield uid, child
        elif name.removesuffix(".slice").endswith(QOS_CLASSES):
            yield from _pods_below(child)


def _folders(path: str) -> list[str]:
    """The folders in ``path``; none if it has just gone. Raises SourceError."""
    try:
        folders, too_many = list_folder(path, MAX_FOLDERS, only_folders=True)
    except SourceError as error:
        if error.reason is Reason.ABSENT:
            return []
        raise
    for rejection in too_many:
        raise SourceError(rejection.reason, rejection.object_name, rejection.detail)
    return [folder.path for folder in folders]
