"""A simulated node on disk: everything that an exporter reads from files, in its real format.

``write(t)`` writes the state at ``t`` into the files; ``become`` changes the story. Regions are
updated in place as the shim does it, with its seqlock; every other file is replaced at once, and
only when it changed.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from simulator import tree
from simulator.driver import SimulatedDriver
from simulator.scenario import SHIM_ROOTS, Scenario, SimulatedContainer, SimulatedPod
from simulator.state import alive_at, damaged_at, regions_at
from vgpu.model.facts import Region
from vgpu.schemes.volcano import hami_core


class SimulatedPaths(msgspec.Struct, frozen=True):
    """The paths of the sources' files on the simulated node; absolute."""

    shim_roots: tuple[str, ...]
    procfs: str
    cgroupfs: str
    log_dir: str
    checkpoint: str
    pods_file: str
    gaia_dir: str
    kubeshare_dir: str
    mps_dir: str
    state_dir: str

    @property
    def limit_dirs(self) -> dict[str, str]:
        """Folders of limit files, by the name of the registry's row."""
        return {"gaia": self.gaia_dir, "kubeshare": self.kubeshare_dir}


def region_path(pod: SimulatedPod, container: SimulatedContainer) -> str:
    """The path of a container's region, relative to the node's root; "" if it has none."""
    shim = container.shim
    if shim is None:
        return ""
    return f"{shim.root}/{pod.ref.uid}_{container.name}/{shim.cache}.cache"


class SimulatedNode:
    """The files of ``scenario`` below ``folder``, and its driver. Second 0 is ``start``.

    One thread calls ``write``. The folder stays; its owner removes it.
    """

    def __init__(
        self, scenario: Scenario, folder: str | os.PathLike[str], start: float | None = None
    ) -> None:
        """``start`` is unix seconds; now if not set. Nothing is written yet."""
        self.scenario = scenario
        self.folder = Path(folder).absolute()
        self.start = time.time() if start is None else start
        self.paths = SimulatedPaths(
            shim_roots=tuple(str(self.folder / root) for root in SHIM_ROOTS),
            procfs=str(self.folder / tree.PROCFS),
            cgroupfs=str(self.folder / tree.CGROUPFS),
            log_dir=str(self.folder / tree.LOG_DIR),
            checkpoint=str(self.folder / tree.CHECKPOINT),
            pods_file=str(self.folder / tree.PODS_FILE),
            gaia_dir=str(self.folder / tree.GAIA_DIR),
            kubeshare_dir=str(self.folder / tree.KUBESHARE_DIR),
            mps_dir=str(self.folder / tree.MPS_DIR),
            state_dir=str(self.folder / tree.STATE_DIR),
        )
        self._pods: bytes | None = None
        self._alive: frozenset[int] | None = None
        self._tree = tree.FileTree({}, {})
        self._regions: dict[str, Region] = {}
        self._damaged: dict[str, int] = {}
        self._updates = 0

    def driver(self, clock: Callable[[], float] | None = None) -> SimulatedDriver:
        """The node's driver; ``clock`` returns the seconds since ``start``, real if None."""
        return SimulatedDriver(self.scenario, self.start, clock)

    def become(self, scenario: Scenario, pods: bytes) -> None:
        """The node from the next ``write`` on; ``pods`` is the list of its pods.

        Only pods may differ.
        """
        self.scenario = scenario
        self._pods = pods
        self._alive = None

    def write(self, t: float) -> None:
        """Write the state ``t`` seconds after the start into the files."""
        alive = alive_at(self.scenario, t)
        if alive != self._alive:
            new = tree.tree(self.scenario, alive, self.start)
            if self._pods is not None:
                new.files[tree.PODS_FILE] = self._pods
            self._replace(new)
            self._alive = alive
        self._write_regions(regions_at(self.scenario, t, self.start), damaged_at(self.scenario, t))

    # ------------------------------------------------------------ files

    def _replace(self, new: tree.FileTree) -> None:
        old = self._tree
        for path, content in new.files.items():
            if old.files.get(path) != content:
                self._put(path, content)
        for path, target in new.links.items():
            if old.links.get(path) != target:
                link = self.folder / path
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(target)
        for path in (old.files.keys() | old.links.keys()) - (new.files.keys() | new.links.keys()):
            gone = self.folder / path
            gone.unlink()
            with contextlib.suppress(OSError):  # not empty yet
                os.removedirs(gone.parent)
        self._tree = new

    def _put(self, path: str, content: bytes) -> None:
        """Write beside the tree and rename into it, so that no reader sees half a file."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = self.folder / ".draft"
        draft.write_bytes(content)
        draft.rename(target)

    # ------------------------------------------------------------ regions

    def _write_regions(self, regions: dict[str, Region], damaged: dict[str, int]) -> None:
        self._updates += 1
        paths = {
            container.id: self.folder / region_path(pod, container)
            for pod, container in self.scenario.containers()
        }
        for container_id, region in regions.items():
            path = paths[container_id]
            cut, was_cut = container_id in damaged, container_id in self._damaged
            if container_id not in self._regions or (was_cut and not cut):
                _create(path, region)
            elif not cut and region != self._regions[container_id]:
                _update(path, region, self._updates)
            if cut and not was_cut:
                os.truncate(path, damaged[container_id])
        self._regions, self._damaged = regions, damaged


def _create(path: Path, region: Region) -> None:
    """A new region, as the shim makes it: a sparse file of full size, its magic written last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        file.truncate(hami_core.LAYOUTS[region.layout].frame.file_size)
        _patch(file.fileno(), hami_core.creation(region, region.layout))


def _update(path: Path, region: Region, generation: int) -> None:
    with path.open("r+b", buffering=0) as file:
        _patch(file.fileno(), hami_core.patches(region, region.layout, generation))


def _patch(fd: int, patches: list[hami_core.Patch]) -> None:
    for offset, data in patches:
        os.pwrite(fd, data, offset)
