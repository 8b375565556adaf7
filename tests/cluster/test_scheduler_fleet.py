"""Our scheduler and our plugins with 300 pods on four nodes of eight GPUs, one system each.

Two replicas take turns behind one kube-scheduler. Meanwhile pods are deleted, and replicas, plugins
and kubelets are killed.
"""

import itertools
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from tests.cluster.extending import Extender, ExtenderProxy, kube_scheduler
from tests.cluster.plugin_kinds import GPU_GIB, KINDS, UNIT_MIB
from tests.cluster.plugin_truth import SIGHTS, STATE
from tests.cluster.scheduled import GIB, SYSTEM, asking, promised, require_no_overcommitment
from tests.support.bed import objects
from tests.support.bed.images import Shown
from tests.support.waiting import wait_ended, wait_until
from vgpu.model.names import Scheme
from vgpu.model.own_checkpoint import decode, file_name

pytestmark = pytest.mark.thorough("schedulers")

GPUS = 8
PODS = 300
SIZES = (2, 4, 8, 12, 12)
"""GiB; the 75 pods of a system ask for 570 on average, and its GPUs have 512."""

DELETIONS = 40
SECONDS = 900.0


class Events:
    """All events of a namespace's pods while the block lasts; a pod named "end" is the last."""

    def __init__(self, client, namespace):
        self._client, self._path = client, f"/api/v1/namespaces/{namespace}/pods"
        self._version = client.get(self._path)["metadata"]["resourceVersion"]
        self._namespace = namespace
        self.seen = []
        self.complete = False
        self._thread = threading.Thread(target=self._watch, name="events")

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._client.create(objects.pod("end", self._namespace, schedulerName="nobody"))
        wait_ended(self._thread, "the last event is seen")

    def _watch(self):
        while not self.complete:  # an API server ends a watch when it likes
            query = {"resourceVersion": self._version, "timeoutSeconds": int(2 * SECONDS)}
            for kind, pod in self._client.watch(self._path, **query):
                assert kind != "ERROR", pod
                self._version = pod["metadata"]["resourceVersion"]
                if pod["metadata"]["name"] == "end":
                    self.complete = True
                    break
                self.seen.append((kind, pod))


def is_deleted(pod):
    """Whether somebody has deleted it."""
    return "deletionTimestamp" in pod["metadata"]


def runs(pod):
    """Whether it is Ready, and is to stay."""
    return objects.ready(pod) and not is_deleted(pod)


