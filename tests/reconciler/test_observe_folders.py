"""Shims' folders as they lie on disk, hostile ones among them, and real processes that use them."""

import mmap
import os
import subprocess
import sys

import pytest

from reconciler.observe import folders
from reconciler.observe.folders import find_folders, identity, mapped
from tests.support.waiting import wait_for_tick
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.runtime import HOST_PID_NAMESPACE

UID = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"

USER = """
import mmap, os, sys
how, path = sys.argv[1:]
if how == "map":
    with open(path, "r+b") as file:
        kept = mmap.mmap(file.fileno(), 0)
else:
    kept = open(path, "rb")
print("ready", flush=True)
sys.stdin.read()
"""
"""Maps the file and closes it, or keeps it open, until it has to end."""


def known(*uids):
    return frozenset(uids).__contains__


NOBODY = known()


class Host:
    """A /proc of the host with just these real processes, wherever the tests themselves run."""

    def __init__(self, folder, namespace=HOST_PID_NAMESPACE):
        self.path = folder
        (folder / "self" / "ns").mkdir(parents=True)
        (folder / "self" / "ns" / "pid").symlink_to(namespace)
        (folder / "1").mkdir()

    def __str__(self):
        return str(self.path)

    def show(self, pid):
        (self.path / str(pid)).symlink_to(f"/proc/{pid}")


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path / "proc")


@pytest.fixture
def root(tmp_path):
    made = tmp_path / "containers"
    made.mkdir()
    return made


@pytest.fixture
def place(root):
    """Makes a folder with a region file in it."""

    def make(uid=UID, container="main", size=4096):
        folder = root / f"{uid}_{container}"
        folder.mkdir()
        (folder / "region.cache").write_bytes(bytes(size))
        return folder

    return make


@pytest.fixture
def start(host):
    """Starts a process that uses a file, and shows it on the host."""
    started = []

    def run(how, path):
        command = [sys.executable, "-c", USER, how, str(path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        host.show(process.pid)
        return process

    yield run
    for process in started:
        process.communicate()


def find(root, host, is_known=NOBODY):
    return find_folders((str(root),), is_known, str(host))


def the_one(found):
    assert not found.note
    (folder,) = found.folders
    return folder


# ---------------------------------------------------------------- folders


def test_a_folder_names_its_container(root, host, place):
    folder = place(container="side-car")
    record = the_one(find(root, host))
    assert (record.path, record.pod_uid, record.container) == (str(folder), UID, "side-car")
    assert not record.mapped


def test_a_static_pods_folder_is_one_too(root, host, place):
    uid = "0123456789abcdef0123456789abcdef"
    place(uid)
    assert the_one(find(root, host)).pod_uid == uid


def test_a_root_that_does_not_exist_has_no_folders(root, host):
    assert find(root / "nothing", host) == folders.Found()


def test_a_root_that_cannot_be_read_is_reported(root, host):
    file = root / "file"
    file.touch()
    found = find(file, host)
    assert str(file) in found.note


def test_what_is_not_named_so_is_nobodys(root, host):
    for name in ("notes", f"{UID}", f"{UID}_", f"{UID}_UPPER", "no-uid_main", f"x{UID}_main"):
        (root / name).mkdir()
    assert find(root, host) == folders.Found()


def test_a_link_in_place_of_a_folder_is_not_followed(root, host, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / f"{UID}_main").symlink_to(tmp_path / "elsewhere")
    assert find(root, host) == folders.Found()
    with pytest.raises(SourceError) as caught:
        identity(str(root / f"{UID}_main"))
    assert caught.value.reason is Reason.NOT_REGULAR_FILE


def test_a_file_in_place_of_a_folder_is_none(root, host):
    (root / f"{UID}_main").touch()
    assert find(root, host) == folders.Found()


def test_one_folder_under_two_roots_is_found_once(root, host, place, tmp_path):
    place()
    alias = tmp_path / "alias"
    alias.symlink_to(root)
    found = find_folders((str(root), str(alias)), NOBODY, str(host))
    assert len(found.folders) == 1


def test_of_too_many_folders_some_are_judged_and_that_is_reported(root, host, place, monkeypatch):
    monkeypatch.setattr(folders, "MOST_FOLDERS", 1)
    place()
    place(OTHER)
    found = find(root, host)
    assert len(found.folders) == 1
    assert (str(root) in found.more, found.note) == (True, "")


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: os.mkfifo(folder / "region.fifo"),
        lambda folder: (folder / "below").mkdir(),
        lambda folder: (folder / "link.cache").symlink_to("/etc/passwd"),
        lambda folder: [(folder / f"{n}.cache").touch() for n in range(folders.MOST_FILES)],
    ],
    ids=["fifo", "folder", "link", "too many files"],
)
def test_a_folder_with_anything_but_a_few_regular_files_counts_as_used(root, host, make, place):
    folder = place()
    make(folder)
    assert the_one(find(root, host)).mapped
    assert mapped(str(folder), str(host))


# ---------------------------------------------------------------- identity


