"""Copies of the driver's libraries and programs in folders for containers.

``<driver>/nvidia`` for parts of GPUs and ``<driver>/origin`` for whole ones, as gpu-manager has
them. Each is a link to a folder that never changes: a new driver or control library gets a new
folder, and the link is switched in one step. The runtime follows the link when it makes a
container, and the container keeps its folder; so a folder without a link is removed after the next
boot of the node, when no container can have it.
"""

import logging
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from deviceplugin.gaia import driver_layout
from deviceplugin.gaia.driver_files import (
    HostDriver,
    HostFile,
    digest,
    find_library,
    find_program,
    here,
    read_library,
    survey,
)
from deviceplugin.gaia.driver_layout import CLIENT, CONTROL, DriverLayout, Flavour
from vgpu.model.reasons import Reason, SourceError

log = logging.getLogger(__name__)

_MODE: Final = 0o755
_OURS: Final = re.compile(r"(?:nvidia|origin)\..*-[0-9a-f]{12}")
_UNDER_WAY: Final = re.compile(r"\.(?:nvidia|origin)\..*\.new")
_BOOT: Final = ".boot"
"""Suffix of the file beside a folder with the boot in which containers last got the folder."""


class DriverSource(msgspec.Struct, frozen=True):
    """The places of the driver and of gpu-manager's libraries.

    Attributes:
        root: the host's root.
        shares: whether parts of GPUs are to be served.
        control: gpu-manager's control library; None searches the host for it.
        client: its client; None searches beside the control library, then on the host.
    """

    root: str = "/"
    shares: bool = True
    control: str | None = None
    client: str | None = None


class Mirrored(msgspec.Struct, frozen=True):
    """The folders that containers can get now.

    Attributes:
        version: the driver's.
        folders: the names of the folders, by flavour.
        problem: why there is none for parts of GPUs; "" if there is one, or none is wanted.
    """

    version: str
    folders: Mapping[Flavour, str]
    problem: str = ""


