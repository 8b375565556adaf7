"""Checks what is in an image: every program is of its platform, and finds its libraries."""

import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from deploy.release.platforms import Platform

FORBIDDEN: Final = frozenset({"apt", "apt-get", "bash", "dash", "dpkg", "perl", "pip", "sh", "su"})
"""Names of programs that the image must not have: shells, package managers, changes of the user."""

_SET_ID: Final = 0o6000


class Program(msgspec.Struct, frozen=True):
    """An ELF file of an image: its path, its machine and the libraries that it needs."""

    path: str
    machine: str
    needed: tuple[str, ...]


def problems(platform: Platform, layers: Sequence[Path]) -> list[str]:
    """What is wrong with an image, one line each; no line for a good one."""
    members = [member for layer in layers for member in _members(layer)]
    names = {PurePosixPath(member.name).name for member in members}
    programs = [program for layer in layers for program in elf_files(layer)]
    return [
        *_wrong_programs(platform, programs, names),
        *(f"{member.name}: setuid or setgid" for member in members if member.mode & _SET_ID),
        *(f"{member.name}: not owned by root" for member in members if member.uid or member.gid),
        *(
            f"{member.name}: a shell, a package manager or a change of the user"
            for member in members
            if PurePosixPath(member.name).name in FORBIDDEN
            and PurePosixPath(member.name).parent.name in ("bin", "sbin")
        ),
    ]


def _wrong_programs(
    platform: Platform, programs: Sequence[Program], names: set[str]
) -> Iterator[str]:
    if not programs:
        yield "no programs"
    for program in programs:
        if program.machine != platform.elf:
            yield f"{program.path}: {program.machine}, not {platform.elf}"
        for library in program.needed:
            if library not in names:
                yield f"{program.path}: needs {library}, which is missing"


def elf_files(layer: Path) -> Iterator[Program]:
    """The ELF files of a layer. A file that only begins like one has the machine ``malformed``."""
    with tarfile.open(layer) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isreg() else None
            content = stream.read() if stream else b""
            if content.startswith(b"\x7fELF"):
                yield _program(member.name, content)


def _program(path: str, content: bytes) -> Program:
    try:
        elf = ELFFile(io.BytesIO(content))
        dynamic = elf.get_section_by_name(".dynamic")
        tags = dynamic.iter_tags("DT_NEEDED") if isinstance(dynamic, DynamicSection) else ()
        needed = [str(tag.needed) for tag in tags]  # type: ignore[attr-defined]  # set by its name
        return Program(path, str(elf["e_machine"]), tuple(needed))
    except ELFError:
        return Program(path, "malformed", ())


def _members(layer: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(layer) as archive:
        return archive.getmembers()
