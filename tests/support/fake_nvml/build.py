"""Compiles the fake driver against NVIDIA's own header, once per content and set of symbols.

``python -m tests.support.fake_nvml.build`` prints where the library is.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import tempfile
from pathlib import Path

from tests.support.environment import required_tool

SOURCE = Path(__file__).with_name("nvml_fake.c")
CLIENT = Path(__file__).with_name("client.h")
SONAME = "libnvidia-ml.so.1"
CACHE = Path(tempfile.gettempdir()) / f"vgpu-fake-nvml-{os.getuid()}"
FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror")


def build(hide: frozenset[str] = frozenset(), soname: str = SONAME) -> Path:
    """The library, which does not export the symbols in ``hide``, as older drivers do not.

    A missing compiler fails in CI and skips with one clear line elsewhere.
    """
    names = ";".join(sorted(hide))
    script = f"{{ {f'local: {names};' if hide else ''} }};\n"
    return compiled(SOURCE, SONAME, soname, script=script, include=(_header().parent,))


def compiled(
    source: Path, name: str, soname: str, *, script: str = "", include: tuple[Path, ...] = ()
) -> Path:
    """A library of one C file, called ``name``; ``script`` is its version script."""
    compiler = required_tool("gcc", "gcc libc6-dev")
    texts = (source.read_text(), CLIENT.read_text(), *map(str, include), script, soname, *FLAGS)
    folder = CACHE / hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    library = folder / name
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        version_script = Path(temporary, "symbols.map")
        version_script.write_text(script)
        built = Path(temporary, name)
        command = [compiler, *FLAGS, f"-I{CLIENT.parent}", f"-Wl,-soname,{soname}"]
        command += [word for path in include for word in ("-isystem", str(path))]
        command += [f"-Wl,--version-script={version_script}"] if "local:" in script else []
        subprocess.run([*command, "-o", str(built), str(source)], check=True)
        built.replace(library)  # atomic: several test runs may build at once
    return library


def _header() -> Path:
    """``nvml.h`` of the PyPI package nvidia-nvml-dev."""
    for file in importlib.metadata.files("nvidia-nvml-dev") or ():
        if file.name == "nvml.h":
            return Path(file.locate())
    raise FileNotFoundError("nvidia-nvml-dev is installed without its nvml.h")


if __name__ == "__main__":
    print(build())
