"""Writes the files that gpu-manager's library in a container reads: its limits and its pids.

No value comes from the container. The kernel reports a pod's containers and their pids, the kubelet
their names; the plugin's own allocation records have their shares. The kubelet makes the link that
names a container when the container has started, so the container may ask before that.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from deviceplugin.gaia.vcuda_files import PIDS_CONFIG, LimitsFolder
from deviceplugin.model import AdmittedPod
from vgpu.model.allocation import Allocation, Request
from vgpu.model.names import Phase, PodRef
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.gaia import vcuda_config
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gaia.grant import limits
from vgpu.schemes.gaia.vcuda_config import VCUDA_CONFIG, VcudaConfig
from vgpu.sources.container_processes import container_processes
from vgpu.sources.files import Remembered, list_folder
from vgpu.sources.kubelet_names import read_container_links
from vgpu.sources.runtime import ProcessSource, read_containers
from vgpu.sources.samples import with_whole_ids

log = logging.getLogger(__name__)

_CODEC: Final = Gaia()

_MOST_PROC_ENTRIES: Final = 2**23
"""Maximum number of entries of procfs; the kernel allows half as many processes."""

Names = Callable[[PodRef, Pod | None], Mapping[str, str]]
"""Container ID -> name, as far as the names are known by now."""

Driver = Callable[[], tuple[int, int]]
"""The driver's version, major and minor; raises SourceError while it is not known."""


class PodFiles(msgspec.Struct, frozen=True):
    """The result of one look at a pod.

    Attributes:
        served: container ID -> name, of containers whose files are up to date.
        waiting: IDs of containers whose name or shares are not known yet.
        by_name: names of served containers whose files are under their name as well.
    """

    served: Mapping[str, str] = {}
    waiting: frozenset[str] = frozenset()
    by_name: frozenset[str] = frozenset()


class LimitsWriter:
    """Keeps the files of all admitted pods' containers. Any thread may use it."""

    def __init__(
        self,
        folder: LimitsFolder,
        *,
        processes: Callable[[str], Mapping[str, Collection[int]]],
        names: Names,
        pod: Callable[[str], Pod | None],
        driver: Driver,
    ) -> None:
        """``processes`` returns a pod's pids by container ID; it and ``driver`` raise SourceError.

        ``pod`` finds a pod by its UID; None while the API server does not show it.
        """
        self._folder = folder
        self._processes = processes
        self._names = names
        self._pod = pod
        self._driver = driver
        self._changing = threading.Lock()
        self._admitted_pods: dict[str, AdmittedPod] = {}
        self._warned: dict[str, dict[str, str]] = {}  # UID -> warning -> its last logged reason

    def serve(self, admitted_pod: AdmittedPod) -> None:
        """Serve the pod with these shares from now on."""
        with self._changing:
            self._admitted_pods[admitted_pod.pod.uid] = admitted_pod

    def stop_serving(self, uid: str) -> None:
        """The pod is not admitted any more: remove its folder. Raises OSError."""
        with self._changing:
            self._admitted_pods.pop(uid, None)
            self._warned.pop(uid, None)
            self._folder.remove(uid)

    def repair(self) -> None:
        """Rewrite damaged files: the library may read them at any time."""
        with self._changing:
            admitted_pods = tuple(self._admitted_pods)
        for uid in admitted_pods:
            try:
                folders = self._folder.containers(uid)
                if not all(self._is_whole(uid, folder) for folder in folders):
                    self.pod_files(uid, by_name=folders)
            except (SourceError, OSError) as error:
                log.warning("limits cannot be repaired", extra={"uid": uid, "reason": str(error)})

    def pod_files(self, uid: str, by_name: Collection[str] = ()) -> PodFiles:
        """Write the files of all the pod's containers that run now.

        Containers in ``by_name`` get them under their name as well. Raises SourceError, OSError.
        """
        with self._changing:
            admitted_pod = self._admitted_pods.get(uid)
            return self._looked(admitted_pod, by_name) if admitted_pod else PodFiles()

    def _looked(self, admitted_pod: AdmittedPod, by_name: Collection[str]) -> PodFiles:
        uid = admitted_pod.pod.uid
        pod = self._pod(uid)
        pids = self._processes(uid)
        names = with_whole_ids(self._names(admitted_pod.pod, pod), pids)
        running = {
            container_id: names.get(container_id) for container_id, its in pids.items() if its
        }
        served = {}
        waiting = {container_id for container_id, name in running.items() if name is None}
        for container, name in running.items():
            shares = None if name is None else allocation_of(admitted_pod, name)
            if name is None or shares is None:
                continue
            config = self._config(admitted_pod, shares, pod, container)
            if config is None:
                waiting.add(container)
                continue
            self._write(uid, container, config, pids[container])
            if name in by_name:
                self._write(uid, name, config, pids[container])
            served[container] = name
        self._folder.prune(uid, pids.keys())
        return PodFiles(
            served, frozenset(waiting), frozenset(served.values()).intersection(by_name)
        )

    def _config(
        self, admitted_pod: AdmittedPod, shares: Allocation, pod: Pod | None, folder: str
    ) -> bytes | None:
        """The file's bytes; None if the pod's own limit is not known, and never was."""
        requests = self._requests(admitted_pod.pod.uid, pod)
        if requests is None:
            there = self._folder.content(admitted_pod.pod.uid, folder, VCUDA_CONFIG)
            return there if _reads(vcuda_config.decode, there) else None
        return vcuda_config.encode(config_of(admitted_pod, shares, requests, self._driver()))

    def _is_whole(self, uid: str, folder: str) -> bool:
        """Whether a container's files can be read; ours have at least one pid."""
        config, pids = (self._folder.content(uid, folder, n) for n in (VCUDA_CONFIG, PIDS_CONFIG))
        return _reads(vcuda_config.decode, config) and _reads(vcuda_config.decode_pids, pids)

    def _write(self, uid: str, folder: str, config: bytes, pids: Collection[int]) -> None:
        least = sorted(pids)[: vcuda_config.MOST_PIDS]  # as many as the library reads
        if len(pids) > len(least):
            reason = f"it counts {vcuda_config.MOST_PIDS} of each container"
            self._warn(uid, "more processes than gpu-manager's library counts", reason)
        self._folder.write(uid, folder, VCUDA_CONFIG, config)
        self._folder.write(uid, folder, PIDS_CONFIG, vcuda_config.encode_pids(least))

    def _requests(self, uid: str, pod: Pod | None) -> tuple[Request, ...] | None:
        """The pod's requests; None if unknown: the user may have broken them since the binding."""
        try:
            return _CODEC.requests(pod) if pod else None
        except ClaimError as error:
            self._warn(uid, "the limits of a pod stay what they are", str(error))
            return None

    def _warn(self, uid: str, message: str, reason: str) -> None:
        """Log a warning once for each pod and reason: a pod can cause it at every look."""
        warned = self._warned.setdefault(uid, {})
        if warned.get(message) != reason:
            warned[message] = reason
            log.warning(message, extra={"uid": uid, "reason": reason})


