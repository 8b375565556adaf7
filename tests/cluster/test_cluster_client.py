"""The product's client of the API server, and `vgpu inspect` with it, against a real one."""

import json

import pytest
import sample_cluster as sample
from bed import crds, objects
from bed.cluster import start_cluster
from click.testing import CliRunner

from vgpu import cluster as client_module
from vgpu.cli import main
from vgpu.cluster import Cluster, ClusterError
from vgpu.kube_json import EventType

GPUSHARE = {"aliyun.com/gpu-mem": "8"}


@pytest.fixture
def cluster(api):
    with Cluster.connect(str(api.kubeconfig)) as connected:
        yield connected


@pytest.fixture
def cluster_of(api):
    """Connects as a client with these rights only."""
    opened = []

    def connect(*rules, **scope):
        connected = Cluster.connect(str(api.client_for(*rules, **scope).kubeconfig))
        opened.append(connected)
        return connected

    yield connect
    for each in opened:
        each.close()


def rule(resource, *verbs, group=""):
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


@pytest.fixture
def pods(api, api_namespace):
    """Five pods that ask for shared memory, and one that does not."""
    asking = [
        api.client.create(objects.pod(f"p{n}", api_namespace, limits=GPUSHARE)) for n in range(5)
    ]
    api.client.create(objects.pod("plain", api_namespace))
    return asking


@pytest.fixture
def make_nodes(api):
    """Creates nodes as the sample's functions describe them; they are deleted at the end."""
    made = []

    def make(*told):
        for each in told:
            made.append(api.client.create({**each, "status": {}}))
            api.client.patch(made[-1], {"status": each["status"]}, "status")

    yield make
    for each in made:
        api.client.delete(each)


# ------------------------------------------------------------------------------------ reading


def test_a_list_is_read_page_by_page(cluster, pods, api_namespace, monkeypatch):
    monkeypatch.setattr(client_module, "PAGE_SIZE", 2)
    pages = list(cluster.pods(namespace=api_namespace))
    assert [page.total for page in pages] == [2, 2, 2]
    assert [pod.ref.name for page in pages for pod in page.pods] == [f"p{n}" for n in range(5)]
    assert [bool(page.continue_token) for page in pages] == [True, True, False]


def test_selectors_are_the_servers(cluster, pods, api_namespace):
    (page,) = cluster.pods(namespace=api_namespace, field_selector="metadata.name=p3")
    assert [pod.ref.uid for pod in page.pods] == [pods[3]["metadata"]["uid"]]


def test_a_node_is_read_alone_and_in_the_list(cluster, make_nodes):
    make_nodes(sample.gpushare_node("infer-1", cards=2), sample.node("plain"))
    node = cluster.node("infer-1")
    assert node.capacity == {"aliyun.com/gpu-mem": 44, "aliyun.com/gpu-count": 2}
    assert node.ready
    assert {each.name for each in cluster.nodes()} >= {"infer-1", "plain"}
    assert cluster.capacity("plain")["cpu"] == "64"
    with pytest.raises(ClusterError) as info:
        cluster.node("infer-2")
    assert (info.value.status, info.value.reason) == (404, "NotFound")


def test_configmaps_are_read_alone_and_by_what_they_are(cluster, api, api_namespace):
    config = sample.unhealthy("infer-1", "0,1")
    made = api.client.create(config)
    assert cluster.unhealthy_gpus()["infer-1"] == "0,1"
    assert cluster.config_map("kube-system", "unhealthy-gpu-infer-1") == {"gpus": "0,1"}
    api.client.delete(made)
    assert "infer-1" not in cluster.unhealthy_gpus()
    assert cluster.config_map("kube-system", "unhealthy-gpu-infer-1") is None


def test_a_kind_that_is_not_installed_is_not_found(cluster):
    with pytest.raises(ClusterError) as info:
        list(cluster._pages("/apis/nobody.example/v1/things", {}, client_module.decode_pods))
    assert info.value.status == 404


def test_share_pods_are_read(cluster, api, api_namespace):
    crds.load(api.client, crds.SHARE_POD)
    told = sample.share_pod("jupyter", "", "0.4", 2**30)
    told["metadata"] = {key: told["metadata"][key] for key in ("name", "annotations")} | {
        "namespace": api_namespace
    }
    del told["status"]
    made = api.client.create(told)
    found = {pod.ref.name: pod for pod in cluster.sharepods()}
    assert found["jupyter"].annotations["kubeshare/gpu_request"] == "0.4"
    api.client.delete(made)


# ------------------------------------------------------------------------------------ watching


