"""`vgpu inspect` of pods of GPU schedulers whose shares are not read."""

import json
import os

from click.testing import CliRunner

from tests.support import sample_cluster as sample
from tests.support.sample_cluster import NOW, nvidia_node
from vgpucli.main import main

GPU = "nvidia.com/gpu"
ITEMS = (
    nvidia_node("kai", GPU, 2, product="NVIDIA-A10", count=2, memory=23028, replicas=1),
    sample.pod(
        "gpu-reservation-1", "kai", {GPU: 1}, namespace="kai-resource-reservation",
        labels={"app": "kai-resource-reservation", "runai-gpu-group": "g"},
    ),
    sample.pod("tenant", "kai", annotations={"gpu-fraction": "0.5"}),
    sample.pod("waits", "", annotations={"gpu-memory": "4096"}),
    sample.pod(
        "koord", "kai", {GPU: 1},
        {"scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0}]}'},
    ),
    sample.pod("plain", "kai", labels={"koordinator.sh/qosClass": "LS"}),
)  # fmt: skip


def run(tmp_path, *words):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump(ITEMS)))
    os.utime(path, (NOW, NOW))
    return CliRunner().invoke(main, ("inspect", "--from", str(path), *words)).stdout


def test_they_are_shown_with_what_they_are_recognised_by(tmp_path):
    lines = [" ".join(line.split()) for line in run(tmp_path).splitlines()]
    first = lines.index("Other GPU schedulers")
    assert lines[first + 1 : first + 5] == [
        "kai-resource-reservation/gpu-reservation-1 kai KAI Scheduler, by runai-gpu-group 1h",
        "ml/koord kai Koordinator, by scheduling.koordinator.sh/device-allocated 1h",
        "ml/tenant kai KAI Scheduler, by gpu-fraction 1h",
        "ml/waits not scheduled KAI Scheduler, by gpu-memory 1h",
    ]
    assert "whole GPUs: 2 of 2 GPUs allocated" in lines
    assert not any("gpu-reservation-1 1 GPU" in line for line in lines)
    assert "4 pods of other GPU schedulers" in " ".join(lines[-2:])


def test_the_document_has_them_and_nothing_about_them_is_pending(tmp_path):
    document = json.loads(run(tmp_path, "-o", "json"))
    assert document["pending"] == document["conflicts"] == []
    first = document["otherSchedulers"][0]
    assert (first["node"], first["scheduler"], first["key"]) == (
        "kai",
        "KAI Scheduler",
        "runai-gpu-group",
    )
    (nvidia,) = document["nvidia"]
    assert (nvidia["held"], nvidia["holders"]) == (2, [])


def test_a_part_of_the_inventory_has_its_own(tmp_path):
    document = json.loads(run(tmp_path, "kai", "-o", "json"))
    assert [one["pod"]["name"] for one in document["otherSchedulers"]] == [
        "gpu-reservation-1",
        "koord",
        "tenant",
    ]
    document = json.loads(run(tmp_path, "--scheme", "volcano", "-o", "json"))
    assert document["otherSchedulers"] == []
