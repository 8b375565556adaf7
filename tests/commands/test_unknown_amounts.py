"""What is requested by names that are not known is unknown in each command, never a whole GPU."""

import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import renamed_systems as renamed
from tests.support import sample_cluster as sample
from vgpucli.main import main

FLAG = "--hami.resource"


@pytest.fixture
def run(tmp_path):
    def ran(objects, *words, status=0):
        printed = CliRunner().invoke(main, [*words, *dumped(tmp_path, objects)])
        assert printed.exit_code == status, printed.output
        return " ".join(printed.output.split())

    return ran


def differing():
    """The ConfigMap has another name than the nodes: none is known."""
    config_map = renamed.config_map("hami")
    text = config_map["data"]["device-config.yaml"].replace("/vgpu\n", "/third\n")
    config_map["data"]["device-config.yaml"] = text
    return [*renamed.objects("hami"), config_map]


def test_inspect_has_no_amount_of_a_pod_that_waits(run):
    printed = run(renamed.objects("hami"), "inspect")
    assert "ml/waits 1 GPU, memory and cores unknown" in printed
    assert "a whole GPU" not in printed


def test_explain_checks_neither_request_nor_quota_nor_nodes(run):
    quota = sample.resource_quota("gpus", {}, {})
    quota["spec"]["hard"] = {"limits.nvidia.com/vgpumem": "1"}
    printed = run([*renamed.objects("hami"), quota], "explain", "pod", "ml/waits")
    for step in ("request", "quota", "nodes"):
        assert f"{step} not checked" in printed
    assert FLAG in printed
    assert "100 % of the memory" not in printed
    assert "fails at step" not in printed
    assert "requested, 0 of 0 free" not in printed


def test_fit_does_not_count_pods_of_unknown_amounts(run):
    printed = run(renamed.objects("hami"), "fit", "--request", "nvidia.com/vgpu=1", status=1)
    assert "unknown memory and cores" in printed
    assert FLAG in printed


def test_a_pod_of_a_resource_that_may_be_hamis_is_unknown_in_explain_and_fit(run):
    explained = run(differing(), "explain", "pod", "ml/waits", status=1)
    counted = run(differing(), "fit", "--request", "nvidia.com/vgpu=1", status=1)
    for printed in (explained, counted):
        assert FLAG in printed
        assert "known" in printed
    held = run(differing(), "explain", "pod", "ml/idle")
    assert "Volcano" not in held
    assert "main holds 4.0 GiB" in held


@pytest.mark.parametrize(
    ("resource", "system"),
    [
        ("cambricon.com/vmlu", "the device plugin of another vendor"),
        ("koordinator.sh/gpu.shared", "Koordinator"),
    ],
)
def test_fit_does_not_count_resources_of_other_systems(run, resource, system):
    objects = [sample.node("gpu-1", {resource: 8})]
    printed = run(objects, "fit", "--request", f"{resource}=1", status=1)
    assert f"{resource} of {system}: not counted" in printed


def test_explain_names_another_vendor_and_does_not_count_its_pods(run):
    objects = [
        sample.node("gpu-1", {"cambricon.com/vmlu": 8, "nvidia.com/gpu": 1}),
        sample.pod("vendors", "gpu-1", {"cambricon.com/vmlu": 1}),
        sample.pod("both", "gpu-1", {"cambricon.com/vmlu": 1, "nvidia.com/gpu": 1}),
    ]
    pod = run(objects, "explain", "pod", "ml/both")
    assert "cambricon.com/vmlu of the device plugin of another vendor" in pod
    assert "2 pods with devices" not in run(objects, "explain", "node", "gpu-1")
