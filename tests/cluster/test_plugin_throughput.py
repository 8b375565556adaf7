"""Eighty containers on eight GPUs at once: each gets what it was promised, and none waits long.

How fast it goes is printed beside a plugin that only answers, by the better of two rounds of each;
`make bench-cluster` measures it. A pod costs most of a second of CPU: `make test` has the sixty of
test_plugin_swap.py.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.admission import CONTAINERS, FACTOR, Contest, remove
from tests.support.bed.images import Shown


@pytest.mark.slow
@pytest.mark.thorough("plugin")
def test_eighty_containers_at_once_get_what_they_were_promised(
    nodes, namespace, control_plane, tmp_path, figure
):
    client = control_plane.client
    running, shown, best = [], [], {}
    with Contest(nodes(), tmp_path) as contest:
        turns = {"theirs": contest.theirs, "ours": contest.ours}
        for who in ("theirs", "ours", "ours", "theirs"):  # fair turns
            taken = turns[who](namespace)
            if who == "ours":
                running += taken.running
                with ThreadPoolExecutor(4) as readers:
                    shown += readers.map(lambda pod: Shown.by(client, pod), taken.running)
            remove(client, taken)
            best[who] = max(best.get(who, 0), taken.throughput)
        refusals = {
            key: value
            for key, value in contest.plugin.metrics().items()
            if key[0] == "vgpu_plugin_refusals_total" and key[2] != "prestart"
        }
    figure(f"{best['ours'] / best['theirs']:.2f} of a plugin that only answers")
    for pod, seen in zip(running, shown, strict=True):
        assert limits(seen) == promised(pod)
    assert len(shown) == 2 * CONTAINERS
    assert refusals == {}


def promised(pod):
    """GPU, memory and cores, by the pod's annotations."""
    segment = pod["metadata"]["annotations"]["volcano.sh/vgpu-ids-new"].strip(":")
    gpu, _, memory, cores = segment.split(",")
    return gpu, f"{int(memory) * FACTOR}m", cores


def limits(seen):
    """The same, as the container sees them."""
    names = ("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT")
    return tuple(seen.env[name] for name in names)
