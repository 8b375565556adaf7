"""`make release` twice from two clones, and every artefact tried from dist/ alone."""

import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from elftools.elf.elffile import ELFFile

from deploy import addressed
from deploy.project import Project
from deploy.release import oci
from deploy.release.contents import elf_files
from deploy.release.layers import sha256
from deploy.release.platforms import PLATFORMS, native
from tests.release.publisher import SETTING, Publisher
from vgpu import __version__

pytestmark = [pytest.mark.slow, pytest.mark.thorough("release")]

WHEEL = f"vgpu-{__version__}-py3-none-any.whl"
IMAGE = f"vgpu-{__version__}-image.tar"
CHART = f"vgpu-{__version__}.tgz"
NAMES = {
    f"vgpu-{__version__}.tar.gz",
    WHEEL,
    f"{WHEEL}.cdx.json",
    IMAGE,
    f"vgpu-{__version__}-image-amd64.cdx.json",
    f"vgpu-{__version__}-image-arm64.cdx.json",
    CHART,
    f"vgpu-{__version__}-manifests.tar.gz",
    f"vgpu_{__version__}_amd64.deb",
    f"vgpu_{__version__}_arm64.deb",
    f"kubectl-vgpu-{__version__}-linux-amd64.tar.gz",
    f"kubectl-vgpu-{__version__}-linux-arm64.tar.gz",
    "vgpu.yaml",
    f"vgpu-{__version__}.intoto.json",
    "SHA256SUMS",
}


def hashes(folder):
    """Name -> SHA-256 of every file of a folder."""
    return {file.name: sha256(file) for file in folder.iterdir()}


def layers_of(archive, platform, folder):
    """The layers of a platform's image, as files."""
    digest = oci.platform_digests(archive)[platform]
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    blobs = folder / "blobs" / "sha256"
    manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_text())
    return [blobs / layer["digest"].removeprefix("sha256:") for layer in manifest["layers"]]


# ---------------------------------------------------------------- the build


def test_all_artefacts_are_there_and_have_their_checksums(dist, publisher, figure):
    assert {file.name for file in dist.iterdir()} == NAMES
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dist, check=True)
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    assert {line.split()[1] for line in lines} == NAMES - {"SHA256SUMS"}
    assert "not signed by cosign: COSIGN_KEY is not set" in publisher.printed
    for file in sorted(dist.iterdir()):
        figure(f"{file.name}: {file.stat().st_size / 1024:,.0f} KiB")


def test_the_documentation_names_files_of_the_release():
    text = "".join(
        lines(Project(**SETTING)) for lines in (addressed.released, addressed.released_files)
    )
    files = set(re.findall(r"/releases/download/[^/]+/(\S+)", text))
    assert WHEEL in files
    assert files <= NAMES


def test_another_clone_at_another_time_gives_the_same_bytes(dist, publisher, tmp_path):
    other = Publisher(tmp_path / "elsewhere", publisher.venv, TZ="Asia/Tokyo", LC_ALL="C")
    other.follow(publisher)
    umask = os.umask(0o077)
    try:
        other.run("sh", "-c", build_command(publisher))
    finally:
        os.umask(umask)
    assert hashes(other.dist) == hashes(dist)


def build_command(publisher):
    """The command of `make release` that writes dist/, without its checks."""
    lines = publisher.make("--dry-run", "release").stdout.splitlines()
    (build,) = (line for line in lines if "deploy.release build" in line)
    return build


def test_a_change_that_is_not_committed_is_refused(publisher, tmp_path):
    other = Publisher(tmp_path / "changed", publisher.venv)
    other.follow(publisher)
    (other.folder / "vgpu" / "new.py").touch()
    refused = other.tried(str(publisher.venv / "bin" / "python"), "-m", "deploy.release", "build")
    assert refused.returncode == 1
    assert refused.stderr == "not released: changes are not committed: vgpu/new.py\n"
    assert not other.dist.exists()


