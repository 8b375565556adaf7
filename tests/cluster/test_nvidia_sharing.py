"""A real kubelet with a stand-in for NVIDIA's device plugin: its IDs, its replicas, its answers.

The values on the wire are in ``tests/support/nvidia_plugin.py``, each with its source.
"""

from contextlib import ExitStack

import pytest

from tests.support import nvidia_plugin
from tests.support.bed import objects
from tests.support.bed.deviceplugin import DevicePlugin
from tests.support.nvidia_plugin import G0, G1, MIG
from tests.support.nvidia_plugin import GPU as TIME_SLICED
from tests.support.nvidia_plugin import M0 as M
from tests.support.nvidia_plugin import SHARED as MPS
from tests.support.waiting import wait_until
from vgpu.model.facts import Gpu, GpuSample
from vgpu.model.names import Sharing, Source
from vgpu.schemes.registry import registry
from vgpu.schemes.row import KubeletGrant
from vgpu.sources.kubelet import DEFAULT_CHECKPOINT, DEFAULT_LOG_DIR, KubeletSource
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.samples import Observation

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"

GPUS = (
    Gpu(G0, 0, {}, {}),
    Gpu(G1, 1, {}, {}),
    Gpu(M, 0, {"gpu_instance_id": "7", "compute_instance_id": "0"}, {}, G1),
)


def through_mps(ids):
    """Without the mounts: their folders are not on this node."""
    answer = nvidia_plugin.mps(ids)
    del answer.mounts[:]
    return answer


@pytest.fixture
def plugins(node):
    with ExitStack() as stack:
        for resource, ids, answer in (
            (TIME_SLICED, nvidia_plugin.replicas(G0, 4), nvidia_plugin.envvar),
            (MPS, nvidia_plugin.replicas(G1, 2), through_mps),
            (MIG, [M], nvidia_plugin.envvar),
        ):
            plugin = stack.enter_context(DevicePlugin(node, resource, ids, answer))
            plugin.wait_counted(len(ids))
        yield


def sharing(grant):
    read = KubeletGrant(grant.resource, grant.device_ids, grant.env, grant.answered)
    return registry().named_devices(read).sharing


def holdings(ledger):
    return {
        (one.pod.name, one.share.device, one.slots, one.scheme.value) for one in ledger.holdings
    }


@pytest.mark.usefixtures("plugins")
def test_the_ledger_has_what_the_kubelet_allocated(control_plane, node, namespace):
    client = control_plane.client
    wanted = {
        "sliced": {TIME_SLICED: 1},
        "twice": {TIME_SLICED: 2},
        "mps": {MPS: 1},
        "mig": {MIG: 1},
    }
    made = [client.create(objects.pod(name, namespace, limits=of)) for name, of in wanted.items()]
    for pod in made:
        client.wait_for(pod, objects.ready, "Ready")
    source = KubeletSource(
        str(node.path(DEFAULT_LOG_DIR)), str(node.path(DEFAULT_CHECKPOINT)), str(node.path(SOCKET))
    )
    builder = LedgerBuilder(registry().codecs({}), node.name)
    held = {
        ("sliced", G0, 1, "nvidia"),
        ("twice", G0, 2, "nvidia"),
        ("mps", G1, 1, "nvidia"),
        ("mig", M, 1, "nvidia"),
    }

    def read():
        return source.sample(0.0)

    def ledger():
        return builder.ledger(Observation(gpu=GpuSample(GPUS), kubelet=read()))

    wait_until(lambda: holdings(ledger()) == held, "the ledger", context=lambda: str(read()))
    found = ledger()
    assert found.conflicts == ()
    for holding in found.holdings:
        assert set(holding.sources) == {Source.POD_RESOURCES, Source.CHECKPOINT}
    sample = read()
    assert sample.replicas == {G0: 4, G1: 2}
    granted = {
        sample.pods[one.pod_uid].name: one for one in sample.grants if one.pod_uid in sample.pods
    }
    assert {granted[name].env["NVIDIA_VISIBLE_DEVICES"] for name in ("sliced", "twice")} == {G0}
    assert {name: sharing(grant) for name, grant in granted.items() if name in wanted} == {
        "sliced": Sharing.TIME_SLICING,
        "twice": Sharing.TIME_SLICING,
        "mps": Sharing.MPS,
        "mig": Sharing.MIG,
    }

    node.restart_kubelet()
    node.wait_ready()
    wait_until(lambda: holdings(ledger()) == held, "the ledger after the kubelet's restart")
