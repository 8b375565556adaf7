"""A unit of memory that a node's data contradicts: reported with the units that would fit."""

import json
import os

import pytest
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from tests.support.sample_cluster import NOW
from vgpucli.main import main

FACTOR = "--volcano.memory-factor"


def node(name="gpu-1", units=46068, advertised=None, **annotations):
    register = f"{sample.uuid(1)},10,{units},NVIDIA-L40S,true,hami-core:"
    capacity = {
        "volcano.sh/vgpu-number": 10,
        "volcano.sh/vgpu-memory": units if advertised is None else advertised,
    }
    known = {
        key.replace("_", "-").replace("vgpu-dev-", "vgpu.dev/"): text
        for key, text in annotations.items()
    }
    return sample.node(name, capacity, {"volcano.sh/node-vgpu-register": register} | known)


@pytest.fixture
def call(tmp_path):
    def run(command, *items, flags=()):
        dump = tmp_path / "dump.json"
        dump.write_text(json.dumps(sample.dump(items)))
        os.utime(dump, (NOW, NOW))
        return CliRunner().invoke(main, [*command, "--from", str(dump), *flags])

    return run


INSPECT, PLAN = ["inspect"], ["reconcile", "plan"]


def notes(result):
    """The notes about units, unwrapped."""
    text = " ".join(result.stdout.split())
    return [part for part in text.split("note: ") if part.startswith("unit unconfirmed")]


@pytest.mark.parametrize("command", [INSPECT, PLAN])
def test_a_share_that_no_process_could_use_casts_doubt_on_the_unit(call, command):
    """8 units of 4606 are 8 MiB of an L40S of 4.5 GiB by a factor of 1."""
    items = (node(units=4606), sample.volcano_pod("train", "gpu-1", 1, 8))
    (note,) = notes(call(command, *items))
    assert note.startswith(
        f"unit unconfirmed on gpu-1: a share has 8 MiB with {FACTOR} 1; 8 to 227 would fit"
    )
    assert not notes(call(command, *items, flags=[FACTOR, "10"]))


def test_no_unit_is_applied_that_nobody_set(call):
    items = (node(units=4606), sample.volcano_pod("train", "gpu-1", 1, 8))
    document = json.loads(call(INSPECT, *items, flags=["-o", "json"]).stdout)
    assert document["nodes"][0]["devices"][0]["memoryBytes"] == 4606 * 1024**2
    assert document["nodes"][0]["unitConfirmed"] is False


def test_the_nodes_figures_are_marked(call):
    items = (node(units=4606), sample.volcano_pod("train", "gpu-1", 1, 8))
    head = next(line for line in call(INSPECT, *items).stdout.splitlines() if "gpu-1" in line)
    assert head.endswith("unit unconfirmed")


def test_what_the_node_advertises_must_come_from_what_it_registers(call):
    """46068 MiB registered, 4606 of ten MiB advertised."""
    (note,) = notes(call(INSPECT, node(units=46068, advertised=4606)))
    assert "its GPUs register 46068 units, and it advertises 4606, with" in note
    assert "; 10 would fit" in note
    assert not notes(call(INSPECT, node(units=46068)))
    assert not notes(call(INSPECT, node(units=46068, advertised=0)))  # its plugin is away


def test_a_gpu_of_less_than_a_gibibyte_is_none(call):
    (note,) = notes(call(INSPECT, node(units=45)))
    assert "a GPU has 45 MiB with" in note
    assert "; 23 to 23301 would fit" in note


def test_the_factor_that_our_plugin_publishes_is_the_one_that_fits(call):
    (note,) = notes(call(INSPECT, node(units=4606, vgpu_dev_memory_factor="10")))
    assert "its device plugin publishes a factor of 10, with --volcano.memory-factor 1" in note
    assert "; 10 would fit" in note


def test_many_nodes_are_one_line(call):
    (note,) = notes(call(INSPECT, *(node(f"gpu-{number}", units=45) for number in range(5))))
    assert note.startswith("unit unconfirmed on gpu-0, gpu-1, gpu-2 and 2 more: ")


def test_nodes_without_a_common_unit_are_listed_separately(call):
    items = (
        node("a", units=4606, vgpu_dev_memory_factor="10"),
        node("b", units=460, vgpu_dev_memory_factor="100"),
    )
    (note,) = notes(call(INSPECT, *items))
    assert "no unit fits all of them" in note


def test_gpushare_has_its_own_flag(call):
    items = (sample.gpushare_node("gpu-2"), *sample.items())
    result = call(INSPECT, *items, flags=["--gpushare.memory-unit", "MiB"])
    (note,) = [note for note in notes(result) if "gpushare" in note]
    assert "with --gpushare.memory-unit 1MiB; " in note
    assert "MiB or more would fit" in note
