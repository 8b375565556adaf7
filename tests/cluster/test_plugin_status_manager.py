"""What the plugin reports to others, at a real API server, with no more rights than it needs."""

import threading
import time
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.adapters.volcano import VolcanoAdapter
from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.status_manager import StatusManager
from deviceplugin.apiserver.writes import EventReason
from deviceplugin.failpoints import Step
from tests.cluster.accounts import account
from tests.support import sample_cluster as sample
from tests.support.bed import objects
from tests.support.plugin_pods import admitted_pod_of, by_name, gpu, no_capacity
from tests.support.waiting import wait_until
from vgpu.apiserver import list_watch
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.informer import Informer
from vgpu.schemes.volcano.codec import HAMI, Volcano
from vgpu.schemes.volcano.node import lock_text

ON_NODE = "plugin-1"
A, B = sample.uuid(1), sample.uuid(2)
GPUS = (gpu(A, 0), gpu(B, 1))
VOLCANO, HAMI_ROLE = VolcanoAdapter(Volcano()), VolcanoAdapter(Volcano(HAMI))
GPUSHARE = GpushareAdapter()
SINCE = datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC).timestamp()
LOCK, HAMI_LOCK = "hamivgpu", "hami.io/mutex.lock"


def rule(resource, *verbs):
    return {"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}


FOLLOW = (rule("pods", "list", "watch"), rule("nodes", "list", "watch"))
"""What every scheme's plugin needs to see."""


class Plugin:
    """The plugin's status manager: its mirrors, and an allocation state that the test fills.

    ``ahead`` is how much its monotonic clock is ahead, in seconds.
    """

    def __init__(self, kubeconfig, adapter, node=ON_NODE):
        self.adapter, self.on_node, self.ahead = adapter, node, 0.0
        self.devices = adapter.devices(GPUS)
        self.admitted_pods, self.served, self.steps = {}, set(), []
        self.cluster = ApiClient.connect(str(kubeconfig), gather=0)
        self.status_manager = StatusManager(
            self.cluster,
            adapter,
            self.look,
            self.steps.append,
            monotonic=lambda: time.monotonic() + self.ahead,
        )
        api = list_watch.pods_of_node(self.cluster, node)
        wake = self.status_manager.wake
        self.pods = Informer(api, "pods", key=lambda pod: pod.kubelet_uid, changed=wake)
        api = list_watch.node(self.cluster, node)
        self.node = Informer(api, "node", key=lambda node: node.name, changed=wake)

    def __enter__(self):
        self.pods.start()
        self.node.start()
        self.status_manager.start()
        return self

    def __exit__(self, *_):
        self.status_manager.stop()
        self.pods.close()
        self.node.close()
        self.cluster.close()

    def look(self):
        pods, node = self.pods.state(), self.node.state().objects.get(self.on_node)
        named = by_name(self.devices)
        served = frozenset(self.served)
        return DesiredState(
            self.devices, named, dict(self.admitted_pods), pods.objects, node, served
        )

    def bind(self, made):
        """All containers of the pod are bound, as soon as the watch shows it."""
        uid = made["metadata"]["uid"]
        pod = wait_until(lambda: self.pods.state().objects.get(uid), "the watch shows the pod")
        allocations = self.adapter.claim(pod, self.on_node, self.devices, no_capacity(self.devices))
        bound = [each.container for each in allocations]
        self.admitted_pods = {**self.admitted_pods, uid: admitted_pod_of(pod, allocations, bound)}
        self.served = {*self.served, uid}
        self.status_manager.wake()

    def count(self, *what):
        return self.status_manager.counts().get(what, 0)


@pytest.fixture
def node(api):
    made = api.client.create({**sample.node(ON_NODE), "status": {}})
    api.client.patch(made, {"status": sample.node(ON_NODE)["status"]}, "status")
    yield made
    api.client.delete(made)


@pytest.fixture
def plugin_of(api, node):
    """Starts a plugin with these rights, and the chart's if none are named."""
    opened = []

    def start(adapter, *rules):
        if rules:
            client = api.client_for(*rules)
        else:
            client = account(api, f"device-plugin-{adapter.scheme.value}", node=ON_NODE)
        opened.append(Plugin(client.kubeconfig, adapter).__enter__())
        return opened[-1]

    yield start
    for each in opened:
        each.__exit__()


@pytest.fixture
def volcano_pod(api, api_namespace):
    """Creates a pod as Volcano's or HAMi's scheduler has bound it, right after it took the lock."""

    def create(name, adapter=VOLCANO):
        key_set = adapter.codec.key_set
        text = f"{A},NVIDIA,128,10:"
        annotations = {key_set.devices: text, key_set.to_allocate: text, key_set.node: ON_NODE}
        annotations |= {key_set.bind_phase: "allocating", key_set.bind_time: str(int(SINCE))}
        limits = {key_set.number: 1}
        return api.client.create(
            objects.pod(
                name, api_namespace, limits=limits, annotations=annotations, nodeName=ON_NODE
            )
        )

    return create


def annotations(api, obj):
    return api.client.get(obj)["metadata"].get("annotations", {})


def annotate(api, obj, **annotations):
    api.client.patch(obj, {"metadata": {"annotations": annotations}})


def succeeded(api, pod):
    return annotations(api, pod)["volcano.sh/bind-phase"] == "success"


# ---------------------------------------------------------------- pods and locks


def test_a_pod_that_others_write_all_the_time_is_reported_and_keeps_their_values(
    api, plugin_of, volcano_pod
):
    plugin = plugin_of(VOLCANO)
    pods = [volcano_pod(f"p{n}") for n in range(6)]
    stop, written = threading.Event(), []

    def write():
        while not stop.is_set():
            written.append(str(len(written)))
            for pod in pods:
                annotate(api, pod, **{"example.com/n": written[-1]})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for pod in pods:
            plugin.bind(pod)
        for pod in pods:
            wait_until(lambda pod=pod: succeeded(api, pod), "the pod is reported")
    finally:
        stop.set()
        writer.join()
    for pod in pods:
        written_annotations = annotations(api, pod)
        assert written_annotations["example.com/n"] == written[-1]
        assert written_annotations["volcano.sh/devices-to-allocate"] == ""
        assert written_annotations["volcano.sh/vgpu-time"] == "18446744073709551615"
    wait_until(lambda: plugin.count("pod", "told") == len(pods), "each is reported once")
    assert plugin.count("pod", "failed") == 0


@pytest.fixture
def stale(api, node, volcano_pod):
    """A status manager of one bound pod, which it sees as it was when ``seen[0]`` was read."""
    made = volcano_pod("p")
    where = made["metadata"]["namespace"], "p"
    plugin = account(api, "device-plugin-volcano", node=ON_NODE)
    with (
        ApiClient.connect(str(plugin.kubeconfig)) as cluster,
        ApiClient.connect(str(api.kubeconfig)) as reader,  # stands for the watch
    ):
        seen = [reader.pod(*where)]
        uid = seen[0].ref.uid
        devices = VOLCANO.devices(GPUS)
        allocations = VOLCANO.claim(seen[0], ON_NODE, devices, no_capacity(devices))
        admitted_pods = {uid: admitted_pod_of(seen[0], allocations, ["main"])}

        def look():
            return DesiredState(devices, by_name(devices), admitted_pods, {uid: seen[0]}, None)

        yield made, seen, StatusManager(cluster, VOLCANO, look), lambda: reader.pod(*where)


def test_a_pod_that_has_changed_since_it_was_read_is_reported_when_the_change_is_seen(api, stale):
    made, seen, status_manager, read = stale
    annotate(api, made, **{"volcano.sh/vgpu-time": "7"})
    status_manager.round()
    assert status_manager.counts() == {("pod", "moved_on"): 1}
    assert not succeeded(api, made)
    seen[0] = read()
    status_manager.round()
    assert status_manager.counts()["pod", "told"] == 1
    assert succeeded(api, made)


def test_another_pod_of_the_same_name_is_not_reported(api, stale, volcano_pod):
    made, _, status_manager, _ = stale
    api.client.delete(made, grace_seconds=0)
    again = volcano_pod("p")
    status_manager.round()
    assert status_manager.counts() == {("pod", "moved_on"): 1}
    assert not succeeded(api, again)


def test_the_lock_is_released_when_its_owner_is_reported_and_not_before(
    api, plugin_of, node, volcano_pod
):
    plugin = plugin_of(VOLCANO)
    wait_until(lambda: plugin.count("node", "told"), "the node is registered")
    waits = volcano_pod("waits")
    annotate(api, node, **{LOCK: lock_text(SINCE, None)})
    later = volcano_pod("later")
    annotate(api, later, **{"volcano.sh/bind-time": str(int(SINCE) + 9)})
    plugin.bind(later)
    wait_until(lambda: succeeded(api, later), "the other pod is reported")
    assert LOCK in annotations(api, node)
    plugin.bind(waits)
    wait_until(lambda: LOCK not in annotations(api, node), "the lock is released")
    assert succeeded(api, waits)
    wait_until(lambda: Step.LOCK_RELEASED in plugin.steps, "the step is reached")
    assert plugin.steps == [Step.POD_ANNOTATED, Step.POD_ANNOTATED, Step.LOCK_RELEASED]


def test_hamis_lock_goes_for_the_pod_that_it_names(api, plugin_of, node, volcano_pod):
    plugin = plugin_of(HAMI_ROLE)
    owner, other = volcano_pod("owner", HAMI_ROLE), volcano_pod("other", HAMI_ROLE)
    uid = owner["metadata"]["uid"]
    ref = wait_until(lambda: plugin.pods.state().objects.get(uid), "the owner is seen").ref
    annotate(api, node, **{HAMI_LOCK: lock_text(SINCE, ref)})
    plugin.bind(other)
    key = HAMI.bind_phase
    wait_until(lambda: annotations(api, other)[key] == "success", "the other pod is reported")
    assert HAMI_LOCK in annotations(api, node)
    plugin.bind(owner)
    wait_until(lambda: HAMI_LOCK not in annotations(api, node), "the lock is released")
    assert annotations(api, owner)[key] == "success"


def test_a_lock_that_nobody_can_read_stays(api, plugin_of, node, volcano_pod):
    plugin = plugin_of(VOLCANO)
    annotate(api, node, **{LOCK: "taken"})
    pod = volcano_pod("p")
    plugin.bind(pod)
    wait_until(lambda: succeeded(api, pod), "the pod is reported")
    plugin.status_manager.stop()
    assert annotations(api, node)[LOCK] == "taken"


# ---------------------------------------------------------------- the node


def test_the_node_is_registered_and_a_handshake_answered(api, plugin_of, node):
    plugin = plugin_of(VOLCANO)
    wait_until(lambda: "volcano.sh/node-vgpu-register" in annotations(api, node), "registered")
    written_annotations = annotations(api, node)
    assert written_annotations["vgpu.dev/memory-factor"] == "1"
    assert written_annotations["volcano.sh/node-vgpu-register"].startswith(f"{A},10,46068,NVIDIA-")
    asked = {"volcano.sh/node-vgpu-handshake": "Requesting_2026.09.21 14:13:20"}
    annotate(api, node, **asked)
    plugin.devices = (plugin.devices[0], replace(plugin.devices[1], healthy=False))
    plugin.status_manager.wake()  # at once, since a GPU has failed
    wait_until(
        lambda: (
            "false" in annotations(api, node)["volcano.sh/node-vgpu-register"]
            and annotations(api, node)[next(iter(asked))].startswith("Reported")
        ),
        "the GPU's health is reported",
    )


def test_gpushares_gpus_are_counted_and_the_unhealthy_ones_published(api, plugin_of, node):
    config = {"apiVersion": "v1", "kind": "ConfigMap"}
    config["metadata"] = {"namespace": "kube-system", "name": f"unhealthy-gpu-{ON_NODE}"}
    plugin = plugin_of(GPUSHARE)

    def counted():
        status = api.client.get(node)["status"]
        return {status[where].get("aliyun.com/gpu-count") for where in ("capacity", "allocatable")}

    def become(*, healthy):
        plugin.devices = (plugin.devices[0], replace(plugin.devices[1], healthy=healthy))
        plugin.status_manager.wake()

    wait_until(lambda: counted() == {"2"}, "the GPUs are counted")
    assert api.client.get(node)["status"]["capacity"]["cpu"] == "64"
    assert api.client.find(config) is None
    become(healthy=False)
    wait_until(lambda: (api.client.find(config) or {}).get("data") == {"gpus": "1"}, "published")
    become(healthy=True)
    wait_until(lambda: not api.client.get(config).get("data"), "recovered")
    wait_until(lambda: plugin.count("configmap", "told") == 2, "both are counted")
    assert counted() == {"2"}
    api.client.delete(config)


def test_a_pod_without_annotations_is_shown_with_its_only_gpu(api, plugin_of, api_namespace):
    plugin = plugin_of(GPUSHARE)
    plugin.devices = plugin.devices[:1]
    limits = {"aliyun.com/gpu-mem": "4"}
    pod = api.client.create(objects.pod("p", api_namespace, limits=limits, nodeName=ON_NODE))
    plugin.bind(pod)
    wait_until(
        lambda: annotations(api, pod).get("ALIYUN_COM_GPU_MEM_IDX") == "0", "the pod is reported"
    )
    assert annotations(api, pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"


def test_one_node_is_followed_and_no_other(api, plugin_of, node):
    plugin = plugin_of(VOLCANO)
    wait_until(lambda: plugin.count("node", "told"), "the node is reported")  # and not again soon
    other = api.client.create({**sample.node("plugin-2"), "status": {}})
    label = {"metadata": {"labels": {"nvidia.com/gpu.product": "L40S"}}}
    api.client.patch(node, label)

    def labels():
        seen = plugin.node.state().objects
        return seen[ON_NODE].labels if set(seen) == {ON_NODE} else {}

    wait_until(lambda: labels().get("nvidia.com/gpu.product") == "L40S", "the label is seen")
    seen = plugin.node.state().objects[ON_NODE]
    client = ApiClient.connect(str(api.kubeconfig))
    changed = client.patch_node(
        ON_NODE, client.node(ON_NODE).resource_version, {}, labels={"nvidia.com/gpu.product": None}
    )
    client.close()
    assert changed.labels == {}
    assert seen.uid == changed.uid
    wait_until(lambda: not labels(), "the label is gone")
    api.client.delete(other)


# ---------------------------------------------------------------- rights, and events


def test_without_one_right_the_rest_is_reported(api, plugin_of, node, volcano_pod):
    plugin = plugin_of(VOLCANO, *FOLLOW, rule("pods/status", "patch"))
    pod = volcano_pod("p")
    plugin.bind(pod)
    wait_until(lambda: succeeded(api, pod), "the pod is reported")
    wait_until(lambda: plugin.count("node", "failed"), "the node cannot be reported")
    assert "volcano.sh/node-vgpu-register" not in annotations(api, node)


def test_events_are_where_kubectl_looks_for_them(api, plugin_of, node, volcano_pod):
    plugin = plugin_of(VOLCANO)
    pod = volcano_pod("p")
    plugin.bind(pod)
    for _ in range(3):
        plugin.status_manager.record_event(
            plugin.admitted_pods[pod["metadata"]["uid"]].pod, EventReason.REFUSED, "no room on a"
        )
    seen = wait_until(lambda: plugin.node.state().objects.get(ON_NODE), "the node is seen")
    plugin.status_manager.record_event(
        seen, EventReason.NOT_REGISTERED, "1146880 IDs, 76 MB: a unit of 19 MiB would fit"
    )
    wait_until(lambda: plugin.count("event", "told") == 2, "both are reported")
    (event,) = api.client.events(pod)
    assert (event["reason"], event["type"], event["count"]) == ("VgpuRefused", "Warning", 1)
    assert event["source"]["component"] == "vgpu-device-plugin"
    assert "a unit of 19 MiB would fit" in api.kubectl("describe", "node", ON_NODE)
