"""The plugin's own checkpoint on disk: whoever dies when, what was saved is there."""

import errno
import fcntl
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from deviceplugin.allocate.checkpoint import MOST_DAMAGED, CheckpointFile, LockHeld
from tests.support.broken_disk import BrokenDisk
from tests.support.waiting import WAIT_SECONDS, result_of, wait_until
from vgpu.model.admitted_pod import AdmittedPod, Binding
from vgpu.model.allocation import Allocation, Share
from vgpu.model.names import Phase, PodRef, Scheme
from vgpu.model.own_checkpoint import LIMIT
from vgpu.model.reasons import Reason
from vgpu.model.units import GIB

BOOT = "d41b3b16-8d57-4daf-8838-a7cb7443812a"
GPU = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
NAME = "checkpoint-volcano.json"
STEPS = 16
"""More than a save has."""


def admitted_pod(uid, *, at=10.0):
    shares = (Share(GPU, 2 * GIB, 300),)
    return AdmittedPod(
        PodRef(uid, "ml", f"pod-{uid}"),
        (Allocation("main", shares, Phase.ASSIGNED),),
        (Binding("main", "0123456789abcdef01234567", shares, at),),
        since=at,
    )


A, B, C, D = ((admitted_pod(name),) for name in "abcd")


def store(folder, *, boot=BOOT, node="node-1", scheme=Scheme.VOLCANO):
    return CheckpointFile(str(folder), scheme, node, boot, clock=lambda: 1_790_000_000.0)


def loaded(folder, **options):
    return store(folder, **options).load()


def replace(path, content):
    """Not written into: it may be its own backup."""
    path.unlink()
    path.write_bytes(content)


@pytest.fixture
def folder(tmp_path):
    """With two saved one after the other."""
    with store(tmp_path / "vgpu").open() as first:
        first.save(A)
        first.save(B)
    return tmp_path / "vgpu"


# ---------------------------------------------------------------- the usual


def test_what_was_saved_is_loaded(folder):
    found = loaded(folder)
    assert (found.admitted_pods, found.this_boot, found.problem) == (B, True, None)


def test_nothing_saved_is_nothing_wrong(tmp_path):
    found = store(tmp_path / "vgpu").open().load()
    assert (found.admitted_pods, found.this_boot, found.problem) == ((), False, None)


def test_records_of_an_earlier_boot_are_marked(folder):
    found = loaded(folder, boot="another")
    assert (found.admitted_pods, found.this_boot) == (B, False)


def test_who_is_to_end_does_not_wait_for_the_one_before(folder):
    asked = iter((False, False, True))
    with store(folder).open(), pytest.raises(LockHeld):
        store(folder).open(patience=600, ended=lambda: next(asked))


def test_nobody_else_can_read_it(folder):
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_schemes_do_not_touch_each_other(folder):
    with store(folder, scheme=Scheme.GAIA).open() as other:
        other.save(C)
    assert loaded(folder).admitted_pods == B
    assert loaded(folder, scheme=Scheme.GAIA).admitted_pods == C


def test_what_could_not_be_loaded_again_is_not_saved(folder):
    huge = (AdmittedPod(PodRef("u", "", "x" * LIMIT), ()),)
    with pytest.raises(OSError, match=NAME) as error:
        store(folder).save(huge)
    assert error.value.errno == errno.EFBIG
    assert loaded(folder).admitted_pods == B


# ---------------------------------------------------------------- interrupted anywhere


def interrupt(monkeypatch, folder, admitted_pods, at, **how):
    """Save and be interrupted; whether the save was done, and whether there was such a step."""
    saving = store(folder)
    saving.load()
    with BrokenDisk(monkeypatch, at, **how) as disk:
        try:
            saving.save(admitted_pods)
        except OSError:
            return False, disk.interrupted
        return True, disk.interrupted
    return False, True


HOW = {
    "full": {"error": errno.ENOSPC},
    "read-only": {"error": errno.EROFS},
    "failing": {"error": errno.EIO},
    "killed": {"kill": True},
    "power": {"power": True},
}


def steps_of_a_save(monkeypatch, folder):
    with BrokenDisk(monkeypatch) as disk:
        saving = store(folder)
        saving.load()
        saving.save(B)
    return len(disk.done)


