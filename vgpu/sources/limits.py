"""Limit files that sharing systems leave on disk: gpu-manager's and KubeShare's.

The files lie within reach of tenants, so each is opened without following links, is bounded, and
is refused alone. A folder that does not exist is a system that is not installed here.
"""

import os
import re
import time
from collections.abc import Callable, Iterator

from vgpu.facts import LimitFile, LimitSample
from vgpu.model import Scheme
from vgpu.reasons import Reason, Rejection, SourceError
from vgpu.schemes.gaia import vcuda_config
from vgpu.schemes.kubeshare import gemini_config
from vgpu.sources.files import Living, Remembered, list_folder, printable, read_file
from vgpu.units import percent

DEFAULT_GAIA_DIR = "/etc/gpu-manager/vm"
DEFAULT_KUBESHARE_DIR = "/kubeshare/scheduler/config"

MAX_ENTRIES = 4_096
"""Entries read from one folder."""

MAX_CONTAINERS = 256
"""Entries read from the folder of one pod, which its tenant can write into."""

VCUDA_CONFIG = "vcuda.config"

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Limits = tuple[LimitFile, ...]


class LimitSource:
    """The limit files of one node. A file is parsed again only when it changed."""

    def __init__(
        self,
        gaia_dir: str = DEFAULT_GAIA_DIR,
        kubeshare_dir: str = DEFAULT_KUBESHARE_DIR,
        *,
        living: Living = tuple,
    ) -> None:
        """``gaia_dir`` holds ``<podUID>/<containerID>/vcuda.config``, the other ``<GPU UUID>``.

        Of too many pods' folders those of ``living`` pods are read first.
        """
        self._living = living
        self._gaia_dir = gaia_dir
        self._kubeshare_dir = kubeshare_dir
        self._remembered: dict[str, Remembered[Limits]] = {}

    def sample(self) -> LimitSample:
        """Read everything once. Never raises: what cannot be read is a rejection."""
        now = time.time()
        limits: list[LimitFile] = []
        rejections: list[Rejection] = []
        remembered: dict[str, Remembered[Limits]] = {}
        for path, load in self._files(rejections):
            remembered[path] = self._remembered.get(path) or Remembered(path, load)
            try:
                limits += remembered[path].get(now)
            except SourceError as error:
                _refuse(error, rejections)
        self._remembered = remembered
        return LimitSample(tuple(limits), tuple(rejections))

    def _files(self, rejections: list[Rejection]) -> Iterator[tuple[str, Callable[[str], Limits]]]:
        for pod in _folders(self._gaia_dir, rejections, MAX_ENTRIES, self._living):
            for container in _folders(pod, rejections, MAX_CONTAINERS):
                yield f"{container}/{VCUDA_CONFIG}", _read_vcuda_config
        for entry in _entries(self._kubeshare_dir, rejections, MAX_ENTRIES):
            if _GPU_UUID.fullmatch(entry.name):
                yield entry.path, _read_kubeshare_config
            else:
                refused = Rejection(printable(entry.path), Reason.BAD_UUID, "not named as a GPU")
                rejections.append(refused)


def _read_vcuda_config(path: str) -> Limits:
    subject = printable(path)
    config = vcuda_config.decode(read_file(path, vcuda_config.CONFIG_SIZE), subject)
    pod_uid, folder = path.split("/")[-3:-1]
    if config.pod_uid != pod_uid:
        raise SourceError(Reason.MALFORMED, subject, f"it names the pod {config.pod_uid}")
    # gpu-manager names the folder after the container where it does not know the id.
    by_id = _CONTAINER_ID.fullmatch(folder) is not None
    limit = LimitFile(
        scheme=Scheme.GAIA,
        path=subject,
        pod_uid=pod_uid,
        container=config.container or ("" if by_id else folder),
        container_id=folder if by_id else "",
        pci_bus_id=config.bus_id,
        memory_bytes=config.memory_bytes if config.enable else None,
        cores_percent=config.cores_limit_percent if config.enable else None,
        cores_request_percent=config.utilization_percent,
    )
    return (limit,)


def _read_kubeshare_config(path: str) -> Limits:
    subject = printable(path)
    pods = gemini_config.parse_config(read_file(path, gemini_config.CONFIG_LIMIT), subject)
    return tuple(
        LimitFile(
            scheme=Scheme.KUBESHARE,
            path=subject,
            namespace=pod.namespace,
            pod=pod.pod,
            device=path.rpartition("/")[2],
            memory_bytes=pod.memory_bytes,
            cores_percent=percent(pod.limit_milli),
            cores_request_percent=percent(pod.request_milli),
        )
        for pod in pods
    )


def _folders(
    path: str, rejections: list[Rejection], limit: int, living: Living = tuple
) -> list[str]:
    entries = _entries(path, rejections, limit, only_folders=True, living=living)
    return [entry.path for entry in entries]


def _entries(
    path: str,
    rejections: list[Rejection],
    limit: int,
    *,
    only_folders: bool = False,
    living: Living = tuple,
) -> list[os.DirEntry[str]]:
    """What is in the folder; nothing if it does not exist."""
    try:
        entries, too_many = list_folder(path, limit, only_folders=only_folders, living=living)
    except SourceError as error:
        _refuse(error, rejections)
        return []
    rejections += too_many
    return entries


def _refuse(error: SourceError, rejections: list[Rejection]) -> None:
    """Note a failure, unless there was just nothing."""
    if error.reason is not Reason.ABSENT:
        rejections.append(error.rejection())
