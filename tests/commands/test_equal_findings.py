"""Findings that differ in their objects alone are one line with a count; documents have each."""

import json

import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from tests.support.installed import heartbeat, with_software
from vgpucli.main import main

MANY = 150
LIMITS = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 300}


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Pods past their scheduler, one that waits for them, and nodes whose clocks are late."""
    pods = (sample.pod(f"past-{n}", "gpu-1", LIMITS) for n in range(MANY))
    waits = sample.pod("waits", "", sample.volcano_limits(39000), unschedulable="no room")
    node = with_software(sample.volcano_node("gpu-1", 1))
    late = (heartbeat(f"gpu-{n}", renewed=-300) for n in range(1, 41))
    return dumped(tmp_path_factory.mktemp("equal"), [node, *pods, waits, *late])


def printed(dump, *words):
    return CliRunner().invoke(main, [*words, *dump]).stdout


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("explain node gpu-1", "the same of 149 more"),
        ("explain gpu gpu-1/0", "the same of 149 more"),
        ("explain pod ml/waits", "past-"),
        ("reconcile plan", "150 pods"),
        ("inspect", "150 times: ml/past-"),
        ("fit --pod ml/waits", "Why no pod fits"),
        ("doctor", "40 times, of Node gpu-1"),
    ],
)
def test_equal_findings_of_many_objects_are_one_line_with_their_number(dump, words, count):
    text = printed(dump, *words.split())
    assert count in " ".join(text.split())
    assert text.count("past-") < MANY / 5  # a few in each of some lines
    assert len(text.splitlines()) < 200


def test_the_documents_have_each_of_them(dump):
    document = json.loads(printed(dump, "reconcile", "plan", "-o", "json"))
    assert len(document["findings"]) == MANY
    document = json.loads(printed(dump, "doctor", "-o", "json"))
    assert sum(each["reason"] == "clock_of_node" for each in document["findings"]) == 40
