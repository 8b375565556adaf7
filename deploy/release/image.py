"""The container image, without a container daemon and without a base image.

Three layers: Debian's Python with what it needs (debian.py), the locked requirements of the wheel,
and the wheel. The files lie where Debian's own pip would put them. All Python files are compiled:
the root file system of our pods is read-only. Bytecode is the same on each platform, so that the
Python of this machine's platform compiles for all of them, and nothing is emulated.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from deploy.release.commands import ReleaseError, run
from deploy.release.debian import DebianLock, unpack
from deploy.release.layers import pack
from deploy.release.platforms import Platform
from deploy.release.source import SourceTree
from deploy.release.wheels import install_locked, install_wheel, write_scripts

CONFIG: Final[dict[str, Any]] = {
    "Entrypoint": ["vgpu"],
    "Env": [
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "PYTHONUNBUFFERED=1",
        "MALLOC_ARENA_MAX=1",  # threads share one heap: less memory
    ],
    "User": "65532:65532",
    "WorkingDir": "/",
}
"""How a container of the image starts; the keys are those of OCI's image configuration."""


class TargetPython(msgspec.Struct, frozen=True):
    """The image's Python, run from an unpacked layer on this machine.

    Attributes:
        root: the unpacked layer of Debian's packages.
        platform: the platform of this machine.
        version: such as ``3.13``.
    """

    root: Path
    platform: Platform
    version: str

    def compile(self, folder: Path) -> None:
        """Compile every Python file below ``folder``, as one of the image's root folder."""
        loader = (self.root / self.platform.loader, "--library-path", self._libraries)
        options = ("-qq", "--invalidation-mode=unchecked-hash", "-s", folder, "-p", "/")
        run(
            *loader,
            self.root / f"usr/bin/python{self.version}",
            *("-m", "compileall", *options, folder / "usr"),
            env={
                "PYTHONHOME": str(self.root / "usr"),
                "PYTHONHASHSEED": "0",
                # What the compiler itself imports would be cached with this machine's paths.
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )

    @property
    def _libraries(self) -> Path:
        return self.root / self.platform.libraries


def python_version(lock: DebianLock) -> str:
    """The version of the locked Python, such as ``3.13``."""
    for package in lock.packages:
        prefix, _, version = package.name.partition("python3.")
        if not prefix and version.isdecimal():
            return f"3.{version}"
    raise ReleaseError("requirements/debian.lock has no package python3.N")


def debian_layer(
    file: Path, packages: Iterable[Path], python: Callable[[Path], TargetPython], epoch: int
) -> Path:
    """Write the layer of Debian's packages; ``python`` gives the Python for their root folder."""
    with TemporaryDirectory() as work:
        root = Path(work, "root")
        unpack(packages, root)
        python(root).compile(root)
        return pack(root, file, epoch)


def requirements_layer(
    file: Path, source: SourceTree, platform: Platform, python: TargetPython
) -> Path:
    """Write the layer of the locked requirements."""
    with TemporaryDirectory() as work:
        root = Path(work, "root")
        install_locked(source, platform, python.version, _packages(root, python.version))
        python.compile(root)
        return pack(root, file, source.epoch)


def product_layer(file: Path, source: SourceTree, wheel: Path, python: TargetPython) -> Path:
    """Write the layer of our wheel, which is the same on each platform."""
    with TemporaryDirectory() as work:
        root = Path(work, "root")
        install_wheel(wheel, _packages(root, python.version))
        python.compile(root)
        write_scripts(source, root / "usr" / "local" / "bin", "/usr/bin/python3")
        return pack(root, file, source.epoch)


def _packages(root: Path, version: str) -> Path:
    """The folder of packages that Debian's Python imports from and no Debian package fills."""
    folder = root / f"usr/local/lib/python{version}/dist-packages"
    folder.mkdir(parents=True)
    return folder