@pytest.mark.parametrize("how", HOW)
def test_an_interrupted_save_leaves_the_one_before_or_the_new_one(monkeypatch, tmp_path, how):
    for at in range(STEPS):
        folder = tmp_path / str(at)
        first = store(folder).open()
        first.save(A)
        first.save(B)
        saved, interrupted = interrupt(monkeypatch, folder, C, at, **HOW[how])
        assert saved or interrupted
        found = loaded(folder)
        assert found.problem is None
        assert found.this_boot
        assert found.admitted_pods == C if saved else found.admitted_pods in (B, C)
        replace(folder / NAME, b"")
        assert loaded(folder).admitted_pods in ((B,) if saved else (A, B)), at
    assert not interrupted  # every step was tried


def test_a_save_is_done_only_when_the_name_would_survive_too(monkeypatch, folder):
    saving = store(folder)
    saving.load()
    with BrokenDisk(monkeypatch) as disk:
        saving.save(C)
    assert disk.done[-2:] == ["rename", "fsync"]


def test_a_full_disk_keeps_what_was_there(monkeypatch, folder):
    """Up to the last step, where the new one is there and only may not survive a power loss."""
    for at in range(steps_of_a_save(monkeypatch, folder) - 1):
        assert interrupt(monkeypatch, folder, C, at) == (False, True)
        assert loaded(folder).admitted_pods == B
    assert {path.name for path in folder.iterdir() if path.name.endswith(".new")} == set()


@pytest.mark.parametrize("how", ["full", "killed", "power"])
def test_a_save_after_an_interrupted_one_may_be_interrupted_too(monkeypatch, tmp_path, how):
    store(tmp_path / "x").open()
    most = steps_of_a_save(monkeypatch, tmp_path / "x")
    for first in range(most):
        for second in range(most + 1):
            folder = tmp_path / f"{first}-{second}"
            begun = store(folder).open()
            begun.save(A)
            begun.save(B)
            begun.close()
            interrupt(monkeypatch, folder, C, first, **HOW[how])
            before = loaded(folder).admitted_pods
            saved, _ = interrupt(monkeypatch, folder, D, second, **HOW[how])
            found = loaded(folder)
            assert found.problem is None
            assert found.admitted_pods == D if saved else found.admitted_pods in (before, D)


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_file_is_not_lost_whoever_is_interrupted(monkeypatch, tmp_path, how):
    for at in range(STEPS):
        folder = tmp_path / str(at)
        begun = store(folder).open()
        begun.save(A)
        begun.save(B)
        (folder / NAME).write_bytes(b"damaged")
        saved, interrupted = False, True
        with BrokenDisk(monkeypatch, at, **HOW[how]) as disk:
            saving = store(folder)
            assert saving.load().admitted_pods == A
            try:
                saving.save(C)
                saved = True
            except OSError:
                saved = False
            interrupted = disk.interrupted
        assert [path for path in folder.iterdir() if path.read_bytes() == b"damaged"]
        found = loaded(folder)
        assert found.admitted_pods == C if saved else found.admitted_pods in (A, C)
    assert not interrupted


def test_a_killed_process_leaves_a_state_that_can_be_loaded(tmp_path):
    """A real one, at a moment that nobody chose."""
    code = (
        "import sys\n"
        "from deviceplugin.allocate.checkpoint import CheckpointFile\n"
        "from vgpu.model.names import PodRef, Scheme\n"
        "from vgpu.model.admitted_pod import AdmittedPod\n"
        f"store = CheckpointFile(sys.argv[1], Scheme.VOLCANO, 'node-1', {BOOT!r}).open()\n"
        "for number in range(10**9):\n"
        "    store.save([AdmittedPod(PodRef(uid, '', ''), ()) for uid in (str(number), 'x')])\n"
        "    if number == 20: print('running', flush=True)\n"
    )
    for _ in range(3):
        command = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"running\n"
            process.kill()
        with store(tmp_path).open() as next_one:
            found = next_one.load()
        assert found.problem is None
        assert len(found.admitted_pods) == 2


# ---------------------------------------------------------------- what cannot be read


