"""What an explanation names beside its cause, on small clusters rebuilt from reports of users."""

import pytest
from msgspec import structs

from tests.explain.test_evidence import nvidia, whole
from tests.explain.test_explain_pods import asking, decisive, explanation
from tests.reconciler.samples import NOW, lock, node, pod
from vgpu.inventory import Objects
from vgpu.model.objects import Container, Namespace
from vgpu.model.taints import Taint
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.document import document
from vgpucli.explain.evidence import ClusterEvidence
from vgpucli.explain.model import ExplainOutcome, WayStep
from vgpucli.explain.node import explain_node
from vgpucli.explain.pod import explain_pod

FULL = "0/1 nodes are available: 1 NodeInsufficientDevice."


def waits(number=36 * 1024, **fields):
    """A pod of HAMi that needs nearly a whole GPU."""
    one = pod("train-0", "hami", node="", claim=None, phase="Pending")
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": number}
    return structs.replace(one, statuses=(), containers=(Container("main", limits),), **fields)


def test_a_running_pod_of_a_namespace_over_its_quota_runs_and_the_quota_is_a_remark():
    space = Namespace("ml", annotations={"vgpu.dev/quota-memory": "4Gi"})
    explained = explanation(pod("train-0", "gpushare", phase="Running"), namespaces=(space,))
    assert explained.decisive is None
    assert [each.rule for each in explained.steps[1].remarks] == ["over_quota"]
    assert explained.conclusion.startswith("the pod runs; ")
    assert "(step quota)" in explained.conclusion


def test_the_lock_of_a_node_without_room_is_shown():
    holders = [pod(f"p-{n}", "hami", gpu=n, phase="Running") for n in range(2)]
    locked = node("gpu-1", "hami", annotations=lock(None, 3600, "hami"))
    explained = explanation(waits(unschedulable=FULL), locked, *holders)
    assert decisive(explained)[0] is WayStep.NODES
    assert [each.rule for each in explained.steps[2].remarks] == ["stale_lock"]
    assert "node gpu-1, which has no room, has hami.io/mutex.lock" in explained.steps[3].evidence[1]


def test_the_owner_of_a_lock_that_is_in_no_dump_of_pods_is_gone():
    locked = node("gpu-1", "hami", annotations=lock(pod("gone", "hami"), 3600, "hami"))
    for is_dump, cause in ((True, "owner_gone"), (False, "lock_expired")):
        cluster = ClusterObjects(Objects((locked,), (waits(),)), NOW, is_dump=is_dump)
        evidence = ClusterEvidence(cluster)
        assert decisive(explain_node(evidence.of_node(locked)))[2][0] == cause


def test_the_use_of_a_pod_is_not_checked_in_a_dump_without_nodes():
    one = pod("train-0", "gpushare", phase="Running")
    evidence = ClusterEvidence(ClusterObjects(Objects((), (one,)), NOW, is_dump=True))
    step = explain_pod(evidence.of_pod(evidence.pod("ml", "train-0"))).steps[-1]
    assert step.outcome is ExplainOutcome.NOT_CHECKED
    assert step.needs == "nodes in the dump: kubectl get nodes"
    assert "main holds 8.0 GiB" in step.evidence[0]


def test_a_profile_of_mig_that_no_node_has_is_named_with_the_nearest():
    units = {"nvidia.com/mig-2g.20gb": 4}
    there = structs.replace(whole("gpu-1"), capacity=units, allocatable=units)
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.10gb."
    one = structs.replace(
        nvidia("", "Pending", unschedulable=message),
        containers=(Container("main", {"nvidia.com/mig-1g.10gb": 1}),),
    )
    explained = explanation(one, there)
    assert decisive(explained) == (WayStep.NODES, ExplainOutcome.FAILED, ["missing_resource"])
    assert "the nearest name is nvidia.com/mig-2g.20gb" in explained.conclusion
    assert "NODE" not in explained.advice


@pytest.mark.parametrize(
    "check", ['persistentvolumeclaim "data" not found', "1 Insufficient cpu", "1 Too many pods"]
)
def test_another_check_is_in_the_closing_sentence(check):
    explained = explanation(asking(unschedulable=f"0/1 nodes are available: {check}."))
    assert decisive(explained)[2] == ["other_checks"]
    assert explained.conclusion.endswith(f"({check})")


def test_the_queue_behind_a_pod_group_is_the_cause():
    message = (
        "2/4 tasks in gang unschedulable: pod group is not ready, 2 Pending, 4 minAvailable. Origin"
        " reason is queue resource quota insufficient: insufficient volcano.sh/vgpu-number"
    )
    one = structs.replace(
        pod("train-0", "volcano", node="", claim=None, phase="Pending"),
        statuses=(),
        unschedulable=message,
    )
    assert decisive(explanation(one, node("gpu-1", "volcano")))[2] == ["queue_full"]


