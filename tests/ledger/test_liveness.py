"""Who may hold anything: by what a pod is known to live, and what outlives it."""

import pytest

from tests.ledger.ledger_values import KUBELET, A, B, evidence, kinds, pod, ref, statement_of, where
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
    statement = statement_of(source, A, alive=False)
    ledger = merge(evidence(statement, pods=over, live_pods=frozenset({"u1"})))
    assert where(ledger) == {}
    assert ledger.leftovers == (statement,)


@pytest.mark.parametrize("around", [ENDED, GONE, NO_API], ids=["ended", "gone", "no API"])
def test_a_container_that_runs_holds_its_gpu_whatever_the_state_of_its_pod_is(around):
    ledger = merge(
        evidence(statement_of(Source.PROCESS, A), statement_of(Source.CHECKPOINT, A, 2), **around)
    )
    assert where(ledger) == {("u1", "main"): [A]}
    outlives = around is not NO_API
    assert kinds(ledger) == [ConflictKind.OUTLIVES_POD] * outlives


def test_a_pod_that_shares_no_gpu_need_not_be_known_to_have_a_process_on_one():
    """Only pods that share GPUs are read from the API server."""
    ledger = merge(evidence(statement_of(Source.PROCESS, A), **GONE))
    assert where(ledger) == {("u1", "main"): [A]}
    assert kinds(ledger) == [ConflictKind.PROCESS_WITHOUT_ALLOCATION]


def test_of_an_ended_pod_only_the_container_that_runs_holds_something():
    statements = [
        statement_of(Source.PROCESS, A),
        statement_of(Source.CHECKPOINT, A),
        statement_of(Source.CHECKPOINT, B, container="side"),
    ]
    ledger = merge(evidence(*statements, **ENDED))
    assert where(ledger) == {("u1", "main"): [A]}


def test_a_terminating_pod_keeps_its_gpu_while_a_container_may_run():
    going = pod("u1", deleted_at=1.0)
    gone = pod("u1", "Running", ContainerState.TERMINATED, deleted_at=1.0)
    statement = statement_of(Source.ANNOTATIONS, A)
    assert where(merge(evidence(statement, pods=(going,)))) == {("u1", "main"): [A]}
    assert where(merge(evidence(statement, pods=(gone,)))) == {}


@pytest.mark.parametrize("source", WORDS)
def test_a_statement_about_a_pod_that_may_be_dead_holds_nothing(source):
    """The kubelet's checkpoint keeps UIDs of the dead; so do files on disk."""
    statement = statement_of(source, A)
    ledger = merge(evidence(statement, **NO_API))
    assert where(ledger) == {}
    assert ledger.unproven == (statement,)
    assert ledger.conflicts == ()


@pytest.mark.parametrize("source", WORDS)
def test_a_pod_that_has_a_cgroup_holds_its_allocation(source):
    ledger = merge(evidence(statement_of(source, A), **NO_API, live_pods=frozenset({"u1"})))
    assert where(ledger) == {("u1", "main"): [A]}
    assert ledger.conflicts == ()


def test_the_kubelets_list_of_devices_in_use_is_proof_enough():
    ledger = merge(
        evidence(
            statement_of(Source.POD_RESOURCES, ""), statement_of(Source.CHECKPOINT, A), **NO_API
        )
    )
    assert where(ledger) == {("u1", "main"): [A]}


def test_one_running_container_proves_that_its_pod_lives():
    statements = [
        statement_of(Source.PROCESS, A),
        statement_of(Source.CHECKPOINT, B, container="side"),
    ]
    ledger = merge(evidence(*statements, **NO_API))
    assert where(ledger) == {("u1", "main"): [A], ("u1", "side"): [B]}


@pytest.mark.parametrize("source", WORDS)
def test_a_pod_that_is_gone_but_has_a_cgroup_still_holds_its_gpu(source):
    """It was deleted by force, or the kubelet has not cleaned up: free only when gone."""
    ledger = merge(evidence(statement_of(source, A), **GONE, live_pods=frozenset({"u1"})))
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
def test_a_leftover_of_a_dead_pod_is_a_conflict_where_its_source_should_have_removed_it(
    source, around, normal
):
    statement = statement_of(source, A, 2)
    ledger = merge(evidence(statement, **around))
    assert where(ledger) == {}
    assert ledger.leftovers == (statement,)
    assert kinds(ledger) == ([] if normal else [ConflictKind.HELD_BY_NOBODY_ALIVE])


def test_a_region_of_a_pod_that_the_node_still_has_a_name_for_is_no_orphan():
    around = {**NO_API, "live_pods": frozenset()}
    statement = statement_of(Source.SHIM, A)
    assert kinds(merge(evidence(statement, **around))) == [ConflictKind.HELD_BY_NOBODY_ALIVE]
    assert kinds(merge(evidence(statement, **around, names={"u1": ref("u1")}))) == []


# ---------------------------------------------------------------- one pod, several UIDs


def test_a_static_pod_is_known_by_the_uid_that_the_kubelet_has_for_it():
    informer = pod("api", annotations={MIRROR: "u1"})
    ledger = merge(evidence(statement_of(Source.CHECKPOINT, A), pods=(informer,)))
    (holding,) = ledger.holdings
    assert holding.pod == PodRef("u1", "team", "pod-api")


def test_a_share_pod_is_the_pod_that_was_made_for_it():
    share_pod = pod("sp", "Pending", None, annotations={SHARE_POD: "u1"})
    ended = pod("u1", "Failed", ContainerState.TERMINATED)
    statement = statement_of(Source.LIMIT_FILE, A)
    assert where(merge(evidence(statement, pods=(share_pod,)))) == {("u1", "main"): [A]}
    for pods in ((share_pod, ended), (ended, share_pod)):
        assert where(merge(evidence(statement, pods=pods))) == {}


@pytest.mark.parametrize("source", KUBELET)
def test_names_come_from_any_source_that_has_them(source):
    statement = statement_of(source, A)
    living = {"live_pods": frozenset({"u1"})}
    known = merge(evidence(statement, **NO_API, **living, names={"u1": ref("u1")}))
    nameless = merge(evidence(statement, **NO_API, **living))
    assert [h.pod for h in known.holdings] == [ref("u1")]
    assert [h.pod for h in nameless.holdings] == [PodRef("u1", "", "")]
