"""Without CDI: what is in the early answer, and what follows in files of the binding's name."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.injection.files import FileInjector
from tests.support.broken_disk import BrokenDisk
from vgpu.model.names import Scheme
from vgpu.schemes.codec import ContainerEdits, Mount

NAME, OTHER = "0123456789abcdef01234567", "1" * 24
BOOT = "d41b3b16-8d57-4daf-8838-a7cb7443812a"
LIMITS = {"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m", "CUDA_DEVICE_SM_LIMIT": "30"}


def edits(uid="u1", gpu="GPU-1", limits=None):
    return ContainerEdits(
        env={"NVIDIA_VISIBLE_DEVICES": gpu} | (LIMITS if limits is None else limits),
        mounts=(
            Mount("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so", read_only=True),
            Mount(f"/usr/local/vgpu/containers/{uid}_main/", "/tmp/vgpu", read_only=False),
        ),
        devices=("/dev/nvidia0",),
        annotations={"a": "b"},
    )


def make(folder, scheme=Scheme.VOLCANO, boot=BOOT):
    return FileInjector(str(folder), scheme, boot)


@pytest.fixture
def files(tmp_path):
    return make(tmp_path)


def place(folder, name=NAME):
    return folder / "late" / "volcano" / name


def resolved(folder, early):
    """What the container sees: container path -> what the runtime mounts there."""
    return {mount.container: os.path.realpath(mount.host) for mount in early.mounts}


# ---------------------------------------------------------------- the early answer


def test_the_early_answer_has_what_cannot_come_later(files, tmp_path):
    early = files.response(NAME, edits(), LIMITS)
    assert early.env == {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}
    assert early.devices == ("/dev/nvidia0",)
    assert early.annotations == {"a": "b"}
    assert [(mount.container, mount.read_only) for mount in early.mounts] == [
        ("/usr/local/vgpu/libvgpu.so", True),
        ("/tmp/vgpu", False),
        ("/overrideEnv", True),
    ]
    assert all(mount.host.startswith(f"{place(tmp_path)}/") for mount in early.mounts)
    assert files.guesses


def test_pods_that_differ_in_what_comes_late_have_the_same_answer(files):
    later = {"CUDA_DEVICE_MEMORY_LIMIT_0": "1m"}
    other = edits(uid="u2", limits=later)
    first = files.response(NAME, edits(limits={**LIMITS, **later}), {**LIMITS, **later})
    assert first == files.response(NAME, other, later)


@pytest.mark.parametrize(
    ("other", "late"),
    [(edits(gpu="GPU-2"), LIMITS), (edits(limits={}), {}), (edits(limits={"X": "1"}), {})],
)
def test_pods_on_other_gpus_or_with_another_environment_have_not(files, other, late):
    assert files.response(NAME, edits(), LIMITS) != files.response(NAME, other, late)


def test_answers_of_two_names_have_no_place_in_common(files):
    hosts = [
        {mount.host for mount in files.response(name, edits(), LIMITS).mounts}
        for name in (NAME, OTHER)
    ]
    assert hosts[0].isdisjoint(hosts[1])


def test_where_nothing_reads_a_file_none_is_mounted(files):
    early = files.response(NAME, edits(), {})
    assert "/overrideEnv" not in {mount.container for mount in early.mounts}
    assert early.env == edits().env


# ---------------------------------------------------------------- the files


def test_the_rest_follows(files, tmp_path):
    early = files.response(NAME, edits(), LIMITS)
    assert not place(tmp_path).exists()
    files.write(NAME, edits(), LIMITS)
    assert resolved(tmp_path, early) == {
        "/usr/local/vgpu/libvgpu.so": "/usr/local/vgpu/libvgpu.so",
        "/tmp/vgpu": "/usr/local/vgpu/containers/u1_main",
        "/overrideEnv": str(place(tmp_path) / "overrideEnv"),
    }
    variables = (place(tmp_path) / "overrideEnv").read_text()
    assert variables == "CUDA_DEVICE_MEMORY_LIMIT_0=4096m\nCUDA_DEVICE_SM_LIMIT=30\n"
    assert files.written() == {NAME}


def test_writing_again_touches_nothing(files, tmp_path):
    files.write(NAME, edits(), LIMITS)
    before = place(tmp_path).stat().st_ino
    files.write(NAME, edits(), LIMITS)
    assert place(tmp_path).stat().st_ino == before


@pytest.mark.parametrize(
    ("other", "late"),
    [(edits(uid="u2"), LIMITS), (edits(), {"A": "b"}), (edits(), {})],
)
def test_a_name_never_gets_another_meaning(files, other, late):
    files.write(NAME, edits(), LIMITS)
    with pytest.raises(FileExistsError):
        files.write(NAME, other, late)
    files.write(NAME, edits(), LIMITS)


@pytest.mark.parametrize(
    "env",
    [
        {"A": "1\nCUDA_DEVICE_SM_LIMIT=100"},
        {"A": "1\r"},
        {"A\nB": "1"},
        {"A=B": "1"},
        {"": "1"},
        {"A": "\0"},
        {"A": "x" * 10_000},
    ],
)
def test_what_would_be_more_than_a_line_is_refused(files, tmp_path, env):
    with pytest.raises(OSError, match="cannot be a line") as error:
        files.write(NAME, edits(), env)
    assert error.value.errno == errno.EINVAL
    assert files.written() == frozenset()


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=8), max_size=4))
def test_what_is_accepted_reads_back_as_it_was_meant(tmp_path_factory, env):
    folder = tmp_path_factory.mktemp("run")
    try:
        make(folder).write(NAME, edits(), env)
    except OSError:
        assert make(folder).written() == frozenset()
        return
    path = place(folder) / "overrideEnv"
    lines = path.read_bytes().decode().split("\n")[:-1] if env else []
    assert dict(line.split("=", 1) for line in lines) == env
    assert path.exists() == bool(env)


@pytest.mark.parametrize("how", [{}, {"kill": True}, {"power": True}])
def test_an_interrupted_write_leaves_nothing_or_all(monkeypatch, tmp_path, how):
    for at in range(40):
        folder = tmp_path / str(at)
        done = False
        with BrokenDisk(monkeypatch, at, **how) as disk:
            try:
                make(folder).write(NAME, edits(), LIMITS)
                done = True
            except OSError:
                done = False
        assert done or disk.interrupted
        if make(folder).written():
            assert len([*place(folder).iterdir()]) == 5
        else:
            assert not done
        make(folder).write(NAME, edits(), LIMITS)
        assert make(folder).written() == {NAME}
        make(folder).prune([NAME])
        assert [path.name for path in place(folder).parent.iterdir()] == [NAME]
    assert not disk.interrupted


def test_a_container_that_was_made_too_early_is_not_taken_for_served(files, tmp_path):
    """containerd makes a source that is not there as a folder: that container has no limits."""
    for mount in files.response(NAME, edits(), LIMITS).mounts:
        Path(mount.host).mkdir(parents=True)
    assert files.written() == frozenset()
    with pytest.raises(FileExistsError, match="before its limits were there"):
        files.write(NAME, edits(), LIMITS)
    assert (place(tmp_path) / "overrideEnv").is_dir()
    assert files.written() == frozenset()


# ---------------------------------------------------------------- damaged

VARIABLES = "CUDA_DEVICE_MEMORY_LIMIT_0=4096m\nCUDA_DEVICE_SM_LIMIT=30\n"
DAMAGES = {
    "emptied": lambda folder: (folder / "overrideEnv").write_text(""),
    "cut": lambda folder: (folder / "overrideEnv").write_text(VARIABLES[:-2]),
    "zeros": lambda folder: (folder / "overrideEnv").write_bytes(bytes(len(VARIABLES))),
    "limits gone": lambda folder: (folder / "overrideEnv").unlink(),
    "boot emptied": lambda folder: (folder / "boot-id").write_text(""),
    "boot gone": lambda folder: (folder / "boot-id").unlink(),
    "boot is no text": lambda folder: (folder / "boot-id").write_bytes(b"\xff"),
    "a link gone": lambda folder: (folder / "mount-1").unlink(),
    "a link elsewhere": lambda folder: relink(folder / "mount-1", "/elsewhere"),
    "the seal emptied": lambda folder: (folder / "seal").write_text(""),
    "one thing more": lambda folder: (folder / "mount-2").symlink_to("/etc"),
}


def relink(link, target):
    link.unlink()
    link.symlink_to(target)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_counts_as_lost_and_is_written_again(files, tmp_path, damage):
    files.write(NAME, edits(), LIMITS)
    assert files.is_whole(NAME)
    damage(place(tmp_path))
    assert not files.is_whole(NAME)
    assert files.written() == frozenset()
    files.write(NAME, edits(), LIMITS)
    assert files.is_whole(NAME)
    assert files.written() == {NAME}
    assert (place(tmp_path) / "overrideEnv").read_text() == VARIABLES
    assert resolved(tmp_path, files.response(NAME, edits(), LIMITS))["/tmp/vgpu"].endswith(
        "u1_main"
    )


def test_a_file_that_a_runtime_has_created_is_not_repaired(files, tmp_path):
    """The limits were removed, and a container was made before anybody saw it."""
    files.write(NAME, edits(), LIMITS)
    (place(tmp_path) / "overrideEnv").unlink()
    (place(tmp_path) / "overrideEnv").mkdir()
    assert not files.is_whole(NAME)
    with pytest.raises(FileExistsError, match="before its limits were there"):
        files.write(NAME, edits(), LIMITS)


def test_what_was_written_before_there_were_seals_is_taken_for_whole(files, tmp_path):
    files.write(NAME, edits(), LIMITS)
    (place(tmp_path) / "seal").unlink()
    before = place(tmp_path).stat().st_ino
    assert files.is_whole(NAME)
    files.write(NAME, edits(), LIMITS)
    assert place(tmp_path).stat().st_ino == before


# ---------------------------------------------------------------- whose they are


def test_what_is_not_kept_goes_and_links_are_not_followed(files, tmp_path):
    target = tmp_path / "containers" / "u1_main"
    target.mkdir(parents=True)
    (target / "region.cache").touch()
    given_edits = ContainerEdits({}, (Mount(str(target), "/tmp/vgpu", read_only=False),))
    files.write(NAME, given_edits, {})
    files.write(OTHER, edits(), LIMITS)
    files.prune([OTHER])
    assert files.written() == {OTHER}
    assert (target / "region.cache").exists()


def test_a_file_of_an_older_boot_counts_as_absent_and_is_written_again(files, tmp_path):
    make(tmp_path, boot="older").write(NAME, edits(uid="old"), LIMITS)
    assert files.written() == frozenset()
    files.write(NAME, edits(), LIMITS)
    assert files.written() == {NAME}
    assert "u1_main" in str((place(tmp_path) / "mount-1").readlink())


def test_schemes_do_not_touch_each_other(files, tmp_path):
    other = make(tmp_path, Scheme.GAIA)
    other.write(OTHER, edits(), {})
    files.prune([])
    assert (files.written(), other.written()) == (frozenset(), {OTHER})


@pytest.mark.parametrize("name", ["", "..", "x" * 24])
def test_what_is_no_name_is_never_made_a_path(files, tmp_path, name):
    with pytest.raises(ValueError, match="no name"):
        files.write(name, edits(), {})
    with pytest.raises(ValueError, match="no name"):
        files.response(name, edits(), {})
