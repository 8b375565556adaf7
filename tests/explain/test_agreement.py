"""Explanations beside the other commands: what these know of an object is in its explanation."""

import pytest
from hypothesis import given
from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from reconciler.ledger_cache import LedgerCache
from reconciler.model import Coverage, Snapshot
from reconciler.observe.cluster import cluster_view
from reconciler.reasons import Cause, Rule
from tests.explain.test_explain_properties import all_findings, explained, lock_owners
from tests.scheduler.agreement import NOW, UNITS, clusters, nodes_of_one_system
from tests.scheduler.test_differential import limits
from tests.scheduler.test_promise import NODES
from vgpu.inventory import Objects, detect_schemes, inventory
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.node_view import StandingReason
from vgpucli.explain.evidence import ClusterEvidence, ClusterObjects
from vgpucli.explain.model import ExplainReason
from vgpucli.explain.node import explain_gpu, explain_node, gpu_entry
from vgpucli.explain.pod import explain_pod

HOUR = 3600.0
FINE = ("runs and has its share", "othing is wrong", "Nothing that was checked is wrong")


def evidence_of(cluster):
    owners = lock_owners(cluster.objects, detect_schemes(cluster.objects, UNITS))
    objects = ClusterObjects(cluster.objects, cluster.now, lock_owners=owners)
    return ClusterEvidence(objects, UNITS)


def codes(explanation):
    return {
        (reason.code, reason.rule)
        for step in explanation.steps
        for reason in (*step.reasons, *step.remarks)
    }


def is_fine(explanation):
    return any(text in explanation.conclusion for text in FINE)


@given(clusters())
def test_each_finding_is_in_the_explanation_of_its_object_which_is_never_called_fine(cluster):
    evidence = evidence_of(cluster)
    broken = {each.ref.name for each in cluster.objects.malformed}
    for finding in all_findings(cluster.objects, cluster.now, UNITS):
        if finding.object_ref.name in broken:
            continue  # there is nothing of it to explain but this
        explanation = explained(evidence, finding)
        assert (finding.cause, finding.rule) in codes(explanation)
        assert not is_fine(explanation)


@pytest.mark.slow
@given(clusters())
def test_each_conflict_is_in_the_explanations_of_its_pods_and_of_its_gpu(cluster):
    evidence = evidence_of(cluster)
    for view in inventory(cluster.objects, UNITS, cluster.now).nodes:
        if not view.known:
            continue
        of_node = evidence.of_node(evidence.node(view.node.name))
        for conflict in view.ledger.conflicts:
            about = []
            entry = gpu_entry(of_node, conflict.device) if conflict.device else None
            if entry is not None:
                about.append(explain_gpu(of_node, entry))
            if conflict.pod is not None:
                pod = evidence.pod(conflict.pod.namespace, conflict.pod.name)
                about.append(explain_pod(evidence.of_pod(pod)))
            for explanation in about:
                assert not is_fine(explanation)


@given(clusters())
def test_each_pod_in_the_way_is_named_by_inspect_and_by_the_explanation_of_its_node(cluster):
    evidence = evidence_of(cluster)
    for view in inventory(cluster.objects, UNITS, cluster.now).nodes:
        if not view.known:
            continue
        explanation = explain_node(evidence.of_node(evidence.node(view.node.name)))
        texts = [text for step in explanation.steps for text in step.evidence]
        for each in view.standing:
            assert any(each.text in text for text in texts)
        if view.standing or view.placement.closed is not None:
            assert not is_fine(explanation)


@pytest.mark.slow
@given(clusters())
def test_no_scheduler_is_called_stale_beside_a_pod_in_the_way(cluster):
    evidence = evidence_of(cluster)
    shown = inventory(cluster.objects, UNITS, cluster.now)
    waiting = evidence.pod("ns", "wants")
    if waiting is not None and any(view.standing for view in shown.nodes):
        reasons = codes(explain_pod(evidence.of_pod(waiting)))
        assert (ExplainReason.STALE_SCHEDULER, "") not in reasons


@pytest.mark.slow
@given(clusters())
def test_the_reconciler_knows_the_pods_in_the_way_that_inspect_names(cluster):
    """Bound pods by their requests; reservations that nobody has bound for hours by a finding."""
    objects, evidence = cluster.objects, evidence_of(cluster)
    named = nodes_of_one_system(objects)
    schemes = detect_schemes(objects, UNITS)
    snapshot = Snapshot(now=cluster.now, complete=frozenset(Coverage))
    view = cluster_view(snapshot, objects, schemes, LedgerCache(), {})
    lacking = set(ClusterIndex(view.snapshot, view.codecs).without_gpu)
    findings = all_findings(objects, cluster.now, UNITS)
    unbound = {each.object_ref.uid for each in findings if each.rule is Rule.ASSUMED_UNBOUND}
    for of_node in inventory(objects, UNITS, cluster.now).nodes:
        if of_node.node.name not in named:
            continue
        for standing in of_node.standing:
            if standing.reason is not StandingReason.RESERVED:
                assert standing.pod.uid in lacking
            elif cluster.now - NOW > HOUR:
                assert standing.pod.uid in unbound
                explanation = explain_node(evidence.of_node(of_node.node))
                texts = [text for step in explanation.steps for text in step.evidence]
                assert any(text.endswith("(assumed_unbound)") for text in texts)


def test_a_bound_pod_that_waits_without_a_claim_is_reported_where_nothing_else_is_wrong():
    node = structs.replace(NODES["gaia"], ready=True)
    asked = limits("gaia", 1, 1)
    waits = Pod(
        PodRef("uid", "ns", "waits"),
        node=node.name,
        containers=(Container("main", asked),),
        phase="Pending",
        scheduled_at=NOW - HOUR,
    )
    (finding,) = all_findings(Objects((node,), (waits,)), NOW, UNITS)
    assert (finding.rule, finding.cause) == (Rule.ASSUMED_EXPIRED, Cause.WITHOUT_CLAIM)
