"""Kueue's own word against ours: `vgpu inspect --by queue` after each step of a story.

Kueue is built by `make cluster-tools ARGS=--kueue`. With VGPU_RECORD_QUEUES=FILE the events of the
story are written there, as tests/golden/queues has them.
"""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cluster.kueue import start_kueue
from tests.cluster.queue_story import Recorder, Story, config_map, write
from tests.support.bed import objects
from tests.support.bed import tools as bed_tools
from tests.support.bed.client import Refused
from tests.support.environment import missing
from tests.support.kueue_counts import SERIES, counted_by_kueue, differences
from tests.support.waiting import wait_until
from vgpucli.main import main

pytestmark = pytest.mark.thorough("queues")


@pytest.fixture(scope="module")
def kueue(workplace, tools):
    """Kueue in a cluster of its own."""
    try:
        with start_kueue(workplace, tools) as running:
            yield running
    except bed_tools.ToolsMissing as error:
        missing(str(error))


EXPLAINED = {
    "a_plain_pod_is_admitted_and_another_waits": ("pod", "team-a/waits", "queue_full"),
    "a_job_never_fits": ("workload", "team-a/never", "queue_never_fits"),
    "a_queue_is_drained": ("workload", "team-b/reclaims", "queue_stopped"),
    "a_strict_queue_has_a_head_that_does_not_fit": ("workload", "team-c/behind", "queue_behind"),
}
"""What waits after a step, and why."""


def answer_of(kueue, *words):
    """The document of a command against the API server."""
    flags = ("-o", "json", f"--kubeconfig={kueue.cluster.kubeconfig}")
    result = CliRunner().invoke(main, [*words, *flags])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def by_queue(kueue):
    """The document of the queues."""
    return answer_of(kueue, "inspect", "--by", "queue")


def reason_of(kueue, kind, name):
    """The reason of step ``quota``."""
    steps = answer_of(kueue, "explain", kind, name)["steps"]
    (quota,) = (each for each in steps if each["step"] == "quota")
    return quota["reasons"][0]["code"]


def test_inspect_by_queue_agrees_with_kueue_after_each_step(kueue):
    recorder = Recorder(kueue)
    record = [{"step": "", "events": [("ADDED", config_map(kueue))], "series": []}]
    story = Story(kueue)
    for step in story.steps():
        found = []

        def agrees(found=found):
            found[:] = differences(by_queue(kueue), counted_by_kueue(recorder.objects()))
            return not found

        wait_until(agrees, f"{step}: inspect and Kueue's status are equal", context=found.__repr__)
        if step in EXPLAINED:
            kind, name, code = EXPLAINED[step]
            assert reason_of(kueue, kind, name) == code
        series = [[*key, value] for key, value in sorted(kueue.series(*SERIES).items())]
        record.append({"step": step, "events": recorder.take(), "series": series})
    recorder.end()
    if file := os.environ.get("VGPU_RECORD_QUEUES"):
        write(Path(file), record)


def test_without_kueue_no_pod_can_be_created_and_the_queues_are_still_shown(kueue):
    before = by_queue(kueue)["queues"]
    kueue.kill()
    with pytest.raises(Refused, match="failed calling webhook"):
        kueue.client.create(objects.pod("after", "default"))
    assert by_queue(kueue)["queues"] == before
