"""Bound pods that claim GPUs and request none, and those whose GPUs are not known, are named."""

import pytest

from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.conflicts import running_without_device
from reconciler.rules.scheduler_marks import assumed_expired
from tests.reconciler.samples import node, pod, replace, snapshot, uuid, with_ledgers
from tests.reconciler.test_rule_conflicts import find, only
from vgpu.inventory import Objects
from vgpu.model.objects import Container
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.evidence import ClusterEvidence
from vgpucli.explain.model import ExplainOutcome, WayStep
from vgpucli.explain.node import explain_node
from vgpucli.explain.pod import explain_pod

NODE = node("gpu-1", "hami")
ACTS = Policy(modes=dict.fromkeys(Rule, Mode.APPLY), evict_running=True)
DEVICES = "hami.io/vgpu-devices-allocated"
READABLE = f"{uuid('gpu-1', 0)},NVIDIA,1,0:;"
COUNTED = ("gpumem", "gpucores", "gpumem-percentage", "priority")


def bound(asked, annotations=None, *, phase="Running", others=None, count=1):
    made = pod(style="hami", claim=None, phase=phase, annotations=annotations)
    names = ("main", "second")[:count]
    containers = tuple(Container(name, asked, others=others or {}) for name in names)
    return replace(made, containers=containers, annotations=annotations or {})


EMPTY = [
    *(({f"nvidia.com/{name}": 1}, {}) for name in COUNTED),
    ({}, {DEVICES: "x"}),
    ({}, {DEVICES: READABLE}),
    ({}, {"ALIYUN_COM_GPU_MEM_IDX": "0"}),
    ({"nvidia.com/gpumem": 1}, {DEVICES: READABLE}),
]


@pytest.mark.parametrize("phase", ["Pending", "Running"])
@pytest.mark.parametrize(("asked", "annotations"), EMPTY)
def test_a_bound_pod_that_claims_and_requests_nothing_is_reported_and_not_evicted(
    asked, annotations, phase
):
    claiming = bound(asked, annotations, phase=phase)
    seen = with_ledgers(snapshot(NODE, claiming))
    finding = only(running_without_device, seen, ACTS)
    assert finding.cause is Cause.CLAIM_WITHOUT_REQUEST
    assert (finding.object_ref.uid, finding.action) == (claiming.ref.uid, None)
    assert find(assumed_expired, seen, ACTS) == []


@pytest.mark.parametrize(("asked", "annotations"), EMPTY)
def test_explain_names_it_at_the_pod_and_at_its_node_and_the_node_stays_open(asked, annotations):
    claiming = bound(asked, annotations)
    known = ClusterEvidence(ClusterObjects(Objects((NODE,), (claiming,)), claiming.created_at))
    explained = explain_pod(known.of_pod(claiming))
    reasons = [reason.code for step in explained.steps for reason in step.reasons]
    assert Cause.CLAIM_WITHOUT_REQUEST in reasons
    (records,) = (
        step for step in explain_node(known.of_node(NODE)).steps if step.step is WayStep.RECORDS
    )
    assert records.outcome is ExplainOutcome.PASSED
    name = f"pod {claiming.ref.namespace}/{claiming.ref.name}"
    assert f"{name}: {Cause.CLAIM_WITHOUT_REQUEST.explanation}" in records.evidence


@pytest.mark.parametrize(
    "claiming",
    [
        bound({"nvidia.com/gpu": 1}, {DEVICES: READABLE}),
        bound({"nvidia.com/gpumem": 1}, {DEVICES: READABLE}, others={"acme.com/vgpu": 1}),
        bound({"nvidia.com/gpumem": 1}, others={"acme.com/vgpu": 1}),
        replace(bound({"nvidia.com/gpumem": 1}), node="", phase="Pending"),
    ],
    ids=["requests", "renamed", "renamed, no claim", "not bound"],
)
def test_a_pod_that_requests_a_gpu_by_any_name_is_not_reported(claiming):
    renamed = replace(NODE, others=frozenset({"acme.com/vgpu"}))
    seen = with_ledgers(snapshot(renamed, claiming))
    causes = [each.cause for each in find(running_without_device, seen)]
    assert Cause.CLAIM_WITHOUT_REQUEST not in causes


@pytest.mark.parametrize(
    ("limits", "annotations", "count", "cause"),
    [
        ({"nvidia.com/gpu": 1}, {}, 1, Cause.NO_CLAIM),
        ({"nvidia.com/gpu": 1}, {DEVICES: "x"}, 1, Cause.MALFORMED),
        ({"nvidia.com/gpu": 2}, {DEVICES: READABLE}, 1, Cause.NO_CLAIM),
        ({"nvidia.com/gpu": 1}, {DEVICES: READABLE}, 2, Cause.MALFORMED),
        (
            {"nvidia.com/gpu": 1},
            {DEVICES: READABLE, "hami.io/vgpu-node": "gpu-2"},
            1,
            Cause.NO_CLAIM,
        ),
    ],
    ids=["missing", "unreadable", "fewer GPUs", "fewer containers", "another node's"],
)
def test_a_running_pod_that_stands_in_the_way_is_named(limits, annotations, count, cause):
    standing = bound(limits, annotations, count=count)
    seen = with_ledgers(snapshot(NODE, standing))
    findings = find(running_without_device, seen, ACTS)
    assert [each.cause for each in findings] == [cause]
    assert "asks for" in " ".join(findings[0].evidence)


def test_a_waiting_pod_with_a_part_of_its_gpus_is_named():
    standing = bound({"nvidia.com/gpu": 2}, {DEVICES: READABLE}, phase="Pending")
    served = standing.annotations | {"hami.io/bind-phase": "success"}
    seen = with_ledgers(snapshot(NODE, replace(standing, annotations=served)))
    finding = only(assumed_expired, seen, ACTS)
    assert (finding.cause, finding.action) == (Cause.WITHOUT_CLAIM, None)
