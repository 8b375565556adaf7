"""A step is passed only with evidence; what the evidence of pods on lost nodes is."""

import pytest
from msgspec import structs

from tests.explain.test_explain_pods import (
    asking,
    decisive,
    explanation,
    gpushare_node,
    outcomes,
)
from tests.reconciler.samples import HOUR, NOW, lock, node, pod, refused
from vgpu.inventory import Objects
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.names import Phase, PodRef
from vgpu.model.objects import Container, Namespace, Node, Pod, UsedClaim
from vgpu.model.resource_claims import (
    AllocatedDevice,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
)
from vgpu.model.taints import Taint
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.evidence import ClusterEvidence
from vgpucli.explain.model import ExplainOutcome, WayStep
from vgpucli.explain.node import explain_gpu, explain_node
from vgpucli.explain.pod import explain_pod


def test_a_passed_step_has_evidence_and_a_step_that_is_not_checked_has_its_needs():
    for one in (
        pod("train-0", "gpushare", phase="Running"),
        structs.replace(pod("train-0", "gpushare", phase="Succeeded"), statuses=()),
        asking(),
        refused(pod("train-0", "hami")),
        nvidia("gpu-1", "Running"),
        nvidia("", "Pending"),
    ):
        for step in explanation(one, gpushare_node(), whole()).steps:
            if step.outcome is ExplainOutcome.PASSED:
                assert any(step.evidence), step.step
            assert bool(step.needs) is (step.outcome is ExplainOutcome.NOT_CHECKED), step.step


def whole(name="gpu-9", capacity=8, allocatable=8):
    units = ({"nvidia.com/gpu": number} for number in (capacity, allocatable))
    return Node(name, ready=True, capacity=next(units), allocatable=next(units))


def nvidia(on, phase, number=4, **fields):
    """A pod of NVIDIA's own plugin."""
    return Pod(
        PodRef(f"uid-{on}", "ml", f"whole-{on}"),
        node=on,
        containers=(Container("main", {"nvidia.com/gpu": number}),),
        phase=phase,
        scheduled_at=NOW - HOUR,
        **fields,
    )


def test_the_nodes_of_a_pod_of_nvidias_plugin_are_those_that_lack_units():
    message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    waits = nvidia("", "Pending", unschedulable=message)
    full = nvidia("gpu-8", "Running", 8)
    explained = explanation(waits, whole("gpu-8"), whole("gpu-9", allocatable=0), full)
    assert decisive(explained) == (WayStep.NODES, ExplainOutcome.FAILED, ["units_missing"])
    assert explained.decisive.evidence[:2] == (
        "gpu-9: 0 of 8 nvidia.com/gpu allocatable, bound pods request 0",
        "gpu-8: 8 of 8 nvidia.com/gpu allocatable, bound pods request 8",
    )
    assert "gpu-9: 0 of 8" in explained.conclusion
    free = explanation(waits, whole("gpu-8"), whole("gpu-9"), full)
    assert outcomes(free)[WayStep.NODES] is ExplainOutcome.PASSED
    assert decisive(free)[2] == ["unknown_refusal"]
    assert free.advice == ""


@pytest.mark.parametrize("style", ["hami", "nvidia"])
def test_a_pod_that_runs_on_a_node_that_is_not_ready_or_gone_is_not_reported_as_well(style):
    if style == "nvidia":
        one, there = nvidia("gpu-1", "Running"), whole("gpu-1")
    else:
        one, there = pod("train-0", "hami", phase="Running"), node("gpu-1", "hami")
    for nodes, code in (
        ((structs.replace(there, ready=False),), "not_ready"),
        ((whole("gpu-2"),), "node_gone"),
    ):
        explained = explanation(one, *nodes)
        assert decisive(explained) == (WayStep.USE, ExplainOutcome.FAILED, [code])
        assert "runs and has" not in explained.conclusion
        assert "delete the pod" not in explained.advice


def test_a_quota_is_not_checked_where_neither_namespace_nor_quotas_were_read():
    step = explanation(asking()).steps[1]
    assert step.outcome is ExplainOutcome.NOT_CHECKED
    assert step.needs == "Namespace ml and its ResourceQuotas"
    step = explanation(asking(), namespaces=(Namespace("ml"),)).steps[1]
    assert step.outcome is ExplainOutcome.PASSED


def test_annotations_for_another_node_fail_the_reservation():
    moved = structs.replace(pod("train-0", "hami", phase="Running"), node="gpu-2")
    nodes = node("gpu-1", "hami"), node("gpu-2", "hami")
    explained = explanation(moved, *nodes)
    assert decisive(explained) == (WayStep.RESERVED, ExplainOutcome.FAILED, ["node_differs"])
    assert "the annotations name gpu-1, the pod is bound to gpu-2" in explained.conclusion


