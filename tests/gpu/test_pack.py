"""The packed GPU kit: what is in the folder, which Python runs it, and a run from it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from deploy.release import gpu_kit
from deploy.release.commands import ReleaseError
from deploy.release.layers import sha256
from deploy.release.source import SourceTree
from tests.gpu.gpu_machine import OFFLINE, GpuMachine
from tests.support.environment import ROOT
from tests.support.waiting import WAIT_SECONDS, wait_until

SOURCE = SourceTree(ROOT)
PACKAGE = ROOT / "deploy" / "gpu_kit"


def wheel(folder, name, tags="py3-none-any"):
    """A wheel with one module, which is called like the package."""
    file = Path(folder, f"{name}-1.0-{tags}.whl")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", f"name = {name!r}\n")
    return file


@pytest.fixture
def pack(tmp_path):
    """Packs a kit with these packages into the folder that it returns."""

    def packed(*packages, fake_library=None):
        def wheels(source, python, folder):
            for name, tags in packages:
                wheel(folder, name, tags)

        folder = tmp_path / "kit"
        own = wheel(tmp_path, "vgpu")
        gpu_kit.write_kit(SOURCE, own, folder, wheels=wheels, fake_library=fake_library)
        return folder

    return packed


def run(kit, *arguments, **env):
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, **env}
    return subprocess.run(
        [kit / "run", *arguments],
        cwd=kit,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def test_the_folder_has_the_check_the_wheels_and_the_fake_driver(pack, tmp_path):
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_bytes(b"\x7fELF")
    kit = pack(("dependency", "py3-none-any"), fake_library=library)
    assert {file.name for file in (kit / "wheels").iterdir()} == {
        "dependency-1.0-py3-none-any.whl",
        "vgpu-1.0-py3-none-any.whl",
    }
    ours = {file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py")}
    packed = kit / "check" / "deploy" / "gpu_kit"
    assert {file.relative_to(packed) for file in packed.rglob("*") if file.is_file()} == ours
    assert (kit / "fake" / library.name).read_bytes() == library.read_bytes()
    facts = json.loads((kit / "kit.json").read_text())
    assert (facts["version"], facts["python"]) == (SOURCE.version, "3.12")
    files = {str(file.relative_to(kit)) for file in kit.rglob("*") if file.is_file()}
    assert facts["sha256"].keys() == files - {"kit.json"}
    assert all(sha256(kit / name) == digest for name, digest in facts["sha256"].items())


def test_a_kit_replaces_the_one_before(pack):
    kit = pack()
    (kit / "wheels" / "old-1.0-py3-none-any.whl").touch()
    assert pack() == kit
    assert not list(kit.rglob("old-*"))


def test_a_kit_that_is_too_large_is_refused(pack, monkeypatch):
    monkeypatch.setattr(gpu_kit, "MOST_BYTES", 1000)
    with pytest.raises(ReleaseError, match="of at most 40 MiB"):
        pack()


def test_the_kit_is_no_part_of_the_wheel():
    assert "deploy" not in SOURCE.packages


def test_another_python_gets_one_line_and_status_2(pack):
    kit = pack(("compiled", "cp399-cp399-manylinux_2_28_x86_64"))
    done = run(kit)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    version = ".".join(map(str, sys.version_info[:2]))
    expected = f"the GPU kit needs CPython 3.99, this is {version}: no wheel of compiled fits it"
    assert line == expected


def test_without_any_python_there_is_one_line_and_status_2(pack, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dirname").symlink_to(shutil.which("dirname"))
    done = run(pack(), PATH=str(tmp_path / "bin"), PYTHON="")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line) == (
        2,
        "the GPU kit needs Python 3.12, and there is none on the PATH",
    )


PROGRAM = """
import dependency, os, sys, time, vgpu
print(dependency.name, vgpu.name, dependency.__file__, os.environ.get("FAKE_NVML"), sys.argv[1:])
sys.stdout.flush()
if "wait" in sys.argv:
    time.sleep(600)
sys.exit(7)
"""


def test_the_kit_runs_from_its_wheels_and_leaves_nothing(pack, tmp_path):
    library = tmp_path / "libnvidia-ml.so.1"
    library.touch()
    kit = pack(("dependency", "py3-none-any"), fake_library=library)
    (kit / "check" / "deploy" / "gpu_kit" / "__main__.py").write_text(PROGRAM)
    (tmp_path / "tmp").mkdir()
    done = run(kit, "--quick", TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 7, done.stderr
    dependency, vgpu, path, fake, arguments = done.stdout.split(maxsplit=4)
    assert (dependency, vgpu, arguments.strip()) == ("dependency", "vgpu", "['--quick']")
    assert Path(path).is_relative_to(tmp_path / "tmp")
    assert Path(fake) == kit / "fake" / library.name
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_signal_for_the_kit_reaches_its_program(pack, tmp_path):
    kit = pack(("dependency", "py3-none-any"))
    (kit / "check" / "deploy" / "gpu_kit" / "__main__.py").write_text(PROGRAM)
    (tmp_path / "tmp").mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(
        [kit / "run", "wait"], env=env, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, "ended")
    assert process.returncode != 0
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.thorough("release")
@pytest.mark.parametrize("cgroups", ["simulated", "auto"])
def test_the_kit_of_make_gpu_kit_is_green_on_the_fake_driver(real_kit, cgroups):
    python, kit = real_kit
    assert gpu_kit.folder_bytes(kit) <= 40 * 1024 * 1024
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        machine = GpuMachine(Path(folder))
        env = {**machine.environment(), "PYTHON": python}
        del env["FAKE_NVML"]  # the kit has its own
        options = ("--quick", f"--cgroups={cgroups}", f"--driver-proc={machine.driver_proc}")
        done = subprocess.run(
            [*OFFLINE, kit / "run", *options],
            cwd=machine.empty,
            env=env,
            capture_output=True,
            text=True,
            timeout=6 * WAIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert (machine.results / "report.json").exists()


@pytest.fixture(scope="module")
def real_kit(tmp_path_factory):
    """A Python, and the kit with the wheels for it, downloaded."""
    python, version = sys.executable, ".".join(map(str, sys.version_info[:2]))
    newer = shutil.which("python3.12")
    if newer and not subprocess.run([newer, "-c", ""], capture_output=True, check=False).returncode:
        python, version = newer, "3.12"
    folder = tmp_path_factory.mktemp("packed") / "kit"
    arguments = f"ARGS=--folder={folder} --python={version}"
    subprocess.run(
        ["make", f"VENV={sys.prefix}", "gpu-kit", arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=10 * WAIT_SECONDS,
    )
    return python, folder
