"""Shares of KAI and Koordinator on GPUs that HAMi registers: an upper bound in every command."""

import pytest

from tests.commands.conftest import dumped, printed_words
from tests.support import renamed_systems as renamed
from tests.support import sample_cluster as sample

REGISTER = renamed.node("hami")["metadata"]["annotations"]
NODE = sample.node(renamed.NODE, {"nvidia.com/gpu": 10}, REGISTER)
SHARE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}
ALLOCATED = {"scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0}]}'}
OTHERS = {
    "KAI": (sample.pod("other", renamed.NODE, {}, {"gpu-fraction": "0.5"}), "8.0 GiB"),
    "Koordinator": (
        sample.pod("other", renamed.NODE, {"koordinator.sh/gpu-memory-ratio": 25}, ALLOCATED),
        "4.0 GiB",
    ),
}
others = pytest.mark.parametrize("other", OTHERS)


@pytest.fixture
def run(tmp_path):
    def ran(other, *words):
        pod, _ = OTHERS[other]
        refused = "0/1 nodes are available: 1 node has too few free shares."
        waits = sample.pod("waits", "", SHARE)
        waits["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": f"0/1 nodes are available: 1 CardInsufficientMemory. {refused}",
            }
        ]
        held = sample.pod("idle", renamed.NODE, SHARE, renamed.held("hami"))
        return printed_words((*words, *dumped(tmp_path, [NODE, held, pod, waits])))

    return ran


@others
def test_inspect_has_their_upper_bound(run, other):
    most = OTHERS[other][1]
    assert f"up to {most} of it held by 1 pod on an unknown GPU" in run(other, "inspect")


@others
def test_explain_and_fit_name_their_pods(run, other):
    node = run(other, "explain", "node", renamed.NODE)
    assert "on_unknown_gpu" in node
    assert "ml/other" in node
    words = [word for name, units in SHARE.items() for word in ("--request", f"{name}={units}")]
    fit = run(other, "fit", *words)
    assert "pods that hold shares of an unknown GPU (ml/other: fewer pods may fit)" in fit
    assert "stale_scheduler" not in run(other, "explain", "pod", "ml/waits")
