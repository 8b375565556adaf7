"""Reads a library's class, the name that programs ask for, and the libraries that it needs."""

from pathlib import Path
from typing import Any

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from deviceplugin.gaia.driver_files import Library
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.files import translated


def read_library(path: str) -> Library:
    """The library's values. Raises SourceError, MALFORMED for what is no whole ELF file."""
    try:
        with Path(path).open("rb") as stream:
            return _library(ELFFile(stream))
    except OSError as error:
        raise translated(error, path) from error
    except Exception as error:  # for a truncated file the parser raises errors of many types
        raise SourceError(Reason.MALFORMED, path, f"not an ELF file: {error}"[:200]) from error


def _library(elf: ELFFile) -> Library:
    dynamic = next((one for one in elf.iter_segments() if isinstance(one, DynamicSegment)), None)
    tags: list[Any] = list(dynamic.iter_tags()) if dynamic else []  # soname is set at run time
    sonames = [tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"]
    needed = tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED")
    return Library(elf.elfclass, sonames[0] if sonames else "", needed)
