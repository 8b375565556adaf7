"""The content of the driver's folder that containers see as ``/usr/local/nvidia``.

``lib64`` and ``lib`` have the libraries, by their class, with the links that the dynamic loader
asks for; ``bin`` has the programs. In the folder for parts of GPUs, ``libcuda.so.1`` and
``libnvidia-ml.so.1`` lead to gpu-manager's control library, which loads the driver's own libraries
by their versions.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from deviceplugin.gaia.driver_files import CUDA, NVML, HostDriver, HostFile, Library
from vgpu.model.reasons import Reason, SourceError

CONTROL: Final = "libcuda-control.so"
CLIENT: Final = "gpu-client"
"""The program by which the control library registers its container."""

FOLDERS: Final = {64: "lib64", 32: "lib"}
PROGRAMS: Final = "bin"

_FILE_NAME: Final = re.compile(r"(?!\.{1,2}$)[^/\0]{1,255}")
_SEVERAL_VENDORS: Final = frozenset({"libEGL", "libGLESv1_CM", "libGLESv2", "libGL"})
_NVIDIAS: Final = re.compile(r"libnvidia-e?glcore\.so|libGLdispatch\.so")
_GLX: Final = "libGLX_nvidia"
_GLX_INDIRECT: Final = "libGLX_indirect"


class Flavour(StrEnum):
    """The two folders; the values are their names."""

    SHARED = "nvidia"  # for parts of GPUs
    ORIGIN = "origin"  # for whole GPUs


class DriverLayout(msgspec.Struct, frozen=True):
    """The content of a folder: files of the host and links, by their paths in the folder."""

    files: Mapping[str, HostFile]
    links: Mapping[str, str]


def origin(driver: HostDriver, known: Mapping[str, Library]) -> DriverLayout:
    """The layout for whole GPUs; ``known`` are the libraries by path. Raises SourceError."""
    files: dict[str, HostFile] = {}
    links: dict[str, str] = {}
    for file in driver.libraries:
        library = known[file.path]
        place = f"{FOLDERS[library.bits]}/{file.name}"
        if place in files or not _is_nvidias(file.name, library):
            continue
        files[place] = file
        for name in _asked_for(file, library.soname):
            links.setdefault(f"{FOLDERS[library.bits]}/{name}", file.name)
    files |= {f"{PROGRAMS}/{name}": file for name, file in driver.programs.items()}
    return DriverLayout(
        files, {name: target for name, target in links.items() if name not in files}
    )


def shared(whole: DriverLayout, control: HostFile, bits: int, client: HostFile) -> DriverLayout:
    """The layout for parts of GPUs; ``bits`` is the class of the control library.

    Leaves out CUDA and NVML of the other class: nothing would limit them. Raises SourceError.
    """
    here = FOLDERS[bits]
    files = {place: file for place, file in whole.files.items() if _is_of(place, here)}
    links = {place: target for place, target in whole.links.items() if _is_of(place, here)}
    for stem in (CUDA, NVML):
        replaced = [place for place, target in links.items() if _stem(target) == stem]
        if not replaced:
            detail = f"no {stem} of {bits} bits that programs find by another name than its own"
            raise SourceError(Reason.MALFORMED, control.path, detail)
        links |= dict.fromkeys(replaced, CONTROL)
    files |= {f"{here}/{CONTROL}": control, f"{PROGRAMS}/{CLIENT}": client}
    return DriverLayout(files, links)


def _is_of(place: str, folder: str) -> bool:
    """Whether the file may be in the folder for parts of GPUs: CUDA and NVML only in ``folder``."""
    where, _, name = place.rpartition("/")
    return where in (folder, PROGRAMS) or _stem(name) not in (CUDA, NVML)


def _stem(name: str) -> str:
    stem, mark, _ = name.partition(".so")
    return stem + mark


def _is_nvidias(name: str, library: Library) -> bool:
    """Whether a library that other vendors have as well is NVIDIA's, by the libraries it needs."""
    if name.partition(".so")[0] not in _SEVERAL_VENDORS:
        return True
    return any(_NVIDIAS.search(needed) for needed in library.needed)


def _asked_for(file: HostFile, soname: str) -> Iterator[str]:
    """The names by which programs ask for a library, besides its file name. Raises SourceError."""
    if soname in ("", file.name):
        return
    if not _FILE_NAME.fullmatch(soname):
        raise SourceError(Reason.MALFORMED, file.path, f"it is called {soname[:64]!r}")
    yield soname
    yield _stem(soname)  # many programs ask for no version
    if soname.startswith(_GLX):
        yield soname.replace(_GLX, _GLX_INDIRECT, 1)