@pytest.mark.parametrize("reason", ["Evicted", "DeadlineExceeded"])
def test_a_pod_that_was_ended_did_run(reason):
    one = structs.replace(
        pod("train-0", "gpushare", phase="Failed"), statuses=(), reason=reason, message="x"
    )
    found = outcomes(explanation(one))
    for step in (WayStep.ADMITTED, WayStep.ALLOCATED, WayStep.STARTED):
        assert found[step] is ExplainOutcome.PASSED, step


def test_the_containers_of_a_refused_pod_never_ran():
    explained = explanation(refused(pod("train-0", "hami")), node("gpu-1", "hami"))
    assert outcomes(explained)[WayStep.STARTED] is ExplainOutcome.WAITING
    texts = " ".join(text for step in explained.steps for text in step.evidence)
    assert "the containers run" not in texts


def test_a_pod_that_is_being_deleted_has_the_finalizers_that_are_left():
    one = pod("train-0", "gpushare", phase="Running", deleted_at=NOW - 1, finalizers=("a.io/b",))
    explained = explanation(one)
    assert decisive(explained) == (WayStep.USE, ExplainOutcome.WAITING, ["deleting"])
    assert "finalizers that are left: a.io/b" in explained.conclusion


def test_a_remark_is_in_the_closing_sentence():
    annotations = {"vgpu.dev/quota-memory": "40Gi", "vgpu.dev/over-quota": "memory"}
    explained = explanation(
        pod("train-0", "gpushare", phase="Running"),
        namespaces=(Namespace("ml", annotations=annotations),),
    )
    remark = explained.steps[1].remarks[0].explanation
    assert explained.conclusion.endswith(f"; Namespace ml: {remark} (step quota)")


# ---------------------------------------------------------------- ResourceClaims

GPU_DEVICE = "gpu-0"
SLICES = (
    ResourceSlice(
        "s", "gpu.nvidia.com", "gpu-1", 1, 1, "gpu-1", (PublishedDevice(GPU_DEVICE, "GPU-1"),)
    ),
)


def of_claims(one, *claims, **fields):
    known = ClusterResourceClaims(claims, SLICES, (one,))
    node = Node("gpu-1", ready=True)
    objects = Objects((node,), resource_claims=known)
    evidence = ClusterEvidence(ClusterObjects(objects, NOW, **fields))
    return evidence, explain_pod(evidence.of_pod(evidence.pod("ml", "claims")))


def claiming(on, phase, **fields):
    return Pod(
        PodRef("uid-claims", "ml", "claims"),
        node=on,
        phase=phase,
        containers=(Container("main"),),
        uses_resource_claims=True,
        **fields,
    )


def test_a_pod_whose_gpus_come_from_a_resource_claim_is_explained_by_it():
    one = claiming("gpu-1", "Running")
    allocated = (AllocatedDevice("r", "gpu.nvidia.com", "gpu-1", GPU_DEVICE),)
    claim = ResourceClaim("u", "ml", "claims-gpu", allocated, (one.ref,), node="gpu-1")
    evidence, explained = of_claims(one, claim)
    found = outcomes(explained)
    assert explained.decisive is None
    assert "come from ResourceClaims" in explained.steps[0].evidence[0]
    assert explained.steps[3].evidence[1] == (
        "ResourceClaim ml/claims-gpu has gpu-0 of gpu.nvidia.com on node gpu-1"
    )
    assert found[WayStep.ALLOCATED] is ExplainOutcome.PASSED
    assert "main holds a share of GPU-1 (resource-claim)" in explained.steps[-1].evidence[0]
    of_node = explain_node(evidence.of_node(evidence.node("gpu-1")))
    steps = {step.step: step for step in of_node.steps}
    registered = steps[WayStep.REGISTERED]
    assert registered.outcome is ExplainOutcome.PASSED
    assert registered.evidence == ("1 device in the ResourceSlices of DRA driver gpu.nvidia.com",)
    assert steps[WayStep.PLUGIN].evidence == ("gpu.nvidia.com: 1 device",)
    assert steps[WayStep.RECORDS].evidence == ("1 pod with devices",)
    assert of_node.lines == ("GPU-1: free memory unknown, 1 share",)


def test_a_pod_that_waits_for_its_resource_claim_has_the_message():
    message = "0/1 nodes are available: 1 cannot allocate all claims."
    _, explained = of_claims(claiming("", "Pending", unschedulable=message))
    assert decisive(explained)[2] == ["resource_claims_wait"]
    assert "cannot allocate all claims" in explained.conclusion


GPUS_OF_CLAIMS = "gpu-1: 1 of 1 GPU of gpu.nvidia.com not allocated"


