"""Several units for a container on GKE's nodes with time-sharing: explain pod knows the refusal."""

import json
import os

import pytest
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from vgpucli.main import main

LABELS = {
    "cloud.google.com/gke-accelerator": "nvidia-l4",
    "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
    "cloud.google.com/gke-max-shared-clients-per-gpu": "3",
}
ADVICE = "request one unit for each container"


def waiting(message):
    pod = sample.pod("two", "", {"nvidia.com/gpu": 2})
    if message:
        pod["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
            }
        ]
    return pod


def refused():
    pod = sample.pod("two", "gke-1", {"nvidia.com/gpu": 2})
    message = "Allocate failed due to rpc error: at most 1 nvidia.com/gpu can be requested"
    pod["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    return pod


PODS = {
    "nobody has tried": waiting(""),
    "kube-scheduler refuses it": waiting("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
    "the kubelet has refused it": refused(),
}


@pytest.mark.parametrize("state", PODS)
def test_explain_advises_one_unit_for_each_container(tmp_path, state):
    node = sample.node("gke-1", {"nvidia.com/gpu": 6})
    node["metadata"]["labels"] = {**node["metadata"].get("labels", {}), **LABELS}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump([node, PODS[state]])))
    os.utime(path, (sample.NOW, sample.NOW))
    result = CliRunner().invoke(main, ["explain", "pod", "ml/two", "--from", str(path)])
    printed = " ".join(result.output.split())
    assert result.exit_code == 0, printed
    assert "one_unit" in printed
    assert ADVICE in printed
    assert "2 units with time-sharing" in printed
    assert "plan shows the repair" not in printed