def test_a_folder_that_nobody_touched_stays_the_same(place):
    folder = place()
    assert identity(str(folder)) == identity(str(folder))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "more.cache").touch(),
        lambda folder: (folder / "region.cache").write_bytes(b"x"),
        lambda folder: (folder / "region.cache").chmod(0o600),
        lambda folder: folder.chmod(0o700),
    ],
    ids=["a new file", "content", "a file's rights", "its own rights"],
)
def test_a_folder_in_which_anything_changed_is_another(place, change, tmp_path):
    folder = place()
    before = identity(str(folder))
    wait_for_tick(tmp_path)
    change(folder)
    assert identity(str(folder)) != before


def test_a_folder_that_is_gone_is_absent(root, host):
    for ask in (identity, lambda path: mapped(path, str(host))):
        with pytest.raises(SourceError) as caught:
            ask(str(root / f"{UID}_main"))
        assert caught.value.reason is Reason.ABSENT


# ---------------------------------------------------------------- who uses it


@pytest.mark.parametrize("how", ["map", "open"])
def test_a_process_that_uses_a_region_keeps_its_folder(root, host, place, start, how):
    folder = place()
    place(OTHER)
    process = start(how, folder / "region.cache")
    used = {found.pod_uid: found.mapped for found in find(root, host).folders}
    assert used == {UID: True, OTHER: False}
    assert mapped(str(folder), str(host))
    process.communicate()
    assert not mapped(str(folder), str(host))


def test_a_file_that_was_renamed_while_it_is_mapped_is_in_use(root, host, place, start):
    folder = place()
    start("map", folder / "region.cache")
    (folder / "region.cache").rename(folder / "other.cache")
    assert the_one(find(root, host)).mapped


def test_a_file_of_the_same_name_elsewhere_is_no_use_of_it(root, host, place, start, tmp_path):
    place()
    other = tmp_path / "region.cache"
    other.write_bytes(bytes(4096))
    start("map", other)
    start("open", other)
    assert not the_one(find(root, host)).mapped


def test_a_subvolume_is_identified_by_inode_and_name(tmp_path):
    """btrfs shows another device in mappings than stat does."""
    files = [folders.FolderFile(device=99, inode=123, name="region.cache")]
    host = Host(tmp_path / "proc")
    process = host.path / "77"
    (process / "fd").mkdir(parents=True)
    line = "7f00-7f01 rw-s 00000000 00:2a {} /tmp/vgpu/{}\n"
    (process / "maps").write_text(line.format(123, "region.cache"))
    assert folders.in_use(files, str(host)) == frozenset(files)
    (process / "maps").write_text(line.format(123, "another.cache"))
    assert folders.in_use(files, str(host)) == frozenset()
    (process / "maps").write_text(line.format(123, "region.cache (deleted)"))
    assert folders.in_use(files, str(host)) == frozenset(files)


def test_our_own_mapping_counts_like_any_other(root, host, place):
    host.show(os.getpid())
    with (place() / "region.cache").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert the_one(find(root, host)).mapped


def test_a_process_that_has_gone_uses_nothing(root, host, place, start):
    place()
    process = start("open", __file__)
    process.communicate()
    assert not the_one(find(root, host)).mapped


def test_a_folder_whose_pod_is_known_counts_as_used_and_nobody_is_asked(root, tmp_path, place):
    foreign = Host(tmp_path / "foreign", "pid:[4026532000]")
    place()
    assert the_one(find(root, foreign, known(UID))).mapped


def test_other_peoples_processes_say_nothing(root, tmp_path, place):
    foreign = Host(tmp_path / "foreign", "pid:[4026532000]")
    folder = place()
    found = find(root, foreign)
    assert not found.folders
    assert Reason.FOREIGN_PIDS.explanation in found.note
    with pytest.raises(SourceError) as caught:
        mapped(str(folder), str(foreign))
    assert caught.value.reason is Reason.FOREIGN_PIDS


@pytest.mark.parametrize("which", ["maps", "fd"])
def test_a_process_that_may_not_be_looked_into_may_use_anything(root, host, place, which):
    place()
    process = host.path / "77"
    process.mkdir()
    (process / "fd").mkdir()
    (process / "maps").touch()
    wrong = process / which
    if wrong.is_dir():
        wrong.rmdir()
        wrong.touch()  # root may read everything: a file in place of a folder is refused to all
    else:
        wrong.unlink()
        wrong.mkdir()
    found = find(root, host)
    assert not found.folders
    assert str(wrong) in found.note


def test_mappings_without_end_are_not_read(root, host, place, monkeypatch):
    monkeypatch.setattr(folders, "MAPS_LIMIT", 10)
    place()
    host.show(os.getpid())
    assert "more than 10 bytes" in find(root, host).note


def test_thousands_of_folders_are_looked_at(root, host):
    for number in range(3000):
        (root / f"{number:08x}-0000-4000-8000-000000000000_main").mkdir()
    found = find(root, host)
    assert len(found.folders) == 3000
    assert not any(folder.mapped for folder in found.folders)
