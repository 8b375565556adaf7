"""What survives: plugin and kubelet restarted, files lost, damaged or not writable, no API server.

A GPU is full before anything happens. So whoever forgets a live pod gives its memory to the next.
"""

import itertools
import json
import re
import shutil
import time
from contextlib import contextmanager, suppress
from datetime import datetime

import pytest

from deviceplugin.kubelet.registrar import identity
from deviceplugin.reasons import BindRefusal
from tests.cluster.plugin_kinds import KINDS
from tests.cluster.plugin_node import KUBELET_DIR, PORT
from tests.cluster.plugin_truth import (
    CHECKPOINT,
    GPUS,
    STATE,
    Stage,
    is_untouched,
    promised,
    waits_with,
)
from tests.support.bed.node import Node
from tests.support.waiting import wait_until
from vgpu.model.names import Scheme
from vgpu.model.own_checkpoint import file_name
from vgpu.model.reasons import Reason

KIND = "volcano"
OWN = f"{STATE}/{file_name(Scheme.VOLCANO)}"
IMPATIENT = "--prestart-timeout=2s"


@pytest.fixture(scope="module")
def stage(control_plane, images, tmp_path_factory):
    with Node(control_plane, images) as node:
        stage = Stage(node, tmp_path_factory.mktemp("restarts"), KIND, flags=[IMPATIENT])
        stage.start()
        yield stage
        stage.close()


@pytest.fixture(scope="module")
def shared_house(stage, control_plane):
    with control_plane.namespace() as namespace:
        yield House(stage, namespace)


@pytest.fixture
def house(shared_house):
    """Everybody is at home, whatever the test before this has left."""
    if not shared_house.plugin.daemon.running:
        shared_house.plugin.start_plugin()
    shared_house.stage.wait_ready()
    return shared_house


@pytest.fixture
def plugin(house):
    return house.plugin


class House:
    """GPU 0 is full: two pods have it all, and one that has no room there waits for them."""

    def __init__(self, stage, namespace):
        self.stage, self.namespace, self.client = stage, namespace, stage.client
        self.plugin = stage.plugins[KIND]
        self._numbers = itertools.count(1)
        self.living = self.stage.ready(self.pod(48), self.pod(16))

    def pod(self, gib, gpu=0):
        name = f"pod-{next(self._numbers)}"
        return self.stage.pod(KIND, name, self.namespace, gpu=gpu, gib=gib)

    def require_kept(self, *, known=True):
        """Nobody was touched, there is no room on GPU 0 until somebody leaves, and some on 1.

        ``known`` is whether the kubelet remembers who has which device.
        """
        for pod in self.living:
            assert is_untouched(self.client, pod)
        late = self.pod(16)
        (other,) = self.stage.ready(self.pod(1, gpu=1))
        self.client.wait_for(late, waits_with(BindRefusal.NO_ROOM), "waits for room")
        self.require_sound(other, known=known)
        self.client.delete(self.living.pop())
        self.client.delete(other)
        self.living += self.stage.ready(late)
        self.require_sound(known=known)

    def require_sound(self, *others, known=True):
        running = [*self.living, *others]
        if known:
            self.stage.require_sound(KIND, running)
        for pod in running:
            assert self.stage.seen(KIND, pod) == promised(pod)


@contextmanager
def timed(figure, what):
    """Prints how long the block took."""
    begun = time.monotonic()
    yield
    figure(f"{what}: {time.monotonic() - begun:.1f} s")


# ---------------------------------------------------------------- restarts


def registered_at(plugin):
    """When all its resources were last registered, by its log; unix seconds."""
    lines = [line for line in plugin.log_lines() if line["msg"] == "resource registered"]
    last = {line["resource"]: datetime.fromisoformat(line["ts"]).timestamp() for line in lines}
    return min(last.values())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop_kubelet", "kill_kubelet"])
