"""The shim on the host: put in place under names of its content, never written into."""

import hashlib
import mmap
import os
from pathlib import Path

import pytest

from deviceplugin.builders.shim_files import (
    DEFAULT_SHIM_DIR,
    KEPT,
    ShimError,
    install,
    paths_below,
)
from tests.support.broken_disk import BrokenDisk
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO

OLD = b"\x7fELF old library" + b"o" * 5000
NEW = b"\x7fELF new library" + b"n" * 5000


@pytest.fixture
def host(tmp_path):
    (tmp_path / "image").mkdir()
    return tmp_path


def put(host, content=OLD, key_set=VOLCANO.paths):
    source = host / "image" / "libvgpu.so"
    source.write_bytes(content)
    return install(str(source), str(host / "vgpu"), key_set)


def name_of(content):
    return f"libvgpu.so.{hashlib.sha256(content).hexdigest()[:16]}"


def listing(host):
    return {path.name: path.lstat().st_ino for path in (host / "vgpu").iterdir()}


@pytest.mark.parametrize("name", ["libvgpu.so", "ld.so.preload", name_of(OLD)])
def test_a_folder_that_a_runtime_made_for_a_missing_source_is_replaced(host, name):
    (host / "vgpu" / name / "deep").mkdir(parents=True)
    paths = put(host)
    assert Path(paths.library).read_bytes() == OLD
    assert Path(paths.preload).is_file()
    (moved,) = (host / "vgpu").glob(".*.moved")
    assert (moved / "deep").is_dir()


@pytest.mark.parametrize("key_set", [VOLCANO.paths, HAMI.paths])
def test_all_that_is_mounted_is_there(host, key_set):
    paths = put(host, key_set=key_set)
    assert Path(paths.library).read_bytes() == OLD
    assert Path(paths.preload).read_text() == f"{key_set.library_target}\n"
    assert Path(paths.library).readlink() == Path(name_of(OLD))
    assert {name for name in listing(host) if name.startswith(".")} == set()
    for path in (paths.library, paths.preload):
        assert Path(path).stat().st_mode & 0o777 == 0o644  # containers of any user read them


def test_hosts_paths_move_with_the_folder_and_containers_do_not(host):
    moved = paths_below(HAMI.paths, "/opt/share")
    assert moved.library == "/opt/share/libvgpu.so"
    assert moved.containers == "/opt/share/containers"
    assert (moved.library_target, moved.cache_target) == (
        HAMI.paths.library_target,
        HAMI.paths.cache_target,
    )
    assert paths_below(VOLCANO.paths, DEFAULT_SHIM_DIR) == VOLCANO.paths


def test_what_is_in_place_is_not_touched(host):
    put(host)
    before = listing(host)
    put(host)
    assert listing(host) == before


def test_a_process_keeps_the_library_that_it_has_mapped(host):
    paths = put(host)
    with (
        Path(paths.library).open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        put(host, NEW)
        assert mapped[:] == OLD
    assert Path(paths.library).read_bytes() == NEW


def test_a_library_that_another_plugin_copied_there_is_replaced_not_written_into(host):
    folder = host / "vgpu"
    folder.mkdir()
    (folder / "libvgpu.so").write_bytes(OLD)
    (folder / "ld.so.preload").write_text("/somewhere/else.so\n")
    with (
        (folder / "libvgpu.so").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        (folder / "ld.so.preload").open() as preload,
    ):
        put(host, NEW)
        assert mapped[:] == OLD
        assert preload.read() == "/somewhere/else.so\n"
    assert (folder / "libvgpu.so").read_bytes() == NEW
    assert (folder / "ld.so.preload").read_text() == f"{VOLCANO.paths.library_target}\n"


def test_a_version_that_is_damaged_is_installed_again(host):
    put(host)
    (host / "vgpu" / name_of(OLD)).write_bytes(OLD[:-1])
    paths = put(host)
    assert Path(paths.library).read_bytes() == OLD


def test_the_last_few_versions_stay_and_nothing_else_goes(host):
    contents = [b"\x7fELF %d" % number for number in range(KEPT + 3)]
    (host / "vgpu").mkdir()
    others = {"libvgpu.so.bak", "libvgpu.so.0123", "libother.so.0123456789abcdef", "vgpu"}
    for name in others:
        (host / "vgpu" / name).touch()
    for age, content in enumerate(contents):
        put(host, content)
        os.utime(host / "vgpu" / name_of(content), (1000 + age, 1000 + age))
    kept = {name_of(content) for content in contents[-KEPT:]}
    assert set(listing(host)) == kept | others | {"libvgpu.so", "ld.so.preload"}
    put(host, contents[-KEPT])  # gone back to: the one in use is never the oldest
    assert (host / "vgpu" / "libvgpu.so").readlink() == Path(name_of(contents[-KEPT]))
    assert kept <= set(listing(host))


@pytest.mark.parametrize("kill", [False, True])
def test_whoever_is_interrupted_there_is_always_a_whole_library(monkeypatch, host, kill):
    put(host)
    for at in range(40):
        content = b"\x7fELF %d" % at
        installed = host / "vgpu" / "libvgpu.so"
        before = installed.read_bytes()
        source = host / "image" / "libvgpu.so"
        source.write_bytes(content)
        with BrokenDisk(monkeypatch, at, kill=kill) as disk:
            try:
                install(str(source), str(host / "vgpu"), HAMI.paths)
            except ShimError as error:
                assert "--volcano.shim-dir" in str(error)  # noqa: PT017  # or it is no error
        assert installed.read_bytes() in (before, content)
        put(host, content)
        assert installed.read_bytes() == content
    assert not disk.interrupted


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("#!/bin/sh\n"),
        lambda path: path.symlink_to("/dev/zero"),
    ],
)
def test_what_is_no_library_is_refused_by_the_flags_name(host, make):
    source = host / "image" / "libvgpu.so"
    make(source)
    with pytest.raises(ShimError, match=r"--volcano\.shim-library .*libvgpu\.so"):
        install(str(source), str(host / "vgpu"), VOLCANO.paths)
    assert not (host / "vgpu").exists()


def test_a_folder_that_cannot_be_written_is_refused_by_the_flags_name(host):
    (host / "vgpu").write_text("")
    with pytest.raises(ShimError, match=r"--volcano\.shim-dir"):
        put(host)
