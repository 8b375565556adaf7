"""What an explanation has of a pod at each point of its way, on small worked clusters."""

import pytest
from msgspec import structs

from tests.reconciler.samples import (
    GPU,
    HOUR,
    NOW,
    assumed,
    node,
    pod,
    prestart_failed,
    refused,
    waiting,
)
from vgpu.inventory import Objects
from vgpu.model.names import PodRef
from vgpu.model.objects import (
    Container,
    MalformedObject,
    Namespace,
    Node,
    Pod,
    ResourceQuota,
)
from vgpu.model.taints import CORDON, Taint, Toleration
from vgpu.model.units import GIB
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.evidence import ClusterEvidence
from vgpucli.explain.model import ExplainOutcome, WayStep
from vgpucli.explain.pod import explain_pod, explain_unreadable_pod

STALE = "0/1 nodes are available: 1 Insufficient aliyun.com/gpu-mem."


def gpushare_node(name="gpu-1", **fields):
    return node(name, "gpushare", **fields)


def asking(name="train-0", **fields):
    """A pod of gpushare that no scheduler has bound."""
    one = pod(name, "gpushare", node="", claim=None, phase="Pending")
    return structs.replace(one, statuses=(), scheduled_at=NOW - HOUR, **fields)


def explanation(one, *objects, **fields):
    pods = (*(each for each in objects if isinstance(each, Pod)), one)
    nodes = tuple(each for each in objects if isinstance(each, Node)) or (gpushare_node(),)
    evidence = ClusterEvidence(ClusterObjects(Objects(nodes, pods), NOW, **fields))
    return explain_pod(evidence.of_pod(evidence.pod(one.ref.namespace, one.ref.name)))


def outcomes(explained):
    return {step.step: step.outcome for step in explained.steps}


def decisive(explained):
    step = explained.decisive
    return step.step, step.outcome, [reason.code for reason in step.reasons]


def test_a_pod_that_runs_passes_every_step_and_has_its_share():
    explained = explanation(pod("train-0", "gpushare", phase="Running"))
    assert set(outcomes(explained).values()) == {ExplainOutcome.PASSED}
    assert explained.conclusion == "the pod runs and has its share of a GPU"
    assert explained.advice == ""
    assert "8.0 GiB of GPU 0" in " ".join(explained.steps[-1].evidence)
    reserved = explained.steps[3]
    assert "the scheduler of gpushare reserved 8.0 GiB of GPU 0" in reserved.evidence[0]


def test_a_pod_that_no_scheduler_has_looked_at():
    explained = explanation(asking())
    assert decisive(explained) == (WayStep.RESERVED, ExplainOutcome.WAITING, ["not_scheduled"])
    assert outcomes(explained)[WayStep.NODES] is ExplainOutcome.PASSED
    assert "schedulerName" in explained.advice


def test_a_scheduler_that_refuses_what_is_free_has_a_stale_memory():
    explained = explanation(asking(unschedulable=STALE))
    assert decisive(explained) == (WayStep.RESERVED, ExplainOutcome.FAILED, ["stale_scheduler"])
    assert "the scheduler's own memory is stale" in explained.conclusion
    assert any(STALE in text for text in explained.decisive.evidence)
    assert explained.decisive.since == NOW - HOUR
    assert "restart" in explained.advice


