"""Removing a shim's folder: that one, plain and unused, or nothing."""

import os
import socket
from pathlib import Path

import pytest

from reconciler.apply.applier import Applier, ApplyOptions
from reconciler.apply.client import ActionRefused
from reconciler.apply.removal import MOST_FILES, Remover
from reconciler.model import ObjectKind, ObjectRef, RemoveFolder
from reconciler.observe import folders
from reconciler.reasons import ActionOutcome, Cause, Rule
from tests.reconciler import samples
from tests.reconciler.fake_client import FakeClient, FakeTime
from tests.reconciler.samples import pod, replace
from tests.support.reconcile_plans import entry, plan, unmoved
from vgpu.model.names import PodRef
from vgpu.model.objects import MIRROR, MalformedObject
from vgpu.model.reasons import Reason, SourceError

UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"


@pytest.fixture
def root(tmp_path):
    made = tmp_path / "containers"
    made.mkdir()
    return made


@pytest.fixture
def folder(root):
    made = root / f"{UID}_main"
    made.mkdir()
    (made / "a.cache").write_bytes(b"region")
    (made / "b.log").write_bytes(b"")
    return made


def action_for(path):
    return RemoveFolder(str(path), UID, folders.identity(str(path)))


def remover(root, mapped=lambda _: False):
    return Remover((f"{root}/",), folders.identity, mapped)


def refusal(root, action, **options):
    with pytest.raises(ActionRefused) as info:
        remover(root, **options).remove(action)
    return info.value


def test_a_folder_goes_with_its_files_and_its_neighbour_stays(root, folder):
    neighbour = root / f"{UID}_sidecar"
    neighbour.mkdir()
    assert remover(root).remove(action_for(folder)) == "2 files"
    assert list(root.iterdir()) == [neighbour]


def test_a_dry_run_removes_nothing(root, folder):
    assert remover(root).remove(action_for(folder), dry_run=True) == "2 files"
    assert len(list(folder.iterdir())) == 2


def test_the_usual_roots_are_those_that_are_looked_at():
    usual = Remover((), folders.identity, lambda _: False)
    action = RemoveFolder(f"/usr/local/vgpu/containers/{UID}_main", UID, (1, 2, 3))
    with pytest.raises(ActionRefused) as info:
        usual.remove(action)
    assert info.value.outcome is ActionOutcome.GONE


@pytest.mark.parametrize(
    "path",
    [
        "{root}/other",
        "{root}/{uid}_main/",
        "{root}/{uid}_main/.",
        "{root}/../containers/{uid}_main",
        "{root}/{uid}_main/sub",
        "{root}/{uid}_",
        "/{uid}_main",
        "{uid}_main",
        "",
        "/",
        "{root}",
    ],
)
def test_nothing_else_is_removed(root, folder, path):
    action = RemoveFolder(path.format(root=root, uid=UID), UID, folders.identity(str(folder)))
    assert refusal(root, action).outcome is ActionOutcome.FAILED
    assert len(list(folder.iterdir())) == 2


def test_a_folder_of_another_pod_is_not_removed(root, folder):
    action = replace(action_for(folder), pod_uid="other")
    assert refusal(root, action).outcome is ActionOutcome.FAILED


def test_a_folder_that_a_process_uses_stays(root, folder):
    action = action_for(folder)
    assert refusal(root, action, mapped=lambda _: True).outcome is ActionOutcome.CHANGED
    assert len(list(folder.iterdir())) == 2


def test_a_folder_of_unknown_use_stays(root, folder):
    def unknown(path):
        raise SourceError(Reason.FOREIGN_PIDS, path)

    assert refusal(root, action_for(folder), mapped=unknown).outcome is ActionOutcome.FAILED
    assert folder.exists()


def test_a_folder_that_changed_is_another(root, folder):
    action = action_for(folder)
    (folder / "new.cache").write_bytes(b"")
    assert refusal(root, action).outcome is ActionOutcome.CHANGED
    assert len(list(folder.iterdir())) == 3


def test_a_folder_in_the_place_of_another_stays(root, folder):
    action = action_for(folder)
    folder.rename(root / "aside")
    folder.mkdir()
    assert refusal(root, action).outcome is ActionOutcome.CHANGED
    assert folder.exists()


def test_a_folder_that_is_gone_is_gone(root, folder):
    action = action_for(folder)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert refusal(root, action).outcome is ActionOutcome.GONE


def put_link(folder, target):
    (folder / "c").symlink_to(target)


def put_folder(folder, _):
    (folder / "c").mkdir()


def put_pipe(folder, _):
    os.mkfifo(folder / "c")