def _reads(decode: Callable[[bytes], object], content: bytes | None) -> bool:
    """Whether there is content that can be decoded."""
    try:
        return bool(content) and bool(decode(content or b""))
    except SourceError:
        return False


def allocation_of(admitted_pod: AdmittedPod, container: str) -> Allocation | None:
    """A container's shares: of its binding, or else of its reservation; None if it has none."""
    bound = admitted_pod.binding(container)
    if bound is None:
        return admitted_pod.allocation(container)
    return Allocation(container, bound.shares, Phase.ASSIGNED)


def config_of(
    admitted_pod: AdmittedPod,
    allocation: Allocation,
    requests: Iterable[Request],
    driver: tuple[int, int],
) -> VcudaConfig:
    """The container's limits; the requests decide whether they are hard. Raises ClaimError."""
    name = allocation.container
    soft = (request.limit_milli for request in requests if request.container == name)
    return limits(admitted_pod.pod, allocation, driver, limit_milli=next(soft, None))


class ContainerNames:
    """The containers' names of one node, from the kubelet's log links and the pods' status."""

    def __init__(self, log_dir: str = "/var/log/pods") -> None:
        """The links are in the folder ``containers`` beside ``log_dir``."""
        self._links = Remembered(str(Path(log_dir).parent / "containers"), read_container_links)

    def of(self, ref: PodRef, pod: Pod | None) -> Mapping[str, str]:
        """See :data:`Names`; ``pod`` as the API server shows it, None if it does not."""
        reported = {status.id: status.name for status in pod.statuses if status.id} if pod else {}
        try:
            links, _ = self._links.get(time.time())
        except SourceError:
            return reported  # no such folder yet: nothing has started
        mine = (ref.namespace, ref.name)
        linked = {
            container: name.container
            for container, name in links.items()
            if (name.namespace, name.pod) == mine
        }
        return reported | linked


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
    names = (entry.name for entry in list_folder(procfs, _MOST_PROC_ENTRIES)[0])
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
