"""The originals' own schedulers place pods, and our plugin serves them on a real kubelet.

Stand-ins write what we expect from a scheduler. The real schedulers found what we did not.
"""

import json
import subprocess
import sys
from collections import Counter
from itertools import cycle, repeat

import pytest

from deviceplugin.reasons import BindRefusal
from tests.cluster.accounts import account
from tests.cluster.originals import VolcanoScheduler
from tests.cluster.plugin_node import PluginNode
from tests.cluster.plugin_truth import waits_with
from tests.support.bed import objects
from tests.support.bed.images import Shown

pytestmark = pytest.mark.thorough("schedulers")

waits = waits_with(BindRefusal.NO_ROOM)

NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
PROMISE = "volcano.sh/vgpu-ids-new"
GPUS, GPU_GIB = 2, 64
SHOW_AND_END = (
    "show >/tmp/shown & until grep -q ^shown /tmp/shown; do usleep 50000; done; cat /tmp/shown"
)

SHAPES = (
    "g",
    "pg",
    "gp",
    "gp",
    "pgp",
    "gpg",
    "gg",
    "p:g",
    "p:pg",
    "g:g",
    "pg:pgg",
    "g:gpg",
    "p:gg",
)
"""Init containers, then app containers; ``g`` asks for a GPU and ``p`` for nothing."""


@pytest.fixture(scope="module")
def scheduler(control_plane, plugin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("volcano")
    with VolcanoScheduler(control_plane, plugin.node.name, folder) as scheduler:
        yield scheduler


@pytest.fixture(scope="module")
def plugin(node, tmp_path_factory):
    flags = ["--volcano.memory-factor=1024", "--volcano.split-count=40"]
    folder = tmp_path_factory.mktemp("driver")
    with PluginNode(
        node, "volcano", folder, gpus=GPUS, memory=GPU_GIB * 2**30, flags=flags
    ) as plugin:
        plugin.lay_out_shim()
        plugin.wait_ready()
        plugin.wait_offered(NUMBER, GPUS * 40)
        plugin.wait_offering([MEMORY])
        yield plugin


def asks(what, gib):
    return {NUMBER: 1, MEMORY: gib} if what == "g" else {}


def pod_of(shape, name, namespace, gibs):
    """A pod of this shape; ``gibs`` gives each container that asks its size."""
    before, _, apps = shape.rpartition(":")
    containers = [
        objects.container(f"c{at}", limits=asks(what, next(gibs))) for at, what in enumerate(apps)
    ]
    inits = [
        objects.container(f"i{at}", command=["sh", "-c", SHOW_AND_END], limits=asks(what, 1))
        for at, what in enumerate(before)
    ]
    return objects.pod(name, namespace, containers=containers, initContainers=inits)


def create(client, scheduler, pod):
    client.create(scheduler.group(pod))
    return client.create(pod)


def given(plugin, client, pod, container):
    """GPU and GiB that a container sees."""
    env = Shown.by(client, pod, container).env
    limit = int(env["CUDA_DEVICE_MEMORY_LIMIT_0"].removesuffix("m")) // 1024
    return plugin.uuids.index(env["NVIDIA_VISIBLE_DEVICES"]), limit


def promised(plugin, pod):
    """The same for each app container that asks, by what the scheduler wrote, in its order."""
    segments = pod["metadata"]["annotations"][PROMISE].split(";")
    entries = [segment.split(":")[0].split(",") for segment in segments if segment]
    asking = [one["name"] for one in pod["spec"]["containers"] if one["resources"].get("limits")]
    assert len(entries) == len(asking)
    return {
        name: (plugin.uuids.index(uuid), int(memory))
        for name, (uuid, _, memory, _) in zip(asking, entries, strict=True)
    }


def test_every_container_has_what_volcanos_own_scheduler_promised_it(
    control_plane, plugin, scheduler, namespace
):
    client = control_plane.client
    sizes = cycle((1, 2, 3))
    pods = [
        create(client, scheduler, pod_of(shape, f"p{at}", namespace, sizes))
        for at, shape in enumerate(SHAPES)
    ]
    for pod in pods:
        ready = client.wait_for(pod, objects.ready, "Ready")
        for container, share in promised(plugin, ready).items():
            assert given(plugin, client, ready, container) == share, ready["metadata"]["name"]
    metrics = plugin.metrics()
    assert metrics["vgpu_plugin_conflicts",] == 0


def test_no_gpu_gives_more_than_it_has_whatever_volcano_promises_and_nobody_waits_without_a_word(
    control_plane, plugin, scheduler, namespace
):
    """Pods of two containers, more than fit, before and after a restart of the scheduler."""
    client = control_plane.client
    sizes = repeat(20)
    pods = [
        create(client, scheduler, pod_of("gg", f"one{at}", namespace, sizes)) for at in range(3)
    ]
    settle(client, pods)
    scheduler.restart()
    pods += [
        create(client, scheduler, pod_of("gg", f"two{at}", namespace, sizes)) for at in range(4)
    ]
    now = settle(client, pods)
    given_out = Counter()
    for pod in filter(objects.ready, now):
        for container, share in promised(plugin, pod).items():
            assert given(plugin, client, pod, container) == share
            given_out[share[0]] += share[1]
    assert given_out
    assert max(given_out.values()) <= GPU_GIB
    waiting = {pod["metadata"]["name"] for pod in now if waits(pod)}
    assert over_promised(control_plane) == waiting


def settle(client, pods):
    """The pods, when each runs, waits for room, or was refused by the scheduler."""

    def is_settled(pod):
        return objects.ready(pod) or waits(pod) or objects.condition(pod, "PodScheduled") == "False"

    return [client.wait_for(pod, is_settled, "settled") for pod in pods]


def over_promised(cluster):
    """The pods that a plan of the reconciler names."""
    kubeconfig = account(cluster, "reconciler").kubeconfig
    command = ["reconcile", "plan", "--output=json", f"--kubeconfig={kubeconfig}"]
    ran = subprocess.run(
        [sys.executable, "-m", "vgpu", *command], capture_output=True, check=False, text=True
    )
    document = json.loads(ran.stdout)
    entries = (*document["actions"], *document["skipped"], *document["findings"])
    return {each["subject"]["name"] for each in entries if each["rule"] == "over_promised"}