@pytest.mark.parametrize(
    ("used", "claims", "code", "detail", "advice"),
    [
        (
            UsedClaim("gpu", "claims-gpu", "gpu"),
            (ResourceClaim("u", "ml", "claims-gpu", ()),),
            "resource_claims_wait",
            f"ResourceClaim ml/claims-gpu is not allocated; {GPUS_OF_CLAIMS}",
            "kubectl describe resourceclaim -n ml claims-gpu",
        ),
        (
            UsedClaim("gpu", "claims-gpu", "gpu"),
            (
                ResourceClaim(
                    "u",
                    "ml",
                    "claims-gpu",
                    (),
                    device_classes=("mig.nvidia.com",),
                    has_selectors=True,
                ),
            ),
            "resource_claims_wait",
            (
                "ResourceClaim ml/claims-gpu is not allocated (not checked: which devices match"
                f" DeviceClass mig.nvidia.com and its selectors (CEL)); {GPUS_OF_CLAIMS}"
            ),
            "kubectl describe resourceclaim -n ml claims-gpu",
        ),
        (
            UsedClaim("gpu", "", "gpu"),
            (),
            "resource_claim_missing",
            "no ResourceClaim has been made from ResourceClaimTemplate ml/gpu",
            "check that ResourceClaimTemplate ml/gpu exists",
        ),
        (
            UsedClaim("gpu", "shared"),
            (ResourceClaim("u", "ml", "other", ()),),
            "resource_claim_missing",
            "ResourceClaim ml/shared does not exist",
            "create ResourceClaim ml/shared",
        ),
    ],
)
def test_a_pod_that_waits_for_a_resource_claim_names_it(used, claims, code, detail, advice):
    waits = claiming("", "Pending", used_claims=(used,))
    for message in ("", "0/1 nodes are available: waiting for resource claim to be allocated."):
        one = structs.replace(waits, unschedulable=message)
        _, explained = of_claims(one, *claims, claims_read=True)
        assert decisive(explained)[2] == [code]
        assert explained.decisive.detail == detail
        assert explained.advice.startswith(advice)
    other = structs.replace(waits, unschedulable="0/1 nodes are available: 1 Insufficient cpu.")
    _, explained = of_claims(other, *claims, claims_read=True)
    assert decisive(explained)[2] == ["other_checks"]


def test_a_resource_claim_that_was_not_read_is_not_called_missing():
    used = (UsedClaim("gpu", "shared"),)
    _, explained = of_claims(claiming("", "Pending", used_claims=used))
    assert "ResourceClaim ml/shared was not read" in explained.steps[2].evidence
    assert decisive(explained)[2] == ["not_scheduled"]


def test_a_resource_that_no_node_but_a_dra_driver_has_is_none_of_nvidias_plugin():
    one = structs.replace(
        nvidia("", "Pending", 1),
        unschedulable="0/1 nodes are available: 1 cannot allocate all claims.",
    )
    known = ClusterResourceClaims((), SLICES)
    node = Node("gpu-1", ready=True)
    evidence = ClusterEvidence(ClusterObjects(Objects((node,), (one,), resource_claims=known), NOW))
    explained = explain_pod(evidence.of_pod(evidence.pod("ml", "whole-")))
    assert explained.system == "a DRA driver"
    assert explained.steps[0].evidence == (
        "1 nvidia.com/gpu, which no node advertises: a DRA driver has the GPUs",
    )
    assert decisive(explained)[2] == ["resource_claims_wait"]
    assert explained.decisive.detail == GPUS_OF_CLAIMS
    assert "DeviceClass" in explained.advice
    advertising = structs.replace(evidence.read.objects, nodes=(whole("gpu-1"),))
    evidence = ClusterEvidence(ClusterObjects(advertising, NOW))
    assert evidence.of_pod(evidence.pod("ml", "whole-")).observed == {"nvidia.com/gpu": 1}


def test_the_advice_of_a_message_about_resource_claims_is_about_them():
    message = "0/1 nodes are available: 1 cannot allocate all claims."
    _, explained = of_claims(claiming("", "Pending", unschedulable=message))
    assert outcomes(explained)[WayStep.NODES] is ExplainOutcome.NOT_CHECKED
    assert "resourceclaim" in explained.advice


def test_what_is_wrong_with_the_node_of_a_pod_that_does_not_run_is_a_remark():
    locked = node("gpu-1", "hami", annotations=lock(refused(pod("before", "hami"))))
    for one, remarks in (
        (pod("train-0", "hami", claim=Phase.ASSUMED, phase="Pending"), ["stale_lock"]),
        (pod("train-0", "hami", phase="Running"), []),
    ):
        explained = explanation(one, locked, refused(pod("before", "hami")))
        assert [each.rule for each in explained.steps[2].remarks] == remarks


