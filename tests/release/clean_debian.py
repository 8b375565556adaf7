"""A clean Debian as a folder, in which a program runs as on a machine of its own."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.release.debian import MIRROR, SUITE
from tests.support.bed.cache import cached
from tests.support.environment import required_root, required_tool

PACKAGES = ("ca-certificates", "pipx", "python3-venv")
MACHINES_OWN = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files by which the machine reaches the package index."""
PIP = ("PIP_CERT", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "HTTPS_PROXY", "https_proxy")


class CleanDebian:
    """The root folder ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *command: str, stdin: str = "") -> str:
        """What a program prints in it. Raises AssertionError with its errors if it fails."""
        env = {name: os.environ[name] for name in PIP if name in os.environ}
        ran = subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.path}/proc"),
                *("chroot", self.path, *command),
            ],
            env={**env, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}: {ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def give(self, file: Path, folder: str = "/root") -> str:
        """Copy a file into it; the file's path there."""
        shutil.copy(file, self.path / folder.lstrip("/"))
        return f"{folder}/{file.name}"


@contextmanager
def clean_debian(path: Path) -> Iterator[CleanDebian]:
    """Unpack one to ``path``; the first one takes a minute, the next ones come out of the cache."""
    required_root()
    required_tool("mmdebstrap", "mmdebstrap")
    tar = cached("images/clean-debian.tar", [SUITE, *PACKAGES], _bootstrap)
    path.mkdir()
    with tarfile.open(tar) as archive:
        archive.extractall(path, filter="fully_trusted")
    for file in MACHINES_OWN:
        if Path(file).exists():
            shutil.copy(file, path / file.lstrip("/"))
    yield CleanDebian(path)
    shutil.rmtree(path)


def _bootstrap(tar: Path) -> None:
    include = f"--include={','.join(PACKAGES)}"
    command = [
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=minbase",
        include,
        "--skip=output/dev",
    ]
    subprocess.run([*command, SUITE, tar, f"{MIRROR}/debian"], check=True)
