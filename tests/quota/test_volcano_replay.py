"""What Volcano's own scheduler wrote, step by step, and what our commands make of it.

The record is that of tests/cluster/test_volcano_queues.py (tests/golden/queues).
"""

import json
import lzma
from functools import cache

import pytest
from click.testing import CliRunner

from tests.quota.volcano_samples import scheduler
from tests.support.environment import ROOT
from tests.support.volcano_counts import counted_by_volcano
from vgpucli.main import main

RECORD = ROOT / "tests" / "golden" / "queues" / "volcano-1.14.1.jsonl.xz"
MEMORY, NUMBER = "volcano.sh/vgpu-memory", "volcano.sh/vgpu-number"
INSTALLED = scheduler("v1.14.1", "capacity", hierarchy=True)


@cache
def steps():
    lines = lzma.decompress(RECORD.read_bytes()).splitlines()
    return {each["step"]: each["objects"] for each in map(json.loads, lines)}


def run(step, folder, *words):
    file = folder / "dump.json"
    items = [*steps()[step], *INSTALLED]
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    result = CliRunner().invoke(main, [*words, "--from", str(file), "-o", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


BEFORE_THE_NEXT_CYCLE = (
    "a_percentage_counts_zero",
    "a_pod_ends_and_the_one_that_waits_is_placed",
)
"""Steps whose status has a new pod as the check counts it: it has its GPUs from the next cycle."""


def findings(document):
    return {(each["code"], each["object"]): each["text"] for each in document["findings"]}


def test_after_each_step_the_queues_are_those_of_volcanos_status(tmp_path):
    for step, objects in steps().items():
        shown = run(step, tmp_path, "inspect", "--by", "queue")
        amounts = {
            (queue["name"], quota["resource"]): quota
            for queue in shown["queues"]
            for quota in queue["quotas"]
        }
        for key, counted in counted_by_volcano(objects).items():
            quota = amounts.get(key)
            assert (quota["used"]["value"] if quota else 0) == counted, (step, key)
            if key[1] in (NUMBER, MEMORY) and quota and step not in BEFORE_THE_NEXT_CYCLE:
                assert quota["held"]["value"] == counted, (step, key)


def test_the_status_counts_each_gpu_and_the_check_each_container(tmp_path):
    step = "a_pod_is_admitted_above_what_the_status_shows"
    found = findings(run(step, tmp_path, "inspect", "--by", "queue"))
    text = found["two_counts", "Queue team"]
    assert "shows 14000 volcano.sh/vgpu-memory" in text
    assert "compares 9000 against the limit of 10000" in text


def test_a_percentage_counts_zero(tmp_path):
    found = findings(run("a_percentage_counts_zero", tmp_path, "inspect", "--by", "queue"))
    assert ("counts_zero", "pod ml/half") in found


@pytest.mark.parametrize(
    ("step", "pod", "detail"),
    [
        (
            "a_pod_is_refused_by_its_queue",
            "ml/waits",
            "queue team has 9000 of 10000 volcano.sh/vgpu-memory by Volcano's check",
        ),
        (
            "a_pod_is_refused_by_the_queue_above",
            "ml/three",
            "queue org, above queue other, has 4 of 6 volcano.sh/vgpu-number allocated",
        ),
    ],
)
def test_a_pod_that_a_queue_refuses_names_the_level_and_the_limit(tmp_path, step, pod, detail):
    document = run(step, tmp_path, "explain", "pod", pod)
    (reserved,) = (each for each in document["steps"] if each["step"] == "reserved")
    assert [each["code"] for each in reserved["reasons"]] == ["queue_full"]
    assert detail in document["conclusion"]


def test_the_pod_that_is_placed_waits_no_more(tmp_path):
    step = "a_pod_ends_and_the_one_that_waits_is_placed"
    document = run(step, tmp_path, "explain", "pod", "ml/waits")
    (reserved,) = (each for each in document["steps"] if each["step"] == "reserved")
    assert reserved["outcome"] == "passed"
