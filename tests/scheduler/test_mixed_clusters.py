"""Pods of each system on nodes of each system, among the pods that such a node has.

The pods of the node are: one that holds a GPU as it was reserved, one whose annotations nobody can
read, one of the other system that requests GPUs there, and one that waits with a
reservation of the original scheduler.
"""

import itertools

import pytest
from msgspec import structs

from tests.scheduler.served import NOW, Served
from tests.scheduler.test_other_schedulers import RESERVED
from tests.scheduler.test_promise import KEYS, LIMITS, NODES
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.result import PlacementReason

SYSTEMS = sorted(NODES)
PAIRS = list(itertools.product(SYSTEMS, SYSTEMS))
NAMES = ["n1", "idle", "unknown"]
PRIORITY = 9
"""Of a pod for which others can be preempted."""

TOO_LARGE = {
    "gpushare": {"aliyun.com/gpu-mem": 17},
    "gaia": {"tencent.com/vcuda-core": 300, "tencent.com/vcuda-memory": 1},
    "hami": {"nvidia.com/gpu": 3, "nvidia.com/gpumem": 1024},
    "volcano": {"volcano.sh/vgpu-number": 3, "volcano.sh/vgpu-memory": 1024},
}
"""Limits that no node of the system has."""

TOO_LARGE_REASON = dict.fromkeys(TOO_LARGE, PlacementReason.TOO_FEW_GPUS) | {
    "gpushare": PlacementReason.MEMORY
}


def pod_of(name, limits, **fields):
    """A pod of one container."""
    ref = PodRef(f"uid-{name}", "ns", name)
    return Pod(ref, containers=(Container("main", limits),), phase="Pending", **fields)


def with_pods(served, node, other):
    """Two nodes of a system, of which ``n1`` has pods; one of them requests another system."""
    served.cache.set_node("n1", NODES[node])
    served.cache.set_node("idle", structs.replace(NODES[node], name="idle"))
    held = served.api.store(pod_of("held", LIMITS[node]))
    assert served.bind(held.ref, "n1") == ""
    served.show("held", structs.replace(served.api.pods["held"], phase="Running"))
    broken = pod_of("broken", LIMITS[node], annotations=dict.fromkeys(KEYS[node], "["), node="n1")
    served.show("broken", structs.replace(broken, phase="Running"))
    stray = pod_of("stray", LIMITS[other], annotations=RESERVED[other](NOW), node="n1")
    served.show("stray", structs.replace(stray, phase="Running"))
    served.show("theirs", pod_of("theirs", LIMITS[node], annotations=RESERVED[node](NOW)))


@pytest.mark.parametrize(("system", "node"), PAIRS)
def test_a_pod_is_placed_on_nodes_of_its_own_system(system, node):
    with Served() as served:
        with_pods(served, node, system)
        taken, refused = served.filter(pod_of("new", LIMITS[system]), NAMES)
    own = ["n1", "idle"]
    assert taken == (own if system == node else [])
    no_gpus = {} if system == node else dict.fromkeys(own, PlacementReason.NO_GPUS)
    assert refused == no_gpus | {"unknown": PlacementReason.UNKNOWN_NODE}


@pytest.mark.parametrize(("system", "node"), PAIRS)
def test_a_pod_that_no_node_takes_has_its_reasons_and_an_event(system, node):
    pod = pod_of("new", TOO_LARGE[system], priority=PRIORITY)
    with Served() as served:
        with_pods(served, node, system)
        taken, refused = served.filter(pod, NAMES)
        (event,) = served.events()
    reason = TOO_LARGE_REASON[system] if system == node else PlacementReason.NO_GPUS
    assert taken == []
    assert refused == dict.fromkeys(NAMES[:2], reason) | {"unknown": PlacementReason.UNKNOWN_NODE}
    assert event.startswith(f"2 nodes: {reason.explanation}")
