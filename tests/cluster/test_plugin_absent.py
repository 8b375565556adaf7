"""Pods admitted while there is no plugin: the kubelet refuses them, the reconciler heals the rest.

So it is after every reboot, too. A stand-in for Volcano's scheduler promises and binds the pods of
a Deployment, which together fill the GPUs: what is still held by the dead, the living do not get.
"""

import time
from collections import Counter

import pytest

from tests.cluster.plugin_kinds import GPU_GIB
from tests.cluster.plugin_scheduler import NAME, Scheduler
from tests.cluster.plugin_truth import GPUS, PROMISE, Stage, promised, refused_without_plugin
from tests.cluster.reconciling import AT_ONCE, CLUSTER_RIGHTS, Command, forget_state, with_rights
from tests.support.bed import objects
from tests.support.waiting import wait_until

KIND = "volcano"
GIB = GPU_GIB // 2
REPLICAS = GPUS * GPU_GIB // GIB
SPECS = "/etc/cdi"
"""Where CDI specs survive a reboot: /var/run does not."""


@pytest.fixture
def own_node(nodes):
    return nodes()


@pytest.fixture
def stage(own_node, tmp_path):
    flags = ["--prestart-timeout=2s", f"--cdi.spec-dir={SPECS}"]
    stage = Stage(own_node, tmp_path, KIND, flags=flags)
    stage.start()
    yield stage
    stage.close()


@pytest.fixture
def command(control_plane, namespace, tmp_path):
    """The reconciler, which touches nothing but this test's namespace."""
    client = with_rights(control_plane, *CLUSTER_RIGHTS)
    config = AT_ONCE | {"namespaces": [namespace], "limits": {"breaker": 1.0}}
    yield Command(client, tmp_path, config)
    forget_state(control_plane.client)


class Web:
    """A Deployment that grows until the GPUs are full, each pod on the first one with room."""

    def __init__(self, stage, namespace):
        self.stage, self.client, self.namespace = stage, stage.client, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.scheduler = Scheduler(stage.client, namespace, stage.node, self.promise)
        sample = stage.promised_pod(KIND, "web", namespace, 0, GIB)
        limits = sample["spec"]["containers"][0]["resources"]["limits"]
        of_the_pod = {"limits": limits, "schedulerName": NAME}
        self.client.create(objects.deployment("web", namespace, 0, **of_the_pod))

    def scale(self, replicas):
        web = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/web"
        self.client.patch(web, {"spec": {"replicas": replicas}})

    def pods(self):
        return self.client.list(self.path)

    def running(self):
        return [pod for pod in self.pods() if objects.ready(pod)]

    def failed(self):
        return [pod for pod in self.pods() if pod["status"].get("phase") == "Failed"]

    def gpu(self):
        """With room for another; None if there is none."""
        held = Counter(
            promised(pod).gpu
            for pod in self.pods()
            if PROMISE in pod["metadata"].get("annotations", ())
            and pod["status"]["phase"] != "Failed"
        )
        return next((gpu for gpu in range(GPUS) if (held[gpu] + 1) * GIB <= GPU_GIB), None)

    def promise(self, pod):
        name = pod["metadata"]["name"]
        made = self.stage.promised_pod(KIND, name, self.namespace, self.gpu(), GIB)
        return made["metadata"]["annotations"]

    def wait_until(self, condition, what):
        """Go on binding until it holds."""

        def held():
            for pod in self.scheduler.waiting():
                if self.gpu() is not None:
                    self.scheduler.bind(pod)
            return condition()

        def now():
            return "\n".join(f"{pod['metadata']} {pod['status']}" for pod in self.pods())

        wait_until(held, what, context=now)

    def wait_running(self, count):
        self.wait_until(lambda: len(self.running()) == count, f"{count} run")


@pytest.fixture
def web(stage, namespace):
    web = Web(stage, namespace)
    yield web
    web.scale(0)


def uids(pods):
    return {pod["metadata"]["uid"] for pod in pods}


def require_healed(web, command):
    """What the kubelet refused is evicted, and all run, with the GPUs full; how many it was."""
    refused = web.failed()
    assert all(map(refused_without_plugin, refused))
    applied = command.apply()
    assert {entry["uid"] for entry in applied.actions} == uids(refused)
    assert {entry["rule"] for entry in applied.actions} == {"refused"}
    assert {entry["outcome"] for entry in applied.actions} == {"done"}
    web.wait_running(REPLICAS)
    running = web.running()
    assert uids(web.pods()) == uids(running)
    web.stage.require_sound(KIND, running)
    assert command.plan().actions == []
    return len(refused)


@pytest.mark.slow
def test_what_was_refused_for_want_of_a_plugin_is_replaced(stage, web, command, figure):
    web.scale(REPLICAS - 1)
    web.wait_running(REPLICAS - 1)
    before = uids(web.running())
    stage.kill(KIND)
    web.scale(REPLICAS)
    web.wait_until(web.failed, "one is refused")
    begun = time.monotonic()
    stage.start()
    web.wait_running(REPLICAS)
    seconds = time.monotonic() - begun
    assert before < uids(web.running())
    refused = require_healed(web, command)
    figure(
        f"the plugin is back: all run after {seconds:.1f} s; the reconciler tidied up"
        f" {refused} that the kubelet had refused"
    )


@pytest.mark.slow
def test_after_a_reboot_all_run_again_and_nobody_holds_what_the_dead_had(
    stage, web, command, figure
):
    web.scale(REPLICAS)
    web.wait_running(REPLICAS)
    node, before = stage.node, uids(web.running())
    specs = node.path(SPECS)
    old = {file.name for file in specs.glob("vgpu-*.json")}
    assert len(old) == REPLICAS
    assert stage.admitted_pods(KIND).keys() >= before

    begun = time.monotonic()
    node.reboot()
    booted = time.monotonic() - begun
    specs = node.path(SPECS)
    assert {file.name for file in specs.glob("vgpu-*.json")} == old
    wait_until(lambda: uids(web.failed()) >= before, "the kubelet has refused all")
    refused_after = time.monotonic() - begun
    stage.start()
    served = time.monotonic() - begun
    web.wait_running(REPLICAS)
    seconds = time.monotonic() - begun
    refused = require_healed(web, command)
    wait_until(
        lambda: not {file.name for file in specs.glob("vgpu-*.json")} & old,
        "specs of the older boot are gone",
    )
    assert not stage.admitted_pods(KIND).keys() & before
    figure(
        f"reboot: the node is Ready after {booted:.1f} s, its pods are refused after"
        f" {refused_after:.1f} s, the plugin is ready after {served:.1f} s, all run after"
        f" {seconds:.1f} s; {refused} had been refused"
    )