class Fleet:
    """Nodes, plugins, replicas, and the pods of a namespace."""

    def __init__(self, client, namespace, plugins, replicas):
        self.client, self.namespace = client, namespace
        self.plugins, self.replicas = plugins, replicas
        self.random = random.Random(19)
        self.refused = Counter()
        """Message -> pods that the kubelet failed with it."""

    def start(self, name, system, gib):
        """Create a pod."""
        return self.client.create(asking(system, name, self.namespace, gib, schedulerName="ours"))

    def pods(self):
        """All pods."""
        return self.client.list(f"/api/v1/namespaces/{self.namespace}/pods")

    def replace_failed(self):
        """As a ReplicaSet does: a kubelet that is asked while a plugin is down fails the pod."""
        failed = [
            pod
            for pod in self.pods()
            if pod["status"].get("phase") == "Failed" and not is_deleted(pod)
        ]
        for pod in failed:
            reason = pod["status"]["reason"]  # "OutOf…" while the resource is not advertised
            assert reason.startswith(("UnexpectedAdmissionError", "OutOf")), pod["status"]
            labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
            self.client.delete(pod, grace_seconds=0)
            self.client.wait_gone(pod)
            self.start(f"{name}x", labels[SYSTEM], int(labels[GIB]))
        self.refused.update(pod["status"]["message"][:80] for pod in failed)

    def delete_some(self, count):
        """Pods that run, one after another."""
        for _ in range(count):
            running = [pod for pod in self.pods() if runs(pod)]
            if running:
                self.client.delete(self.random.choice(running))

    def create_and_disturb(self):
        """All pods from twenty threads, with deletions and kills meanwhile and afterwards."""
        asked = [
            (f"p{number}", system, self.random.choice(SIZES))
            for number, system in zip(range(PODS), itertools.cycle(KINDS), strict=False)
        ]
        first, second = self.replicas
        with ThreadPoolExecutor(20) as threads:
            made = [threads.submit(self.start, *each) for each in asked]
            first.kill()
            self.delete_some(DELETIONS // 4)
            first.start()
            self.plugins["hami"].kill()
            self.plugins["hami"].start_plugin()
            self.delete_some(DELETIONS // 4)
            second.kill()
            second.start()
            self.plugins["gpushare"].node.restart_kubelet()
            for each in made:
                each.result()
        self.plugins["gaia"].kill()
        self.plugins["gaia"].start_plugin()
        self.delete_some(DELETIONS // 2)

    def settled(self):
        """Whether each pod runs, or its system's GPUs have no room for it; the pods that run."""
        self.replace_failed()
        pods = self.pods()
        running = [pod for pod in pods if runs(pod)]
        waiting = [pod for pod in pods if "nodeName" not in pod["spec"]]
        if len(running) + len(waiting) < len(pods):
            return None
        return None if any(self.fits(pod, running) for pod in waiting) else running

    def fits(self, pod, running):
        """Whether a GPU of its system has as much memory left as it asks for."""
        system, gib = pod["metadata"]["labels"][SYSTEM], int(pod["metadata"]["labels"][GIB])
        plugin = self.plugins[system]
        free = dict.fromkeys(range(GPUS), GPU_GIB)
        for other in running:
            if other["metadata"]["labels"][SYSTEM] == system:
                promise = promised(plugin, other)
                free[promise.gpu] -= promise.gib
        return max(free.values()) >= gib

    def state(self):
        """Of those that do not run."""
        others = [pod for pod in self.pods() if not objects.ready(pod)]
        messages = [
            (pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"]) for pod in others
        ]
        return f"{len(messages)} pods: {messages[:5]}"[:5000]

    def admitted_pods(self, system):
        """What the plugin's own checkpoint keeps: UID -> GPU and GiB."""
        plugin, scheme = self.plugins[system], Scheme(KINDS[system].scheme)
        path = plugin.node.path(f"{STATE}/{file_name(scheme)}")
        kept = decode(path.read_bytes(), str(path), scheme, plugin.node.name)
        return {
            admitted_pod.pod.uid: [
                (plugin.uuids.index(share.device), share.memory_bytes >> 30)
                for share in admitted_pod.shares
            ]
            for admitted_pod in kept.admitted_pods
        }


@contextmanager
def fleet_of(control_plane, nodes, namespace, folder):
    """Everything runs, and each node offers its GPUs."""
    flags = (f"--volcano.memory-factor={UNIT_MIB}",)
    with ExitStack() as stack:
        plugins = {}
        for name, kind in KINDS.items():
            (own := folder / name).mkdir()
            plugins[name] = stack.enter_context(kind.plugin(nodes(), own, gpus=GPUS))
        replicas = [stack.enter_context(Extender(control_plane, folder, *flags)) for _ in range(2)]
        proxy = stack.enter_context(ExtenderProxy(replicas[0].port))
        proxy.targets = itertools.cycle([replica.port for replica in replicas])
        stack.enter_context(kube_scheduler(control_plane, folder, "ours", proxy.port))
        for name, plugin in plugins.items():
            KINDS[name].wait_served(plugin)
        yield Fleet(control_plane.client, namespace, plugins, replicas)


def test_a_pod_too_many_is_an_over_commitment():
    """What judges the events below."""

    def event(number, gib, **meta):
        pod = asking("gpushare", f"p{number}", "n", gib)
        pod["metadata"] |= {"uid": str(number), "annotations": {"ALIYUN_COM_GPU_MEM_IDX": "3"}}
        pod["metadata"] |= meta
        pod["spec"]["nodeName"] = "node"
        return "MODIFIED", pod | {"status": {"phase": "Running"}}

    plugins = {"gpushare": SimpleNamespace(node=SimpleNamespace(name="node"))}
    full = [event(1, GPU_GIB - 4), event(2, 4), event(2, 4)]
    assert require_no_overcommitment(full, plugins) == len(full)
    with pytest.raises(AssertionError, match="p3"):
        require_no_overcommitment([*full, event(3, 2)], plugins)
    leaving = event(2, 4, deletionTimestamp="now")
    with pytest.raises(AssertionError, match="p3"):
        require_no_overcommitment([*full, leaving, event(3, 2)], plugins)
    gone = ("DELETED", full[1][1])
    assert require_no_overcommitment([*full, gone, event(3, 2)], plugins) == len(full) + 2


def test_three_hundred_pods_have_their_own_shares_and_no_gpu_is_over_committed(
    control_plane, nodes, namespace, tmp_path, figure
):
    with fleet_of(control_plane, nodes, namespace, tmp_path) as fleet:
        with Events(fleet.client, namespace) as events:
            fleet.create_and_disturb()
            running = wait_until(
                fleet.settled, "all that fit run", seconds=SECONDS, context=fleet.state, pause=2.0
            )
        assert events.complete
        count = require_no_overcommitment(events.seen, fleet.plugins)

        kept = {system: fleet.admitted_pods(system) for system in KINDS}
        with ThreadPoolExecutor(8) as threads:
            shown = list(threads.map(lambda pod: Shown.by(fleet.client, pod), running))
        for pod, seen in zip(running, shown, strict=True):
            system, uid = pod["metadata"]["labels"][SYSTEM], pod["metadata"]["uid"]
            plugin = fleet.plugins[system]
            promise = promised(plugin, pod)
            assert SIGHTS[system](plugin, seen) in (promise, (promise.gpu, None))
            assert kept[system][uid] == [promise]
        figure(f"{len(running)} pods run, {count} events; made again: {dict(fleet.refused)}")
        assert len(running) > PODS * 3 // 5
