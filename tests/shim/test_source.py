"""All containers under all roots."""

import errno
import os
import tracemalloc

import pytest

from tests.support.environment import descriptors
from tests.support.regions import PODS, a_process, a_region, folder, place, scribble, write
from tests.support.waiting import wait_for_tick
from vgpu.model.facts import RegionFile
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.schemes.volcano import hami_core
from vgpu.sources import shim
from vgpu.sources.shim import ShimSource

GOOD = a_region("v1.2")


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "containers"
    path.mkdir()
    return path


@pytest.fixture
def settled(monkeypatch):
    """Take every change for an old one, as two seconds of waiting would make it."""
    monkeypatch.setattr(shim, "RACY_NS", -(10**12))


def sample(*roots):
    return ShimSource([str(root) for root in roots]).sample()


def refused(sample):
    return [(rejection.object_name, rejection.reason) for rejection in sample.rejections]


def found(sample):
    return [(file.pod_uid, file.container) for file in sample.files]


# ---------------------------------------------------------------- roots and folders


def test_every_container_is_read_under_its_pod_and_name(root):
    paths = [place(root, a_region(layout), pod=pod) for pod, layout in enumerate(["v0", "v1.1c"])]
    place(root, a_region("p0"), pod=1, container="side-car")
    assert sample(root).files[0] == RegionFile(str(paths[0]), PODS[0], "main", a_region("v0"))
    assert [(file.pod_uid, file.container, file.region.layout) for file in sample(root).files] == [
        (PODS[0], "main", "v0"),
        (PODS[1], "main", "v1.1c"),
        (PODS[1], "side-car", "p0"),
    ]
    assert sample(root).rejections == ()


def test_a_static_pod_s_folder_is_known_by_its_hash(root):
    static = "0123456789abcdef" * 2
    (root / f"{static}_main").mkdir()
    write(root / f"{static}_main" / "a.cache", GOOD)
    assert found(sample(root)) == [(static, "main")]


def test_a_folder_with_another_name_is_refused(root):
    place(root, GOOD)
    (root / "lost+found").mkdir()
    assert found(sample(root)) == [(PODS[0], "main")]
    assert refused(sample(root)) == [(f"{root}/lost+found", Reason.BAD_DIRECTORY_NAME)]


@pytest.mark.parametrize(
    "name",
    [
        PODS[0],
        f"{PODS[0]}_",
        f"{PODS[0]}_-a",
        f"{PODS[0]}_a_b",
        f"{PODS[0]}_Main",
        f"{PODS[0]}_{'a' * 64}",
        f"{PODS[0]}_main\n",
        f"{PODS[0].upper()}_main",
        f"{PODS[0]}x_main",
        f"{PODS[0]}_\udcff",
    ],
    ids=ascii,
)
def test_only_a_pod_uid_and_a_container_name_name_a_container(root, name):
    (root / name).mkdir()
    write(root / name / "a.cache", GOOD)
    assert sample(root).files == ()
    (rejection,) = sample(root).rejections
    assert rejection.reason is Reason.BAD_DIRECTORY_NAME
    assert rejection.object_name.encode()  # text that every page can carry


def test_several_roots_are_read_and_missing_ones_passed_over(tmp_path):
    place(tmp_path / "one", GOOD, pod=1)
    place(tmp_path / "two", GOOD, pod=2)
    result = sample(tmp_path / "two", tmp_path / "none", tmp_path / "one")
    assert found(result) == [(PODS[2], "main"), (PODS[1], "main")]
    assert result.rejections == ()


def test_no_root_at_all_is_absent(tmp_path):
    with pytest.raises(SourceError) as caught:
        sample(tmp_path / "none", tmp_path / "nothing")
    assert (caught.value.reason, caught.value.object_name) == (Reason.ABSENT, f"{tmp_path}/none")


def test_a_root_that_is_no_folder_is_refused_and_the_others_are_read(root, tmp_path):
    place(root, GOOD)
    (tmp_path / "file").touch()
    result = sample(tmp_path / "file", root)
    assert found(result) == [(PODS[0], "main")]
    assert refused(result) == [(f"{tmp_path}/file", Reason.NOT_REGULAR_FILE)]
    with pytest.raises(SourceError) as caught:
        sample(tmp_path / "none", tmp_path / "file")
    assert caught.value.reason is Reason.NOT_REGULAR_FILE


def test_a_root_reached_twice_is_read_once(root, tmp_path):
    place(root, GOOD)
    (tmp_path / "link").symlink_to(root)
    assert found(sample(root, tmp_path / "link", root)) == [(PODS[0], "main")]


