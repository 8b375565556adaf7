"""CDI spec files: what is in them, that a name never changes its meaning, whose they are."""

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.injection import cdi
from deviceplugin.injection.cdi import CdiInjector
from tests.support.broken_disk import BrokenDisk
from tests.support.environment import GOLDEN_FILES
from vgpu.model.names import Scheme
from vgpu.schemes.codec import ContainerEdits, Mount

GOLDEN = GOLDEN_FILES / "device-plugin" / "vgpu-0123456789abcdef01234567.json"
NAME, OTHER, THIRD = "0123456789abcdef01234567", "1" * 24, "2" * 24
BOOT = "d41b3b16-8d57-4daf-8838-a7cb7443812a"
FOLDER = "/usr/local/vgpu/vgpu/containers/1b4e28ba-2fa1-11d2-883f-0016d3cca427_main"
EDITS = ContainerEdits(
    env={
        "NVIDIA_VISIBLE_DEVICES": "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
    },
    mounts=(
        Mount("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so", read_only=True),
        Mount(FOLDER, "/tmp/vgpu", read_only=False),
    ),
    devices=("/dev/nvidia0", "/dev/nvidiactl"),
    annotations={"tencent.com/vcuda-core": "20"},
)


@pytest.fixture
def files(tmp_path):
    return make(tmp_path)


def make(folder, scheme=Scheme.VOLCANO, boot=BOOT):
    return CdiInjector(str(folder / "cdi"), scheme, boot)


def names(folder):
    return sorted(path.name for path in (folder / "cdi").iterdir())


def file(folder, name=NAME):
    return folder / "cdi" / f"vgpu-{name}.json"


# ---------------------------------------------------------------- what is in them


def test_a_spec_is_as_it_was_agreed():
    assert cdi.spec(NAME, EDITS, Scheme.VOLCANO, BOOT) == GOLDEN.read_bytes()


def test_the_early_answer_is_the_same_for_all_and_shows_no_device(files):
    early = files.response(NAME, EDITS, {"A": "b"})
    assert early == files.response(OTHER, ContainerEdits({}), {})
    assert early == ContainerEdits({"NVIDIA_VISIBLE_DEVICES": "void"})
    assert not files.guesses


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
keys = texts.filter(lambda key: "=" not in key)
edits = st.builds(
    ContainerEdits,
    st.dictionaries(keys, texts, max_size=3),
    st.lists(st.builds(Mount, texts, texts, st.booleans()), max_size=3).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
)


@given(edits)
def test_everything_is_in_the_spec_and_nothing_makes_it_another(given_edits):
    """As the format's schema has it: one device with edits, of the kind, at the version."""
    whole = json.loads(cdi.spec(NAME, given_edits, Scheme.GAIA, BOOT))
    assert whole.keys() == {"cdiVersion", "kind", "annotations", "devices"}
    assert (whole["cdiVersion"], whole["kind"]) == ("0.6.0", "vgpu.dev/share")
    (device,) = whole["devices"]
    assert device.keys() == {"name", "containerEdits"}
    assert device["name"] == NAME
    device_edits = device["containerEdits"]
    env = dict(one.split("=", 1) for one in device_edits["env"])
    assert env == {"NVIDIA_VISIBLE_DEVICES": "void"} | dict(given_edits.env)
    mounts = [
        (one["hostPath"], one["containerPath"], one["options"][0])
        for one in device_edits.get("mounts", ())
    ]
    assert mounts == [
        (one.host, one.container, "ro" if one.read_only else "rw") for one in given_edits.mounts
    ]
    assert [node["path"] for node in device_edits.get("deviceNodes", ())] == [*given_edits.devices]


# ---------------------------------------------------------------- on disk


def test_a_file_is_there_as_a_whole_and_only_once(files, tmp_path):
    files.write(NAME, EDITS, {})
    assert file(tmp_path).read_bytes() == GOLDEN.read_bytes()
    assert file(tmp_path).stat().st_mode & 0o777 == 0o644
    inode = file(tmp_path).stat().st_ino
    files.write(NAME, EDITS, {})
    assert file(tmp_path).stat().st_ino == inode  # a runtime would read it again
    assert names(tmp_path) == [file(tmp_path).name]
    assert files.written() == {NAME}


def test_a_name_never_gets_another_meaning(files, tmp_path):
    files.write(NAME, EDITS, {})
    with pytest.raises(FileExistsError, match="its content differs") as error:
        files.write(NAME, ContainerEdits({"A": "b"}), {})
    assert error.value.filename == str(file(tmp_path))
    assert file(tmp_path).read_bytes() == GOLDEN.read_bytes()


@pytest.mark.parametrize("name", ["", "../../etc/x", "A" * 24, NAME + "0", "x" * 24, NAME + "\n"])
def test_what_is_no_name_is_never_made_a_path(files, tmp_path, name):
    with pytest.raises(ValueError, match="no name"):
        files.write(name, EDITS, {})
    assert not (tmp_path / "cdi").exists()


@pytest.mark.parametrize("how", [{}, {"error": errno.EROFS}, {"kill": True}, {"power": True}])
def test_an_interrupted_write_leaves_no_spec_or_the_whole_one(monkeypatch, tmp_path, how):
    for at in range(12):
        folder = tmp_path / str(at)
        folder.mkdir()
        done = False
        with BrokenDisk(monkeypatch, at, **how) as disk:
            try:
                make(folder).write(NAME, EDITS, {})
                done = True
            except OSError:
                done = False
        assert done or disk.interrupted
        specs = [path for path in folder.glob("cdi/*") if path.name.endswith(".json")]
        assert all(path.read_bytes() == GOLDEN.read_bytes() for path in specs)
        assert specs or not done
        make(folder).write(NAME, EDITS, {})
        assert make(folder).written() == {NAME}
        assert names(folder) == [file(folder).name]
    assert not disk.interrupted


