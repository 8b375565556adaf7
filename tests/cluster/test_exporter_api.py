"""The exporter follows its node's pods at a real API server."""

import pytest

from exporter.api import watch as watch_node
from simulator.demo import demo
from tests.cluster.accounts import account
from tests.support.bed import objects
from tests.support.live import LiveExporter
from tests.support.waiting import wait_until
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.list_watch import pods_of_node
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import MIB
from vgpu.sources.pods import PodWatch

PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
NODE = "gpu-node-1"
"""The node of the demo's scenario. Mostly nothing but its name is needed at the API server."""

GPU = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
PROMISED = {
    "volcano.sh/vgpu-node": NODE,
    "volcano.sh/vgpu-ids-new": f"{GPU},NVIDIA,2048,10:",
    "volcano.sh/devices-to-allocate": f"{GPU},NVIDIA,2048,10:",
    "volcano.sh/bind-phase": "allocating",
}


def bound(name, namespace, node=NODE, **changes):
    limits = {"volcano.sh/vgpu-number": 1}
    return objects.pod(name, namespace, nodeName=node, limits=limits, **changes)


def client_of(api, rules):
    """A client with less rights than the chart's account of the exporter, or that account."""
    return api.client_for(*rules) if rules else account(api, "exporter")


@pytest.fixture
def follow(api):
    """Starts a watch with the exporter's account, or as a client with only these rules."""
    made = []

    def start(*rules, node=NODE):
        server = ApiClient.connect(str(client_of(api, rules).kubeconfig))
        pods = pods_of_node(server, node)
        made.append(PodWatch(pods, pods.object_name))
        return made[-1]

    yield start
    for watch in made:
        watch.close()


def seen(watch, namespace):
    """name -> pod, of one namespace; nothing while the watch has no pods."""
    try:
        pods = watch.sample(0.0).pods
    except SourceError:
        return {}
    return {pod.ref.name: pod for pod in pods if pod.ref.namespace == namespace}


def test_a_pod_is_seen_when_it_is_made_changed_and_deleted(api, api_namespace, follow):
    first = api.client.create(bound("first", api_namespace))
    watch = follow()
    wait_until(lambda: seen(watch, api_namespace).keys() == {"first"}, "the list is seen")
    second = api.client.create(bound("second", api_namespace))
    wait_until(lambda: "second" in seen(watch, api_namespace), "a new pod is seen")
    api.client.patch(second, {"metadata": {"annotations": PROMISED}})
    wait_until(
        lambda: PROMISED.items() <= seen(watch, api_namespace)["second"].annotations.items(),
        "an annotation is seen",
    )
    api.client.patch(first, {"status": {"phase": "Failed", "reason": "Evicted"}}, "status")
    wait_until(lambda: seen(watch, api_namespace)["first"].phase == "Failed", "a phase is seen")
    path = f"/api/v1/namespaces/{api_namespace}/pods/second"
    api.client.delete(path, grace_seconds=0)
    wait_until(lambda: seen(watch, api_namespace).keys() == {"first"}, "the deletion is seen")


def test_the_pods_of_other_nodes_are_never_sent(api, api_namespace, follow):
    api.client.create(bound("mine", api_namespace))
    api.client.create(bound("theirs", api_namespace, node="gpu-node-2"))
    watch = follow()
    wait_until(lambda: seen(watch, api_namespace), "the list is seen")
    assert seen(watch, api_namespace).keys() == {"mine"}
    api.client.create(bound("theirs-too", api_namespace, node="gpu-node-2"))
    api.client.create(bound("mine-too", api_namespace))
    wait_until(lambda: "mine-too" in seen(watch, api_namespace), "the watch is seen")
    assert seen(watch, api_namespace).keys() == {"mine", "mine-too"}


def test_pods_that_share_no_gpu_are_known_too(api, api_namespace, follow):
    api.client.create(objects.pod("plain", api_namespace, nodeName=NODE))
    watch = follow()
    wait_until(lambda: "plain" in seen(watch, api_namespace), "it is seen")
    (status,) = [s for s in watch.sample(0.0).statuses if s.ref.namespace == api_namespace]
    assert not status.wants_gpu


@pytest.mark.parametrize("missing", ["list", "watch"])
def test_a_missing_right_is_reported_by_name(api, api_namespace, follow, missing):
    api.client.create(bound("first", api_namespace))
    rights = {**PODS, "verbs": [verb for verb in PODS["verbs"] if verb != missing]}
    watch = follow(rights)

    def is_reported():
        try:
            found = [refused.detail for refused in watch.sample(0.0).rejections]
        except SourceError as error:
            found = [error.detail]
        return any(
            "Forbidden" in text and f'cannot {missing} resource "pods"' in text for text in found
        )

    wait_until(is_reported, f"that it may not {missing} is reported")