def test_each_holder_of_a_gpu_that_is_overcommitted_and_its_node_have_the_remark():
    holders = [pod(f"p-{n}", "hami", gpu=0, phase="Running") for n in range(6)]
    there = node("gpu-1", "hami")
    cluster = ClusterObjects(Objects((there,), tuple(holders)), NOW)
    evidence = ClusterEvidence(cluster)
    for one in holders:
        explained = explain_pod(evidence.of_pod(evidence.pod("ml", one.ref.name)))
        codes = [each.code for step in explained.steps for each in (*step.reasons, *step.remarks)]
        assert "overcommitted" in codes, one.ref.name
        assert explained.conclusion != "the pod runs and has its share of a GPU"
    of_node = explain_node(evidence.of_node(there))
    assert "overcommitted" in [each.code for step in of_node.steps for each in step.remarks]
    assert "nothing" not in of_node.conclusion


def test_a_pod_that_is_reserved_is_not_in_its_own_way():
    one = structs.replace(pod("own", "hami", phase="Pending"), node="", statuses=())
    explained = explanation(one, node("gpu-1", "hami"))
    assert explained.steps[2].remarks == ()


def test_the_records_of_a_node_of_nvidias_plugin_count_its_pods():
    cluster = ClusterObjects(Objects((whole("gpu-1"),), (nvidia("gpu-1", "Running"),)), NOW)
    evidence = ClusterEvidence(cluster)
    explained = explain_node(evidence.of_node(evidence.node("gpu-1")))
    (records,) = (step for step in explained.steps if step.step is WayStep.RECORDS)
    assert records.evidence == ("1 pod with devices",)


def test_the_closing_sentence_of_closed_nodes_names_one_with_its_taint():
    taint = Taint("nvidia.com/gpu", "present", "NoSchedule")
    tainted = structs.replace(node("gpu-1", "gpushare"), taints=(taint,))
    explained = explanation(asking(), tainted, structs.replace(tainted, name="gpu-2"))
    assert explained.conclusion.endswith(
        "(gpu-1 and 1 more node: the node has a taint that the pod does not tolerate,"
        " nvidia.com/gpu=present:NoSchedule)"
    )


def test_a_deleted_pod_that_does_not_end_is_what_the_waiting_one_waits_for():
    holders = [
        pod(f"p-{n}", "hami", gpu=n, phase="Running", deleted_at=NOW - 3600 if n else None)
        for n in range(2)
    ]
    explained = explanation(waits(unschedulable=FULL), node("gpu-1", "hami"), *holders)
    assert decisive(explained)[0] is WayStep.NODES
    assert "deleted pods that do not end still hold their shares: ml/p-1" in explained.conclusion
    assert explained.advice == "vgpu explain pod ml/p-1 shows what keeps it"


def test_a_deleted_pod_that_is_ending_is_no_cause_yet():
    holders = [
        pod(f"p-{n}", "hami", gpu=n, phase="Running", deleted_at=NOW - 1 if n else None)
        for n in range(2)
    ]
    explained = explanation(waits(unschedulable=FULL), node("gpu-1", "hami"), *holders)
    assert "do not end" not in explained.conclusion


def test_what_nvidias_plugin_left_on_a_node_of_another_system_is_no_error_of_the_node():
    there = node("gpu-1", "gpushare")
    left = {"nvidia.com/gpu": 4}
    there = structs.replace(
        there,
        capacity={**there.capacity, **left},
        allocatable={**there.capacity, **there.allocatable, "nvidia.com/gpu": 0},
    )
    evidence = ClusterEvidence(ClusterObjects(Objects((there,), ()), NOW))
    explained = explain_node(evidence.of_node(there))
    assert explained.decisive is None or explained.decisive.outcome is not ExplainOutcome.FAILED


def test_a_profile_of_which_nothing_is_allocatable_is_an_error_beside_gpus_that_are():
    units = {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 7}
    there = structs.replace(
        whole("gpu-1"), capacity=units, allocatable={**units, "nvidia.com/mig-1g.10gb": 0}
    )
    evidence = ClusterEvidence(ClusterObjects(Objects((there,), ()), NOW))
    assert decisive(explain_node(evidence.of_node(there)))[2] == ["nothing_allocatable"]


def test_a_remark_about_another_object_names_it_in_its_evidence_too():
    without = pod("train-1", "hami", claim=None, phase="Pending")
    explained = explanation(waits(unschedulable=FULL), node("gpu-1", "hami"), without)
    step = explained.steps[2]
    assert [each.about for each in step.remarks] == ["Pod ml/train-1"]
    assert any(text.startswith("Pod ml/train-1: ") for text in step.evidence)
    assert document(explained).steps[2].remarks[0].about == "Pod ml/train-1"
    another = pod("train-2", "hami", claim=None, phase="Pending")
    explained = explanation(waits(unschedulable=FULL), node("gpu-1", "hami"), without, another)
    assert [each.about for each in explained.steps[2].remarks] == ["Pod ml/train-1 and 1 more"]
