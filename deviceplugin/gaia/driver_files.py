"""The files of the host's NVIDIA driver, for containers that get a folder with them.

Libraries are found as the dynamic loader finds them: by ``ld.so.cache``, or without it in the usual
folders. Programs are found in the usual folders. The lists are those of gpu-manager's
``volume.conf``, with the libraries that newer drivers need for computing.

The plugin's container has the host's root somewhere below its own: a link of the host is resolved
from the host's root, and not above it.
"""

import errno
import hashlib
import logging
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from deviceplugin.gaia import ldcache
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.files import list_folder, read_file, translated

log = logging.getLogger(__name__)

CUDA: Final = "libcuda.so"
NVML: Final = "libnvidia-ml.so"

LIBRARIES: Final = (
    CUDA,
    NVML,
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-fatbinaryloader.so",
    "libnvidia-opencl.so",
    "libnvidia-compiler.so",
    "libvdpau_nvidia.so",
    "libnvidia-encode.so",
    "libnvcuvid.so",
    "libnvidia-fbc.so",
    "libnvidia-ifr.so",
    "libGL.so",
    "libGLX.so",
    "libOpenGL.so",
    "libGLESv1_CM.so",
    "libGLESv2.so",
    "libEGL.so",
    "libGLdispatch.so",
    "libGLX_nvidia.so",
    "libEGL_nvidia.so",
    "libGLESv2_nvidia.so",
    "libGLESv1_CM_nvidia.so",
    "libnvidia-eglcore.so",
    "libnvidia-egl-wayland.so",
    "libnvidia-glcore.so",
    "libnvidia-tls.so",
    "libnvidia-glsi.so",
    "libnvidia-opticalflow.so",
    "libnvidia-gpucomp.so",
    # not in volume.conf
    "libcudadebugger.so",
    "libnvidia-allocator.so",
    "libnvidia-cfg.so",
    "libnvidia-nvvm.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
)

PROGRAMS: Final = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)

_CACHE: Final = "/etc/ld.so.cache"
_LIBRARY_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/i386-linux-gnu",
    "/usr/lib32",
)
_PROGRAM_FOLDERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
_MOST_ENTRIES: Final = 65_536

_MOST_LINKS: Final = 40
"""Maximum number of links in a path, as in the kernel: path_resolution(7)."""

_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_NAME: Final = re.compile(r"(?P<stem>.+\.so)(?:\.(?P<version>[0-9]+(?:\.[0-9]+)*))?")


class HostFile(msgspec.Struct, frozen=True, order=True):
    """A regular file: its path here, and values that change when the file changes."""

    path: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.path.rpartition("/")[2]


class Library(msgspec.Struct, frozen=True):
    """The header values of an ELF file; ``soname`` is "" if it has none."""

    bits: int
    soname: str = ""
    needed: tuple[str, ...] = ()


class HostDriver(msgspec.Struct, frozen=True):
    """The driver of a host.

    Attributes:
        version: as in the names of its libraries, ``580.95.05``.
        libraries: in the loader's order.
        programs: by the name that users run.
    """

    version: str
    libraries: tuple[HostFile, ...]
    programs: Mapping[str, HostFile]


def survey(root: str = "/") -> HostDriver:
    """The driver of the host whose root is ``root`` here.

    Raises SourceError LIBRARY_NOT_FOUND, or MALFORMED while the host has parts of two drivers.
    """
    known = list(_cached(root))
    if not any(_stem(name) == CUDA for name, _ in known):
        known = list(_lying_about(root))
    version = _version(root, known)
    ours = ((name, path) for name, path in known if _is_of(name, version))
    files = dict.fromkeys(file for _, path in ours for file in _file(root, path))
    same = {f"{stem}.{version}" for stem in (CUDA, NVML)}
    libraries = (
        library
        for library in files
        if _stem(library.name) not in (CUDA, NVML) or library.name in same
    )
    return HostDriver(version, tuple(libraries), _programs(root, PROGRAMS))


def digest(driver: HostDriver, more: Iterable[HostFile] = ()) -> str:
    """Twelve digits that change with any file of the driver or of ``more``."""
    files = [*driver.libraries, *driver.programs.values(), *more]
    lines = [f"{file.path}\0{file.size}\0{file.mtime_ns}\n" for file in files]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def find_library(root: str, stem: str) -> HostFile | None:
    """A library of the host by its name without a version."""
    known = (pair for source in (_cached, _lying_about) for pair in source(root))
    return next((file for file in _files(root, known, stem)), None)


def find_program(root: str, name: str) -> HostFile | None:
    """A program of the host."""
    return _programs(root, (name,)).get(name)


def here(path: str) -> HostFile | None:
    """A regular file by its path here."""
    return next(_file("/", path), None)


# ---------------------------------------------------------------- finding files