def test_a_symlinked_folder_is_refused(root, tmp_path):
    place(root, GOOD, pod=0)
    place(tmp_path / "elsewhere", GOOD, pod=1)
    (root / f"{PODS[1]}_main").symlink_to(tmp_path / "elsewhere" / f"{PODS[1]}_main")
    result = sample(root)
    assert found(result) == [(PODS[0], "main")]
    assert refused(result) == [(f"{root}/{PODS[1]}_main", Reason.NOT_REGULAR_FILE)]


def test_a_folder_swapped_for_a_symlink_after_the_listing_is_refused(root, tmp_path, monkeypatch):
    place(root, GOOD, pod=0)
    other = place(tmp_path / "elsewhere", GOOD, pod=1)
    opened = os.open

    def swapping(path, flags, mode=0o777, *, dir_fd=None):
        if path == f"{PODS[0]}_main":
            (root / path).rename(root.parent / "aside")
            (root / path).symlink_to(other.parent)
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapping)
    result = sample(root)
    assert result.files == ()
    assert refused(result) == [(f"{root}/{PODS[0]}_main", Reason.NOT_REGULAR_FILE)]


def test_a_folder_that_vanishes_after_the_listing_is_simply_gone(root, monkeypatch):
    place(root, GOOD, pod=0)
    gone = folder(root, pod=1)
    opened = os.open

    def vanishing(path, flags, mode=0o777, *, dir_fd=None):
        if path == gone.name:
            gone.rmdir()
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", vanishing)
    result = sample(root)
    assert (found(result), result.rejections) == ([(PODS[0], "main")], ())


def test_ten_thousand_junk_files_are_one_rejection_and_hide_no_container(root):
    for number in range(10_000):
        (root / f"junk-{number:05}").touch()
    for pod in range(3):
        place(root, GOOD, pod=pod)
    result = sample(root)
    assert found(result) == [(pod, "main") for pod in PODS[:3]]
    assert result.rejections == (
        Rejection(f"{root}/junk-00000", Reason.BAD_DIRECTORY_NAME, "and 9999 more"),
    )


def test_files_in_place_of_folders_are_one_rejection(root):
    for pod in range(5):
        (root / f"{PODS[pod]}_main").touch()
    place(root, GOOD, pod=5)
    result = sample(root)
    assert found(result) == [(PODS[5], "main")]
    assert result.rejections == (
        Rejection(f"{root}/{PODS[0]}_main", Reason.NOT_REGULAR_FILE, "and 4 more"),
    )


def test_more_entries_than_are_read_are_reported_once(root, monkeypatch):
    for pod in range(20):
        place(root, GOOD, pod=pod)
    monkeypatch.setattr(shim, "MAX_ENTRIES", 8)
    source = ShimSource([str(root)])
    assert len(source.sample().files) == 8
    assert refused(source.sample()) == [(str(root), Reason.TOO_MANY_FILES)]
    monkeypatch.setattr(shim, "MAX_ENTRIES", 20)
    assert len(ShimSource([str(root)]).sample().files) == 20


@pytest.mark.usefixtures("settled")
def test_of_more_folders_than_are_read_those_of_living_pods_come_first(root, monkeypatch):
    monkeypatch.setattr(shim, "MAX_ENTRIES", 8)
    for pod in range(20):
        place(root, GOOD, pod=pod)
    living = {PODS[2]}
    source = ShimSource([str(root)], living=lambda: living)
    for pod in (2, 19, 11, 0, 7):  # the folder has not changed: who lives has
        living.clear()
        living.add(PODS[pod])
        read = found(source.sample())
        assert read[0] == (PODS[pod], "main")
        assert len(read) == 8


def test_more_living_pods_than_are_read_are_no_more_work(root, monkeypatch):
    monkeypatch.setattr(shim, "MAX_ENTRIES", 8)
    for pod in range(20):
        place(root, GOOD, pod=pod)
    source = ShimSource([str(root)], living=lambda: PODS)
    assert len(source.sample().files) == 8


def test_who_lives_is_asked_only_where_not_all_can_be_read(root):
    place(root, GOOD)

    def living():
        raise AssertionError("nobody needs to know")

    assert found(ShimSource([str(root)], living=living).sample()) == [(PODS[0], "main")]


# ---------------------------------------------------------------- one container's folder


