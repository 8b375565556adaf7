"""Explanations against the programs that they explain, on generated clusters.

For each finding of the reconciler the object's explanation fails at the step of the rule, with the
same code; for each pod that the extender rejects it has the extender's reasons.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from reconciler.ledger_cache import LedgerCache
from reconciler.model import Coverage, ObjectKind, Snapshot
from reconciler.observe.cluster import cluster_view
from reconciler.observe.owners import named_owners
from reconciler.plan import find
from reconciler.reasons import Rule
from reconciler.rules import RULES
from tests.reconciler.samples import editing, evicting, node, pod
from tests.reconciler.test_invariants import clusters
from tests.scheduler.served import FILTER, NOW, Served
from tests.scheduler.test_differential import NAMES, QUARTERS, filled, limits
from tests.scheduler.test_promise import NODES, SCHEMES
from vgpu.inventory import Objects, Units, detect_schemes
from vgpu.kube.kinds import PODS
from vgpu.model.objects import Namespace
from vgpu.placement.dialects import demand_of
from vgpu.placement.result import PlacementRefusal
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.evidence import ClusterEvidence
from vgpucli.explain.model import ExplainedStep, ExplainOutcome, WayStep
from vgpucli.explain.near_findings import EVERY_RULE
from vgpucli.explain.node import explain_gpu, explain_node, gpu_entry
from vgpucli.explain.pod import explain_pod
from vgpucli.explain.rule_steps import (
    GPU_STEPS,
    NODE_STEPS,
    POD_STEPS,
    REMARKED_STEPS,
    step_of,
    with_findings,
)


def lock_owners(objects, schemes):
    """The owners of the nodes' locks that are asked for and do not exist."""
    known = {(each.ref.namespace, each.ref.name) for each in objects.pods}
    named = named_owners(objects.nodes, schemes.codecs)
    return {owner: None for owner in named if owner not in known}


def all_findings(objects, now, units=Units()):  # noqa: B008 - frozen
    """The findings of the whole cluster, as the reconciler has them."""
    schemes = detect_schemes(objects, units)
    owners = lock_owners(objects, schemes)
    snapshot = Snapshot(now=now, complete=frozenset(Coverage), lock_owners=owners)
    view = cluster_view(snapshot, objects, schemes, LedgerCache(), {})
    return list(find(ClusterIndex(view.snapshot, view.codecs), EVERY_RULE))


def step_with(explanation, step):
    return next(each for each in explanation.steps if each.step is step)


def explained(evidence, finding):
    """The explanation of a finding's object."""
    about = finding.object_ref
    if about.kind is ObjectKind.NODE:
        return explain_node(evidence.of_node(evidence.node(about.name)))
    if about.kind is ObjectKind.RESOURCE_CLAIM:
        return explain_node(evidence.of_node(evidence.node(about.home)))
    if about.kind is ObjectKind.DEVICE:
        of_node = evidence.of_node(evidence.node(about.node))
        return explain_gpu(of_node, gpu_entry(of_node, about.name))
    objects = (*evidence.schemes.pods, *evidence.read.objects.pods)
    by_uid = {uid: each for each in objects for uid in (each.ref.uid, each.kubelet_uid)}
    found = by_uid.get(about.uid) or evidence.pod(about.namespace, about.name)
    return explain_pod(evidence.of_pod(found))


@pytest.mark.slow
@given(clusters())
def test_each_finding_fails_the_step_of_its_rule_with_its_code(seen):
    objects = Objects(seen.nodes, seen.pods, seen.share_pods)
    owners = lock_owners(objects, detect_schemes(objects, Units()))
    evidence = ClusterEvidence(ClusterObjects(objects, seen.now, lock_owners=owners))
    for finding in all_findings(objects, seen.now):
        step = step_with(explained(evidence, finding), step_of(finding))
        assert step.outcome is ExplainOutcome.FAILED
        assert (finding.cause, finding.rule) in {(each.code, each.rule) for each in step.reasons}
        assert set(finding.evidence) <= set(step.evidence)


def test_each_rule_has_a_step_for_the_objects_that_it_reports():
    with_step = {*POD_STEPS, *NODE_STEPS, *GPU_STEPS}
    quota_rules = {Rule.QUOTA_DRIFT, Rule.QUOTA_MARK}
    assert with_step | quota_rules == {entry.rule for entry in RULES}
    assert with_step.isdisjoint(quota_rules)
    assert set(REMARKED_STEPS) == {
        ObjectKind.RESOURCE_QUOTA,
        ObjectKind.NAMESPACE,
        ObjectKind.DEVICE,
        ObjectKind.NODE,
        ObjectKind.POD,
    }