def _cached(root: str) -> ldcache.Libraries:
    """The libraries of the loader's cache; () if the cache cannot be read."""
    try:
        path = resolved(root, _CACHE)
        return ldcache.parse(read_file(path, ldcache.CACHE_LIMIT), path)
    except OSError:
        return ()
    except SourceError as error:
        log.warning("the usual folders are searched for the driver: %s", error)
        return ()


def _lying_about(root: str) -> Iterator[tuple[str, str]]:
    for folder in _LIBRARY_FOLDERS:
        try:
            entries, _ = list_folder(resolved(root, folder), _MOST_ENTRIES)
        except (OSError, SourceError):
            continue
        for name in sorted(entry.name for entry in entries):
            if _stem(name) in LIBRARIES:
                yield name, f"{folder}/{name}"


def _version(root: str, known: Collection[tuple[str, str]]) -> str:
    """The driver's version, from the name of the CUDA library's file. Raises SourceError."""
    names = {
        stem: next((one.name for one in _files(root, known, stem)), "") for stem in (CUDA, NVML)
    }
    if not all(names.values()):
        absent = " and ".join(f"{stem}.1" for stem, name in names.items() if not name)
        detail = f"no {absent} by {_CACHE}, nor in {', '.join(_LIBRARY_FOLDERS)}"
        raise SourceError(Reason.LIBRARY_NOT_FOUND, root, detail)
    versions = {name.removeprefix(f"{stem}.") for stem, name in names.items()}
    if len(versions) > 1 or not _VERSION.fullmatch(version := versions.pop()):
        detail = f"not of one version: {', '.join(names.values())}; is it being installed?"
        raise SourceError(Reason.MALFORMED, root, detail)
    return version


def _files(root: str, known: Iterable[tuple[str, str]], stem: str) -> Iterator[HostFile]:
    """The files that programs get for this library, with a major version or without."""
    for name, path in known:
        if _stem(name) == stem and "." not in _named_version(name):
            yield from _file(root, path)


def _is_of(name: str, version: str) -> bool:
    """Whether a library is of this driver: one of another version was left behind.

    Names have the driver's version, or one number, or no version.
    """
    named = _named_version(name)
    return _stem(name) in LIBRARIES and ("." not in named or named == version)


def _stem(name: str) -> str:
    """A library's name without its version; "" if this is no library."""
    match = _NAME.fullmatch(name)
    return match["stem"] if match else ""


def _named_version(name: str) -> str:
    """The version in a library's name; "" if there is none."""
    match = _NAME.fullmatch(name)
    return (match["version"] or "") if match else ""


def _file(root: str, path: str) -> Iterator[HostFile]:
    regular = regular_file(root, path)
    if regular:
        yield HostFile(regular[0], regular[1].st_size, regular[1].st_mtime_ns)


def _programs(root: str, names: Iterable[str]) -> dict[str, HostFile]:
    """The first program of each name."""
    programs: dict[str, HostFile] = {}
    for name in names:
        for folder in _PROGRAM_FOLDERS:
            for file in _file(root, f"{folder}/{name}"):
                programs.setdefault(name, file)
    return programs


def resolved(root: str, path: str) -> str:
    """The path here of the host's ``path``, with all links resolved.

    Links are resolved as on the host: from its root, and not above it. Raises OSError.
    """
    base = root.rstrip("/")
    done: list[str] = []
    rest = path.split("/")[::-1]
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            del done[-1:]
        elif part not in ("", "."):
            target = _link_target("/".join([base, *done, part]))
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                done = []
            rest += target.split("/")[::-1]
    return "/".join([base, *done])


def regular_file(root: str, path: str) -> tuple[str, os.stat_result] | None:
    """The regular file that the host has at ``path``, as a path here; None if there is none."""
    try:
        real = resolved(root, path)
        status = os.lstat(real)
    except OSError:
        return None
    return (real, status) if stat.S_ISREG(status.st_mode) else None


def _link_target(path: str) -> str | None:
    """The target of a link; None if the path is no link. Raises OSError."""
    try:
        return str(Path(path).readlink())
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def read_library(path: str) -> Library:
    """The library's class, the name that programs ask for, and the libraries that it needs.

    Raises SourceError, MALFORMED for what is no whole ELF file.
    """
    # The import takes 7 MiB, which most starts do not need: their folders exist already.
    from elftools.elf.dynamic import DynamicSegment  # noqa: PLC0415
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    try:
        with Path(path).open("rb") as stream:
            elf = ELFFile(stream)
            segments = (part for part in elf.iter_segments() if isinstance(part, DynamicSegment))
            dynamic = next(segments, None)
            tags: list[Any] = (
                list(dynamic.iter_tags()) if dynamic else []
            )  # soname comes at run time
            sonames = [tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"]
            needed = tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED")
            return Library(elf.elfclass, sonames[0] if sonames else "", needed)
    except OSError as error:
        raise translated(error, path) from error
    except Exception as error:  # for a truncated file the parser raises errors of many types
        raise SourceError(Reason.MALFORMED, path, f"not an ELF file: {error}"[:200]) from error
