"""The original plugins serve what our scheduler promises (I12), in the order of the bindings.

The plugins are the stand-ins of the cluster tests, on pods as the API server would have them.
"""

import copy
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.cluster.plugin_kinds import BLOCKS_IN_GIB, GPU_GIB, KINDS, UNIT_MIB
from tests.cluster.plugin_originals import original_of
from tests.scheduler.served import Served, as_sent, read
from tests.support.registers import hami_register, volcano_register
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import GIB, MIB
from vgpu.placement.dialects import scheduler_schemes

UUIDS = ("GPU-0", "GPU-1")
UNITS = {"volcano": UNIT_MIB * MIB}
SCHEMES = scheduler_schemes(UNITS)
NOW = 1_700_000_000.0


def node(system):
    """A node with two GPUs, as the plugin registers it."""
    offered = KINDS[system].offered
    capacity = {name: amount * len(UUIDS) for name, amount in offered.items()}
    if system == "gpushare":
        capacity["aliyun.com/gpu-count"] = len(UUIDS)
    mib = GPU_GIB * 1024
    annotations = {
        "volcano": volcano_register(*UUIDS, split=20, amount=mib // UNIT_MIB),
        "hami": hami_register(*UUIDS, split=20, mib=mib),
    }
    return Node("n1", annotations=annotations.get(system, {}), capacity=capacity)


def limits(system, gib):
    return {
        "volcano": {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": gib * 1024 // UNIT_MIB},
        "hami": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": gib * 1024},
        "gpushare": {"aliyun.com/gpu-mem": gib},
        "gaia": {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": gib * BLOCKS_IN_GIB},
    }[system]


class PluginView:
    """The API server and the node as a stand-in uses them."""

    def __init__(self, folder):
        self.name = "n1"
        self.pods = {}
        self._folder = folder

    def path(self, path):
        return self._folder / path.lstrip("/")

    def list(self, _, **__):
        return list(self.pods.values())

    def patch(self, pod, body):
        annotations = self.pods[pod["metadata"]["name"]]["metadata"]["annotations"]
        annotations |= body["metadata"]["annotations"]


@pytest.mark.parametrize("system", sorted(KINDS))
@settings(deadline=None)
@given(data=st.data())
def test_a_plugin_of_the_system_serves_each_pod_as_reserved(system, data, tmp_path_factory):
    (scheme,) = (scheme for scheme in SCHEMES if scheme.row.name == system)
    view = PluginView(tmp_path_factory.mktemp("node"))
    plugin = SimpleNamespace(node=view, client=view, uuids=UUIDS)
    original = original_of(KINDS[system], plugin)
    sizes = data.draw(st.lists(st.integers(1, GPU_GIB), max_size=8))
    with Served(clock=lambda: NOW, units=UNITS) as served:
        served.cache.set_node("n1", node(system))
        for number, gib in enumerate(sizes):
            serve(served, original, view, scheme, f"p{number}", gib)


def serve(served, original, view, scheme, name, gib):
    """One pod from its binding to its containers, if it is bound."""
    system = scheme.row.name
    asked = limits(system, gib)
    ref = PodRef(f"uid-{name}", "ns", name)
    pod = Pod(ref, containers=(Container("main", asked),), phase="Pending")
    sent = copy.deepcopy(as_sent(pod))
    if served.bind(served.api.store(read(sent)).ref, "n1"):
        return
    bound = served.api.pods[name]
    sent["metadata"]["annotations"] = dict(bound.annotations)
    sent["spec"]["nodeName"] = "n1"
    view.pods[name] = sent
    (allocation,) = scheme.codec.claim(bound).allocations
    (share,) = allocation.shares
    ids = [f"id-{each}" for each in range(asked[KINDS[system].resource])]
    env = dict(original.allocate(ids).envs)
    assert original.served[-1] == ref.uid
    number = share.device.removeprefix("/dev/nvidia")
    uuid = UUIDS[int(number)] if number.isdecimal() else share.device
    assert env["NVIDIA_VISIBLE_DEVICES"] in (uuid, share.device)
    assert share.memory_bytes == gib * GIB
    if "CUDA_DEVICE_MEMORY_LIMIT_0" in env:
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{gib * 1024}m"
    annotations = view.pods[name]["metadata"]["annotations"]
    view.pods[name]["status"]["phase"] = "Running"
    served.show(name, structs.replace(bound, annotations=annotations, phase="Running"))