DAMAGE = {
    Reason.EMPTY: lambda whole: b"",
    Reason.TRUNCATED: lambda whole: whole[:-20],
    Reason.MALFORMED: lambda whole: b"not JSON",
    Reason.CHECKSUM_MISMATCH: lambda whole: whole.replace(b"pod-b", b"pod-x"),
    Reason.FUTURE_VERSION: lambda whole: whole.replace(b'"version":1', b'"version":2'),
    Reason.TOO_LARGE: lambda whole: b" " * (LIMIT + 1),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_what_cannot_be_read_is_set_aside_and_the_backup_counts(folder, reason, caplog):
    path = folder / NAME
    damaged = DAMAGE[reason](path.read_bytes())
    path.write_bytes(damaged)
    caplog.set_level(logging.WARNING)
    opened = store(folder)
    found = opened.load()
    assert (found.admitted_pods, found.this_boot) == (A, True)
    assert (found.problem.reason, found.problem.object_name) == (reason, str(path))
    (aside,) = folder.glob("*.damaged-*")
    assert aside.read_bytes() == damaged
    assert str(aside) in caplog.text
    opened.save(C)
    assert loaded(folder).admitted_pods == C
    assert aside.read_bytes() == damaged


def test_what_another_node_left_is_set_aside(folder):
    found = loaded(folder, node="node-2")
    assert (found.admitted_pods, found.problem.reason) == ((), Reason.OTHER_NODE)
    assert len([*folder.glob("*.damaged-*")]) == 2


def test_a_file_of_another_scheme_is_not_taken_for_our_own(folder):
    (folder / NAME).rename(folder / "checkpoint-gaia.json")
    assert loaded(folder, scheme=Scheme.GAIA).problem.reason is Reason.OTHER_SCHEME


def test_with_both_damaged_nothing_is_known_and_nothing_is_lost(folder):
    (folder / NAME).write_bytes(b"one")
    (folder / f"{NAME}.bak").write_bytes(b"two")
    opened = store(folder)
    found = opened.load()
    assert (found.admitted_pods, found.problem.object_name) == ((), str(folder / NAME))
    opened.save(C)
    assert loaded(folder).admitted_pods == C
    assert {path.read_bytes() for path in folder.glob("*.damaged-*")} == {b"one", b"two"}


def test_a_backup_alone_is_used_and_reported(folder):
    (folder / NAME).unlink()
    found = loaded(folder)
    assert (found.admitted_pods, found.problem.reason) == (A, Reason.ABSENT)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_what_is_no_file_is_set_aside_too(folder, make):
    (folder / NAME).unlink()
    make(folder / NAME)
    opened = store(folder)
    found = opened.load()
    assert (found.admitted_pods, found.problem.reason) == (A, Reason.NOT_REGULAR_FILE)
    opened.save(C)
    assert loaded(folder).admitted_pods == C


def test_of_many_damaged_the_oldest_go(folder):
    for number in range(MOST_DAMAGED + 3):
        (folder / NAME).write_bytes(b"%d" % number)
        loaded(folder)
    kept = {path.read_bytes() for path in folder.glob("*.damaged-*")}
    assert kept == {b"%d" % number for number in range(3, MOST_DAMAGED + 3)}


def test_what_was_never_looked_at_is_not_overwritten(folder):
    (folder / NAME).write_bytes(b"not ours")
    store(folder).save(C)
    assert loaded(folder).admitted_pods == C
    (aside,) = folder.glob("*.damaged-*")
    assert aside.read_bytes() == b"not ours"


def test_a_file_that_somebody_removed_is_written_again(folder):
    opened = store(folder)
    opened.load()
    (folder / NAME).unlink()
    opened.save(C)
    assert loaded(folder).admitted_pods == C


# ---------------------------------------------------------------- one plugin at a time


def test_a_second_plugin_of_the_scheme_is_refused_by_name(folder):
    with store(folder).open():
        with pytest.raises(LockHeld, match=r"checkpoint-volcano\.lock"):
            store(folder).open(patience=0)
        store(folder, scheme=Scheme.GAIA).open(patience=0).close()
    store(folder).open(patience=0).close()


def test_a_second_plugin_waits_for_the_first_to_end(folder, caplog):
    first = store(folder).open()
    with ThreadPoolExecutor(1) as another:
        second = another.submit(store(folder).open, patience=WAIT_SECONDS)
        wait_until(lambda: "waiting for another device plugin" in caplog.text, "the second waits")
        first.close()
        result_of(second, "the second opens").close()


def test_the_lock_does_not_outlive_its_process(folder):
    lock = os.open(folder / "checkpoint-volcano.lock", os.O_RDWR)
    child = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, close_fds=False)
    try:
        with store(folder).open():
            pass
        store(folder).open(patience=0).close()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        child.communicate(b"\n")
        os.close(lock)