@given(st.sampled_from(sorted(POD_STEPS)), st.sampled_from(tuple(ExplainOutcome)))
def test_a_finding_fails_its_step_whatever_the_step_was(rule, outcome):
    finding = evicting(pod("train-0"), rule)
    for step in WayStep:
        judged = with_findings(ExplainedStep(step, outcome), [finding])
        is_own = step is POD_STEPS[rule]
        assert judged.outcome is (ExplainOutcome.FAILED if is_own else outcome)
        assert [each.rule for each in judged.reasons] == [rule] * is_own


def test_a_finding_about_a_node_is_none_about_a_pod():
    finding = editing(node("gpu-1"))
    assert step_of(finding) is WayStep.LOCK
    assert step_of(evicting(pod("train-0"), Rule.STALE_LOCK)) is None


# ---------------------------------------------------------------- the extender


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(NODES))
@given(data=st.data())
def test_a_rejected_pod_has_the_reasons_of_the_extender(system, data):
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == system)
    fillers = st.lists(st.tuples(QUARTERS, st.integers(1, 2)), max_size=5)
    nodes = {name: structs.replace(NODES[system], name=name, ready=True) for name in NAMES}
    pods = {name: filled(each, scheme, data.draw(fillers)) for name, each in nodes.items()}
    sent = json.loads(FILTER)
    asked = limits(system, data.draw(QUARTERS), data.draw(st.integers(1, 3)))
    texts = {name: str(amount) for name, amount in asked.items()}
    sent["Pod"]["spec"]["containers"][0]["resources"] = {"limits": texts}
    sent["NodeNames"] = list(NAMES)
    waiting = PODS.one(json.dumps(sent["Pod"]).encode())
    most = data.draw(st.sampled_from((None, None, 0, 1, 2, "x")))
    declared = {} if most is None else {"vgpu.dev/quota-gpus": str(most)}
    namespace = Namespace("ns", annotations=declared)
    served = Served()
    try:
        served.cache.set_namespace("ns", namespace)
        for name, each in nodes.items():
            served.cache.set_node(name, each)
            for bound in pods[name]:
                served.cache.set_pod(f"ns/{bound.ref.name}", bound)
        answer = served.post("/filter", json.dumps(sent).encode())
    finally:
        served.close()
    everyone = (*(each for bound in pods.values() for each in bound), waiting)
    objects = Objects(tuple(nodes.values()), everyone)
    evidence = ClusterEvidence(ClusterObjects(objects, NOW, (namespace,)))
    explanation = explain_pod(evidence.of_pod(waiting))
    refused = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
    quota = step_with(explanation, WayStep.QUOTA)
    if quota.outcome is ExplainOutcome.FAILED:  # every node has the quota's text
        assert refused.keys() == set(NAMES)
        assert {text in quota.evidence for text in refused.values()} == {True}
        assert explanation.decisive is quota
        return
    reported = {
        name: group.reason.explanation
        for group in explanation.nodes
        if group.reason is not None
        for name in group.names
    }
    assert reported == refused
    step = step_with(explanation, WayStep.NODES)
    if answer["NodeNames"]:
        assert step.outcome is ExplainOutcome.PASSED
    else:
        assert step.outcome is ExplainOutcome.FAILED
        assert {each.explanation for each in step.reasons} == set(refused.values())
        assert explanation.decisive is step
        assert step.reasons[0].explanation in explanation.conclusion


INVALID = {
    "several systems": {"aliyun.com/gpu-mem": "1", "tencent.com/vcuda-core": "10"},
    "a malformed number": {"aliyun.com/gpu-mem": "1500m"},
    "two containers' worth of whole GPUs": {"tencent.com/vcuda-core": "150"},
}


@pytest.mark.parametrize("name", sorted(INVALID))
def test_an_invalid_request_has_the_answer_of_the_extender(name):
    sent = json.loads(FILTER)["Pod"]
    sent["spec"]["containers"][0]["resources"] = {"limits": INVALID[name]}
    waiting = PODS.one(json.dumps(sent).encode())
    refusal = demand_of(waiting, SCHEMES)
    evidence = ClusterEvidence(ClusterObjects(Objects((), (waiting,)), NOW))
    step = explain_pod(evidence.of_pod(waiting)).steps[0]
    assert isinstance(refusal, PlacementRefusal)
    assert step.outcome is ExplainOutcome.FAILED
    assert [each.code for each in step.reasons] == [refusal.reason]