def test_a_kubelet_that_returns_has_the_plugin_at_once(end, stage, plugin, house, figure):
    socket = stage.node.path(f"{KUBELET_DIR}/kubelet.sock")
    old = identity(str(socket))
    getattr(stage.node, end)()
    stage.node.start_kubelet()
    wait_until(
        lambda: identity(str(socket)) not in (None, old), "the kubelet's socket is a new one"
    )
    there = socket.stat().st_ctime
    seconds = wait_until(
        lambda: max(0.0, registered_at(plugin) - there), "all are registered with the new kubelet"
    )
    stage.wait_ready()
    figure(f"{end}: registered {seconds:.2f} s after the kubelet's socket was there again")
    house.require_kept()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop_plugin", "kill"])
def test_a_plugin_that_returns_knows_its_admitted_pods(end, stage, plugin, house, figure):
    getattr(plugin, end)()
    with timed(figure, f"{end}: started again and ready after"):
        plugin.start_plugin()
        plugin.wait_ready()
    stage.wait_ready()
    house.require_kept()


@pytest.mark.slow
def test_both_at_once(stage, plugin, house, figure):
    plugin.kill()
    stage.node.kill_kubelet()
    with timed(figure, "both killed: ready after"):
        plugin.start_plugin()
        stage.node.start_kubelet()
        stage.wait_ready()
    house.require_kept()


@pytest.mark.slow
def test_the_second_of_two_plugins_waits_for_the_first(stage, plugin, house, tmp_path):
    second = KINDS[KIND].plugin(stage.node, tmp_path, IMPATIENT, gpus=GPUS, port=PORT + 1)
    second.start_plugin()
    try:
        message = f"waiting for another device plugin to let go of {STATE}"
        second.daemon.wait_until(lambda: message in second.daemon.log(), "it logs that it waits")
        assert second.metrics()["vgpu_plugin_ready",] == 0
        assert plugin.metrics()["vgpu_plugin_ready",] == 1
        plugin.kill()
        KINDS[KIND].wait_served(second)
        stage.plugins[KIND] = second
        house.require_kept()
    finally:
        stage.plugins[KIND] = plugin
        second.stop_plugin()


# ---------------------------------------------------------------- what is on disk


def absent(file):
    file.unlink()


def truncated(file):
    file.write_bytes(file.read_bytes()[:300])


def corrupted(file):
    whole = file.read_bytes()
    changed = re.sub(rb'"cores_milli":\d', b'"cores_milli":9', whole)
    assert changed != whole
    file.write_bytes(changed)


def of_the_future(file):
    file.write_bytes(json.dumps({**json.loads(file.read_bytes()), "version": 99}).encode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (absent, None),
        (truncated, Reason.TRUNCATED),
        (corrupted, Reason.CHECKSUM_MISMATCH),
        (of_the_future, Reason.FUTURE_VERSION),
    ],
)
def test_without_its_own_checkpoint_the_other_sources_decide(damage, problem, stage, plugin, house):
    before = {uid: admitted_pod.bindings for uid, admitted_pod in stage.admitted_pods(KIND).items()}
    plugin.kill()
    own = stage.node.path(OWN)
    before_that = set(own.parent.iterdir())
    for file in (own, own.with_name(f"{own.name}.bak")):
        damage(file)
    plugin.start_plugin()
    stage.wait_ready()
    aside = [file for file in set(own.parent.iterdir()) - before_that if "damaged" in file.name]
    assert len(aside) == (2 if problem else 0)
    metrics = plugin.metrics()
    problems = [key for name, *key in metrics if name == "vgpu_plugin_checkpoint_problem_info"]
    assert problems == ([[problem.value]] if problem else [])
    house.require_kept()
    (uid,) = {pod["metadata"]["uid"] for pod in house.living} & before.keys()
    again = stage.admitted_pods(KIND)[uid].bindings
    assert [(one.name, one.shares) for one in again] == [
        (one.name, one.shares) for one in before[uid]
    ]