def test_a_container_without_a_region_yet_is_neither_data_nor_fault(root):
    folder(root)
    (root / f"{PODS[0]}_main" / "libvgpu.so").touch()
    assert (sample(root).files, sample(root).rejections) == ((), ())


def test_other_files_beside_the_region_are_ignored(root):
    path = place(root, GOOD)
    for name in ("libvgpu.so", "x.cache.tmp", "lock"):
        (path.parent / name).touch()
    (path.parent / "folder").mkdir()
    assert (len(sample(root).files), sample(root).rejections) == (1, ())


@pytest.mark.parametrize("make", ["symlink", "fifo", "folder"])
def test_what_is_not_a_regular_file_is_refused_unopened(root, make, monkeypatch):
    path = folder(root) / "x.cache"
    target = write(root.parent / "target", GOOD)
    {
        "symlink": lambda: path.symlink_to(target),
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[make]()
    opened = os.open

    def watched(name, *args, **kwargs):
        assert name != "x.cache"
        return opened(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", watched)
    assert refused(sample(root)) == [(str(path), Reason.NOT_REGULAR_FILE)]
    assert sample(root).files == ()


def test_two_valid_regions_are_ambiguous(root):
    path = place(root, GOOD)
    write(path.with_name("other.cache"), GOOD)
    assert sample(root).files == ()
    assert refused(sample(root)) == [(str(path.parent), Reason.AMBIGUOUS)]


def test_of_several_candidates_the_only_valid_one_is_read(root):
    path = place(root, GOOD)
    path.with_name("0.cache").touch()
    path.with_name("link.cache").symlink_to(path)
    result = sample(root)
    assert [file.path for file in result.files] == [str(path)]
    assert sorted(refused(result)) == [
        (str(path.with_name("0.cache")), Reason.EMPTY),
        (str(path.with_name("link.cache")), Reason.NOT_REGULAR_FILE),
    ]


def test_more_candidates_than_are_looked_at_are_ambiguous(root):
    path = place(root, GOOD)
    for number in range(4):
        path.with_name(f"{number}.cache").touch()
    assert refused(sample(root)) == [(str(path.parent), Reason.AMBIGUOUS)]


def test_a_folder_full_of_junk_is_refused_and_the_others_are_read(root):
    path = place(root, GOOD, pod=0)
    place(root, GOOD, pod=1)
    for number in range(64):
        path.with_name(f"junk-{number}").touch()
    assert found(sample(root)) == [(PODS[1], "main")]
    assert refused(sample(root)) == [(str(path.parent), Reason.TOO_MANY_FILES)]


def test_a_file_name_that_is_not_utf_8_is_reported_with_escapes(root):
    place(root, GOOD, name="\udcff.cache")
    scribble(place(root, GOOD, pod=1, name="\udcfe.cache"), 0, b"ELF!")
    result = sample(root)
    assert [file.path for file in result.files] == [f"{root}/{PODS[0]}_main/\\xff.cache"]
    assert refused(result) == [(f"{root}/{PODS[1]}_main/\\xfe.cache", Reason.BAD_MAGIC)]


def test_one_bad_container_never_affects_another(root):
    frame = hami_core.LAYOUTS["v1.2"].frame
    damages = {
        Reason.EMPTY: lambda path: os.truncate(path, 0),
        Reason.UNKNOWN_LAYOUT: lambda path: os.truncate(path, 12),
        Reason.BAD_MAGIC: lambda path: scribble(path, 0, b"ELF!"),
        Reason.INITIALIZING: lambda path: scribble(path, 0, bytes(4)),
        Reason.DEVICE_COUNT: lambda path: scribble(path, frame.device_num, 5000),
        Reason.PROCESS_COUNT: lambda path: scribble(path, frame.trailer, b"\xff" * 4),
        Reason.BAD_UUID: lambda path: scribble(path, frame.uuids, b'"\n'),
        Reason.INCONSISTENT_SUMS: lambda path: scribble(path, frame.slots + 8, 2**52),
    }
    for pod, damage in enumerate(damages.values()):
        damage(place(root, GOOD, pod=2 * pod))
        place(root, GOOD, pod=2 * pod + 1)
    result = sample(root)
    assert found(result) == [(pod, "main") for pod in PODS[1 : 2 * len(damages) : 2]]
    assert {file.region for file in result.files} == {GOOD}
    assert refused(result) == [
        (f"{root}/{PODS[2 * pod]}_main/5f0d.cache", reason) for pod, reason in enumerate(damages)
    ]


def failing_to_list(monkeypatch, folder):
    """A disk that fails when ``folder`` is listed, and works otherwise."""
    scandir, inode = os.scandir, folder.stat().st_ino

    def fail(fd):
        if os.fstat(fd).st_ino == inode:
            raise OSError(errno.EIO, "Input/output error")
        return scandir(fd)

    monkeypatch.setattr(os, "scandir", fail)


def test_a_folder_that_cannot_be_listed_is_refused_and_the_others_are_read(root, monkeypatch):
    path = place(root, GOOD, pod=0)
    place(root, GOOD, pod=1)
    failing_to_list(monkeypatch, path.parent)
    assert found(sample(root)) == [(PODS[1], "main")]
    assert refused(sample(root)) == [(str(path.parent), Reason.UNREADABLE)]


def test_a_root_that_cannot_be_listed_is_refused_and_the_others_are_read(
    root, tmp_path, monkeypatch
):
    place(root, GOOD)
    place(tmp_path / "other", GOOD, pod=1)
    failing_to_list(monkeypatch, root)
    assert found(sample(root, tmp_path / "other")) == [(PODS[1], "main")]
    assert refused(sample(root, tmp_path / "other")) == [(str(root), Reason.UNREADABLE)]
    with pytest.raises(SourceError) as caught:
        sample(root)
    assert caught.value.reason is Reason.UNREADABLE


# ---------------------------------------------------------------- what is remembered


def listings(monkeypatch):
    """How many folders have been listed."""
    calls = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda fd: calls.append(fd) or scandir(fd))
    return calls


def test_unchanged_folders_are_not_listed_again(root, settled, monkeypatch):
    for pod in range(3):
        place(root, GOOD, pod=pod)
    source, calls = ShimSource([str(root)]), listings(monkeypatch)
    first = source.sample()
    assert len(calls) == 4
    assert source.sample() == first
    assert len(calls) == 4


def test_folders_that_have_just_changed_are_listed_again(root, monkeypatch):
    monkeypatch.setattr(shim, "RACY_NS", 10**15)  # however busy the machine is, it was just now
    place(root, GOOD)
    source, calls = ShimSource([str(root)]), listings(monkeypatch)
    source.sample()
    source.sample()
    assert len(calls) == 4


def test_what_is_remembered_is_forgotten_with_its_folder(root, settled, tmp_path):
    path = place(root, GOOD)
    source = ShimSource([str(root)])
    source.sample()
    wait_for_tick(tmp_path)
    path.unlink()
    path.parent.rmdir()
    assert (source.sample().files, source.sample().rejections) == ((), ())
    assert source._roots[0].folders == {}
    wait_for_tick(tmp_path)
    place(root, a_region("v0"), name="again.cache")
    assert [file.region for file in source.sample().files] == [a_region("v0")]


def test_a_remembered_region_is_read_again_every_time(root, settled):
    path = place(root, GOOD)
    source = ShimSource([str(root)])
    source.sample()
    write(path, a_region("v1.2", processes=()))
    assert source.sample().files[0].region.processes == ()


def test_a_replaced_region_is_seen(root, settled, tmp_path):
    path = place(root, GOOD)
    source = ShimSource([str(root)])
    source.sample()
    wait_for_tick(tmp_path)
    write(tmp_path / "new", a_region("v0")).replace(path)
    assert source.sample().files[0].region == a_region("v0")
    wait_for_tick(tmp_path)
    path.rename(path.with_name("renamed.cache"))
    assert source.sample().files[0].path.endswith("/renamed.cache")


def test_a_replacement_is_seen_although_the_tenant_sets_the_folder_s_mtime_back(
    root, settled, tmp_path
):
    path = place(root, GOOD)
    before = path.parent.stat()
    source = ShimSource([str(root)])
    source.sample()
    wait_for_tick(tmp_path)
    path.unlink()
    write(path.with_name("new.cache"), a_region("v0"))
    os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.sample().files[0].region == a_region("v0")


def test_a_container_that_appears_later_is_seen(root, settled, tmp_path):
    place(root, GOOD, pod=0)
    source = ShimSource([str(root)])
    source.sample()
    wait_for_tick(tmp_path)
    late = folder(root, pod=1)
    assert len(source.sample().files) == 1
    wait_for_tick(tmp_path)
    write(late / "a.cache", GOOD)
    assert len(source.sample().files) == 2


def test_no_descriptor_stays_open(root):
    place(root, GOOD)
    folder(root, pod=1)
    (root / "junk").touch()
    scribble(place(root, GOOD, pod=2), 0, b"ELF!")
    source = ShimSource([str(root), str(root / "none"), str(root)])
    source.sample()
    assert descriptors(root) == []


# ---------------------------------------------------------------- what is not done again


def test_a_region_with_the_same_bytes_is_not_decoded_again(root, settled, monkeypatch):
    path = place(root, GOOD)
    source, decoded, decode = ShimSource([str(root)]), [], hami_core.decode
    monkeypatch.setattr(hami_core, "decode", lambda *args: decoded.append(args) or decode(*args))
    first = source.sample()
    assert source.sample() == first
    assert len(decoded) == 1
    write(path, a_region("v1.2", processes=()))
    assert source.sample().files[0].region.processes == ()
    assert len(decoded) == 2


@pytest.mark.parametrize("change", [-1, 1, 32])
def test_a_known_region_whose_file_gets_another_size_is_refused(root, settled, change):
    path = place(root, GOOD)
    source = ShimSource([str(root)])
    assert found(source.sample()) == [(PODS[0], "main")]
    os.truncate(path, path.stat().st_size + change)
    for _ in range(2):
        again = source.sample()
        assert again.files == ()
        assert refused(again)[0] == (str(path), refused(sample(root))[0][1])


def test_of_several_regions_in_one_folder_none_stays_in_memory(root, settled):
    """A tenant can make each of them megabytes."""
    big = a_region("v1.2", processes=[a_process("v1.2", pid=pid) for pid in range(1, 1025)])
    place(root, big, name="a.cache")
    for name in ("b.cache", "c.cache", "d.cache"):
        write(root / f"{PODS[0]}_main" / name, big)
    source = ShimSource([str(root)])
    tracemalloc.start()
    try:
        assert refused(source.sample()) == [(f"{root}/{PODS[0]}_main", Reason.AMBIGUOUS)]
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_of_many_folders_those_of_dead_pods_are_read_rarely(root, settled, monkeypatch):
    monkeypatch.setattr(shim, "MANY_FOLDERS", 4)
    paths = [place(root, GOOD, pod=pod) for pod in range(8)]
    source = ShimSource([str(root)], living=lambda: {PODS[0]})
    assert len(source.sample().files) == 8
    for path in paths:
        write(path, a_region("v1.2", processes=()))
    seen = [
        {file.pod_uid for file in source.sample().files if not file.region.processes}
        for _ in range(shim.RARELY)
    ]
    assert all(PODS[0] in uids for uids in seen)
    assert len(seen[0]) < 4
    assert seen[-1] == set(PODS[:8])


def test_without_a_change_the_sample_is_the_one_before(root, settled, monkeypatch):
    """So that who reads it sees without a comparison that nothing has changed."""
    monkeypatch.setattr(shim, "MANY_FOLDERS", 1)
    paths = [place(root, GOOD, pod=pod) for pod in range(3)]
    source = ShimSource([str(root)], living=lambda: {PODS[0]})
    first = source.sample()
    assert all(source.sample() is first for _ in range(shim.RARELY))
    write(paths[0], a_region("v1.2", processes=()))
    assert source.sample() != first


def test_where_nobody_knows_who_lives_every_folder_is_read(root, settled, monkeypatch):
    monkeypatch.setattr(shim, "MANY_FOLDERS", 4)
    paths = [place(root, GOOD, pod=pod) for pod in range(8)]
    source = ShimSource([str(root)])
    source.sample()
    for path in paths:
        write(path, a_region("v1.2", processes=()))
    assert not any(file.region.processes for file in source.sample().files)


def test_a_folder_that_cannot_be_opened_any_more_is_one_rejection_and_no_region(
    root, settled, monkeypatch
):
    place(root, GOOD)
    source = ShimSource([str(root)])
    assert len(source.sample().files) == 1
    opened, stat = os.open, os.stat

    def failing(path, *args, **options):
        if str(path).startswith(PODS[0]):
            raise OSError(errno.EACCES, "Permission denied")
        return opened(path, *args, **options)

    def unseen(path, *args, **options):
        if str(path).startswith(PODS[0]):
            raise OSError(errno.EACCES, "Permission denied")
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "open", failing)
    monkeypatch.setattr(os, "stat", unseen)
    for _ in range(2):
        result = source.sample()
        assert (result.files, [r.reason for r in result.rejections]) == ((), [Reason.UNREADABLE])
    monkeypatch.undo()
    assert len(source.sample().files) == 1
