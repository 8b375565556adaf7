"""Where nothing of a node is allocatable, every command has one cause; so for unhealthy GPUs."""

import json

import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from vgpucli.main import main

GPU, SHARED, GPUSHARE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "aliyun.com/gpu-mem"


def hami_node(*, healthy=True, **options):
    gpu = {"id": sample.uuid(1), "index": 0, "count": 10, "devmem": 46068, "devcore": 100}
    gpu |= {"type": "NVIDIA-L40S", "numa": 0, "health": healthy, "mode": "hami-core"}
    register = {"hami.io/node-nvidia-register": json.dumps([{**gpu, "devicevendor": "NVIDIA"}])}
    return sample.node("n1", {GPU: 10}, register, **options)


def without(node, *resources):
    node["status"]["allocatable"] |= dict.fromkeys(resources, "0")
    return node


GAIA = ("tencent.com/vcuda-core", "tencent.com/vcuda-memory")
NODES = {
    "hami": (without(hami_node(), GPU), {GPU: 1, "nvidia.com/gpumem": 1000}),
    "volcano": (
        without(sample.volcano_node("n1", 1), "volcano.sh/vgpu-number"),
        sample.volcano_limits(1000),
    ),
    "gpushare": (without(sample.gpushare_node("n1"), GPUSHARE), {GPUSHARE: 3}),
    "gpu-manager": (without(sample.gaia_node("n1"), *GAIA), {GAIA[0]: 20, GAIA[1]: 4}),
    "nvidia": (without(sample.node("n1", {GPU: 8}), GPU), {GPU: 1}),
    "nvidia, shared": (without(sample.node("n1", {SHARED: 8}), SHARED), {SHARED: 1}),
}  # fmt: skip


def waiting(limits):
    message = f"0/1 nodes are available: 1 Insufficient {next(iter(limits))}."
    return sample.pod("w", "", limits, unschedulable=message)


def document(*words):
    result = CliRunner().invoke(main, (*words, "-o", "json"))
    assert result.exit_code in (0, 3), result.output  # 3: doctor has found errors
    return json.loads(result.stdout)


def decisive(explained):
    """The reasons of the step that decides."""
    failed = [each for each in explained["steps"] if each["outcome"] == "failed"]
    return [each["code"] for each in failed[0]["reasons"]]


@pytest.mark.parametrize("system", NODES)
def test_a_node_whose_plugin_is_gone_has_one_cause_in_all_commands(tmp_path, system):
    node, limits = NODES[system]
    source = dumped(tmp_path, (node, waiting(limits)))
    fit = document("fit", "--pod", "ml/w", *source)
    assert (fit["pods"], fit["excludedNodes"]) == (0, {"n1": "nothing_allocatable"})
    assert decisive(document("explain", "node", "n1", *source)) == ["nothing_allocatable"]
    assert decisive(document("explain", "pod", "ml/w", *source)) == ["nothing_allocatable"]
    reasons = [each["reason"] for each in document("doctor", *source)["findings"]]
    assert "nothing_allocatable" in reasons
    if not system.startswith("nvidia"):
        assert decisive(document("explain", "gpu", "n1/0", *source)) == ["nothing_allocatable"]


@pytest.mark.parametrize("left", ["10", "0"], ids=["allocatable", "nothing allocatable"])
def test_gpus_that_are_declared_unhealthy_are_no_missing_plugin(tmp_path, left):
    node = hami_node(healthy=False)
    node["status"]["allocatable"][GPU] = left
    source = dumped(tmp_path, (node, waiting({GPU: 1, "nvidia.com/gpumem": 1000})))
    fit = document("fit", "--pod", "ml/w", *source)
    assert {*fit["refusedNodes"], *fit["excludedNodes"].values()} == {"unhealthy"}
    for words in (("node", "n1"), ("gpu", "n1/0"), ("pod", "ml/w")):
        assert decisive(document("explain", *words, *source))[0] == "unhealthy"


@pytest.mark.parametrize("system", [name for name in NODES if not name.startswith("nvidia")])
def test_inspect_has_no_room_on_a_node_whose_plugin_is_gone(tmp_path, system):
    node, limits = NODES[system]
    (room,) = document("inspect", *dumped(tmp_path, (node, waiting(limits))))["rooms"]
    assert (room["fits"], room["memoryUsableBytes"]) == (0, 0)
    assert [each["reason"] for each in room["unavailable"]] == ["nothing_allocatable"]


def test_inspect_has_as_much_room_as_fit_beside_a_resource_that_another_plugin_has_left(tmp_path):
    node = sample.node(
        "n1", {GPUSHARE: 88, "aliyun.com/gpu-count": 4, GPU: 4}, allocatable={GPU: "0"}
    )
    source = dumped(tmp_path, (node, waiting({GPUSHARE: 5})))
    (room,) = document("inspect", *source)["rooms"]
    assert (room["fits"], room["unavailable"]) == (16, [])
    assert document("fit", "--pod", "ml/w", *source)["pods"] == room["fits"]


@pytest.mark.parametrize("allocatable", [3, 4, 9, 20])
def test_inspect_has_as_much_room_as_the_kubelet_can_allocate_units(tmp_path, allocatable):
    node = sample.volcano_node("n1", 1, allocatable={"volcano.sh/vgpu-number": str(allocatable)})
    holders = (sample.volcano_pod(f"a{gpu}", "n1", gpu, 1000) for gpu in (1, 1, 2))
    source = dumped(tmp_path, (node, *holders, waiting(sample.volcano_limits(1000))))
    (room,) = document("inspect", *source)["rooms"]
    assert document("fit", "--pod", "ml/w", *source)["pods"] == room["fits"]
    assert room["memoryUsableBytes"] == room["fits"] * 1000 * 1024**2


def test_a_resource_that_is_missing_in_allocatable_is_not_allocatable_in_every_command(tmp_path):
    """As kube-scheduler counts it; without ``allocatable`` the API server takes the capacity."""

    def said(node):
        path = tmp_path / "dump.json"
        waits = sample.pod("waits", "", sample.volcano_limits(8000))
        path.write_text(json.dumps(sample.dump((node, waits))))

        def run(*words):
            result = CliRunner().invoke(main, [*words, "--from", str(path), "-o", "json"])
            return json.loads(result.stdout)

        inspected, doctor = run("inspect"), run("doctor")
        return {
            "inspect": "nothing_allocatable" in json.dumps(inspected["nodes"]),
            "fit": run("fit", "--pod", "ml/waits")["pods"] == 0,
            "explain": "nothing_allocatable" in json.dumps(run("explain", "pod", "ml/waits")),
            "node": "nothing_allocatable" in json.dumps(run("explain", "node", "gpu-1")),
            "doctor": "nothing_allocatable" in json.dumps(doctor),
        }

    node = sample.volcano_node("gpu-1", 1)
    assert not any(said(node).values())
    whole = node["status"].pop("allocatable")
    assert not any(said(node).values())
    node["status"]["allocatable"] = {"cpu": whole["cpu"]}
    assert all(said(node).values())