def test_a_wheel_built_from_the_sdist_is_the_wheel(dist, publisher, tmp_path):
    with tarfile.open(dist / f"vgpu-{__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    epoch = publisher.run("git", "log", "-1", "--format=%ct").stdout.strip()
    publisher.env["SOURCE_DATE_EPOCH"] = epoch
    try:
        publisher.run(
            *(str(publisher.venv / "bin" / "python"), "-m", "hatchling", "build"),
            *("--target=wheel", f"--directory={tmp_path}"),
            cwd=tmp_path / f"vgpu-{__version__}",
        )
    finally:
        del publisher.env["SOURCE_DATE_EPOCH"]
    assert sha256(tmp_path / WHEEL) == sha256(dist / WHEEL)


def test_the_wheel_names_the_project_and_its_readme_has_no_relative_link(dist):
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        metadata = wheel.read(f"vgpu-{__version__}.dist-info/METADATA").decode()
    assert f"Project-URL: Source, {SETTING['address']}" in metadata
    assert "Provides-Extra: device-plugin" in metadata
    assert f"]({SETTING['site']}/install.html)" in metadata


# ---------------------------------------------------------------- the image and its descriptions


def test_the_image_of_arm64_has_the_files_of_amd64_and_only_programs_of_arm64(dist, tmp_path):
    python = {}
    for name, platform in PLATFORMS.items():
        layers = layers_of(dist / IMAGE, name, tmp_path / name)
        programs = [program for layer in layers for program in elf_files(layer)]
        assert len(programs) > 100
        assert {program.machine for program in programs} == {platform.elf}
        python[name] = set()
        for layer in layers:
            with tarfile.open(layer) as files:
                python[name] |= {file for file in files.getnames() if file.endswith(".py")}
        triplet = f"{platform.machine}-linux-gnu"
        python[name] = {file.replace(triplet, "TRIPLET") for file in python[name]}
    assert python["amd64"] == python["arm64"]


def test_the_debian_package_of_arm64_has_only_programs_of_arm64(dist, tmp_path):
    deb = dist / f"vgpu_{__version__}_arm64.deb"
    subprocess.run(["dpkg-deb", "--extract", deb, tmp_path], check=True)
    modules = list(tmp_path.rglob("*.so"))
    assert modules
    for module in modules:
        with module.open("rb") as stream:
            assert ELFFile(stream)["e_machine"] == "EM_AARCH64"


def test_the_program_of_the_foreign_platform_runs_in_an_emulator(dist, tmp_path):
    (foreign,) = (platform for platform in PLATFORMS.values() if platform != native())
    names = (f"qemu-{foreign.machine}", f"qemu-{foreign.machine}-static")
    emulator = next(filter(None, map(shutil.which, names)), None)
    if emulator is None:
        pytest.skip(f"{names[0]} is not installed, so {foreign.name} is not run")
    root = tmp_path / "root"
    root.mkdir()
    for layer in layers_of(dist / IMAGE, foreign.name, tmp_path / "layout"):
        with tarfile.open(layer) as files:
            files.extractall(root, filter="tar")
    libraries = root / foreign.libraries
    loader = [root / foreign.loader, "--library-path", libraries, root / "usr/bin/python3"]
    packages = next(root.glob("usr/local/lib/python3*/dist-packages"))
    env = {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"}
    command = [emulator, *loader, "-m", "vgpu"]
    version = subprocess.check_output([*command, "--version"], env=env, text=True)
    assert version.startswith(f"vgpu {__version__} ")
    sample = subprocess.check_output([*command, "demo", "--once"], env=env, text=True)
    assert "vgpu_container_memory_used_bytes{" in sample


@pytest.mark.parametrize("name", sorted(name for name in NAMES if name.endswith(".cdx.json")))
def test_a_bill_of_materials_is_valid(dist, name):
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str((dist / name).read_text()) is None


def test_the_provenance_names_every_artefact(dist):
    document = json.loads((dist / f"vgpu-{__version__}.intoto.json").read_text())
    named = {
        object_name["name"]: object_name["digest"]["sha256"] for object_name in document["subject"]
    }
    others = hashes(dist)
    del others["SHA256SUMS"], others[f"vgpu-{__version__}.intoto.json"]
    assert named == others


# ---------------------------------------------------------------- on a clean Debian


def test_the_wheel_runs_in_an_empty_venv(dist, debian):
    wheel = debian.give(dist / WHEEL)
    debian.run("python3", "-m", "venv", "/opt/empty")
    debian.run("/opt/empty/bin/pip", "install", "--quiet", f"{wheel}[device-plugin]")
    assert "vgpu_container_memory_used_bytes{" in debian.run(
        "/opt/empty/bin/vgpu", "demo", "--once"
    )
    assert "--scheme" in debian.run("/opt/empty/bin/vgpu", "device-plugin", "--help")


def test_pipx_installs_the_wheel_with_both_programs(dist, debian):
    debian.run("pipx", "install", debian.give(dist / WHEEL))
    for program in ("vgpu", "kubectl-vgpu"):
        version = debian.run(f"/root/.local/bin/{program}", "--version")
        assert version.startswith(f"vgpu {__version__} ")


def test_the_debian_package_is_installed_runs_and_leaves_nothing(dist, debian):
    deb = debian.give(dist / f"vgpu_{__version__}_{native().name}.deb")
    debian.run("dpkg", "--install", deb)
    try:
        assert "vgpu_container_memory_used_bytes{" in debian.run("vgpu", "demo", "--once")
        unit = (debian.path / "usr/lib/systemd/system/vgpu-exporter.service").read_text()
        program = re.search(r"^ExecStart=(\S+)", unit, re.MULTILINE)[1]
        assert debian.run(program, "--version").startswith(f"vgpu {__version__} ")
        compiled = debian.path / "usr/lib/vgpu/vgpu/__pycache__"
        assert compiled.exists()
    finally:
        debian.run("dpkg", "--purge", "vgpu")
    assert not (debian.path / "usr/lib/vgpu").exists()


def test_the_kubectl_plugin_runs_as_krew_installs_it(dist, debian):
    manifest = yaml.safe_load((dist / "vgpu.yaml").read_text())
    (platform,) = (
        entry
        for entry in manifest["spec"]["platforms"]
        if entry["selector"]["matchLabels"]["arch"] == native().name
    )
    archive = dist / platform["uri"].rpartition("/")[2]
    assert sha256(archive) == platform["sha256"]
    store = debian.path / "root/.krew/store/vgpu"
    store.mkdir(parents=True)
    with tarfile.open(archive) as files:
        files.extractall(store, filter="data")
    link = debian.path / "usr/bin/kubectl-vgpu"
    link.symlink_to(f"/root/.krew/store/vgpu/{platform['bin']}")
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "gpu-1", "uid": "1"}}
    dump = json.dumps({"kind": "List", "apiVersion": "v1", "items": [node]})
    inspected = debian.run("kubectl-vgpu", "inspect", "--from", "-", "-o", "json", stdin=dump)
    assert json.loads(inspected)
    assert "Usage: kubectl vgpu" in debian.run("kubectl-vgpu", "--help")
