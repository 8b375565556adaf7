"""Explanations beside the other commands: what these know of an object is in its explanation."""

import pytest
from hypothesis import given

from tests.explain.test_explain_properties import all_findings, explained, lock_owners
from tests.scheduler.agreement import UNITS, clusters
from vgpu.inventory import detect_schemes, inventory
from vgpucli.explain.evidence import ClusterEvidence, ClusterObjects
from vgpucli.explain.node import explain_gpu, explain_node, gpu_entry
from vgpucli.explain.pod import explain_pod

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
