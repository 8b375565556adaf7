"""Compiles the fake driver against NVIDIA's own header, once per content and set of symbols."""

import hashlib
import importlib.metadata
import os
import subprocess
import tempfile
from pathlib import Path

from tests.support.environment import required_tool

SOURCE = Path(__file__).with_name("nvml_fake.c")
SONAME = "libnvidia-ml.so.1"
CACHE = Path(tempfile.gettempdir()) / f"vgpu-fake-nvml-{os.getuid()}"
FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror")


def build(hide: frozenset[str] = frozenset(), soname: str = SONAME) -> Path:
    """The library, which does not export the symbols in ``hide``, as older drivers do not.

    A missing compiler fails in CI and skips with one clear line elsewhere.
    """
    compiler = required_tool("gcc", "gcc libc6-dev")
    include = _header().parent
    names = ";".join(sorted(hide))
    script = f"{{ {f'local: {names};' if hide else ''} }};\n"
    content = "\0".join((SOURCE.read_text(), str(include), script, soname, *FLAGS))
    folder = CACHE / hashlib.sha256(content.encode()).hexdigest()[:16]
    library = folder / SONAME
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        version_script = Path(temporary, "symbols.map")
        version_script.write_text(script)
        built = Path(temporary, SONAME)
        command = [compiler, *FLAGS, "-isystem", str(include), f"-Wl,-soname,{soname}"]
        command += [f"-Wl,--version-script={version_script}"] if hide else []
        subprocess.run([*command, "-o", str(built), str(SOURCE)], check=True)
        built.replace(library)  # atomic: several test runs may build at once
    return library


def _header() -> Path:
    """``nvml.h`` of the PyPI package nvidia-nvml-dev."""
    for file in importlib.metadata.files("nvidia-nvml-dev") or ():
        if file.name == "nvml.h":
            return Path(file.locate())
    raise FileNotFoundError("nvidia-nvml-dev is installed without its nvml.h")
