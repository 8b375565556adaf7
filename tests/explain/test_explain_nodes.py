"""What an explanation has of a node and of a GPU, on small worked clusters."""

from msgspec import structs

from tests.reconciler.samples import NOW, handshake, lock, node, pod, unbound, uuid
from vgpu.inventory import Objects
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, Node
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.evidence import ClusterEvidence
from vgpucli.explain.model import ExplainOutcome, WayStep
from vgpucli.explain.node import (
    explain_gpu,
    explain_node,
    explain_unreadable_node,
    gpu_entry,
)


def of_node(one, *pods, **objects):
    cluster = ClusterObjects(Objects((one,), pods, **objects), NOW)
    return ClusterEvidence(cluster).of_node(one)


def decisive(explained):
    step = explained.decisive
    return None if step is None else (step.step, [reason.code for reason in step.reasons])


def test_a_node_that_takes_pods():
    explained = explain_node(of_node(node("gpu-1", "hami"), pod("train-0", "hami")))
    assert decisive(explained) is None
    assert explained.conclusion == "nothing that was checked is wrong with the node"
    unchecked = {step.step: step.needs for step in explained.steps if step.needs}
    assert unchecked == {WayStep.FOLDERS: "vgpu reconcile plan --scope node on the node"}
    for step in explained.steps:
        assert step.evidence or step.needs, step.step
    assert [line.split(":")[0] for line in explained.lines] == [
        f"GPU {uuid('gpu-1', 0)}",
        f"GPU {uuid('gpu-1', 1)}",
    ]


def test_what_keeps_a_node_from_taking_pods():
    well = node("gpu-1", "hami")
    for one, expected in [
        (structs.replace(well, ready=False), (WayStep.READY, ["not_ready"])),
        (structs.replace(well, unschedulable=True), (WayStep.READY, ["cordoned_node"])),
        (Node("cpu-1", ready=True), (WayStep.REGISTERED, ["no_gpus"])),
        (node("gpu-1", "hami", plugin=False), (WayStep.PLUGIN, ["nothing_allocatable"])),
        (node("gpu-1", "hami", "gpushare"), (WayStep.REGISTERED, ["mixed_node"])),
    ]:
        explained = explain_node(of_node(one))
        assert decisive(explained) == expected
        assert explained.advice


def test_a_lock_and_a_handshake_that_stop_a_node():
    annotations = lock(None, 3600, "volcano") | handshake(style="volcano")
    explained = explain_node(of_node(node("gpu-1", "volcano", annotations=annotations)))
    failed = {step.step for step in explained.steps if step.outcome is ExplainOutcome.FAILED}
    assert failed == {WayStep.LOCK, WayStep.PLUGIN}
    assert "reconcile plan" in explained.advice


def test_a_pod_without_a_gpu_makes_the_records_of_a_node_incomplete():
    without = pod("train-0", "hami", claim=None, phase="Pending")
    explained = explain_node(of_node(node("gpu-1", "hami"), without))
    assert decisive(explained) == (WayStep.RECORDS, ["pod_without_gpu"])
    assert any("train-0" in text for text in explained.decisive.evidence)


def test_a_reservation_that_stays_has_its_repair_and_is_not_waited_for():
    """Where the reconciler has a finding about it; a young one is waited for."""
    there = node("gpu-1", "hami")
    explained = explain_node(of_node(there, unbound("train-0", "hami")))
    assert decisive(explained) == (WayStep.RECORDS, ["other_scheduler"])
    assert "runbooks/assumed_unbound" in explained.advice
    assert "ml/train-0" in explained.conclusion
    young = explain_node(of_node(there, unbound("train-0", "hami", age=1)))
    assert decisive(young) == (WayStep.RECORDS, ["other_scheduler"])
    assert young.advice.startswith("wait until")


def test_a_node_that_cannot_be_read():
    broken = MalformedObject("Node", PodRef("", "", "gpu-1"), "status.capacity is a list")
    explained = explain_unreadable_node(broken, NOW)
    assert decisive(explained) == (WayStep.REGISTERED, ["malformed"])


def test_a_gpu_is_found_by_index_uuid_and_beginning():
    evidence = of_node(node("gpu-1", "hami"))
    first = gpu_entry(evidence, "0")
    assert first.device.uuid == uuid("gpu-1", 0)
    assert gpu_entry(evidence, uuid("gpu-1", 1)).device.index == 1
    assert gpu_entry(evidence, uuid("gpu-1", 0)[:12]) is None  # both begin so
    assert gpu_entry(evidence, "7") is None
    assert gpu_entry(evidence, "") is None


def test_a_gpu_of_which_more_is_held_than_it_has():
    holders = [pod(f"p-{n}", "gpushare", gpu=0, phase="Running") for n in range(6)]
    evidence = of_node(node("gpu-1", "gpushare"), *holders)
    explained = explain_gpu(evidence, gpu_entry(evidence, "0"))
    assert decisive(explained) == (WayStep.SHARES, ["overcommitted"])
    assert len(explained.lines) == 6
    free = explain_gpu(evidence, gpu_entry(evidence, "1"))
    assert decisive(free) is None
    assert free.lines == ()


