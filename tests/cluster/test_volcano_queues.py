"""Volcano's own word against ours: `vgpu inspect --by queue` after each step of a story.

With VGPU_RECORD_QUEUES=FILE the objects after each step are written there, as
tests/golden/queues has them.
"""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cluster.originals import VolcanoScheduler
from tests.cluster.queue_story import write
from tests.cluster.volcano_story import CONFIGURATION, NODE, Story
from tests.support.bed.cluster import start_cluster
from tests.support.volcano_counts import counted_by_volcano
from vgpucli.main import main

pytestmark = pytest.mark.thorough("schedulers")


@pytest.fixture(scope="module")
def cluster(workplace, tools):
    """A cluster of its own: the queues of other tests would be in its tree."""
    flags = {"kube-controller-manager": ("--controllers=*,-node-lifecycle-controller",)}
    with start_cluster(workplace, tools, name="queues", controllers=True, flags=flags) as cluster:
        yield cluster


def answer_of(cluster, *words):
    """The document of a command against the API server."""
    flags = ("-o", "json", f"--kubeconfig={cluster.kubeconfig}")
    result = CliRunner().invoke(main, [*words, *flags])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_queues_of_volcanos_own_scheduler_have_both_counts(cluster, tmp_path):
    story, record = Story(cluster.client), []
    story.prepare()
    with VolcanoScheduler(cluster, NODE, tmp_path, CONFIGURATION):
        for step in story.steps():
            shown = answer_of(cluster, "inspect", "--by", "queue")
            objects = story.record()
            record.append({"step": step, "objects": objects})
            used = {
                (queue["name"], quota["resource"]): quota["used"]["value"]
                for queue in shown["queues"]
                for quota in queue["quotas"]
            }
            for key, amount in counted_by_volcano(objects).items():
                assert used.get(key, 0) == amount, (step, key)
    if file := os.environ.get("VGPU_RECORD_QUEUES"):
        write(Path(file), record)
