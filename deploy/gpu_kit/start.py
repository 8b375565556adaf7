"""Unpacks the kit's wheels for this Python into a temporary folder, and runs the kit from there.

A copy of this file lies in the packed kit beside its wheels. It needs neither pip nor a network and
installs nothing. Pythons that are too old for vgpu read it, too: they print which one is needed.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATUS_UNUSABLE = 2
MACHINE = "x86_64"

_WHEEL = re.compile(r"(?P<name>[\w.]+)-[\w.!+]+-(?P<python>[\w.]+)-(?P<abi>\w+)-[\w.]+\.whl")
_CPYTHON = re.compile(r"cp3(\d+)")


def fits(file: str, minor: int) -> bool:
    """Whether a wheel's file works with CPython 3.``minor``, by its tags."""
    tags = _WHEEL.fullmatch(file)
    if tags is None:
        return False
    pythons = tags["python"].split(".")
    if tags["abi"] == "abi3":
        oldest = [int(found[1]) for tag in pythons if (found := _CPYTHON.fullmatch(tag))]
        return any(number <= minor for number in oldest)
    return f"cp3{minor}" in pythons or (tags["abi"] == "none" and "py3" in pythons)


def chosen(files: list[str], minor: int) -> tuple[list[str], list[str]]:
    """The wheels to unpack, and the packages of which none fits."""
    fitting = [file for file in sorted(files) if fits(file, minor)]
    names = {file.partition("-")[0] for file in fitting}
    return fitting, sorted({file.partition("-")[0] for file in files} - names)


def refusal(files: list[str], version: tuple[int, int], machine: str) -> str:
    """Why the kit cannot run here, in one line; "" if it can."""
    if machine != MACHINE:
        return f"the GPU kit is for {MACHINE}, this machine is {machine}"
    missing = chosen(files, version[1])[1]
    if not missing:
        return ""
    found = "-".join(files)
    minors = sorted({int(tag[1]) for tag in re.finditer(r"-cp3(\d+)-cp3\1-", found)})
    wanted = " or ".join(f"3.{minor}" for minor in minors)
    python = ".".join(map(str, version))
    packages = ", ".join(missing)
    return f"the GPU kit needs CPython {wanted}, this is {python}: no wheel of {packages} fits it"


def run(packages: Path) -> int:
    """Run the kit with these packages; its exit status. Signals are for the kit."""
    path = os.pathsep.join((str(HERE / "check"), str(packages)))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONNOUSERSITE": "1"}
    fake = HERE / "fake" / "libnvidia-ml.so.1"
    if fake.exists():
        env.setdefault("FAKE_NVML", str(fake))
    command = [sys.executable, "-m", "deploy.gpu_kit", *sys.argv[1:]]
    with subprocess.Popen(command, env=env) as process:  # noqa: S603  # our own module
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda sent, _frame: process.send_signal(sent))
        return process.wait()


def main() -> int:
    """Run as a program; the exit status."""
    files = [file.name for file in (HERE / "wheels").glob("*.whl")]
    why = refusal(files, sys.version_info[:2], platform.machine())
    if why:
        sys.stderr.write(f"{why}\n")
        return STATUS_UNUSABLE
    with tempfile.TemporaryDirectory(prefix="gpu-kit-wheels-") as folder:
        packages = Path(folder)
        packages.chmod(0o755)  # a profile's exporter is not root
        for file in chosen(files, sys.version_info[1])[0]:
            with zipfile.ZipFile(HERE / "wheels" / file) as wheel:
                wheel.extractall(packages)
        return run(packages)


if __name__ == "__main__":
    sys.exit(main())