@pytest.fixture
def unwritable(stage):
    """Lays a file system over the plugin's folder; it is taken away when the block ends."""

    @contextmanager
    def lay(options, *, full):
        stage.node.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", STATE])
        try:
            if full:
                with suppress(OSError):
                    stage.node.path(f"{STATE}/ballast").write_bytes(bytes(2**20))
            yield
        finally:
            stage.node.run(["umount", "--lazy", STATE])

    return lay


@pytest.mark.slow
@pytest.mark.parametrize(("options", "full"), [("ro", False), ("size=64k", True)])
def test_what_cannot_be_recorded_is_not_allocated(options, full, plugin, house, unwritable):
    with unwritable(options, full=full):
        pod = house.pod(1, gpu=1)
        house.client.wait_for(pod, waits_with(BindRefusal.NOT_WRITTEN), "waits")
        assert plugin.metrics()["vgpu_plugin_checkpoint_write_failures_total",] > 0
        assert pod["metadata"]["uid"] not in plugin_specs(plugin)
    house.stage.ready(pod)
    house.require_sound(pod)
    house.client.delete(pod)


def plugin_specs(plugin):
    """All that CDI specs say on the node."""
    folder = plugin.node.path("/run/cdi")
    return "".join(file.read_text() for file in folder.glob("vgpu-*.json"))


# ---------------------------------------------------------------- no API server


def restarts(pod):
    return pod["status"]["containerStatuses"][0]["restartCount"]


def containers(node, uid):
    """The IDs of a pod's running containers, by containerd."""
    ctr = ["ctr", "--namespace=k8s.io"]
    of = f'labels."io.kubernetes.pod.uid"=={uid},labels."io.cri-containerd.kind"==container'
    there = node.run([*ctr, "containers", "list", "--quiet", of]).split()
    running = node.run([*ctr, "tasks", "list"]).splitlines()
    return {line.split()[0] for line in running if "RUNNING" in line} & set(there)


@pytest.mark.slow
def test_without_the_api_server_what_runs_may_be_started_again(
    stage, plugin, house, control_plane, figure
):
    node, (big, small) = stage.node, house.living
    (old,) = containers(node, big["metadata"]["uid"])
    control_plane.kill_api()
    try:
        plugin.kill()
        with timed(figure, "without the API server: ready after"):
            plugin.start_plugin()
            plugin.wait_ready()
        assert stage.admitted_pods(KIND).keys() >= {pod["metadata"]["uid"] for pod in house.living}
        node.run(["ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", old])
        wait_until(
            lambda: containers(node, big["metadata"]["uid"]) - {old}, "the container is made again"
        )
    finally:
        control_plane.start_api()
    house.client.wait_for(big, lambda pod: restarts(pod) == 1, "started again")
    house.living = stage.ready(big, small)
    stage.wait_ready()
    house.require_kept()


# ---------------------------------------------------------------- a kubelet that has forgotten all


@pytest.mark.slow
def test_a_kubelet_that_has_forgotten_all_gives_nothing_twice(stage, plugin, house):
    stage.node.stop_kubelet()
    stage.node.path(CHECKPOINT).write_bytes(b'{"Data":{"PodDeviceEntries":[{"PodUI')
    stage.node.start_kubelet()
    stage.wait_ready()
    house.require_kept(known=False)


@pytest.mark.slow
def test_a_plugin_may_come_before_the_kubelets_folder(stage, plugin, house):
    stage.node.stop_kubelet()
    plugin.stop_plugin()
    folder = stage.node.path(KUBELET_DIR)
    shutil.rmtree(folder)
    plugin.start_plugin()
    plugin.daemon.wait_until(
        lambda: plugin.metrics()["vgpu_plugin_recovered",] == 1, "has recovered"
    )
    assert plugin.metrics()["vgpu_plugin_ready",] == 0
    stage.node.start_kubelet()
    stage.wait_ready()
    house.require_kept(known=False)
