"""A GPU falls ill or vanishes, and comes back: nobody new begins there, whoever runs is let be.

The driver is made to say it; what follows is shown by the Node, the metrics and the pods.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest

from deviceplugin.reasons import BindRefusal
from tests.cluster.plugin_kinds import KINDS
from tests.cluster.plugin_truth import GPUS, Stage, is_untouched, waits_with
from tests.support.nvml_fake import Xid, uuid
from tests.support.waiting import wait_until

XID_BUS = 79
"""The GPU has fallen off the bus."""

XID_PROGRAM = 13
"""A program has done something illegal: nothing against the GPU."""

RECOVERY = "--health.recovery=12s"


@pytest.fixture(params=["volcano", "gpushare", "gaia"])
def kind(request):
    return request.param


@pytest.fixture
def stage(kind, node, tmp_path):
    stage = Stage(node, tmp_path, kind, flags=[RECOVERY, "--prestart-timeout=1s"])
    stage.start()
    yield stage
    stage.close()


@pytest.fixture
def plugin(stage, kind):
    return stage.plugins[kind]


@pytest.fixture
def make(stage, kind, namespace):
    """Makes a pod of the kind."""

    def make(name, gpu=0):
        return stage.pod(kind, name, namespace, gpu=gpu, gib=4)

    return make


@contextmanager
def xids_that_go_on(plugin):
    """The recovery counts from the last one, however long a busy machine takes meanwhile."""
    xids, over = [Xid(uuid(1), XID_PROGRAM)], Event()

    def write():
        while True:
            xids.append(Xid(uuid(0), XID_BUS))
            plugin.write_gpus(xids=xids)
            if over.wait(1.0):
                return

    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit(write)
        try:
            yield
        finally:
            over.set()
    writing.result()


def wait_healthy(plugin, gpu, *, healthy):
    def says_so():
        metrics = plugin.metrics()
        return metrics["vgpu_plugin_device_healthy", str(gpu), uuid(gpu)] == healthy

    wait_until(says_so, f"GPU {gpu} is {'healthy' if healthy else 'unhealthy'}")


def wait_offered(stage, kind, gpus):
    """Until the Node gives shares of so many GPUs; it has those of all."""
    KINDS[kind].wait_offered(stage.plugins[kind], gpus)
    capacity = stage.node.object()["status"]["capacity"]
    for resource, per_gpu in KINDS[kind].offered.items():
        assert capacity[resource] == str(GPUS * per_gpu)


@pytest.mark.slow
def test_a_gpu_with_an_xid_is_not_allocated_until_it_has_recovered(
    kind, stage, plugin, make, figure
):
    client = stage.client
    (runs,) = stage.ready(make("runs"))
    with xids_that_go_on(plugin):
        wait_healthy(plugin, 0, healthy=False)
        wait_offered(stage, kind, 1)
        waits = make("waits")
        client.wait_for(waits, waits_with(BindRefusal.UNHEALTHY_DEVICE), "waits for its GPU")
    begun = time.monotonic()
    (goes,) = stage.ready(make("goes", gpu=1))
    assert is_untouched(client, runs)
    wait_offered(stage, kind, 2)
    recovered = time.monotonic() - begun
    (waits,) = stage.ready(waits)
    figure(
        f"{kind}: healthy on the Node again {recovered:.1f} s after the last XID, the pod that"
        f" waited is Ready after {time.monotonic() - begun:.1f} s"
    )
    assert is_untouched(client, runs)
    stage.require_sound(kind, [runs, goes, waits])
    events = {
        key[1:]: count
        for key, count in plugin.metrics().items()
        if key[0] == "vgpu_plugin_health_events_total"
    }
    assert events.keys() == {("xid", uuid(0))}


@pytest.mark.slow
def test_a_gpu_that_vanishes_is_not_allocated_until_it_is_back(kind, stage, plugin, make):
    client = stage.client
    (runs,) = stage.ready(make("runs", gpu=1))
    plugin.write_gpus(without=[1])
    wait_healthy(plugin, 1, healthy=False)
    wait_offered(stage, kind, 1)
    waits = make("waits", gpu=1)
    client.wait_for(waits, waits_with(BindRefusal.UNHEALTHY_DEVICE), "waits for its GPU")
    assert plugin.metrics()["vgpu_plugin_device_unhealthy_info", "1", "lost", uuid(1)] == 1
    (goes,) = stage.ready(make("goes"))
    assert is_untouched(client, runs)
    plugin.write_gpus()
    wait_offered(stage, kind, 2)
    wait_healthy(plugin, 1, healthy=True)
    (waits,) = stage.ready(waits)
    assert is_untouched(client, runs)
    stage.require_sound(kind, [runs, goes, waits])
