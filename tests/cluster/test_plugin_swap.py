"""Nobody ever gets another pod's limits, however the kubelet orders its questions.

Pods for which the kubelet asks a device plugin the same, each with a limit of its
own, come in an order that is not the scheduler's, wave after wave on the same device IDs, while
plugin and kubelet are restarted. A wave has sixty pods in `make test-thorough`, where two loops
keep both processors busy, and eight in `make test`, where the tests of the other workers do.
"""

import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.plugin_node import KUBELET_DIR, PluginNode, volcano_pod
from tests.support.bed import objects
from tests.support.bed.images import Shown
from tests.support.waiting import wait_until

PODS, FULL_PODS = 8, 60
WAVES, GPUS, SPLIT, RESOURCES = 5, 8, 10, 3
NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
BUSY = "while True: pass"


@pytest.fixture
def own_node(nodes):
    return nodes()


@pytest.fixture
def plugin(own_node, tmp_path):
    flags = [f"--volcano.split-count={SPLIT}", "--volcano.memory-factor=1024"]
    with PluginNode(
        own_node, "volcano", tmp_path, gpus=GPUS, memory=3 * 2**40, flags=flags
    ) as plugin:
        plugin.lay_out_shim()
        plugin.wait_ready()
        plugin.wait_offered(NUMBER, GPUS * SPLIT)
        plugin.wait_offering([MEMORY])
        yield plugin


@pytest.fixture
def busy(own_node, full):
    """Both processors have something else to do."""
    processors = range(2 if full else 0)
    loops = [own_node.start(f"busy{number}", [sys.executable, "-c", BUSY]) for number in processors]
    yield
    for loop in loops:
        loop.kill()


def wave(number, count, namespace, plugin):
    """Pods in the scheduler's order; no two have the same limit."""
    pods = []
    for place in range(count):
        shares = [(place % GPUS, 1 + place + number * count, 1 + place % 12)]
        pod = volcano_pod(f"w{number}-{place}", namespace, plugin, {"main": shares}, counted=())
        pod["metadata"]["annotations"]["volcano.sh/vgpu-time"] = str(1_000_000 + place)
        pods.append(pod)
    return pods


def expected(pod, plugin):
    """GPU and limits of a pod, by its annotations."""
    uuid, _, memory, cores = (
        pod["metadata"]["annotations"]["volcano.sh/vgpu-ids-new"].strip(":").split(",")
    )
    return uuid, f"{int(memory) * 1024}m", cores


def seen(client, pod):
    env = Shown.by(client, pod).env
    names = ("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT")
    return tuple(env[name] for name in names)


def guesses_gone_wrong(lines, order):
    """Swaps of a plugin that serves the oldest promise first, for the kubelet's order of asking."""
    asked = {
        line["share"]: at for at, line in enumerate(lines) if line["msg"] == "Allocate answered"
    }
    owners = {line["share"]: line["pod"] for line in lines if line["msg"] == "container bound"}
    truth = [owners[share] for share in sorted(owners, key=asked.__getitem__) if share in asked]
    mine = [pod for pod in truth if pod in order]
    return sum(guess != pod for guess, pod in zip(order, mine, strict=False))


def registrations(plugin):
    return sum(line["msg"] == "resource registered" for line in plugin.log_lines())


def refusals(plugin):
    """Those of Allocate by reason; a guess that went wrong is refused before the start."""
    return {
        key: value
        for key, value in plugin.metrics().items()
        if key[0] == "vgpu_plugin_refusals_total" and key[2] != "prestart"
    }


def has_list(plugin, since):
    """Whether the kubelet has taken the list since then: it writes that down after each."""
    file = plugin.node.path(f"{KUBELET_DIR}/kubelet_internal_checkpoint")
    ids = plugin.checkpoint()["Data"]["RegisteredDevices"].get(NUMBER) or ()
    return file.stat().st_mtime > since and len(ids) == GPUS * SPLIT


def disturb(number, plugin, namespace):
    """Before each wave but the first something else goes wrong, and is over when it comes."""
    registered = registrations(plugin) + (RESOURCES if number else 0)
    since = time.time() if number else 0.0
    if number == 1:
        plugin.node.restart_kubelet()
    elif number == 2:
        plugin.kill()
        plugin.start_plugin()
    elif number == 3:
        plugin.kill()
        plugin.node.kill_kubelet()
        plugin.node.start_kubelet()
        plugin.start_plugin()
    elif number == 4:
        plugin.stop_plugin()
        plugin.start_plugin()
    # The plugin may not know yet that the kubelet is another, and the Node is as it was before.
    wait_until(lambda: registrations(plugin) >= registered, "registered again")
    plugin.wait_ready()
    wait_until(lambda: has_list(plugin, since), "the kubelet has the list", failures=(OSError,))
    plugin.wait_offered(NUMBER, GPUS * SPLIT)
    # A kubelet frees nobody's devices while it admits the first pods that it hears of.
    first = objects.pod(f"first-{number}", namespace, nodeName=plugin.node.name)
    plugin.client.delete(plugin.start(first))


@pytest.mark.slow
@pytest.mark.thorough("plugin", smaller=True)
def test_every_container_sees_its_own_pods_limits(
    plugin, busy, namespace, control_plane, figure, full
):
    client = control_plane.client
    generator = random.Random(7)
    count = FULL_PODS if full else PODS
    swaps = would_be = 0
    pods_path = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(WAVES):
        disturb(number, plugin, namespace)
        bound_order = wave(number, count, namespace, plugin)
        admitted = list(reversed(bound_order)) if number % 2 else bound_order.copy()
        if number % 2 == 0:
            generator.shuffle(admitted)
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(client.create, admitted))
            if number == 4:
                plugin.kill()  # in the middle of it, before it can clean up
                plugin.start_plugin()
            running = list(
                pool.map(
                    lambda pod: client.wait_for(pod, settled, "Ready or Failed", seconds=300), made
                )
            )
        alive = [pod for pod in running if objects.ready(pod)]
        for pod in alive:
            swaps += seen(client, pod) != expected(pod, plugin)
        would_be += guesses_gone_wrong(
            plugin.log_lines(), [pod["metadata"]["name"] for pod in bound_order]
        )
        refused = [pod for pod in running if not objects.ready(pod)]
        assert all(pod["status"]["reason"] == "UnexpectedAdmissionError" for pod in refused)
        if number < 4:
            assert not refused
            assert refusals(plugin) == {}
        for pod in made:  # at once, so that the next wave gets the same IDs
            client.delete(pod)
        wait_until(lambda: not client.list(pods_path), "all pods are gone", seconds=300)
    figure(f"swaps: {swaps} of {count * WAVES}; the originals' rule would have had {would_be}")
    assert swaps == 0
    assert would_be > count


def settled(pod):
    return objects.ready(pod) or pod["status"]["phase"] == "Failed"
