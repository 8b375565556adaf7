"""The product as an image: a Debian root filesystem, the locked requirements, our wheel.

    build(file, sources(folder))  ->  a docker-archive of `REFERENCE`, whose entry point is `vgpu`

The first two layers come out of the user's cache unless something they are made of has changed;
the wheel is built every time, of a copy of the sources that nobody edits meanwhile. Equal sources
give equal bytes.

What deploy/Containerfile says of packages, of pip and of the image itself is read from there. Its
base is here the filesystem of the running Debian, so that the machine's own Python says which
wheels fit and compiles what lies in the layers. It holds Python and what Python needs: no shell,
no package manager. Every file is root's and readable by all: any user can run it.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.bed.cache import cached
from tests.support.bed.containerfile import arguments, configuration
from tests.support.bed.images import image
from tests.support.bed.processes import DIES_WITH_US
from tests.support.environment import ROOT, required_root, required_tool

REFERENCE = "localhost/vgpu:test"
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()
ARGUMENTS = {name: value.split() for name, value in arguments(CONTAINERFILE).items()}
LOCK = ROOT / "requirements" / "runtime.lock"
PYTHON = "/usr/bin/python3"  # the one that the base gets, too

PACKAGES = ("base-files", "base-passwd", *ARGUMENTS["PACKAGES"])
NAMES = 'cp "$1/usr/share/base-passwd/{0}.master" "$1/etc/{0}"'  # what base-passwd does when set up
LEFT_OUT = (
    "dev",
    "etc/apt",
    "etc/hostname",
    "etc/resolv.conf",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/zoneinfo",
    "var/cache",
    "var/lib",
    "var/log",
)


def packages(tree: Path = ROOT) -> list[str]:
    """The folders that make the wheel."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())
    return project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def sources(folder: Path) -> Path:
    """Copy what the wheel is built of into a new ``folder``."""
    for name in packages():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def build(file: Path, tree: Path) -> Path:
    """Write the docker-archive of ``tree`` to ``file``; its base takes a minute the first time.

    Raises:
        subprocess.CalledProcessError: a tool failed; what it said is in the error's notes.
    """
    required_root()
    required_tool("mmdebstrap", "mmdebstrap")
    required_tool(PYTHON, "python3")
    recipe = [Path(__file__).read_text(), str(ARGUMENTS), _suite()]
    base = cached("images/base.tar", recipe, _base)
    requirements = cached("images/requirements.tar", [*recipe, LOCK.read_text()], _requirements)
    with TemporaryDirectory() as folder:
        product = Path(folder, "product.tar")
        _product(tree, product)
        image(file, REFERENCE, [base, requirements, product], configuration(CONTAINERFILE))
    return file


def _suite() -> str:
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def _base(tar: Path) -> None:
    """Unpacked, not set up: nothing has to run in it but Python."""
    release = platform.freedesktop_os_release()
    sources = Path("/etc/apt/sources.list.d", f"{release['ID']}.sources")
    if not sources.exists():
        sources = Path("/etc/apt/sources.list")
    hooks = [f"--extract-hook={NAMES.format(file)}" for file in ("passwd", "group")]
    include = f"--include={','.join(PACKAGES)}"
    folder = tar.parent / "base"
    places = [_suite(), folder, sources]
    _run("mmdebstrap", "--quiet", "--mode=root", "--variant=extract", include, *hooks, *places)
    _pack(folder, tar)


def _requirements(tar: Path) -> None:
    _install(tar, *ARGUMENTS["LOCKED"], f"--requirement={LOCK}")


def _product(tree: Path, tar: Path) -> None:
    wheels = tar.parent / "wheels"
    build_wheel = [sys.executable, "-m", "hatchling", "build", "--target=wheel"]
    _run(*build_wheel, f"--directory={wheels}", folder=tree)
    _install(tar, "--no-index", f"--find-links={wheels}", "vgpu")


def _install(tar: Path, *what: str) -> None:
    """Pack what our pip installs for the base's Python, where Debian's own pip would."""
    folder = tar.parent / "installed"
    pip = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet"]
    _run(*pip, *ARGUMENTS["INSTALL"], f"--root={folder}", *what)
    _pack(folder, tar)


def _pack(folder: Path, tar: Path) -> None:
    """Compile what is Python, and pack it all without dates, owners and what nobody needs."""
    checked_by_nobody = "--invalidation-mode=unchecked-hash"  # the dates are about to go
    paths = ["-s", folder, "-p", "/", folder / "usr"]
    _run(PYTHON, "-m", "compileall", "-qq", "-j0", checked_by_nobody, *paths)
    with tarfile.open(tar, "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=_undated)


def _undated(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.name in LEFT_OUT:
        return None
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _run(*command: str | Path, folder: Path = ROOT) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        subprocess.run(
            [*DIES_WITH_US, *command],
            cwd=folder,
            env=env,
            check=True,
            capture_output=True,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise
