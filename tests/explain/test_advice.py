"""What an explanation advises, and on which condition; amounts in another unit."""

import pytest
from msgspec import structs

from tests.explain.test_explain_pods import (
    STALE,
    TAINT,
    asking,
    decisive,
    explanation,
    gpushare_node,
)
from tests.reconciler.samples import HOUR, NOW, node, pod
from vgpu.model.objects import MIRROR, Container, ResourceQuota
from vgpu.model.taints import Taint
from vgpucli.explain.model import ExplainOutcome, WayStep
from vgpucli.misread_amounts import misread_amounts


def requesting(limits, **fields):
    one = asking(**fields)
    return structs.replace(one, containers=(Container("main", limits),))


@pytest.mark.parametrize(
    ("limits", "style", "text"),
    [
        (
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16 * 2**30},
            "hami",
            "write nvidia.com/gpumem: 16384, which is 16.0 GiB",
        ),
        (
            {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 2**31},
            "volcano",
            "write volcano.sh/vgpu-memory: 2048, which is 2.0 GiB",
        ),
    ],
)
def test_bytes_where_mebibytes_are_counted_have_the_amount_that_is_meant(limits, style, text):
    explained = explanation(requesting(limits), node("gpu-1", style))
    assert decisive(explained)[:2] == (WayStep.REQUEST, ExplainOutcome.FAILED)
    assert explained.advice == text
    assert "counts MiB" in explained.conclusion
    bound = requesting(limits, node="gpu-1", started_at=NOW - HOUR)
    assert text in explanation(bound, node("gpu-1", style)).advice


@pytest.mark.parametrize(
    ("name", "amount", "counted", "advice"),
    [
        ("aliyun.com/gpu-mem", 5 * 2**29, "GiB", "write aliyun.com/gpu-mem: 3, which is 3.0 GiB"),
        (
            "tencent.com/vcuda-memory",
            5 * 2**29,
            "blocks of 256 MiB",
            "write tencent.com/vcuda-memory: 10, which is 2.5 GiB",
        ),
    ],
)
def test_bytes_become_whole_units_that_are_not_smaller(name, amount, counted, advice):
    pod = requesting({name: amount})
    ((text, advised),) = misread_amounts(pod, {})
    assert f"{name} counts {counted}, and no GPU has {amount}; 2.5 GiB need" in text
    assert advised == advice


def test_an_amount_that_no_gpu_has_is_a_remark_of_a_valid_request():
    explained = explanation(requesting({"aliyun.com/gpu-mem": 300_000}))
    step = explained.steps[0]
    assert [each.code for each in step.remarks] == ["implausible_amount"]
    assert "aliyun.com/gpu-mem counts GiB, and no GPU has 300000" in step.evidence[-1]
    assert explanation(requesting({"aliyun.com/gpu-mem": 3})).steps[0].remarks == ()


def test_a_request_larger_than_any_gpu_advises_no_end_of_other_pods():
    explained = explanation(requesting({"aliyun.com/gpu-mem": 60}))
    assert decisive(explained) == (WayStep.NODES, ExplainOutcome.FAILED, ["memory"])
    assert "60.0 GiB requested, the largest GPU has 40.0 GiB" in explained.conclusion
    assert "other pods" not in explained.advice


def test_the_advice_about_closed_nodes_is_about_why_they_are_closed():
    tainted = structs.replace(gpushare_node(), taints=(TAINT,))
    assert explanation(asking(), tainted).advice == (
        "let the pod tolerate team=vision:NoSchedule if it belongs there"
    )
    absent = Taint("node.kubernetes.io/unreachable", "", "NoExecute")
    away = structs.replace(gpushare_node(), taints=(absent,))
    for one in (away, structs.replace(away, ready=False)):
        assert "tolerate" not in explanation(asking(), one).advice
    cordoned = structs.replace(gpushare_node(), unschedulable=True)
    assert "uncordon" in explanation(asking(), cordoned).advice


def test_the_advice_for_a_static_pod_is_its_manifest():
    static = structs.replace(
        asking(node="gpu-1", started_at=NOW - HOUR), annotations={MIRROR: "0123456789abcdef"}
    )
    explained = explanation(static)
    assert explained.decisive is not None
    assert "its manifest on the node" in explained.advice


def test_no_advice_deletes_a_pod_that_runs():
    one = pod("train-0", "hami", claim=None, phase="Running")
    explained = explanation(one, node("gpu-1", "hami"))
    assert explained.decisive is not None
    assert "delete the pod" not in explained.advice


def test_a_quota_has_what_kubernetes_counts_or_that_nothing_is_counted():
    name = "requests.aliyun.com/gpu-mem"
    hard = {name: "100"}
    for used, text in (
        ({name: "8"}, f"ResourceQuota ml/gpus: Kubernetes counts 8 of 100 {name}"),
        ({}, f"ResourceQuota ml/gpus has no status for {name}: kube-controller-manager has not"),
    ):
        quota = ResourceQuota("ml", "gpus", hard=hard, used=used)
        step = explanation(asking(), resource_quotas=(quota,)).steps[1]
        assert any(each.startswith(text) for each in step.evidence)


def test_a_conflict_about_a_device_of_the_pod_is_never_hidden():
    """Too young for a finding, or of a kind that no rule reports."""
    holders = [pod(f"p-{number}", "gpushare", gpu=0, phase="Running") for number in range(6)]
    explained = explanation(holders[0], *holders[1:])
    codes = {each.code for step in explained.steps for each in (*step.reasons, *step.remarks)}
    assert "overcommitted" in codes
    assert explained.conclusion != "the pod runs and has its share of a GPU"


def test_several_gpu_containers_of_gpushare_are_a_remark_unless_the_pod_runs():
    """``pkg/gpu/nvidia/allocate.go`` of gpushare-device-plugin compares both sums."""
    limits = {"aliyun.com/gpu-mem": 2}
    both = (Container("main", limits), Container("beside", limits))
    step = explanation(structs.replace(asking(), containers=both)).steps[0]
    assert [each.code for each in step.remarks] == ["several_containers"]
    running = structs.replace(pod("train-0", "gpushare", phase="Running"), containers=both)
    assert explanation(running).steps[0].remarks == ()


def test_several_gpu_containers_of_gpushare_decide_where_a_node_has_room():
    limits = {"aliyun.com/gpu-mem": 2}
    both = (Container("main", limits), Container("beside", limits))
    waits = structs.replace(asking(unschedulable=STALE), containers=both)
    explained = explanation(waits)
    assert explained.decisive.reasons[0].code == "several_containers"
    assert "in one container only" in explained.advice
    assert "restart" not in explained.advice


def test_what_containers_of_gpushare_request_together_is_compared_with_one_gpu():
    both = tuple(Container(name, {"aliyun.com/gpu-mem": 30}) for name in ("main", "beside"))
    explained = explanation(structs.replace(asking(unschedulable=STALE), containers=both))
    assert "60.0 GiB in one GPU requested, the largest GPU has 40.0 GiB" in explained.conclusion
    assert "together" in explained.advice
    texts = explained.decisive.evidence
    assert any("60.0 GiB in one GPU requested, the largest GPU has" in text for text in texts)


@pytest.mark.parametrize(
    ("style", "title"), [("hami", "HAMi"), ("volcano", "Volcano"), ("gaia", "gpu-manager")]
)
def test_systems_have_their_names_for_people(style, title):
    explained = explanation(pod("train-0", style, phase="Running"), node("gpu-1", style))
    assert explained.system == title
    assert f"the scheduler of {title} reserved" in explained.steps[3].evidence[0]