def test_a_node_name_that_the_server_does_not_know_is_reported_as_wrong(follow):
    with pytest.raises(SourceError, match="--node-name"):
        follow(node="no-such-node").sample(0.0)


# ---------------------------------------------------------------- the node's own object

OVERSOLD = "".join(
    f"{gpu.uuid},1000,{10 * gpu.memory_bytes // MIB},1000,NVIDIA-X,0,true,{gpu.index},hami-core:"
    for gpu in demo().gpus
)
"""Ten times of everything, as HAMi's plugin registers GPUs that it scales."""


@pytest.fixture
def oversold(api):
    """The demo's node at the API server."""
    about = {"name": NODE, "annotations": {"hami.io/node-nvidia-register": OVERSOLD}}
    made = api.client.create({"apiVersion": "v1", "kind": "Node", "metadata": about})
    yield made
    api.client.delete(made)


@pytest.fixture
def look(api):
    """Starts to follow the node itself too, as the exporter does."""
    made = []

    def start(*rules):
        server = ApiClient.connect(str(client_of(api, rules).kubeconfig))
        made.append(watch_node(server, NODE))
        return made[-1]

    yield start
    for followed in made:
        followed.close()


def test_the_nodes_own_object_comes_with_its_pods(api, api_namespace, oversold, look):
    api.client.create(bound("first", api_namespace))
    sample = look().sample(0.0)
    assert sample.node.name == NODE
    assert sample.node.annotations["hami.io/node-nvidia-register"] == OVERSOLD
    assert sample.rejections == ()


def test_without_the_right_to_nodes_pods_and_the_missing_right_are_reported(
    api, api_namespace, oversold, look
):
    api.client.create(bound("first", api_namespace))
    sample = look(PODS).sample(0.0)
    assert "first" in {pod.ref.name for pod in sample.pods}
    assert sample.node is None
    (refused,) = sample.rejections
    assert (refused.object_name, refused.reason) == (f"node {NODE}", Reason.FORBIDDEN)
    assert 'cannot get resource "nodes"' in refused.detail


def test_the_exporter_measures_oversold_gpus_by_what_is_registered(
    api, api_namespace, oversold, tmp_path
):
    api.client.create(bound("first", api_namespace))

    def answered(series):
        return series.get('vgpu_collector_success{collector="api"}')

    overcommitted = 'vgpu_allocation_conflicts{type="overcommitted"}'
    rejected = 'vgpu_collector_rejected{collector="api",reason="forbidden"}'
    for name, rules, refusals in (("blind", (PODS,), 1), ("sees", (), None)):
        flags = ("--pods=", "--collector.api", "--sample.interval=250ms")
        kubeconfig = f"--kubeconfig={client_of(api, rules).kubeconfig}"
        with LiveExporter(tmp_path / name, demo(), *flags, kubeconfig) as exporter:
            series = exporter.wait_for(answered, "the API server's word")
        assert series.get(rejected) == refusals
        assert bool(series[overcommitted]) == bool(refusals)


def test_the_exporter_publishes_what_a_scheduler_has_promised(api, api_namespace, tmp_path):
    api.client.create(bound("waiting", api_namespace, annotations=PROMISED))
    reader = account(api, "exporter")
    flags = (
        "--pods=",
        "--collector.api",
        f"--kubeconfig={reader.kubeconfig}",
        "--volcano.memory-factor=1",
        "--sample.interval=250ms",
    )
    with LiveExporter(tmp_path, demo(), *flags) as exporter:

        def about(series, name):
            marks = (name, f'namespace="{api_namespace}"', 'pod="waiting"')
            return {at: value for at, value in series.items() if all(mark in at for mark in marks)}

        def promised(series):
            return any('phase="assumed"' in at for at in about(series, "vgpu_container_info"))

        series = exporter.wait_for(promised, "the promise")
        (size,) = about(series, "vgpu_container_memory_allocated_bytes").values()
        assert size == 2048 * 2**20
        assert series['vgpu_collector_success{collector="api"}'] == 1
        assert series['vgpu_allocation_source_read{source="annotations"}'] == 1
        assert series["vgpu_api_heard_timestamp_seconds"] > 0
        api.client.delete(f"/api/v1/namespaces/{api_namespace}/pods/waiting", grace_seconds=0)
        exporter.wait_for(lambda series: not promised(series), "the end of the promise")