def test_a_watch_tells_what_happens_and_how_far_it_has_come(
    cluster, api, pods, api_namespace, monkeypatch
):
    monkeypatch.setattr(client_module, "WATCH_SECONDS", 12)  # a bookmark comes shortly before
    (page,) = cluster.pods(namespace=api_namespace)
    api.client.patch(pods[0], {"metadata": {"annotations": {"ALIYUN_COM_GPU_MEM_IDX": "1"}}})
    watch = cluster.watch_pods(page.resource_version)
    first = next(watch)
    assert (first.type, first.pod.ref.name) == (EventType.MODIFIED, "p0")
    assert first.pod.annotations == {"ALIYUN_COM_GPU_MEM_IDX": "1"}
    api.client.delete(pods[1], grace_seconds=0)
    events = list(watch)
    assert (EventType.DELETED, "p1") in [(e.type, e.pod.ref.name) for e in events if e.pod]
    assert events[-1].type is EventType.BOOKMARK
    assert int(events[-1].resource_version) > int(page.resource_version)


def test_a_watch_from_before_what_the_server_remembers_is_expired(workplace, tools):
    """A server that was started anew remembers nothing of before."""
    with start_cluster(workplace, tools, name="restarted", controllers=False) as api:
        with api.namespace() as namespace:
            api.client.create(objects.pod("p", namespace, limits=GPUSHARE))
        api.stop()
        api.start(controllers=False)
        with Cluster.connect(str(api.kubeconfig)) as cluster, pytest.raises(ClusterError) as info:
            list(cluster.watch_pods("1"))
    assert (info.value.status, info.value.reason) == (410, "Expired")


# ------------------------------------------------------------------------------------ refusals


def test_a_missing_right_is_named(cluster_of):
    reader = cluster_of(rule("pods", "list"))
    assert list(reader.pods())
    with pytest.raises(ClusterError) as info:
        list(reader.nodes())
    assert (info.value.status, info.value.reason) == (403, "Forbidden")
    assert 'cannot list resource "nodes"' in info.value.message
    with pytest.raises(ClusterError) as info:
        reader.patch_node_status("n", [])
    assert 'cannot patch resource "nodes/status"' in info.value.message


def test_a_certificate_that_was_not_signed_for_the_server_is_unreachable(api, tmp_path):
    config = json.loads(api.client.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["tls-server-name"] = "elsewhere.example.com"
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    with Cluster.connect(str(path)) as cluster, pytest.raises(ClusterError) as info:
        list(cluster.nodes())
    assert info.value.reason == "Unreachable"
    assert "elsewhere.example.com" in info.value.message


# ------------------------------------------------------------------------------------ inspect


def inspect(*args, **kwargs):
    return CliRunner().invoke(main, ["inspect", *args], **kwargs)


@pytest.fixture
def shared_cluster(api, api_namespace, make_nodes):
    """A node with two cards, a pod on one of them, and a pod that waits."""
    node = sample.volcano_node("gpu-1", 1)
    make_nodes(node)
    held = sample.volcano_pod("held", "gpu-1", 1, 8000, namespace=api_namespace)
    for name, on, told in (
        ("held", {"nodeName": "gpu-1"}, held["metadata"]["annotations"]),
        ("waits", {}, {}),
    ):
        limits = sample.volcano_limits(8000)
        api.client.create(objects.pod(name, api_namespace, limits=limits, annotations=told, **on))
    return api


def without_time(result):
    told = json.loads(result.output)
    told.pop("asOf")
    return told


def test_inspect_tells_the_same_of_the_api_server_as_of_its_dump(shared_cluster, api_namespace):
    api = shared_cluster
    asked = without_time(inspect("--kubeconfig", str(api.kubeconfig), "-o", "json"))
    dump = api.kubectl("get", "nodes,pods", "-A", "-o", "json")
    assert without_time(inspect("--from", "-", "-o", "json", input=dump)) == asked
    (node,) = [node for node in asked["nodes"] if node["name"] == "gpu-1"]
    (holding,) = node["devices"][0]["holdings"]
    assert (holding["pod"]["namespace"], holding["pod"]["name"]) == (api_namespace, "held")
    waiting = {one["pod"]["name"]: one["reason"] for one in asked["pending"]}
    assert waiting["waits"] == "not_scheduled"


def test_inspect_of_one_node(shared_cluster):
    flags = ("--kubeconfig", str(shared_cluster.kubeconfig))
    assert "/held" in inspect("gpu-1", *flags).output
    result = inspect("gpu-l", *flags)
    assert result.exit_code == 1
    assert "there is no node 'gpu-l'. Is it gpu-1?" in result.output


def test_inspect_without_rights_names_the_right_and_what_to_do(api):
    reader = api.client_for(rule("pods", "list"))
    result = inspect("--kubeconfig", str(reader.kubeconfig))
    assert result.exit_code == 1
    assert 'cannot list resource "nodes"' in result.output
    assert "Ask for that right" in result.output


def test_inspect_with_the_least_rights_says_what_it_does_not_know(api, make_nodes):
    make_nodes(sample.gpushare_node("infer-1"))
    crds.load(api.client, crds.SHARE_POD)
    reader = api.client_for(rule("pods", "list"), rule("nodes", "list"))
    result = inspect("--kubeconfig", str(reader.kubeconfig))
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    assert "SharePods could not be read" in said
    assert "which of gpushare's cards are unhealthy is not known" in said