def test_units_that_other_pods_request_are_not_free_though_the_gpus_are():
    several = [pod(f"p-{n}", "hami", gpu=n % 2, phase="Running") for n in range(2)]
    hami = node("gpu-1", "hami")
    two = {"nvidia.com/gpu": 2}
    few = structs.replace(hami, capacity=two, allocatable=two)
    one = structs.replace(
        pod("train-0", "hami", node="", claim=None, phase="Pending"),
        statuses=(),
        unschedulable="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    )
    explained = explanation(one, few, *several)
    assert decisive(explained) == (WayStep.RESERVED, ExplainOutcome.FAILED, ["units_in_use"])


@pytest.mark.parametrize(
    "message",
    [
        "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}.",
        "0/1 nodes are available: 1 Insufficient cpu.",
        "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
    ],
)
def test_another_check_of_kube_scheduler_is_named_as_the_reason(message):
    explained = explanation(asking(unschedulable=message))
    assert decisive(explained) == (WayStep.RESERVED, ExplainOutcome.WAITING, ["other_checks"])
    assert any(message in text for text in explained.decisive.evidence)


def test_nodes_with_room_that_are_closed():
    closed = gpushare_node(ready=False)
    explained = explanation(asking(unschedulable=STALE), closed)
    assert decisive(explained) == (WayStep.NODES, ExplainOutcome.FAILED, ["nodes_closed"])
    cordoned = structs.replace(gpushare_node(), unschedulable=True)
    assert decisive(explanation(asking(), cordoned))[2] == ["nodes_closed"]
    assert explained.decisive.evidence == ("GPUs have room on 1 of 1 node: gpu-1",)


TAINT = Taint("team", "vision", "NoSchedule")
TOLERATION = Toleration("team", value="vision")


def answers(explained):
    return {name: str(group.reason) for group in explained.nodes for name in group.names}


def test_only_a_node_that_takes_new_pods_is_reported_to_have_room():
    """What keeps the pod away is the reason of a node whose GPUs have room."""
    well = gpushare_node("well")
    others = (
        structs.replace(well, name="away", ready=False, unschedulable=True),
        structs.replace(well, name="cordoned", unschedulable=True),
        structs.replace(well, name="tainted", taints=(TAINT,)),
        structs.replace(well, name="avoided", taints=(structs.replace(TAINT, effect="Prefer"),)),
    )
    explained = explanation(asking(), well, *others)
    assert answers(explained) == {
        "away": "not_ready",
        "cordoned": "cordoned_node",
        "tainted": "tainted_node",
        "avoided": "None",
        "well": "None",
    }
    step = explained.steps[2]
    assert step.outcome is ExplainOutcome.PASSED
    assert step.evidence == ("GPUs have room on 2 of 5 nodes: avoided, well",)
    details = {group.names: group.detail for group in explained.nodes}
    assert details["tainted",] == "team=vision:NoSchedule"
    passing = asking(tolerations=(TOLERATION, Toleration(operator="Exists", key=CORDON.key)))
    assert [
        name for name, why in answers(explanation(passing, *others)).items() if why != "None"
    ] == ["away"]


def test_a_reservation_has_who_made_it_and_when():
    explained = explanation(assumed("train-0", "hami"), node("gpu-1", "hami"))
    reserved = explained.steps[3]
    assert (reserved.step, reserved.outcome) == (WayStep.RESERVED, ExplainOutcome.PASSED)
    assert reserved.since == NOW - HOUR
    assert decisive(explained)[:2] == (WayStep.ALLOCATED, ExplainOutcome.FAILED)
    assert decisive(explained)[2][0] == "never_assigned"


def test_a_gate_keeps_schedulers_away():
    assert decisive(explanation(asking(gated=True)))[2] == ["gated"]


def test_nodes_are_grouped_by_their_reason_with_the_gpus():
    full = [
        pod(f"holder-{gpu}-{n}", "gpushare", node="gpu-1", gpu=gpu, phase="Running")
        for gpu in range(2)
        for n in range(GPU // (8 * GIB))
    ]
    other = node("hami-1", "hami")
    explained = explanation(asking(), gpushare_node(), gpushare_node("gpu-2", ready=False), other)
    assert next(group.reason for group in explained.nodes) is None
    explained = explanation(asking(), gpushare_node(), other, *full)
    assert {(str(group.reason), group.names) for group in explained.nodes} == {
        ("memory", ("gpu-1",)),
        ("no_gpus", ("hami-1",)),
    }
    (memory,) = (group for group in explained.nodes if group.reason == "memory")
    assert [(str(each.reason), each.gpus) for each in memory.gpus] == [("memory", 2)]
    assert memory.free_bytes == 0
    assert decisive(explained)[:2] == (WayStep.NODES, ExplainOutcome.FAILED)


@pytest.mark.parametrize(
    ("in_the_way", "code", "advice", "rule"),
    [
        (
            pod("other", "hami", claim=None, phase="Running"),
            "pod_without_gpu",
            "vgpu explain pod ml/other shows",
            "running_without_device",
        ),
        (
            structs.replace(assumed("other", "hami"), node="", statuses=()),
            "other_scheduler",
            "vgpu reconcile plan shows the repair",
            "assumed_unbound",
        ),
    ],
)
def test_a_pod_in_the_way_of_another_is_named_with_its_finding(in_the_way, code, advice, rule):
    waits = structs.replace(
        pod("train-0", "hami", node="", claim=None, phase="Pending"),
        containers=(Container("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 36 * 1024}),),
        unschedulable="0/1 nodes are available: 1 NodeInsufficientDevice.",
    )
    gpus = [pod(f"p-{n}", "hami", gpu=1, phase="Running") for n in range(4)]
    explained = explanation(waits, node("gpu-1", "hami"), in_the_way, *gpus)
    assert decisive(explained) == (WayStep.NODES, ExplainOutcome.FAILED, [code])
    assert "node gpu-1, pod ml/other: " in explained.conclusion
    assert explained.advice.startswith(advice)
    assert [each.rule for each in explained.steps[2].remarks] == [rule]


def test_a_node_that_refuses_for_its_own_state_is_named():
    mixed = explanation(asking(), node("gpu-1", "hami", "gpushare"))
    assert decisive(mixed)[2] == ["mixed_node"]
    assert mixed.advice == "vgpu explain node gpu-1 shows what is wrong there"


def test_no_node_registers_gpus():
    assert decisive(explanation(asking(), Node("cpu-1", ready=True)))[2] == ["no_gpus"]


def test_a_quota_that_refuses_the_pod_has_its_amounts():
    space = Namespace("ml", annotations={"vgpu.dev/quota-memory": "4Gi"})
    explained = explanation(asking(), namespaces=(space,))
    assert decisive(explained) == (WayStep.QUOTA, ExplainOutcome.FAILED, ["quota"])
    assert any("8.0 GiB requested" in text for text in explained.decisive.evidence)
    assert outcomes(explained)[WayStep.NODES] is ExplainOutcome.WAITING
    enough = Namespace("ml", annotations={"vgpu.dev/quota-memory": "40Gi"})
    assert (
        outcomes(explanation(asking(), namespaces=(enough,)))[WayStep.QUOTA]
        is ExplainOutcome.PASSED
    )


def test_a_quota_that_kubernetes_counts_differently_is_a_remark():
    quota = ResourceQuota(
        "ml",
        "gpus",
        hard={"requests.aliyun.com/gpu-mem": "100"},
        used={"requests.aliyun.com/gpu-mem": "50"},
    )
    explained = explanation(pod("train-0", "gpushare", phase="Running"), resource_quotas=(quota,))
    step = explained.steps[1]
    assert step.outcome is ExplainOutcome.PASSED
    assert [(each.code, each.rule) for each in step.remarks] == [("count_differs", "quota_drift")]


def test_a_mark_of_a_namespace_that_is_within_its_quota_is_a_remark():
    """An admission policy refuses new pods by it; a Namespace without the mark needs none."""
    annotations = {"vgpu.dev/quota-memory": "40Gi", "vgpu.dev/over-quota": "memory"}
    one = pod("train-0", "gpushare", phase="Running")
    marked = explanation(one, namespaces=(Namespace("ml", annotations=annotations),)).steps[1]
    assert [(each.code, each.rule) for each in marked.remarks] == [("mark_left", "quota_mark")]
    del annotations["vgpu.dev/over-quota"]
    other = explanation(one, namespaces=(Namespace("ml", annotations=annotations),)).steps[1]
    assert other.remarks == ()


def test_a_pod_that_the_kubelet_refused():
    explained = explanation(refused(pod("train-0", "gpushare")))
    assert decisive(explained)[:2] == (WayStep.ADMITTED, ExplainOutcome.FAILED)
    assert decisive(explained)[2][0] == "unexpected_admission_error"
    assert "refused" in explained.advice  # the runbook of the rule


def test_a_start_that_the_device_plugin_refuses():
    explained = explanation(prestart_failed(pod("train-0", "volcano")), node("gpu-1", "volcano"))
    assert decisive(explained)[:2] == (WayStep.ALLOCATED, ExplainOutcome.FAILED)
    assert "prestart_check_failed" in decisive(explained)[2]


def test_an_image_that_cannot_be_pulled_fails_at_the_start():
    one = waiting(pod("train-0", "gpushare"), "ImagePullBackOff", "no such image")
    explained = explanation(one)
    assert decisive(explained)[:2] == (WayStep.STARTED, ExplainOutcome.FAILED)
    assert any("no such image" in text for text in explained.decisive.evidence)


def test_a_bound_pod_that_no_gpu_scheduler_placed():
    one = structs.replace(asking(), node="gpu-1", started_at=NOW - HOUR)
    two_gpus = gpushare_node()
    assert decisive(explanation(one, two_gpus))[:2] == (WayStep.RESERVED, ExplainOutcome.FAILED)
    assert decisive(explanation(one, two_gpus))[2] == ["no_annotation"]


def test_a_pod_that_requests_nothing_of_a_gpu():
    one = Pod(PodRef("uid", "ml", "web"), phase="Pending")
    explained = explanation(one)
    assert decisive(explained) == (WayStep.REQUEST, ExplainOutcome.FAILED, ["nothing_requested"])
    assert all(step.outcome is not ExplainOutcome.PASSED for step in explained.steps)


def test_a_pod_that_has_ended_holds_nothing():
    one = structs.replace(pod("train-0", "gpushare", phase="Succeeded"), statuses=())
    explained = explanation(one)
    assert explained.steps[-1].outcome is ExplainOutcome.PASSED
    assert "has ended" in explained.steps[-1].evidence[0]


def test_a_pod_that_cannot_be_read():
    broken = MalformedObject("Pod", PodRef("uid", "ml", "odd"), "spec.nodeName is a number")
    explained = explain_unreadable_pod(broken, NOW)
    assert decisive(explained) == (WayStep.REQUEST, ExplainOutcome.FAILED, ["malformed"])
    evidence = ClusterEvidence(ClusterObjects(Objects(malformed=(broken,)), NOW))
    assert evidence.malformed_pod("ml", "odd") is broken
    assert evidence.malformed_pod("ml", "even") is None


def test_nobody_but_the_objects_near_the_pod_is_judged():
    """The explanation is the same in a large cluster."""
    others = [pod(f"far-{n}", "gpushare", node=f"gpu-{n}", phase="Running") for n in range(2, 9)]
    nodes = [gpushare_node(f"gpu-{n}") for n in range(2, 9)]
    one = pod("train-0", "gpushare", phase="Running")
    alone, among = (
        explanation(one, gpushare_node()),
        explanation(one, gpushare_node(), *nodes, *others),
    )
    assert alone == among


def test_a_pod_of_another_gpu_scheduler_is_not_judged():
    tenant = structs.replace(
        pod("train-0", "gpushare", claim=None, phase="Running"),
        labels={"runai-gpu-group": "g"},
        deleted_at=NOW - HOUR,
    )
    assert decisive(explanation(tenant))[2] == ["deleting"]
    explained = explanation(structs.replace(tenant, deleted_at=None))
    assert outcomes(explained)[WayStep.STARTED] is ExplainOutcome.PASSED
    assert outcomes(explained)[WayStep.ALLOCATED] is ExplainOutcome.NOT_CHECKED
    assert outcomes(explained)[WayStep.USE] is ExplainOutcome.NOT_CHECKED
    assert explained.conclusion == "the pod runs; its share of a GPU is unknown"
    text = "a pod of KAI Scheduler, by runai-gpu-group: its share is unknown"
    assert explained.steps[0].evidence == (text,)
    waits = structs.replace(asking(), annotations={"gpu-fraction": "0.5"}, containers=())
    assert decisive(explanation(waits)) == (
        WayStep.NODES,
        ExplainOutcome.WAITING,
        ["other_placement"],
    )