class DriverMirror:
    """The folders below ``<driver>``. One thread of one process on the node uses it at a time."""

    def __init__(self, folder: str, source: DriverSource, boot_id: str) -> None:
        self._folder = Path(folder)
        self._source = source
        self._boot_id = boot_id
        self._begun = False

    def refresh(self) -> Mirrored:
        """Make the folders of the host's driver, unless they are there.

        Raises SourceError, OSError; the previous folders then stay.
        """
        if not self._begun:
            self._begin()
        driver = survey(self._source.root)
        folders, problem = {Flavour.ORIGIN: self._name(Flavour.ORIGIN, driver)}, ""
        enforcing: tuple[HostFile, ...] = ()
        try:
            enforcing = self._enforcing() if self._source.shares else ()
        except SourceError as error:
            problem = str(error)
        if enforcing:
            folders[Flavour.SHARED] = self._name(Flavour.SHARED, driver, enforcing)
        missing = {flavour for flavour, name in folders.items() if not self._is_there(name)}
        if missing:
            layouts = _layouts(driver, enforcing)
            for flavour in sorted(missing):
                self._build(folders[flavour], layouts[flavour], folders)
            self._require_unchanged(folders, enforcing, missing)
        for flavour, name in folders.items():
            self._switch(flavour, name)
        self._sweep(frozenset(folders.values()))
        return Mirrored(driver.version, folders, problem)

    # ------------------------------------------------------------ the sources

    def _enforcing(self) -> tuple[HostFile, HostFile]:
        """The control library and its client. Raises SourceError."""
        source, root = self._source, self._source.root
        control = here(source.control) if source.control else find_library(root, CONTROL)
        if control is None:
            where = source.control or f"{CONTROL} on the host"
            detail = f"{where} is not there: parts of GPUs cannot be served"
            raise SourceError(Reason.ABSENT, CONTROL, detail)
        beside = str(Path(control.path).with_name(CLIENT))
        client = (
            here(source.client) if source.client else here(beside) or find_program(root, CLIENT)
        )
        if client is None:
            where = source.client or f"{beside}, nor one on the host,"
            detail = f"{where} is not there: the control library could not register"
            raise SourceError(Reason.ABSENT, CLIENT, detail)
        return control, client

    @staticmethod
    def _name(flavour: Flavour, driver: HostDriver, more: tuple[HostFile, ...] = ()) -> str:
        return f"{flavour}.{driver.version}-{digest(driver, more)}"

    def _is_there(self, name: str) -> bool:
        return (self._folder / name).is_dir()

    def _require_unchanged(
        self, folders: Mapping[Flavour, str], enforcing: tuple[HostFile, ...], made: set[Flavour]
    ) -> None:
        """Raises SourceError where the driver was replaced while it was copied."""
        driver = survey(self._source.root)
        files = {Flavour.SHARED: tuple(filter(None, (here(file.path) for file in enforcing)))}
        for flavour in made:
            if self._name(flavour, driver, files.get(flavour, ())) != folders[flavour]:
                shutil.rmtree(self._folder / folders[flavour], ignore_errors=True)
                raise SourceError(Reason.CHANGED_WHILE_READ, self._source.root)

    # ------------------------------------------------------------ the folders

    def _begin(self) -> None:
        """Remove what an earlier process did not finish."""
        self._folder.mkdir(mode=_MODE, parents=True, exist_ok=True)
        for path in list(self._folder.iterdir()):
            if _UNDER_WAY.fullmatch(path.name) and not path.is_symlink():
                shutil.rmtree(path)
        self._begun = True

    def _build(self, name: str, layout: DriverLayout, folders: Mapping[Flavour, str]) -> None:
        """Make a folder, whole or not at all. Raises OSError."""
        fresh = self._folder / f".{name}.new"
        others = [self._folder / folder for folder in folders.values()]
        try:
            for part in ("", *sorted(driver_layout.FOLDERS.values()), driver_layout.PROGRAMS):
                (fresh / part).mkdir()
                (fresh / part).chmod(_MODE)  # whatever the umask
            for place, file in layout.files.items():
                _place(file, fresh / place, [other / place for other in others])
            for place, target in layout.links.items():
                (fresh / place).symlink_to(target)
            for part in (*driver_layout.FOLDERS.values(), driver_layout.PROGRAMS, ""):
                _sync(fresh / part)
            fresh.rename(self._folder / name)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        log.info("the driver is mirrored", extra={"folder": name, "files": len(layout.files)})

    def _switch(self, flavour: Flavour, name: str) -> None:
        """Link new containers to this folder. Raises OSError."""
        link = self._folder / flavour
        self._note(name)
        if link.is_symlink() and str(link.readlink()) == name:
            return
        if link.is_dir() and not link.is_symlink():
            # This is gpu-manager's folder. Until the new link is in place no container can be
            # made, and the kubelet tries again; running containers keep the renamed folder.
            retired = f"{flavour}.gpu-manager-{name.rpartition('-')[2]}"
            self._note(retired)
            link.rename(self._folder / retired)
        fresh = self._folder / f".{flavour}.link"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(name)
        fresh.rename(link)
        _sync(self._folder)

    def _note(self, name: str) -> None:
        """Note that containers of this boot may have the folder."""
        if self._noted(name) != self._boot_id:
            fresh = self._folder / f".{name}{_BOOT}"
            fresh.write_text(self._boot_id)
            fresh.rename(self._folder / f"{name}{_BOOT}")

    def _noted(self, name: str) -> str:
        try:
            return (self._folder / f"{name}{_BOOT}").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _sweep(self, current: frozenset[str]) -> None:
        """Remove folders that only containers of an earlier boot can have had."""
        for path in list(self._folder.iterdir()):
            name = path.name
            if name in current or not _OURS.fullmatch(name) or path.is_symlink():
                continue
            if self._noted(name) not in ("", self._boot_id):
                shutil.rmtree(path)
                (self._folder / f"{name}{_BOOT}").unlink(missing_ok=True)
                log.info("an older mirror of the driver is removed", extra={"folder": name})


def _layouts(driver: HostDriver, enforcing: tuple[HostFile, ...]) -> dict[Flavour, DriverLayout]:
    """Raises SourceError."""
    known = {file.path: read_library(file.path) for file in driver.libraries}
    layouts = {Flavour.ORIGIN: driver_layout.origin(driver, known)}
    if enforcing:
        control, client = enforcing
        bits = read_library(control.path).bits
        layouts[Flavour.SHARED] = driver_layout.shared(
            layouts[Flavour.ORIGIN], control, bits, client
        )
    return layouts


def _place(file: HostFile, target: Path, twins: list[Path]) -> None:
    """Put the file under another name, by a link if possible. Raises OSError."""
    for source in (*twins, Path(file.path)):
        with suppress(OSError):  # another file system, or no such file
            os.link(source, target)
            return
    shutil.copyfile(file.path, target)
    target.chmod(Path(file.path).stat().st_mode & 0o777)
    _sync(target)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