def test_a_gpu_that_is_unhealthy():
    evidence = of_node(node("gpu-1", "gpushare"), unhealthy={"gpu-1": "0"})
    explained = explain_gpu(evidence, gpu_entry(evidence, "0"))
    assert decisive(explained) == (WayStep.HEALTHY, ["unhealthy"])


def test_one_unhealthy_gpu_of_several_is_a_remark_of_its_node():
    well = node("infer-1", "gpushare")
    explained = explain_node(of_node(well, unhealthy={"infer-1": "1"}))
    assert explained.decisive is None
    assert explained.conclusion == (
        "no step of the node fails; the device is unhealthy (step registered)"
    )
    assert any("1 GPU reported unhealthy: GPU 1" in text for text in explained.steps[0].evidence)


def test_a_plugin_whose_resource_is_renamed_is_not_reported_as_dead():
    hamis = node("gpu-1", "hami")
    gone = structs.replace(
        hamis, capacity={"nvidia.com/gpu": 20}, allocatable={"nvidia.com/gpu": 0}
    )
    beside = {"nvidia.com/gpu": 2}
    for one in [
        structs.replace(hamis, capacity={}, allocatable={}),
        structs.replace(hamis, capacity=beside, allocatable=beside),
    ]:
        explained = explain_node(of_node(one))
        (step,) = (step for step in explained.steps if step.step is WayStep.PLUGIN)
        assert step.outcome is ExplainOutcome.NOT_CHECKED
        assert step.evidence[0].startswith("the node advertises no resource")
    left = structs.replace(hamis, capacity={"nvidia.com/gpu": 0}, allocatable={"nvidia.com/gpu": 0})
    for one, code in ((gone, "nothing_allocatable"), (left, "not_advertised")):
        assert [reason.code for reason in explain_node(of_node(one)).decisive.reasons] == [code]


def step_of(explained, step):
    return next(each for each in explained.steps if each.step is step)


def test_a_node_of_nvidias_plugin_with_nothing_allocatable_is_an_error_of_doctor_too():
    eight, none, seven = ({"nvidia.com/gpu": number} for number in (8, 0, 7))
    gone = explain_node(of_node(Node("gpu-1", ready=True, capacity=eight, allocatable=none)))
    assert decisive(gone) == (WayStep.PLUGIN, ["nothing_allocatable"])
    assert "nvidia.com/gpu: 0 of 8 allocatable" in gone.decisive.evidence
    partly = explain_node(of_node(Node("gpu-1", ready=True, capacity=eight, allocatable=seven)))
    assert [each.code for each in step_of(partly, WayStep.PLUGIN).remarks] == ["partly_allocatable"]
    assert "nothing" not in partly.conclusion
    assert "fewer units" in partly.conclusion


def test_the_plugin_of_a_node_that_is_not_ready_is_not_checked():
    one = structs.replace(node("gpu-1", "hami"), ready=False)
    explained = explain_node(of_node(one))
    assert decisive(explained) == (WayStep.READY, ["not_ready"])
    assert step_of(explained, WayStep.PLUGIN).outcome is ExplainOutcome.NOT_CHECKED


def test_a_lock_in_force_is_shown_and_passes():
    annotations = lock(pod("other", "hami", phase="Pending"), 5)
    one = node("gpu-1", "hami", annotations=annotations)
    explained = explain_node(of_node(one, pod("other", "hami", phase="Pending")))
    assert step_of(explained, WayStep.LOCK).outcome is ExplainOutcome.PASSED
    assert "ml,other" in step_of(explained, WayStep.LOCK).evidence[0]


def test_the_advice_about_a_node_is_never_the_command_that_was_run():
    without = pod("train-0", "hami", claim=None, phase="Pending")
    for one, pods in (
        (node("gpu-1", "hami", "gpushare"), ()),
        (node("gpu-1", "hami"), (without,)),
    ):
        explained = explain_node(of_node(one, *pods))
        assert explained.advice
        assert "explain node" not in explained.advice


def test_what_an_unknown_gpu_may_hold_and_what_is_wrong_with_the_node_are_remarks_of_each_gpu():
    bare = structs.replace(node("gpu-1", "kubeshare"), annotations={})
    away = of_node(bare, pod("a", "kubeshare"))
    known = of_node(node("gpu-1", "hami"))
    ledger = structs.replace(known.ledger, unplaced=tuple(away.ledger.holdings))
    known = structs.replace(known, ledger=ledger)
    for index in "01":
        explained = explain_gpu(known, gpu_entry(known, index))
        remarks = [each.code for step in explained.steps for each in step.remarks]
        assert remarks == ["on_unknown_gpu"]
        assert explained.conclusion.startswith("no step of the GPU fails; pods of the node hold")
        assert (
            "40.0 GiB free, up to 8.0 GiB of it held by 1 pod on an unknown GPU"
            in (explained.steps[-1].evidence[-1])
        )


def test_a_gpu_of_a_node_that_takes_no_pods_is_not_called_well():
    without = pod("train-0", "hami", claim=None, phase="Pending")
    well = node("gpu-1", "hami")
    for evidence, code in (
        (of_node(well, without), "pod_without_gpu"),
        (of_node(structs.replace(well, unschedulable=True)), "cordoned_node"),
    ):
        explained = explain_gpu(evidence, gpu_entry(evidence, "0"))
        assert [each.code for each in explained.steps[0].remarks] == [code]
        assert "nothing" not in explained.conclusion