# ---------------------------------------------------------------- whose they are


def test_what_is_not_kept_goes(files, tmp_path):
    for name in (NAME, OTHER, THIRD):
        files.write(name, EDITS, {})
    files.prune([OTHER])
    assert files.written() == {OTHER}
    files.prune([])
    assert names(tmp_path) == []


def test_a_spec_of_an_older_boot_counts_as_absent_and_is_removed_or_written_again(files, tmp_path):
    older = make(tmp_path, boot="older")
    older.write(NAME, EDITS, {})
    older.write(OTHER, EDITS, {})
    assert files.written() == frozenset()
    files.write(NAME, EDITS, {})
    assert files.written() == {NAME}
    assert file(tmp_path).read_bytes() == GOLDEN.read_bytes()
    files.prune([NAME])
    assert names(tmp_path) == [file(tmp_path).name]


def test_another_plugins_files_stay(files, tmp_path):
    other = make(tmp_path, Scheme.GAIA)
    other.write(OTHER, EDITS, {})
    files.prune([])
    assert files.written() == frozenset()
    assert other.written() == {OTHER}
    with pytest.raises(FileExistsError):
        files.write(OTHER, EDITS, {})


def test_what_only_looks_like_ours_stays(files, tmp_path):
    folder = tmp_path / "cdi"
    folder.mkdir()
    target = tmp_path / "target.json"
    target.write_bytes(cdi.spec(THIRD, EDITS, Scheme.VOLCANO, BOOT))
    (folder / f"vgpu-{THIRD}.json").symlink_to(target)
    (folder / "nvidia.json").write_text("{}")
    (folder / "vgpu-cards.json").write_text("{}")
    file(tmp_path, "3" * 24).write_text('{"kind":"nvidia.com/gpu"}')
    file(tmp_path, "6" * 24).mkdir()
    os.mkfifo(file(tmp_path, "7" * 24))
    before = names(tmp_path)
    assert files.written() == frozenset()
    files.prune([])
    assert names(tmp_path) == before
    assert target.exists()
    for name in (THIRD, "6" * 24, "7" * 24):
        with pytest.raises(OSError, match=name):
            files.write(name, EDITS, {})
    assert names(tmp_path) == before


# ---------------------------------------------------------------- damaged

WHOLE = GOLDEN.read_bytes()
DAMAGED = {
    "emptied": b"",
    "cut": WHOLE[: len(WHOLE) // 2],
    "cut by a byte of the last brace": WHOLE.rstrip()[:-1],
    "an empty object": b"{}",
    "null": b"null",
    "a list": b"[]",
    "no JSON": b"\xff[[[",
    "no UTF-8": WHOLE.replace(b"GPU-5a1c7e3b", b"GPU-\xff\xfe"),
    "deep": b"[" * 100_000,
    "zeros": bytes(len(WHOLE)),
    "zeros at its end": WHOLE[:-100] + bytes(100),
    "too long": WHOLE + b" " * 1024 * 1024,
    "no devices": json.dumps({**json.loads(WHOLE), "devices": []}).encode(),
    "another device": WHOLE.replace(f'"name": "{NAME}"'.encode(), f'"name": "{OTHER}"'.encode()),
    "annotations that are none": b'{"kind":"vgpu.dev/share","annotations":7}',
    "our kind alone": b'{"kind":"vgpu.dev/share"}',
    "our kind, and nobody's": b'{"kind":"vgpu.dev/share","annotations":{"vgpu.dev/scheme":"x"}}',
}


@pytest.fixture(params=DAMAGED.values(), ids=DAMAGED)
def damaged(request, files, tmp_path):
    """A spec in whose place there is something else now."""
    files.write(NAME, EDITS, {})
    assert request.param != WHOLE
    file(tmp_path).write_bytes(request.param)
    return file(tmp_path)


def test_a_damaged_spec_counts_as_lost_and_is_written_again(files, damaged):
    assert not files.is_whole(NAME)
    assert files.written() == frozenset()
    files.write(NAME, EDITS, {})
    assert damaged.read_bytes() == WHOLE
    assert files.is_whole(NAME)
    assert files.written() == {NAME}


def test_a_damaged_spec_goes_when_its_container_has_left(files, damaged):
    files.prune([NAME])
    assert damaged.exists()
    files.prune([])
    assert not damaged.exists()


def test_a_spec_of_another_kind_in_the_place_of_ours_is_written_over(files, tmp_path):
    files.write(NAME, EDITS, {})
    file(tmp_path).write_text('{"kind":"nvidia.com/gpu"}')
    assert not files.is_whole(NAME)
    files.write(NAME, EDITS, {})
    assert file(tmp_path).read_bytes() == WHOLE


def test_a_folder_that_is_not_there_has_nothing(files):
    assert files.written() == frozenset()
    files.prune([])


def test_a_folder_that_cannot_be_read_is_an_error(files, tmp_path):
    (tmp_path / "cdi").write_text("")
    with pytest.raises(OSError, match="cdi"):
        files.written()
    with pytest.raises(OSError, match="cdi"):
        files.write(NAME, EDITS, {})


def test_what_a_loss_of_power_has_left_empty_is_removed(tmp_path):
    files = CdiInjector(str(tmp_path), Scheme.VOLCANO, "this-boot")
    left = tmp_path / f"vgpu-{'a' * 24}.json"
    left.touch()
    assert files.written() == frozenset()
    files.prune(())
    assert not left.exists()
