"""Compiles the stand-in library and the programs of tests, once per content."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tests.support.environment import required_tool
from tests.support.fake_nvml.build import CACHE, compiled

LIBRARY = "libvgpu.so"
_PROGRAM = Path(__file__).with_name("program.c")


def library() -> Path:
    """The library; a missing compiler fails in CI and skips with one clear line elsewhere."""
    return compiled(Path(__file__).with_name("shim_fake.c"), LIBRARY, LIBRARY)


def program(*, static: bool = False) -> Path:
    """A program that lives until its standard input ends."""
    digest = hashlib.sha256(_PROGRAM.read_bytes()).hexdigest()[:16]
    built = CACHE / f"program-{digest}-{'static' if static else 'dynamic'}"
    if not built.exists():
        compiler = required_tool("gcc", "gcc libc6-dev")
        CACHE.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=CACHE)
        os.close(handle)
        command = [compiler, "-O2", *(["-static"] if static else []), "-o", temporary]
        subprocess.run([*command, str(_PROGRAM)], check=True)
        Path(temporary).replace(built)
    return built
