"""`vgpu inspect` of NVIDIA's own device plugin: the way of sharing, its limit, and who has what."""

import json
import os

import pytest
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from tests.support.sample_cluster import NOW, nvidia_node
from vgpu.model.names import Sharing
from vgpu.model.objects import Node
from vgpu.schemes.nvidia.node import advertised
from vgpucli.main import main

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"


ITEMS = (
    nvidia_node(
        "sliced", GPU, 20, product="NVIDIA-A10-SHARED", count=2, memory=23028, replicas=10,
        sharing_strategy="time-slicing",
    ),
    nvidia_node(
        "mps", SHARED, 4, product="NVIDIA-L4", count=1, memory=23034, replicas=4,
        sharing_strategy="mps",
    ),
    nvidia_node(
        "mig", MIG, 7, product="NVIDIA-A100-MIG-1g.10gb", count=7, memory=9728, replicas=1,
        sharing_strategy="none",
    ),
    sample.node("bare", {GPU: 8}),
    sample.node("idle", {GPU: 8}),
    sample.pod("a", "sliced", {GPU: 2}),
    sample.pod("b", "sliced", {GPU: 1}, namespace="dev"),
    sample.pod("c", "mps", {SHARED: 1}),
    sample.pod("d", "mig", {MIG: 2}),
    sample.pod("e", "bare", {GPU: 1}),
    sample.pod("f", "", {GPU: 1}, unschedulable="no GPU"),
)  # fmt: skip


def run(*words):
    return CliRunner().invoke(main, words)


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump(ITEMS)))
    os.utime(path, (NOW, NOW))
    return str(path)


def squeezed(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_each_way_of_sharing_has_its_limit_and_its_holders(dump):
    lines = squeezed(run("inspect", "--from", dump).stdout)
    assert "sliced nvidia.com/gpu 2 × NVIDIA-A10, 22.5 GiB each" in lines
    assert "time-slicing, no limit: 3 of 20 replicas allocated, 10 of each GPU" in lines
    assert "ml/a 2 replicas unlimited 1h" in lines
    assert "MPS, a limit of each process: 1 of 4 replicas allocated, 4 of each GPU" in lines
    assert "ml/c 1 replica limit on the node 1h" in lines
    assert "MIG: 2 of 7 instances allocated" in lines
    assert "ml/d 2 instances 19.0 GiB 1h" in lines
    assert "the node's labels do not show how they are shared: 1 of 8 units allocated" in lines
    assert "not scheduled nvidia.com/gpu" in lines
    assert "idle nvidia.com/gpu" in lines
    assert "the node's labels do not show how they are shared: 0 of 8 units allocated" in lines
    assert " ".join(lines[-2:]).startswith(
        "0 nodes, 0 GPUs, 0 pods with devices, 0 without, 0 conflicts, 6 "
    )


def test_the_document_has_the_same(dump):
    document = json.loads(run("inspect", "--from", dump, "-o", "json").stdout)
    by_node = {each["node"]: each for each in document["nvidia"]}
    sliced = by_node["sliced"]
    assert (sliced["sharing"], sliced["unlimited"], sliced["held"]) == ("time-slicing", True, 3)
    assert (sliced["allocatable"], sliced["replicas"], sliced["devices"]) == (20, 10, 2)
    assert [(each["pod"]["name"], each["number"]) for each in sliced["holders"]] == [
        ("b", 1),
        ("a", 2),
    ]
    assert by_node["mps"]["unlimited"] is False
    assert by_node["bare"]["unlimited"] is None
    assert (by_node["idle"]["held"], by_node["idle"]["holders"]) == (0, [])


@pytest.mark.parametrize(
    ("flags", "pods"),
    [
        (["-n", "dev"], {"b"}),
        (["sliced"], {"a", "b"}),
        (["--scheme", "nvidia"], {"a", "b", "c", "d", "e", "f"}),
        (["--scheme", "volcano"], set()),
    ],
)
def test_a_part_of_it_keeps_the_sums_of_all_pods(dump, flags, pods):
    document = json.loads(run("inspect", *flags, "--from", dump, "-o", "json").stdout)
    shown = {each["pod"]["name"] for of in document["nvidia"] for each in of["holders"]}
    assert shown == pods
    assert {of["held"] for of in document["nvidia"] if of["node"] == "sliced"} <= {3}


def test_sums_by_namespace_have_a_column_of_their_own(dump):
    lines = run("inspect", "--by", "namespace", "--from", dump).stdout.splitlines()
    assert lines[0].split()[-1] == "NVIDIA"
    assert lines[1].split()[:3] == ["dev", "1", "0"]
    assert lines[1].endswith("1 gpu")
    assert lines[2].split()[:3] == ["ml", "5", "1"]
    assert lines[2].endswith("3 gpu, 1 gpu.shared, 2 mig-1g.10gb")
    document = json.loads(run("inspect", "--by", "namespace", "--from", dump, "-o", "json").stdout)
    assert document["groups"][0]["nvidia"] == {"nvidia.com/gpu": 1}


@pytest.mark.parametrize(
    ("allocatable", "left"),
    [
        ("0", "0 of 0 units allocated; the node has 8, of which none is allocatable"),
        ("7", "0 of 7 units allocated; the node has 8, 7 of them allocatable"),
    ],
)
def test_a_node_is_listed_with_what_it_cannot_allocate(tmp_path, allocatable, left):
    items = (sample.node("gone", {GPU: 8}, allocatable={GPU: allocatable}), sample.node("cpu-only"))
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump(items)))
    text = run("inspect", "--from", str(path)).stdout
    assert f"the node's labels do not show how they are shared: {left}" in text
    assert "cpu-only" not in text
    (shown,) = json.loads(run("inspect", "--from", str(path), "-o", "json").stdout)["nvidia"]
    assert (shown["allocatable"], shown["capacity"]) == (int(allocatable), 8)


