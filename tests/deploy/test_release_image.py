"""The image's parts: locks, layers and the archive, without a network."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from deploy.release import debian, debian_lock, oci
from deploy.release.commands import ReleaseError
from deploy.release.contents import problems
from deploy.release.image import python_version
from deploy.release.layers import pack
from deploy.release.platforms import PLATFORMS, native
from deploy.release.source import SourceTree
from deploy.release.wheels import extras, locked, without
from tests.support.answering_server import serving, status
from tests.support.environment import ROOT

LOCK = debian.parse((ROOT / "requirements" / "debian.lock").read_text())
AMD64 = PLATFORMS["amd64"]

APT = (
    "'http://deb.debian.org/debian/pool/main/g/glibc/libc6_2.41-12%2bdeb13u4_amd64.deb'"
    f" libc6_2.41-12+deb13u4_amd64.deb 2846580 SHA256:{'a' * 64}\n"
    "'http://deb.debian.org/debian-security/pool/updates/main/z/zlib/zlib1g_1.3%2b1_amd64.deb'"
    f" zlib1g_1%3a1.3+1_amd64.deb 88720 SHA256:{'b' * 64}\n"
    "'http://deb.debian.org/debian/pool/main/d/dpkg/dpkg_1.22.22_amd64.deb'"
    f" dpkg_1.22.22_amd64.deb 1537216 SHA256:{'c' * 64}\n"
)


# ---------------------------------------------------------------- locks


def test_the_lock_has_the_same_packages_for_each_platform():
    names = {platform: {p.name for p in LOCK.of(platform)} for platform in PLATFORMS}
    assert names["amd64"] == names["arm64"] >= set(debian.PACKAGES)
    assert not names["amd64"] & debian.SETUP_ONLY
    assert all(len(package.sha256) == 64 for package in LOCK.packages)
    assert python_version(LOCK) == "3.13"


def test_a_lock_is_read_as_it_was_written():
    assert debian.parse(debian.text_of(LOCK)) == LOCK


def test_apts_answer_becomes_lines_of_the_lock_without_what_only_sets_up():
    libc, zlib = debian_lock.parsed("amd64", APT)
    assert libc == debian.DebianPackage(
        "amd64",
        "libc6",
        "2.41-12+deb13u4",
        "a" * 64,
        "debian/pool/main/g/glibc/libc6_2.41-12+deb13u4_amd64.deb",
    )
    assert (zlib.name, zlib.version) == ("zlib1g", "1:1.3+1")


def test_a_package_is_fetched_from_the_mirror_or_from_the_locks_snapshot():
    lock = debian.DebianLock("20261123T085716Z", tuple(debian_lock.parsed("amd64", APT)))
    path = "pool/updates/main/z/zlib/zlib1g_1.3+1_amd64.deb"
    assert lock.addresses(lock.packages[1]) == (
        f"http://deb.debian.org/debian-security/{path}",
        f"http://snapshot.debian.org/archive/debian-security/20261123T085716Z/{path}",
    )


@pytest.mark.parametrize(("code", "gone"), [(404, True), (503, False)])
def test_a_replaced_package_and_a_mirror_that_fails_are_two_errors(
    monkeypatch, tmp_path, code, gone
):
    lock = debian.DebianLock("20261123T085716Z", tuple(debian_lock.parsed("amd64", APT))[:1])
    with serving(*[status(code, "x")] * 6) as (_, server):
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(debian, "MIRROR", address)
        monkeypatch.setattr(debian, "SNAPSHOT", address)
        with pytest.raises(ReleaseError, match=r"libc6 2\.41\S+: http://127") as error:
            debian.fetch(lock, "amd64", tmp_path)
    assert isinstance(error.value, debian.PackageGoneError) == gone


@pytest.mark.parametrize("text", ["amd64 libc6 1\n", "# snapshot: 20261123T085716Z\namd64 libc6\n"])
def test_a_malformed_lock_is_refused(text):
    with pytest.raises(ReleaseError, match=r"requirements/debian\.lock"):
        debian.parse(text)


def test_bytes_that_are_not_the_locks_are_refused(tmp_path, monkeypatch):
    package = LOCK.packages[0]
    served = tmp_path / "mirror" / package.path
    served.parent.mkdir(parents=True)
    served.write_bytes(b"something else")
    monkeypatch.setattr(debian, "MIRROR", f"file://{tmp_path}/mirror")
    monkeypatch.setattr(debian, "SNAPSHOT", f"file://{tmp_path}/snapshot")
    lock = debian.DebianLock(LOCK.snapshot, (package,))
    with pytest.raises(ReleaseError, match=r"not the hash of the lock.*snapshot"):
        debian.fetch(lock, package.platform, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_what_only_the_extras_need_can_be_left_out_of_the_requirements():
    source = SourceTree(ROOT)
    text = source.lock("runtime")
    assert extras(source) == {"grpcio", "protobuf", "pyelftools"}
    assert set(locked(text)) - set(locked(without(text, extras(source)))) == extras(source)
    assert text.count("==") == len(locked(text))


# ---------------------------------------------------------------- layers


@pytest.fixture
def folder(tmp_path):
    """A small root folder with what layers have."""
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "true").write_bytes(b"#!")
    (root / "usr" / "bin" / "true").chmod(0o4711)
    (root / "usr" / "secret").write_text("x")
    (root / "usr" / "secret").chmod(0o600)
    (root / "bin").symlink_to("usr/bin")
    return root


def test_equal_content_gives_equal_bytes_whatever_the_dates(folder, tmp_path):
    first = pack(folder, tmp_path / "1.tar.gz", 1000).read_bytes()
    os.utime(folder / "usr" / "secret", (1, 1))
    assert pack(folder, tmp_path / "2.tar.gz", 1000).read_bytes() == first
    assert pack(folder, tmp_path / "3.tar.gz", 2000).read_bytes() != first


def test_files_are_roots_readable_by_all_and_give_no_rights(folder, tmp_path):
    with tarfile.open(pack(folder, tmp_path / "x.tar.gz", 1000)) as archive:
        entries = {entry.name: entry for entry in archive}
    assert {entry.mtime for entry in entries.values()} == {1000}
    assert {(e.uid, e.gid, e.uname, e.gname) for e in entries.values()} == {(0, 0, "", "")}
    modes = {name: oct(entry.mode) for name, entry in entries.items()}
    assert modes == {
        "bin": "0o777",
        "tmp": "0o1777",
        "usr": "0o755",
        "usr/bin": "0o755",
        "usr/bin/true": "0o755",
        "usr/secret": "0o644",
    }


def test_a_program_of_another_platform_and_a_missing_library_are_problems(tmp_path):
    root = tmp_path / "root" / "usr" / "bin"
    root.mkdir(parents=True)
    (root / "python").write_bytes(Path("/proc/self/exe").read_bytes())
    (root / "sh").write_bytes(b"\x7fELF malformed")
    layer = pack(tmp_path / "root", tmp_path / "x.tar.gz", 0)
    machine = native()
    other = next(platform for platform in PLATFORMS.values() if platform != machine)
    assert f"usr/bin/python: {machine.elf}, not {other.elf}" in problems(other, [layer])
    wrong = problems(machine, [layer])
    assert "usr/bin/python: needs libc.so.6, which is missing" in wrong
    assert f"usr/bin/sh: malformed, not {machine.elf}" in wrong
    assert "usr/bin/sh: a shell, a package manager or a change of the user" in wrong


# ---------------------------------------------------------------- the archive


def test_the_archive_is_an_image_layout_whose_every_blob_has_its_digest(folder, tmp_path):
    layer = pack(folder, tmp_path / "layer.tar.gz", 0)
    file = tmp_path / "image.tar"
    reference = oci.ImageReference("registry.example.com/vgpu", "1.2.3")
    layers = {platform: [layer] for platform in PLATFORMS.values()}
    digest = oci.write_archive(file, reference, layers, {"User": "65532"}, 1000)
    with tarfile.open(file) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive}
    assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(files.pop("index.json"))
    for name, content in files.items():
        assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"

    def blob(descriptor):
        content = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert len(content) == descriptor["size"]
        return content

    by_tag, by_digest = index["manifests"]
    assert by_tag["digest"] == by_digest["digest"] == digest == oci.index_digest(file)
    names = [entry["annotations"]["io.containerd.image.name"] for entry in (by_tag, by_digest)]
    assert names == ["registry.example.com/vgpu:1.2.3", f"registry.example.com/vgpu@{digest}"]
    manifests = json.loads(blob(by_tag))["manifests"]
    assert [entry["platform"]["architecture"] for entry in manifests] == ["amd64", "arm64"]
    assert oci.platform_digests(file) == {
        entry["platform"]["architecture"]: entry["digest"] for entry in manifests
    }
    for entry in manifests:
        manifest = json.loads(blob(entry))
        config = json.loads(blob(manifest["config"]))
        (packed,) = manifest["layers"]
        content = gzip.decompress(blob(packed))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
        assert config["created"] == "1970-01-01T00:16:40Z"
        assert config["config"] == {"User": "65532"}
        with tarfile.open(fileobj=io.BytesIO(content)) as unpacked:
            assert unpacked.getnames()[0] == "bin"
