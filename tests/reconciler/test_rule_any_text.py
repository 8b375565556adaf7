"""Whatever stands in pods and nodes, the rules on them give findings that a person can read."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Edit, Evict, ObjectKind, Snapshot
from reconciler.policy import Policy
from reconciler.rules.leftovers import leftover_claim
from reconciler.rules.rejected_pods import no_gpu_matched, prestart_failed, refused
from reconciler.rules.scheduler_marks import (
    assumed_expired,
    assumed_unbound,
    stale_handshake,
    stale_lock,
)
from tests.reconciler.samples import CODECS, CODECS_IN_USE, NOW, assumed, handshake, lock, node, pod
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, ContainerState, Node, OwnerReference, Pod, Status

RULES = (
    *(refused, prestart_failed, no_gpu_matched, assumed_expired, assumed_unbound),
    *(stale_lock, stale_handshake, leftover_claim),
)

HOSTILE = (
    *("", "\0", "\ud800", "\x1b[2J", "é", "%s", "{0}", "null", "[", ",", ":", ";", "true", "false"),
    *("-1", "1e999", "9" * 30, str(2**63), "Deleted_", "Deleted_0000-00-00 00:00:00", "failed"),
    *("allocating", "success", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59,a,b"),
    *("UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "PreStartContainer check failed"),
    *("no-gpu-has-8GiB-to-run", "StartError", "Pending", "Running", "Failed", "Succeeded"),
)
TEXT = st.sampled_from(HOSTILE) | st.text(max_size=8)
TIME = st.none() | st.floats(-1e12, 1e12) | st.sampled_from([0.0, NOW, NOW - 400, NOW + 1])

SAID = {
    key: text
    for style in CODECS
    for one in (assumed(style=style), pod(style=style))
    for key, text in one.annotations.items()
} | {"hami.io/bind-phase": "success", "vgpu.dev/reconcile": "false"}
MARKED = {**node().annotations, **lock(pod()), **lock(style="volcano"), **handshake()} | handshake(
    style="volcano"
)
RESOURCES = sorted(node().capacity)


def texts(known):
    """Annotations: some of the known ones, as they are or with any text."""
    annotations = st.sampled_from(sorted(known)).flatmap(
        lambda key: st.tuples(st.just(key), st.just(known[key]) | TEXT)
    )
    return st.lists(annotations, max_size=8).map(dict)


AMOUNTS = st.dictionaries(st.sampled_from(RESOURCES), st.integers(-1, 2**63), max_size=3)
STATUSES = st.builds(
    Status,
    name=TEXT,
    state=st.sampled_from(ContainerState),
    kind=st.sampled_from(ContainerKind),
    reason=TEXT,
    message=TEXT,
    finished_at=TIME,
)
CONTAINERS = st.builds(
    Container, TEXT | st.just("main"), AMOUNTS, st.sampled_from(ContainerKind), st.just({})
)
PODS = st.builds(
    Pod,
    ref=st.builds(PodRef, st.sampled_from("abc"), TEXT, TEXT),
    resource_version=TEXT,
    node=st.sampled_from(["", "gpu-1", "gone"]),
    annotations=texts(SAID),
    containers=st.lists(CONTAINERS, max_size=3).map(tuple),
    phase=st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Unknown", ""]),
    reason=TEXT,
    message=TEXT,
    statuses=st.lists(STATUSES, max_size=2).map(tuple),
    created_at=TIME,
    deleted_at=TIME,
    scheduled_at=TIME,
    unschedulable=TEXT,
    owner=st.none() | st.builds(OwnerReference, st.sampled_from(["ReplicaSet", "Job"]), TEXT, TEXT),
    started_at=TIME,
    status_at=TIME,
    gated=st.booleans(),
)
NODES = st.builds(
    Node,
    name=st.just("gpu-1") | TEXT,
    annotations=texts(MARKED),
    capacity=AMOUNTS,
    allocatable=AMOUNTS,
    ready=st.booleans(),
    uid=TEXT,
)


def unique(key):
    return lambda objects: tuple({key(each): each for each in objects}.values())


SNAPSHOTS = st.builds(
    Snapshot,
    now=st.just(NOW),
    complete=st.sets(st.sampled_from(Coverage)).map(frozenset),
    nodes=st.lists(NODES, max_size=2).map(unique(lambda each: each.name)),
    pods=st.lists(PODS, max_size=3).map(unique(lambda each: each.ref.uid)),
)


@pytest.mark.slow
@given(seen=SNAPSHOTS)
@example(seen=Snapshot(NOW))
def test_any_pod_and_node_gives_findings_that_a_person_can_read(seen):
    """Every rule on every example: an example takes longer to draw than all rules take on it."""
    pods = {each.ref.uid: each for each in seen.pods}
    nodes = {each.name: each for each in seen.nodes}
    cluster_index = ClusterIndex(seen, CODECS_IN_USE)
    findings = [(rule, finding) for rule in RULES for finding in rule(cluster_index, Policy())]
    for rule, finding in findings:
        assert finding.rule == rule.__name__
        assert finding.evidence
        assert all(0 < len(line) < 1_000 for line in finding.evidence)
        object_ref, action = finding.object_ref, finding.action
        if object_ref.kind is ObjectKind.NODE:
            of, version = nodes[object_ref.name], ""
        else:
            of = pods[object_ref.uid]
            version = of.resource_version
        if isinstance(action, Evict):
            assert action == Evict(of.ref, version)
        elif isinstance(action, Edit):
            assert (action.target, action.resource_version) == (object_ref, version)
            assert action.before == {key: of.annotations[key] for key in action.before}
            assert action.before.keys() == action.after.keys() != set()
            assert action.before != action.after
        else:
            assert finding.cause == "malformed"


@pytest.mark.slow
@given(seen=SNAPSHOTS)
def test_a_pod_that_runs_or_may_yet_be_served_loses_no_claim(seen):
    """But for one whose containers all run and whose plugin marked it as done."""
    pods = {each.ref.uid: each for each in seen.pods}
    cluster_index = ClusterIndex(seen, CODECS_IN_USE)
    for rule in (assumed_unbound, leftover_claim):
        for finding in rule(cluster_index, Policy()):
            if finding.action is not None:
                of = pods[finding.object_ref.uid]
                done = "success" in of.annotations.values() and of.phase == "Running"
                assert of.terminal or done or not of.node