INSUFFICIENT = (
    "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable."
)


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"unschedulable": True}, "uncordon"),
        ({"ready": False}, "repair the node"),
        ({"taints": (Taint("team", "x", "NoSchedule"),)}, "tolerate team=x:NoSchedule"),
    ],
)
@pytest.mark.parametrize("message", [INSUFFICIENT, "0/2 nodes are available: 2 Too many pods.", ""])
def test_free_units_of_a_node_that_is_closed_are_not_missing(fields, advice, message):
    waits = nvidia("", "Pending", 8, unschedulable=message)
    full = nvidia("gpu-8", "Running", 8)
    closed = structs.replace(whole("gpu-9"), **fields)
    explained = explanation(waits, whole("gpu-8"), closed, full)
    assert decisive(explained) == (WayStep.NODES, ExplainOutcome.FAILED, ["nodes_closed"])
    assert "gpu-9" in explained.conclusion
    assert advice in explained.advice
    assert "end other pods" not in explained.advice
    reserved = explained.steps[3]
    assert "units_in_use" not in {reason.code for reason in reserved.reasons}
    assert "allocation records" not in " ".join(reserved.evidence)


def test_units_in_use_of_an_observed_pod_are_shown_by_step_nodes_alone():
    waits = nvidia("", "Pending", unschedulable=INSUFFICIENT)
    explained = explanation(waits, whole("gpu-8"), nvidia("gpu-8", "Running", 8))
    assert [each.code for each in explained.steps[2].reasons] == ["units_missing"]
    assert [each.code for each in explained.steps[3].reasons] == ["unschedulable"]


def test_what_is_wrong_with_a_closed_node_is_no_reason_of_an_open_one():
    """Its reservations, locks and units refuse no pod that it does not take anyway."""
    message = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu."
    waits = pod("waits", "hami", node="", claim=None, phase="Pending", unschedulable=message)
    waits = structs.replace(waits, statuses=())
    one = {"nvidia.com/gpu": 1}
    used = structs.replace(node("gpu-1", "hami"), capacity=one, allocatable=one)
    away = structs.replace(node("gpu-2", "hami"), ready=False, allocatable={"nvidia.com/gpu": 0})
    moved = structs.replace(pod("moved", "hami", node="gpu-2", phase="Running"), node="gpu-1")
    explained = explanation(waits, used, away, moved)
    assert decisive(explained)[2] == ["units_in_use"]


# ---------------------------------------------------------------- dumps without a kind


def from_dump(nodes=(), pods=(), **fields):
    objects = Objects(tuple(nodes), tuple(pods))
    return ClusterEvidence(ClusterObjects(objects, NOW, is_dump=True, **fields))


@pytest.mark.parametrize("of_nvidia", [False, True])
@pytest.mark.parametrize("message", ["", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."])
def test_a_dump_without_nodes_shows_nothing_about_their_room(of_nvidia, message):
    one = nvidia("", "Pending") if of_nvidia else asking()
    one = structs.replace(one, unschedulable=message)
    explained = explain_pod(from_dump(pods=[one]).of_pod(one))
    step = explained.steps[2]
    assert step.outcome is ExplainOutcome.NOT_CHECKED
    assert message == "" or "kubectl get nodes" in step.needs
    assert "device plugin" not in explained.advice
    assert not message or "nodes, too" in explained.advice


def test_an_api_server_without_nodes_has_none():
    evidence = ClusterEvidence(ClusterObjects(Objects((), (asking(),)), NOW))
    explained = explain_pod(evidence.of_pod(asking()))
    assert decisive(explained)[2] == ["no_gpus"]


def test_a_dump_without_nodes_calls_no_node_of_a_pod_away():
    one = structs.replace(pod("train-0", "hami", phase="Running"), deleted_at=NOW - HOUR)
    explained = explain_pod(from_dump(pods=[one]).of_pod(one))
    codes = {reason.code for reason in explained.steps[-1].reasons}
    assert "node_away" not in codes
    assert "containers_remain" in codes


def test_a_dump_without_pods_shows_nothing_about_who_holds_or_waits():
    old = {"hamivgpu": "2020-01-01T00:00:00Z"}
    there = node("gpu-1", "volcano", annotations=old)
    seen, unseen = (
        from_dump([there], pods_read=pods_read).of_node(there) for pods_read in (True, False)
    )
    for of_node, code, outcome in (
        (seen, "nobody_waits", ExplainOutcome.PASSED),
        (unseen, "lock_expired", ExplainOutcome.NOT_CHECKED),
    ):
        steps = {step.step: step for step in explain_node(of_node).steps}
        assert [each.code for each in steps[WayStep.LOCK].reasons] == [code]
        assert steps[WayStep.RECORDS].outcome is outcome
        gpu = explain_gpu(of_node, of_node.ledger.devices[0])
        assert gpu.steps[1].outcome is outcome
    assert "kubectl get pods" in explain_node(unseen).steps[4].needs
