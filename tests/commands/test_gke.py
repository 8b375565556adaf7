"""The commands on the nodes of GKE, of which the API server has labels and numbers of units."""

import json

import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from vgpucli.main import main

GPU = "nvidia.com/gpu"


def node(name, units, **labels):
    made = sample.node(name, {GPU: units})
    made["metadata"]["labels"] = {
        f"cloud.google.com/gke-{key.replace('_', '-')}": text for key, text in labels.items()
    }
    return made


def shared(name, units, strategy, clients, **labels):
    return node(
        name,
        units,
        accelerator="nvidia-l4",
        gpu_sharing_strategy=strategy,
        max_shared_clients_per_gpu=clients,
        **labels,
    )


ITEMS = (
    node("whole", 2, accelerator="nvidia-l4"),
    shared("sliced", 6, "time-sharing", "3"),
    shared("mps-one", 4, "mps", "4"),
    shared("mps-two", 8, "mps", "4"),
    node("mig", 14, accelerator="nvidia-tesla-a100", gpu_partition_size="1g.5gb"),
    shared("mig-sliced", 28, "time-sharing", "2", gpu_partition_size="1g.5gb"),
    sample.pod("a", "sliced", {GPU: 1}),
    sample.pod("b", "mps-one", {GPU: 2}),
    sample.pod("c", "mig", {GPU: 1}),
)


@pytest.fixture
def dump(tmp_path):
    return dumped(tmp_path, ITEMS)


def run(*words):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_inspect_names_the_way_by_gkes_labels(dump):
    lines = [" ".join(line.split()) for line in run("inspect", *dump).splitlines()]
    for expected in (
        "whole GPUs: 0 of 2 GPUs allocated",
        "sliced nvidia.com/gpu 2 × nvidia-l4",
        "time-slicing, no limit: 1 of 6 replicas allocated, 3 of each GPU",
        "MPS, a limit of each process: 2 of 4 replicas allocated, 4 of each GPU",
        "mig nvidia.com/gpu 14 × nvidia-tesla-a100-MIG-1g.5gb",
        "MIG: 1 of 14 instances allocated",
    ):
        assert expected in lines
    assert any("0 of 28 replicas allocated, 2 of each instance" in line for line in lines)
    document = json.loads(run("inspect", *dump, "-o", "json"))
    assert {each["node"]: each["sharing"] for each in document["nvidia"]} == {
        "whole": "exclusive",
        "sliced": "time-slicing",
        "mps-one": "mps",
        "mps-two": "mps",
        "mig": "mig",
        "mig-sliced": "mig-time-slicing",
    }


def test_an_mps_share_is_its_part_of_the_memory_where_a_label_has_that(tmp_path):
    sized = shared("mps", 4, "mps", "4")
    sized["metadata"]["labels"]["nvidia.com/gpu.memory"] = "81920"
    items = (sized, sample.pod("one", "mps", {GPU: 1}), sample.pod("two", "mps", {GPU: 2}))
    printed = run("inspect", *dumped(tmp_path, items)).splitlines()
    lines = [" ".join(line.split()) for line in printed]
    assert "ml/one 1 replica 20.0 GiB 1h" in lines
    assert "ml/two 2 replicas 40.0 GiB 1h" in lines


@pytest.mark.parametrize(
    ("units", "pods"),
    [
        (1, {"whole": 2, "sliced": 5, "mps-one": 2, "mps-two": 8, "mig": 13, "mig-sliced": 28}),
        (2, {"whole": 1, "mps-one": 1, "mig": 6}),
    ],
)
def test_fit_leaves_out_nodes_whose_plugin_gives_a_container_one_unit(dump, units, pods):
    document = json.loads(run("fit", *dump, "--request", f"{GPU}={units}", "-o", "json"))
    assert {each["name"]: each["pods"] for each in document["nodes"]} == pods
    refusing = {"sliced", "mps-two", "mig-sliced"} if units > 1 else set()
    reasons = document["excludedNodes"]
    assert {name for name, code in reasons.items() if code == "one_unit"} == refusing


def test_no_pod_of_a_drained_node_moves_to_a_plugin_that_refuses_it(tmp_path):
    items = (node("old", 2, accelerator="nvidia-l4"), sample.pod("a", "old", {GPU: 2}))
    for other, moves_to in ((ITEMS[1], ""), (ITEMS[2], "mps-one")):
        source = dumped(tmp_path, (*items, other))
        words = ("fit", *source, "--request", f"{GPU}=1", "--drain", "old", "-o", "json")
        (moved,) = json.loads(run(*words))["moved"]
        assert moved["target"] == moves_to
