"""Limit files of sharing systems on disk, as their rows in the registry describe them.

The files lie within reach of tenants, so each is opened without following links, is bounded, and
is refused alone. A folder that does not exist is a system that is not installed here.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from vgpu.model.facts import LimitFile, LimitSample
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.schemes.registry import registry
from vgpu.schemes.row import LimitFiles, LimitLayout
from vgpu.sources.files import Living, Remembered, list_folder, printable, read_file
from vgpu.sources.mps import MpsSource

MAX_ENTRIES = 4_096
"""Maximum number of entries that are read from one folder."""

MAX_CONTAINERS = 256
"""Maximum number of entries read from the folder of one pod, which its tenant can write into."""

_GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Limits = tuple[LimitFile, ...]


class LimitSource:
    """The limit files of one node. A file is parsed again only when it changed."""

    def __init__(
        self,
        folders: Mapping[str, str] | None = None,
        *,
        living: Living = tuple,
        mps: str | None = None,
    ) -> None:
        """``folders`` are by the name of the registry's row; a missing row has its default.

        Of too many pods' folders those of ``living`` pods are read first. ``mps`` is the root of
        the MPS daemons of NVIDIA's device plugin; None is not read.
        """
        self._mps = MpsSource(mps)
        self._living = living
        self._folders = {
            name: ((folders or {}).get(name, files.folder), files)
            for name, files in registry().limit_files.items()
        }
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
        mps, refused = self._mps.sample()
        return LimitSample(tuple(limits), (*rejections, *refused), mps)

    def _files(self, rejections: list[Rejection]) -> Iterator[tuple[str, Callable[[str], Limits]]]:
        for folder, files in self._folders.values():
            paths = _OF_LAYOUT[files.layout](folder, files, rejections, self._living)
            yield from ((path, partial(_read, files)) for path in paths)


def _of_containers(
    folder: str, files: LimitFiles, rejections: list[Rejection], living: Living
) -> Iterator[str]:
    for pod in _folders(folder, rejections, MAX_ENTRIES, living):
        for container in _folders(pod, rejections, MAX_CONTAINERS):
            yield f"{container}/{files.file}"


def _of_gpus(folder: str, _: LimitFiles, rejections: list[Rejection], __: Living) -> Iterator[str]:
    for entry in _entries(folder, rejections, MAX_ENTRIES):
        if _GPU_UUID.fullmatch(entry.name):
            yield entry.path
        else:
            refused = Rejection(printable(entry.path), Reason.BAD_UUID, "not named as a GPU")
            rejections.append(refused)


def _read(files: LimitFiles, path: str) -> Limits:
    return files.read(read_file(path, files.most_bytes), path, printable(path))


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
    """The entries of the folder; none if it does not exist."""
    try:
        entries, too_many = list_folder(path, limit, only_folders=only_folders, living=living)
    except SourceError as error:
        _refuse(error, rejections)
        return []
    rejections += too_many
    return entries


def _refuse(error: SourceError, rejections: list[Rejection]) -> None:
    """Note a failure, unless the file is absent."""
    if error.reason is not Reason.ABSENT:
        rejections.append(error.rejection())


_OF_LAYOUT: Final = {LimitLayout.CONTAINER: _of_containers, LimitLayout.GPU: _of_gpus}
