"""A shim's folder goes when its pod is no more: seen so all the time, and by nobody used."""

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, ObjectKind, RemoveFolder, Scope, ShimFolder
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.leftovers import orphan_shim_dir
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    NOW,
    ended,
    pod,
    real_pod,
    replace,
    share_pod,
    snapshot,
)
from vgpu.model.objects import MIRROR

ROOT = "/usr/local/vgpu/containers"
IDENTITY = (1, 2, 3)


def folder(uid="gone", container="main", *, mapped=False, path=""):
    return ShimFolder(path or f"{ROOT}/{uid}_{container}", uid, container, IDENTITY, mapped)


def look(*pods, folders=(), live=(), continuous=True, **fields):
    return snapshot(
        *pods,
        scope=Scope.NODE,
        folders=folders or (folder(),),
        live_pods=None if live is None else frozenset(live),
        continuous=continuous,
        **fields,
    )


def find(*pods, **fields):
    return list(orphan_shim_dir(ClusterIndex(look(*pods, **fields), CODECS_IN_USE), Policy()))


def only(*pods, **fields):
    (finding,) = find(*pods, **fields)
    return finding


def test_a_folder_whose_pod_is_no_more_is_removed():
    finding = only(pod())
    assert (finding.rule, finding.cause) == (Rule.ORPHAN_SHIM_DIR, Cause.POD_GONE)
    assert (finding.effect, finding.since) == (Effect.TIDYING, None)
    assert (finding.grace, finding.skip_reason) == (Policy().ages.orphan, None)
    assert finding.action == RemoveFolder(f"{ROOT}/gone_main", "gone", IDENTITY)
    object_ref = finding.object_ref
    assert (object_ref.kind, object_ref.name, object_ref.uid) == (
        ObjectKind.FOLDER,
        f"{ROOT}/gone_main",
        "gone",
    )
    assert object_ref.node == "gpu-1"


@pytest.mark.parametrize("style", ["volcano", "hami", "gpushare", "gaia"])
def test_the_folder_of_a_pod_that_lives_is_not_found(style):
    train = pod(style=style)
    assert find(train, folders=(folder(train.ref.uid),)) == []


def test_a_static_pod_has_two_uids_and_keeps_the_folders_of_both():
    static = pod(annotations={MIRROR: "hash-of-its-file"})
    folders = (folder("hash-of-its-file"), folder(static.ref.uid))
    assert find(static, folders=folders) == []


def test_the_pod_of_a_share_pod_keeps_its_folder():
    asked = share_pod()
    assert find(asked, folders=(folder(f"real-{asked.ref.name}"),)) == []
    assert find(real_pod(asked), folders=(folder(f"real-{asked.ref.name}"),)) == []


def test_a_pod_with_a_cgroup_lives_whatever_the_api_server_reports():
    assert find(live=["gone"]) == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("mapped", [False, True])
def test_the_folder_of_a_pod_that_has_ended_stays_while_the_pod_does(phase, mapped):
    done = ended(pod(), phase)
    finding = only(done, folders=(folder(done.ref.uid, mapped=mapped),))
    assert finding.skip_reason is SkipReason.TERMINAL_POD_EXISTS
    assert phase in finding.evidence[0]


def test_a_folder_that_a_process_uses_stays():
    assert only(folders=(folder(mapped=True),)).skip_reason is SkipReason.STILL_MAPPED


def test_one_look_is_not_enough():
    assert only(continuous=False).skip_reason is SkipReason.ONE_SHOT


def test_where_cgroups_were_not_looked_at_nothing_is_proven():
    assert only(live=None).skip_reason is SkipReason.INCOMPLETE_VIEW


@pytest.mark.parametrize(
    "odd",
    [
        folder("", "main"),
        folder("gone", ""),
        folder(path=f"{ROOT}/backup"),
        folder(path=f"{ROOT}/gone"),
        folder(path=f"{ROOT}/other_main"),
        folder(path=f"{ROOT}/gone_main/sub"),
    ],
)
def test_a_folder_without_a_containers_name_is_no_finding(odd):
    assert find(folders=(odd,)) == []


def test_a_pod_must_have_been_gone_in_every_look():
    train = pod("train", uid="gone")
    _, memory = make_plan(look(), Policy(), ReconcilerState(), CODECS_IN_USE)
    _, memory = make_plan(look(train), Policy(), memory, CODECS_IN_USE)
    plan, memory = make_plan(look(now=NOW + HOUR), Policy(), memory, CODECS_IN_USE)
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]
    plan, _ = make_plan(look(now=NOW + 2 * HOUR), Policy(), memory, CODECS_IN_USE)
    assert [entry.finding.action for entry in plan.actions] == [
        RemoveFolder(f"{ROOT}/gone_main", "gone", IDENTITY)
    ]


@pytest.mark.parametrize("missing", [Coverage.PODS, Coverage.FOLDERS])
def test_an_empty_answer_of_the_api_server_takes_no_folder_away(missing):
    seen = frozenset(Coverage) - {missing}
    _, memory = make_plan(look(), Policy(), ReconcilerState(), CODECS_IN_USE)
    plan, _ = make_plan(look(now=NOW + HOUR, complete=seen), Policy(), memory, CODECS_IN_USE)
    assert [entry.skip for entry in plan.skipped] == [SkipReason.INCOMPLETE_VIEW]


# ---------------------------------------------------------------- whatever is there

UIDS = st.sampled_from(["a", "b", "c", ""])
FOLDERS = st.builds(
    ShimFolder,
    path=st.sampled_from([f"{ROOT}/{uid}_main" for uid in "abc"]) | st.text(max_size=9),
    pod_uid=UIDS,
    container=st.sampled_from(["main", "", "\0"]),
    identity=st.just(IDENTITY),
    mapped=st.booleans(),
)
PODS = st.builds(
    lambda uid, phase: replace(pod(uid or "x", uid=uid or "x"), phase=phase),
    UIDS,
    st.sampled_from(["Running", "Pending", "Failed", "Succeeded", "Unknown", ""]),
)


@pytest.mark.slow
@for_all(
    st.lists(FOLDERS, max_size=5),
    st.lists(PODS, max_size=3, unique_by=lambda each: each.ref.uid),
    st.none() | st.sets(UIDS),
    st.randoms(use_true_random=False),
)
def test_no_folder_of_a_pod_that_lives_or_that_is_used_goes(folders, pods, live, random):
    first = find(*pods, folders=tuple(folders), live=live) if folders else []
    for finding in first:
        uid = finding.object_ref.uid
        assert live is None or uid not in live
        assert not any(
            each.ref.uid == uid and each.phase not in ("Failed", "Succeeded") for each in pods
        )
        if finding.skip_reason is None:
            used = {each.path for each in folders if each.mapped and each.pod_uid == uid}
            assert live is not None
            assert uid not in {each.ref.uid for each in pods}
            same = [each for each in folders if each.path == finding.object_ref.name]
            assert not used or any(not each.mapped for each in same)
    random.shuffle(folders)
    if folders:
        again = find(*pods, folders=tuple(folders), live=live)
        assert {finding.object_ref for finding in again} == {
            finding.object_ref for finding in first
        }


def test_no_folders_cost_nothing():
    assert (
        list(orphan_shim_dir(ClusterIndex(replace(look(), folders=()), CODECS_IN_USE), Policy()))
        == []
    )
