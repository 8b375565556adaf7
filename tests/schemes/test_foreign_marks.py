"""The table of marks of systems that are recognised and not read: each row, in each command."""

import json
import os

import pytest
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from vgpu.kube.documents import Keep
from vgpu.kube.dump import decode_dump
from vgpu.schemes.other_schedulers import (
    DEVICE_ALLOCATED,
    ISOLATION,
    MARKS,
    OtherScheduler,
    Recognised,
    other_scheduler,
)
from vgpu.schemes.vendors import CHART_RESOURCES
from vgpucli.main import main

KOORDINATORS = {"koordinator.sh/gpu.shared": 1, "koordinator.sh/gpu-memory-ratio": 50}
HAMI_LABEL = {"hami.io/vgpu-node": "gpu-1"}
KOORDINATOR, VENDOR, KAI = (
    OtherScheduler.KOORDINATOR,
    OtherScheduler.VENDOR,
    OtherScheduler.KAI,
)

PODS = {
    "group": (KAI, {"labels": {"runai-gpu-group": "g"}}),
    "several-groups": (KAI, {"labels": {"runai-gpu-group/g": "g"}}),
    "reservation": (
        KAI,
        {
            "labels": {"app": "kai-resource-reservation"},
            "namespace": "kai-resource-reservation",
            "limits": {"nvidia.com/gpu": 1},
        },
    ),
    "fraction": (KAI, {"annotations": {"gpu-fraction": "0.5"}}),
    "allocated": (KOORDINATOR, {"annotations": {DEVICE_ALLOCATED: '{"gpu": []}'}}),
    "with-hami-core": (
        KOORDINATOR,
        {"labels": {ISOLATION: "HAMi-core"} | HAMI_LABEL, "limits": KOORDINATORS},
    ),
    "asks-koordinator": (KOORDINATOR, {"limits": KOORDINATORS}),
    "npu": (VENDOR, {"limits": {"huawei.com/Ascend910A": 1}}),
    "dcu-of-hami": (VENDOR, {"annotations": {"hami.io/dcu-devices-allocated": "x"}}),
}
"""A pod for each mark; each is recognised by it alone."""


def made(name, node="gpu-1"):
    options = dict(PODS[name][1])
    limits = options.pop("limits", None)
    return sample.pod(name, node, limits, options.pop("annotations", None), **options)


def read(*documents):
    return decode_dump(json.dumps(sample.dump([*documents])).encode(), keep=Keep.SHARING).pods


@pytest.fixture
def run(tmp_path):
    def ran(documents, *words):
        path = tmp_path / "dump.json"
        path.write_text(json.dumps(sample.dump([sample.node("gpu-1"), *documents])))
        os.utime(path, (sample.NOW, sample.NOW))
        printed = CliRunner().invoke(main, [*words, "--from", str(path)])
        assert printed.exit_code == 0, printed.output
        return " ".join(printed.stdout.split())

    return ran


def test_every_row_has_a_pod():
    assert {mark.scheduler for mark in MARKS} == {scheduler for scheduler, _ in PODS.values()}
    assert len(MARKS) <= len(PODS)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_named_and_its_share_is_unknown_in_every_command(run, name):
    scheduler, options = PODS[name]
    document = made(name)
    (pod,) = read(document)
    assert other_scheduler(pod).scheduler is scheduler
    reference = f"{options.get('namespace', 'ml')}/{name}"
    inspected = run([document], "inspect")
    assert f"{reference} gpu-1 {scheduler}, by" in inspected
    assert "0 pods with devices" in inspected
    explained = run([document], "explain", "pod", reference)
    if name == "reservation":  # it holds no share: it keeps the GPU of its tenants
        assert explained.endswith("The pod runs and keeps a GPU for other pods.")
    else:
        assert "request not checked" in explained
        assert explained.endswith("The pod runs; its share of a GPU is unknown.")
        for step in ("request", "quota", "allocated", "use"):
            assert f"{step} passed" not in explained
    planned = json.loads(run([document], "reconcile", "plan", "-o", "json"))
    assert planned["actions"] == []


def test_hamis_label_alone_shows_no_share(run):
    """The rest of a pod of HAMi: nothing shows what it has."""
    left = sample.pod("left", "gpu-1", labels=HAMI_LABEL)
    ended = sample.pod("ended", "gpu-1", labels=HAMI_LABEL, state=sample.FINISHED)
    asking = sample.pod("asking", "gpu-1", {"nvidia.com/gpumem": 1}, labels=HAMI_LABEL)
    objects = [left, ended, asking, sample.volcano_pod("held", "gpu-1", 1, 4096)]
    explained = run([left], "explain", "pod", "ml/left")
    assert explained.endswith("The pod runs; its share of a GPU is unknown.")
    note = (
        "note: pods with marks of a sharing system (hami.io/vgpu-node) and neither an allocation"
        " nor a request; what they have of a GPU is unknown: ml/left"
    )
    for words in ("inspect",), ("inspect", "--by", "namespace"):
        printed = run(objects, *words)
        assert printed.partition(note)[2].startswith((" note:", " 1 node", " 0 nodes"))
    assert json.loads(run(objects, "inspect", "-o", "json"))["notes"][-1] == note.removeprefix(
        "note: "
    )


def test_devices_of_other_vendors_beside_a_share_do_not_hide_it():
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "hygon.com/dcunum": 1}
    (pod,) = read(sample.pod("both", "gpu-1", limits))
    assert other_scheduler(pod) is None


def test_every_resource_of_hamis_chart_for_other_vendors_is_named():
    for name in CHART_RESOURCES:
        (pod,) = read(sample.pod("other", "gpu-1", {name: 1}))
        assert other_scheduler(pod) == Recognised(VENDOR, name)


def test_a_node_of_another_system_is_unknown_and_not_without_gpus(run):
    node = sample.node("gpu-1", {"koordinator.sh/gpu-core": 100})
    explained = run([node], "explain", "node", "gpu-1")
    assert "registered not checked it advertises koordinator.sh/gpu-core" in explained
    assert "install" not in explained
    checked = run([node], "doctor")
    assert "1 node with resources of Koordinator, which is not read: gpu-1" in checked