OTHER = "example.com/gpu"
RENAMED = (
    sample.node("other", {OTHER: 4}),
    sample.pod("x", "other", {OTHER: 2}),
    sample.resource_quota("q", {OTHER: 4}, {OTHER: 2}),
)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_resource_under_another_name_is_shown_where_it_is_named(tmp_path, is_named):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump(RENAMED)))
    flags = ["--from", str(path), *(["--nvidia.resource", OTHER] if is_named else [])]
    lines = squeezed(run("inspect", *flags).stdout)
    assert ("other example.com/gpu" in lines) == is_named
    assert any(line.startswith("ml/x 2 units unknown") for line in lines) == is_named
    sums = squeezed(run("inspect", "--by", "namespace", *flags).stdout)
    assert any(line.endswith(f"{OTHER} 2/4 2 {OTHER}") for line in sums) == is_named


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("gpu", "'gpu' is not a resource such as example.com/gpu"),
        ("example.com/gpu\n", "is not a resource such as example.com/gpu"),
        (GPU, f"'{GPU}' is known without this flag"),
        ("nvidia.com/mig-1g.5gb", "is known without this flag"),
        ("volcano.sh/vgpu-number", "'volcano.sh/vgpu-number' is a resource of volcano"),
    ],
)
def test_a_name_that_cannot_be_another_is_refused(dump, name, error):
    refused = run("inspect", "--from", dump, "--nvidia.resource", name)
    assert refused.exit_code == 2
    assert error in " ".join(refused.stderr.split())


def test_a_quota_of_nvidias_resource_counts_its_pods(tmp_path):
    quota = sample.resource_quota("q", {GPU: 8}, {GPU: 4})
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump([*ITEMS, quota])))
    sums = squeezed(run("inspect", "--by", "namespace", "--from", str(path)).stdout)
    assert any(f"{GPU} 3/8" in line for line in sums), "one more waits for a node"


def test_a_cluster_without_nvidias_plugin_is_shown_as_before(tmp_path):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump([sample.volcano_node("n", 1)])))
    assert "NVIDIA's" not in run("inspect", "--from", str(path)).stdout
    table = run("inspect", "--by", "namespace", "--from", str(path)).stdout
    assert "NVIDIA" not in table


@pytest.mark.parametrize(
    ("resource", "labels", "sharing"),
    [
        (GPU, {}, Sharing.UNKNOWN),
        (GPU, {"gpu.replicas": "1"}, Sharing.EXCLUSIVE),
        (GPU, {"gpu.replicas": "4"}, Sharing.TIME_SLICING),  # before 0.15
        (GPU, {"gpu.replicas": "4", "gpu.sharing-strategy": "mps"}, Sharing.MPS),
        (GPU, {"gpu.sharing-strategy": "none"}, Sharing.EXCLUSIVE),
        (GPU, {"gpu.sharing-strategy": "tomorrow's"}, Sharing.UNKNOWN),
        (GPU, {"gpu.replicas": "0", "gpu.sharing-strategy": ""}, Sharing.UNKNOWN),
        (GPU, {"gpu.product": "A100-MIG-1g.10gb", "gpu.sharing-strategy": "none"}, Sharing.MIG),
        (MIG, {}, Sharing.MIG),
        (
            f"{MIG}.shared",
            {"mig-1g.10gb.sharing-strategy": "time-slicing", "mig-1g.10gb.replicas": "2"},
            Sharing.MIG_TIME_SLICING,
        ),
        (MIG, {"mig-1g.10gb.sharing-strategy": "mps"}, Sharing.UNKNOWN),
        (GPU, {"gpu.memory": "-1", "gpu.count": "9" * 99, "gpu.replicas": "x"}, Sharing.UNKNOWN),
    ],
)
def test_the_way_of_sharing_is_that_of_the_labels(resource, labels, sharing):
    node = Node(
        "n",
        labels={f"nvidia.com/{name}": value for name, value in labels.items()},
        allocatable={resource: 8, "cpu": 4},
    )
    (devices,) = advertised(node)
    assert (devices.sharing, devices.memory_bytes, devices.devices) == (sharing, None, None)