def put_socket(folder, _):
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(folder, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{here}/c")
        os.close(here)


def put_many(folder, _):
    for number in range(MOST_FILES):
        (folder / str(number)).touch()


@pytest.mark.parametrize("put", [put_link, put_folder, put_pipe, put_socket, put_many])
def test_a_folder_with_anything_but_a_few_plain_files_stays_whole(root, folder, tmp_path, put):
    target = tmp_path / "target"
    target.write_text("precious")
    put(folder, target)
    before = sorted(folder.iterdir())
    assert refusal(root, action_for(folder)).outcome is ActionOutcome.FAILED
    assert sorted(folder.iterdir()) == before
    assert target.read_text() == "precious"


def test_a_link_in_the_place_of_the_folder_is_not_followed(root, folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    action = action_for(folder)
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    assert refusal(root, action).outcome is ActionOutcome.FAILED
    assert len(list(elsewhere.iterdir())) == 2


@pytest.mark.parametrize("stands_in", ["folder", "link"])
def test_the_planned_folder_is_opened_whatever_is_at_the_path_now(root, folder, stands_in):
    """It may be exchanged between being looked at and being opened."""
    action = action_for(folder)
    aside = root / "aside"
    folder.rename(aside)
    if stands_in == "link":
        folder.symlink_to(aside)
    else:
        folder.mkdir()
        (folder / "a.cache").touch()
    fooled = Remover((str(root),), lambda _: action.identity, lambda _: False)
    with pytest.raises(ActionRefused):
        fooled.remove(action)
    assert len(list(aside.iterdir())) == 2
    assert list(folder.iterdir())


def test_what_takes_the_folders_place_at_the_last_moment_stays(root, folder, monkeypatch):
    """A tenant may rename it while it is emptied."""
    action = action_for(folder)
    unlink = os.unlink

    def renamed(name, dir_fd):
        if not (root / "aside").exists():
            folder.rename(root / "aside")
            folder.mkdir()
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr("reconciler.apply.removal.os.unlink", renamed)
    assert refusal(root, action).outcome is ActionOutcome.CHANGED
    assert folder.exists()


def test_what_is_put_into_it_at_the_last_moment_stays(root, folder, monkeypatch):
    action = action_for(folder)
    unlink = os.unlink

    def filled(name, dir_fd):
        unlink(name, dir_fd=dir_fd)
        Path(folder / "late.cache").touch()

    monkeypatch.setattr("reconciler.apply.removal.os.unlink", filled)
    assert refusal(root, action).outcome is ActionOutcome.FAILED
    assert [file.name for file in folder.iterdir()] == ["late.cache"]


# ---------------------------------------------------------------- as part of a plan


class NoAudit:
    def intent(self, *_):
        pass

    result = intent


def applied(root, folder, *pods, node="gpu-1", malformed=(), **options):
    client = FakeClient(*pods)
    client.malformed = malformed
    object_ref = ObjectRef(ObjectKind.FOLDER, "", str(folder), UID, node=node)
    made = entry(object_ref, action_for(folder), Rule.ORPHAN_SHIM_DIR, Cause.POD_GONE)
    applier = Applier(
        client, NoAudit(), ApplyOptions(clock=FakeTime(), remover=remover(root), **options)
    )
    (result,) = applier.apply(plan(made), unmoved())
    return result.outcome, [note.reason for note in client.events]


def test_an_orphan_is_removed_and_its_node_gets_an_event(root, folder):
    assert applied(root, folder, pod("other")) == (ActionOutcome.DONE, ["VgpuFolderRemoved"])
    assert not folder.exists()


@pytest.mark.parametrize(
    "its_pod",
    [
        pod("back", uid=UID),
        replace(pod("ended", uid=UID), phase="Succeeded"),
        replace(pod("static"), ref=PodRef("informer", "ml", "static"), annotations={MIRROR: UID}),
    ],
)
def test_a_folder_whose_pod_is_there_stays(root, folder, its_pod):
    assert applied(root, folder, its_pod) == (ActionOutcome.CHANGED, [])
    assert folder.exists()


@pytest.mark.parametrize(
    ("ref", "annotations", "outcome"),
    [
        (PodRef(UID, "ml", "a"), {}, ActionOutcome.CHANGED),
        (PodRef("", "ml", "a"), {}, ActionOutcome.CHANGED),
        (PodRef("u", "ml", "a"), {MIRROR: UID}, ActionOutcome.CHANGED),
        (PodRef("u", "ml", "a"), None, ActionOutcome.CHANGED),
        (PodRef("u", "ml", "a"), {}, ActionOutcome.DONE),
    ],
)
def test_a_folder_stays_if_its_pod_may_be_one_that_cannot_be_read(
    root, folder, ref, annotations, outcome
):
    bad = MalformedObject("Pod", ref, "phase: 7", "gpu-1", annotations)
    assert applied(root, folder, malformed=(bad,))[0] is outcome
    assert folder.exists() == (outcome is ActionOutcome.CHANGED)


def test_a_folder_stays_on_a_node_that_has_opted_out_since(root, folder):
    there = samples.node("gpu-1", annotations={"vgpu.dev/reconcile": "false"})
    assert applied(root, folder, there)[0] is ActionOutcome.CHANGED
    assert folder.exists()


def test_a_folder_on_no_known_node_stays(root, folder):
    assert applied(root, folder, node="")[0] is ActionOutcome.FAILED


def test_who_leads_no_longer_removes_nothing(root, folder):
    answers = iter([True])
    outcome, _ = applied(root, folder, leads=lambda: next(answers, False))
    assert outcome is ActionOutcome.NOT_LEADER
    assert folder.exists()


def test_where_there_is_no_remover_nothing_is_removed(folder):
    client = FakeClient()
    object_ref = ObjectRef(ObjectKind.FOLDER, "", str(folder), UID, node="gpu-1")
    made = entry(object_ref, action_for(folder), Rule.ORPHAN_SHIM_DIR, Cause.POD_GONE)
    (result,) = Applier(client, NoAudit()).apply(plan(made), unmoved())
    assert result.outcome is ActionOutcome.FAILED
    assert "--scope node" in result.detail
