"""Who may hold anything: by what a pod is known to live, and what outlives it."""

import pytest

from tests.ledger.ledger_values import KUBELET, A, B, evidence, kinds, pod, ref, said, where
from vgpu.ledger import PRECEDENCE, ConflictKind, merge
from vgpu.model.names import PodRef, Source
from vgpu.model.objects import MIRROR, SHARE_POD, ContainerState

WORDS = [source for source in PRECEDENCE if source not in (Source.PROCESS, Source.POD_RESOURCES)]
NO_API = {"pods": (), "pods_complete": False}
ENDED = {"pods": (pod("u1", "Succeeded", ContainerState.TERMINATED),)}
GONE = {"pods": (), "pods_complete": True}


@pytest.mark.parametrize("source", PRECEDENCE)
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_pod_frees_its_gpu_at_once(source, phase):
    over = (pod("u1", phase, ContainerState.TERMINATED),)
    told = said(source, A, alive=False)
    ledger = merge(evidence(told, pods=over, live_pods=frozenset({"u1"})))
    assert where(ledger) == {}
    assert ledger.leftovers == (told,)


@pytest.mark.parametrize("around", [ENDED, GONE, NO_API], ids=["ended", "gone", "no API"])
def test_a_container_that_runs_holds_its_gpu_whatever_its_pod_is_said_to_be(around):
    ledger = merge(evidence(said(Source.PROCESS, A), said(Source.CHECKPOINT, A, 2), **around))
    assert where(ledger) == {("u1", "main"): [A]}
    outlives = around is not NO_API
    assert kinds(ledger) == [ConflictKind.OUTLIVES_POD] * outlives


def test_a_pod_that_shares_no_gpu_need_not_be_known_to_have_a_process_on_one():
    """Only pods that share GPUs are read from the API server."""
    ledger = merge(evidence(said(Source.PROCESS, A), **GONE))
    assert where(ledger) == {("u1", "main"): [A]}
    assert kinds(ledger) == [ConflictKind.PROCESS_WITHOUT_ALLOCATION]


def test_of_an_ended_pod_only_the_container_that_runs_holds_something():
    told = [
        said(Source.PROCESS, A),
        said(Source.CHECKPOINT, A),
        said(Source.CHECKPOINT, B, container="side"),
    ]
    ledger = merge(evidence(*told, **ENDED))
    assert where(ledger) == {("u1", "main"): [A]}


def test_a_terminating_pod_keeps_its_gpu_while_a_container_may_run():
    going = pod("u1", deleted_at=1.0)
    gone = pod("u1", "Running", ContainerState.TERMINATED, deleted_at=1.0)
    told = said(Source.ANNOTATIONS, A)
    assert where(merge(evidence(told, pods=(going,)))) == {("u1", "main"): [A]}
    assert where(merge(evidence(told, pods=(gone,)))) == {}


@pytest.mark.parametrize("source", WORDS)
def test_nobody_holds_anything_by_a_word_about_a_pod_that_may_be_dead(source):
    """The kubelet's checkpoint keeps UIDs of the dead; so do files on disk."""
    told = said(source, A)
    ledger = merge(evidence(told, **NO_API))
    assert where(ledger) == {}
    assert ledger.unproven == (told,)
    assert ledger.conflicts == ()


@pytest.mark.parametrize("source", WORDS)
def test_a_pod_that_has_a_cgroup_holds_what_it_was_given(source):
    ledger = merge(evidence(said(source, A), **NO_API, live_pods=frozenset({"u1"})))
    assert where(ledger) == {("u1", "main"): [A]}
    assert ledger.conflicts == ()


def test_the_kubelets_list_of_devices_in_use_is_proof_enough():
    ledger = merge(evidence(said(Source.POD_RESOURCES, ""), said(Source.CHECKPOINT, A), **NO_API))
    assert where(ledger) == {("u1", "main"): [A]}


def test_one_running_container_proves_that_its_pod_lives():
    told = [said(Source.PROCESS, A), said(Source.CHECKPOINT, B, container="side")]
    ledger = merge(evidence(*told, **NO_API))
    assert where(ledger) == {("u1", "main"): [A], ("u1", "side"): [B]}


@pytest.mark.parametrize("source", WORDS)
def test_a_pod_that_is_gone_but_has_a_cgroup_still_holds_its_gpu(source):
    """It was deleted by force, or the kubelet has not cleaned up: free only when gone."""
    ledger = merge(evidence(said(source, A), **GONE, live_pods=frozenset({"u1"})))
    assert where(ledger) == {("u1", "main"): [A]}
    assert kinds(ledger) == [ConflictKind.OUTLIVES_POD]


# ---------------------------------------------------------------- what is normal about the dead


@pytest.mark.parametrize(
    ("source", "around", "normal"),
    [
        (Source.CHECKPOINT, ENDED, True),
        (Source.SHIM, ENDED, True),
        (Source.LIMIT_FILE, ENDED, True),
        (Source.ANNOTATIONS, ENDED, True),
        (Source.POD_RESOURCES, ENDED, False),
        (Source.OWN_CHECKPOINT, ENDED, False),
        (Source.CHECKPOINT, GONE, True),
        (Source.SHIM, GONE, False),
        (Source.LIMIT_FILE, GONE, False),
        (Source.OWN_CHECKPOINT, GONE, False),
    ],
)
def test_who_should_have_noticed_that_the_pod_is_no_more(source, around, normal):
    told = said(source, A, 2)
    ledger = merge(evidence(told, **around))
    assert where(ledger) == {}
    assert ledger.leftovers == (told,)
    assert kinds(ledger) == ([] if normal else [ConflictKind.HELD_BY_NOBODY_ALIVE])


def test_a_region_of_a_pod_that_the_node_still_has_a_name_for_is_no_orphan():
    around = {**NO_API, "live_pods": frozenset()}
    told = said(Source.SHIM, A)
    assert kinds(merge(evidence(told, **around))) == [ConflictKind.HELD_BY_NOBODY_ALIVE]
    assert kinds(merge(evidence(told, **around, names={"u1": ref("u1")}))) == []


# ---------------------------------------------------------------- one pod, several UIDs


def test_a_static_pod_is_known_by_the_uid_that_the_kubelet_has_for_it():
    informer = pod("api", annotations={MIRROR: "u1"})
    ledger = merge(evidence(said(Source.CHECKPOINT, A), pods=(informer,)))
    (holding,) = ledger.holdings
    assert holding.pod == PodRef("u1", "team", "pod-api")


def test_a_share_pod_is_the_pod_that_was_made_for_it():
    share_pod = pod("sp", "Pending", None, annotations={SHARE_POD: "u1"})
    ended = pod("u1", "Failed", ContainerState.TERMINATED)
    told = said(Source.LIMIT_FILE, A)
    assert where(merge(evidence(told, pods=(share_pod,)))) == {("u1", "main"): [A]}
    for pods in ((share_pod, ended), (ended, share_pod)):
        assert where(merge(evidence(told, pods=pods))) == {}


@pytest.mark.parametrize("source", KUBELET)
def test_names_come_from_whoever_knows_them(source):
    told = said(source, A)
    living = {"live_pods": frozenset({"u1"})}
    known = merge(evidence(told, **NO_API, **living, names={"u1": ref("u1")}))
    nameless = merge(evidence(told, **NO_API, **living))
    assert [h.pod for h in known.holdings] == [ref("u1")]
    assert [h.pod for h in nameless.holdings] == [PodRef("u1", "", "")]
