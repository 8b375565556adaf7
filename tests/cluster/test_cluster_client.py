"""The product's client of the API server, and `vgpu inspect` with it, against a real one."""

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.kube.test_merge_patches import ON_THE_SERVER
from tests.support import sample_cluster as sample
from tests.support.bed import crds, objects
from tests.support.bed.cluster import start_cluster
from tests.support.waiting import wait_until
from vgpu.apiserver import list_watch
from vgpu.apiserver import reader as reads
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.apiserver.informer import Informer
from vgpu.kube.documents import EventType
from vgpu.kube.events import EventNote, NoteType
from vgpu.kube.kinds import NODES, PODS, SHARE_PODS
from vgpu.kube.merge_patches import is_stored, merged
from vgpu.model.names import PodRef
from vgpu.model.objects import Lease
from vgpucli.main import main

GPUSHARE = {"aliyun.com/gpu-mem": "8"}
NOW = datetime(2025, 1, 1, tzinfo=UTC).timestamp()


@pytest.fixture
def cluster(api):
    with ApiClient.connect(str(api.kubeconfig)) as connected:
        yield connected


@pytest.fixture(scope="module")
def bare(workplace, tools):
    """A cluster of this module's own, with no kind of others. It may be stopped and started."""
    with start_cluster(workplace, tools, name="bare", controllers=False) as cluster:
        yield cluster


@pytest.fixture
def cluster_of(api):
    """Connects as a client with these rights only."""
    opened = []

    def connect(*rules, **scope):
        connected = ApiClient.connect(str(api.client_for(*rules, **scope).kubeconfig))
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

    def make(*pods):
        for each in pods:
            made.append(api.client.create({**each, "status": {}}))
            api.client.patch(made[-1], {"status": each["status"]}, "status")

    yield make
    for each in made:
        api.client.delete(each)


@pytest.fixture
def make_sharepod(api, api_namespace):
    """Creates SharePods; they are deleted at the end."""
    crds.load(api.client, crds.SHARE_POD)
    made = []

    def make(name):
        manifest = sample.share_pod(name, "", "0.4", 2**30)
        manifest["metadata"] = {
            "name": name,
            "namespace": api_namespace,
            "annotations": manifest["metadata"]["annotations"],
        }
        del manifest["status"]
        made.append(api.client.create(manifest))
        return made[-1]

    yield make
    for each in made:
        if api.client.find(each):
            api.client.delete(each)


def refused(status, reason, request, *args, **kwargs):
    """The server's message for a refused request."""
    with pytest.raises(ClusterError) as info:
        request(*args, **kwargs)
    assert (info.value.status, info.value.reason) == (status, reason)
    return info.value.message


# --------------------------------------------------------------------------- merge patches


def test_the_api_server_merges_and_keeps_as_the_model_does(api, make_sharepod):
    made = make_sharepod("merged")
    before, patch, after = (
        {f"case{number}": case[part] for number, case in enumerate(ON_THE_SERVER)}
        for part in range(3)
    )
    stored = api.client.replace(made | {"status": {"cases": before}})["status"]["cases"]
    assert stored == before, "nulls stay where the object is replaced"
    patched = api.client.patch(made, {"status": {"cases": patch}})["status"]["cases"]
    in_floats = [json.loads(json.dumps(each), parse_int=float) for each in (patched, after)]
    assert in_floats[0] == in_floats[1]
    assert is_stored(merged(before, patch), patched)


# ------------------------------------------------------------------------------------ reading


def test_a_list_is_read_page_by_page(cluster, pods, api_namespace):
    pages = list(cluster.pods(namespace=api_namespace, limit=2))
    assert [page.total for page in pages] == [2, 2, 2]
    assert [pod.ref.name for page in pages for pod in page.objects] == [f"p{n}" for n in range(5)]
    assert [bool(page.continue_token) for page in pages] == [True, True, False]


def test_a_list_from_the_servers_memory_can_be_watched_from(cluster, api, pods, api_namespace):
    def read():
        pages = list(cluster.pods(namespace=api_namespace, resource_version="0", limit=2))
        names = [pod.ref.name for page in pages for pod in page.objects]
        return pages if names == [f"p{n}" for n in range(5)] else None

    listed = wait_until(read, "the server's memory has all of them")
    api.client.delete(pods[0], grace_seconds=0)
    watch = cluster.watch(PODS, listed[0].resource_version, namespace=api_namespace)
    assert next(event for event in watch if event.type is EventType.DELETED).object.ref.name == "p0"


def test_a_pod_is_read_alone_with_who_it_is(cluster, pods, api_namespace):
    metadata = pods[2]["metadata"]
    pod = cluster.pod(api_namespace, "p2")
    assert pod.ref == PodRef(metadata["uid"], api_namespace, "p2")
    assert (pod.resource_version, pod.phase) == (metadata["resourceVersion"], "Pending")
    with pytest.raises(ClusterError) as info:
        cluster.pod(api_namespace, "p9")
    assert (info.value.status, info.value.reason) == (404, "NotFound")


def test_when_the_kubelet_wrote_a_status_is_known_from_who_wrote_what(cluster, api, api_namespace):
    made = api.client.create(objects.pod("a", api_namespace, schedulingGates=[{"name": "x.io/y"}]))
    waiting = cluster.pod(api_namespace, "a")
    assert waiting.gated
    assert waiting.status_at is None  # the scheduler has written nothing
    for manager, reason in (("kubelet", "UnexpectedAdmissionError"), ("gc", "Evicted")):
        status = {"phase": "Failed", "reason": reason, "startTime": "2025-01-01T00:00:00Z"}
        api.client.patch(made, {"status": status}, "status", fieldManager=manager)
    failed = cluster.pod(api_namespace, "a")
    written = {
        each["manager"]: each["time"]
        for each in api.client.get(made)["metadata"]["managedFields"]
        if each.get("subresource") == "status"
    }
    assert set(written) == {"kubelet", "gc"}
    assert failed.status_at == datetime.fromisoformat(written["kubelet"]).timestamp()
    assert failed.started_at == datetime(2025, 1, 1, tzinfo=UTC).timestamp()
    assert failed.restart_policy == "Always"


def test_selectors_are_the_servers(cluster, pods, api_namespace):
    (page,) = cluster.pods(namespace=api_namespace, field_selector="metadata.name=p3")
    assert [pod.ref.uid for pod in page.objects] == [pods[3]["metadata"]["uid"]]


def test_a_node_is_read_alone_and_in_the_list(cluster, make_nodes):
    make_nodes(sample.gpushare_node("infer-1", gpus=2), sample.node("plain"))
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


def test_a_kind_that_is_not_installed_is_not_found(bare):
    with ApiClient.connect(str(bare.kubeconfig)) as cluster:
        with pytest.raises(ClusterError) as info:
            list(cluster.sharepod_pages())
        assert info.value.status == 404  # a page of text, and no Status
        assert list_watch.sharepods(cluster).list() == ([], "")


def test_share_pods_are_read(cluster, make_sharepod, api_namespace):
    made = make_sharepod("jupyter")
    found = {pod.ref.name: pod for page in cluster.sharepod_pages() for pod in page.objects}
    assert found["jupyter"].annotations["kubeshare/gpu_request"] == "0.4"
    assert cluster.sharepod(api_namespace, "jupyter") == found["jupyter"]
    assert found["jupyter"].ref.uid == made["metadata"]["uid"]


# ------------------------------------------------------------------------------------ watching


def test_a_watch_reports_events_and_its_resource_version(
    cluster, api, pods, api_namespace, monkeypatch
):
    monkeypatch.setattr(reads, "WATCH_SECONDS", (12, 12))  # a bookmark comes shortly before
    (page,) = cluster.pods(namespace=api_namespace)
    api.client.patch(pods[0], {"metadata": {"annotations": {"ALIYUN_COM_GPU_MEM_IDX": "1"}}})
    watch = cluster.watch(PODS, page.resource_version)
    first = next(watch)
    assert (first.type, first.object.ref.name) == (EventType.MODIFIED, "p0")
    assert first.object.annotations == {"ALIYUN_COM_GPU_MEM_IDX": "1"}
    api.client.delete(pods[1], grace_seconds=0)
    events = list(watch)
    assert (EventType.DELETED, "p1") in [(e.type, e.object.ref.name) for e in events if e.object]

    def ended_with_a_bookmark():
        """A server that is late ends a watch without one."""
        last = (events or list(cluster.watch(PODS, page.resource_version)))[-1]
        events.clear()
        return last if last.type is EventType.BOOKMARK else None

    last = wait_until(ended_with_a_bookmark, "a bookmark is the last")
    assert int(last.resource_version) > int(page.resource_version)


def test_a_watch_from_before_what_the_server_remembers_is_expired(bare):
    """A server that was started again remembers nothing of before."""
    with bare.namespace() as namespace:
        bare.client.create(objects.pod("p", namespace, limits=GPUSHARE))
    bare.stop()
    bare.start(controllers=False)
    with ApiClient.connect(str(bare.kubeconfig)) as cluster, pytest.raises(ClusterError) as info:
        list(cluster.watch(PODS, "1"))
    assert (info.value.status, info.value.reason) == (410, "Expired")


def test_nodes_are_watched(cluster, api, make_nodes):
    version = next(cluster.node_pages(limit=1)).resource_version
    make_nodes(sample.gpushare_node("infer-7", gpus=2))
    watch = cluster.watch(NODES, version, field_selector="metadata.name=infer-7")
    first, second = next(watch), next(watch)
    assert (first.type, first.object.capacity) == (EventType.ADDED, {})
    assert (second.type, second.object.capacity["aliyun.com/gpu-count"]) == (EventType.MODIFIED, 2)
    assert second.object.uid == api.client.get("/api/v1/nodes/infer-7")["metadata"]["uid"]


def test_share_pods_are_watched(cluster, api, make_sharepod):
    made = make_sharepod("before")
    version = next(cluster.sharepod_pages()).resource_version
    watch = cluster.watch(SHARE_PODS, version)
    make_sharepod("jupyter")
    api.client.delete(made)
    events = [next(watch), next(watch)]
    assert [(each.type, each.object.ref.name) for each in events] == [
        (EventType.ADDED, "jupyter"),
        (EventType.DELETED, "before"),
    ]


@pytest.fixture
def informer(request):
    """Starts to follow; ends with the test."""

    def start(kind, key):
        made = Informer(kind, "the server", key=key)
        request.addfinalizer(made.close)
        made.start()
        return made

    return start


def test_a_mirror_outlives_the_api_server(bare, informer):
    """What happened while it was away is known afterwards."""
    with (
        bare.namespace() as namespace,
        ApiClient.connect(str(bare.kubeconfig)) as cluster,
    ):
        first = bare.client.create(objects.pod("first", namespace, limits=GPUSHARE))
        pods = informer(list_watch.pods(cluster), lambda pod: pod.ref.name)
        nodes = informer(list_watch.nodes(cluster), lambda node: node.name)
        share_pods = informer(list_watch.sharepods(cluster), lambda pod: pod.ref.name)

        def seen(*names):
            return wait_until(lambda: set(pods.state().objects) == set(names), names)

        seen("first")
        wait_until(lambda: nodes.state().synced, "nodes are listed")
        wait_until(lambda: share_pods.state().synced, "that there are no SharePods is known")

        def watched():
            return cluster.requests.get(("watch", "200"), 0)

        wait_until(lambda: watched() >= 2, "both are watched")
        before = watched()
        bare.restart_api()
        assert pods.state().objects
        bare.client.create(objects.pod("second", namespace, limits=GPUSHARE))
        bare.client.delete(first, grace_seconds=0)
        seen("second")
        wait_until(lambda: pods.state().failure is None, "it is heard again")
        assert pods.state().synced
        wait_until(lambda: watched() >= before + 2, "both are watched again")


def test_a_mirror_lists_again_where_the_server_has_forgotten_its_version(
    api, cluster, informer, pods, api_namespace
):
    following = list_watch.pods(cluster)
    given = []

    class Behind:
        """Its first list is of before what the server remembers."""

        def list(self):
            objects, version = following.list()
            given.append(version if given else "1")
            return objects, given[-1]

        watch = staticmethod(following.watch)

    api.restart_api()
    seen = informer(Behind(), lambda pod: pod.ref.name)
    wait_until(lambda: len(given) >= 2, "it has listed again")
    api.client.create(objects.pod("later", api_namespace, limits=GPUSHARE))
    wait_until(lambda: "later" in seen.state().objects, "it is followed")
    assert {pod["metadata"]["name"] for pod in pods} <= seen.state().objects.keys()
    # Beside the start of the API server a watch may break off, and is begun again.
    assert cluster.requests["watch", "200"] + cluster.requests.get(("watch", "410"), 0) >= 2


# ------------------------------------------------------------------------------------ writing


def test_only_the_very_pod_in_the_very_state_is_evicted(cluster, api, pods, api_namespace):
    pod = cluster.pod(api_namespace, "p0")
    other = PodRef("11111111-2222-3333-4444-555555555555", api_namespace, "p0")
    api.client.patch(pods[0], {"metadata": {"annotations": {"a": "b"}}})
    now = cluster.pod(api_namespace, "p0")
    message = refused(409, "Conflict", cluster.evict, pod.ref, pod.resource_version)
    assert pod.resource_version in message
    message = refused(409, "Conflict", cluster.evict, other, now.resource_version)
    assert other.uid in message
    cluster.evict(now.ref, now.resource_version, dry_run=True)
    assert api.client.find(pods[0])["metadata"].get("deletionTimestamp") is None
    cluster.evict(now.ref, now.resource_version)
    assert api.client.find(pods[0]) is None
    refused(404, "NotFound", cluster.evict, now.ref, now.resource_version)
    assert cluster.requests["create", "409"] == 2


def test_a_disruption_budget_protects_a_running_pod(cluster, api, api_namespace):
    made = api.client.create(objects.pod("web", api_namespace, labels={"app": "web"}))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    api.client.patch(made, {"status": status}, "status")
    api.client.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": api_namespace},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }
    )
    pod = cluster.pod(api_namespace, "web")
    with pytest.raises(ClusterError) as info:
        cluster.evict(pod.ref, pod.resource_version)
    assert (info.value.status, info.value.reason) == (429, "TooManyRequests")
    assert cluster.requests["create", "429"] == 1  # asked once
    api.client.patch(made, {"status": {"phase": "Failed"}}, "status")
    failed = cluster.pod(api_namespace, "web")
    cluster.evict(failed.ref, failed.resource_version)


def test_annotations_of_a_pod_are_written_if_nothing_has_changed(cluster, api, pods, api_namespace):
    pod = cluster.pod(api_namespace, "p1")
    tried = cluster.patch_pod(
        pod.ref, pod.resource_version, {"volcano.sh/bind-phase": "x"}, dry_run=True
    )
    assert tried.annotations == {"volcano.sh/bind-phase": "x"}
    assert cluster.pod(api_namespace, "p1") == pod
    marked = cluster.patch_pod(
        pod.ref, pod.resource_version, {"volcano.sh/bind-phase": "failed", "vgpu.dev/a": "b"}
    )
    assert marked.annotations == {"volcano.sh/bind-phase": "failed", "vgpu.dev/a": "b"}
    assert cluster.pod(api_namespace, "p1") == marked
    refused(409, "Conflict", cluster.patch_pod, pod.ref, pod.resource_version, {"vgpu.dev/a": "c"})
    cleared = cluster.patch_pod(pod.ref, marked.resource_version, {"volcano.sh/bind-phase": None})
    assert cleared.annotations == {"vgpu.dev/a": "b"}


def test_another_pod_of_the_same_name_is_not_touched(cluster, api, pods, api_namespace):
    before = cluster.pod(api_namespace, "p1")
    api.client.delete(pods[1], grace_seconds=0)
    api.client.create(objects.pod("p1", api_namespace, limits=GPUSHARE))
    now = cluster.pod(api_namespace, "p1")
    change = {"vgpu.dev/a": "c"}
    refused(409, "Conflict", cluster.patch_pod, before.ref, before.resource_version, change)
    refused(422, "Invalid", cluster.patch_pod, before.ref, now.resource_version, change)
    refused(409, "Conflict", cluster.evict, before.ref, before.resource_version)
    assert cluster.pod(api_namespace, "p1") == now


def test_annotations_of_a_node_are_written_if_nothing_has_changed(cluster, make_nodes):
    make_nodes(sample.gpushare_node("infer-8", gpus=2))
    node = cluster.node("infer-8")
    lock = {"volcano.sh/mutex.lock": "2025-01-01T00:00:00Z,ns,pod"}
    locked = cluster.patch_node("infer-8", node.resource_version, lock)
    assert locked.annotations == {**node.annotations, **lock}
    clear = {"volcano.sh/mutex.lock": None}
    message = refused(409, "Conflict", cluster.patch_node, "infer-8", node.resource_version, clear)
    assert "infer-8" in message
    tried = cluster.patch_node("infer-8", locked.resource_version, clear, dry_run=True)
    assert tried.annotations == node.annotations
    assert cluster.node("infer-8").annotations == locked.annotations
    cleared = cluster.patch_node("infer-8", locked.resource_version, clear)
    assert cleared.annotations == node.annotations


def test_a_share_pod_is_bound_and_set_free_again(cluster, make_sharepod, api_namespace):
    make_sharepod("jupyter")
    free = cluster.sharepod(api_namespace, "jupyter")
    assert free.node == ""
    bound = cluster.patch_sharepod(
        free.ref, free.resource_version, {"kubeshare/GPUID": "zxcvb"}, node="node-1"
    )
    assert (bound.node, bound.annotations["kubeshare/GPUID"]) == ("node-1", "zxcvb")
    marked = cluster.patch_sharepod(bound.ref, bound.resource_version, {"vgpu.dev/a": "b"})
    assert marked.node == "node-1"
    clear = {"kubeshare/GPUID": None}
    stale = (bound.ref, bound.resource_version, clear)
    refused(409, "Conflict", cluster.patch_sharepod, *stale, node=None)
    freed = cluster.patch_sharepod(marked.ref, marked.resource_version, clear, node=None)
    assert freed.node == ""
    assert freed.annotations == {
        key: text for key, text in marked.annotations.items() if key not in clear
    }


def test_a_configmap_is_written_by_who_has_seen_its_last_state(cluster, api, api_namespace):
    where = (api_namespace, "vgpu-reconcile-state")
    assert cluster.versioned_config_map(*where) is None
    first = cluster.write_config_map(*where, {"a": "1"}, "")
    assert cluster.versioned_config_map(*where) == ({"a": "1"}, first)
    refused(409, "AlreadyExists", cluster.write_config_map, *where, {"a": "2"}, "")
    second = cluster.write_config_map(*where, {"b": "2"}, first)
    assert cluster.versioned_config_map(*where) == ({"b": "2"}, second)
    refused(409, "Conflict", cluster.write_config_map, *where, {"a": "3"}, first)
    written = api.client.get(f"/api/v1/namespaces/{api_namespace}/configmaps/{where[1]}")
    assert written["metadata"]["labels"] == {"app.kubernetes.io/name": "vgpu"}


def test_a_lease_is_taken_renewed_and_released(cluster, api_namespace):
    where = (api_namespace, "vgpu-reconciler")
    assert cluster.lease(*where) is None
    taken = cluster.write_lease(
        Lease(*where, holder="a", duration_seconds=15, acquired_at=NOW + 0.125, renewed_at=NOW)
    )
    assert cluster.lease(*where) == taken
    assert (taken.holder, taken.acquired_at, taken.renewed_at) == ("a", NOW + 0.125, NOW)
    renewed = cluster.write_lease(replace(taken, renewed_at=NOW + 5.25, transitions=1))
    assert (renewed.renewed_at, renewed.transitions) == (NOW + 5.25, 1)
    stolen = replace(taken, holder="b")
    refused(409, "Conflict", cluster.write_lease, stolen)
    refused(409, "AlreadyExists", cluster.write_lease, replace(stolen, resource_version=""))
    cluster.write_lease(replace(renewed, holder=""))
    assert cluster.lease(*where).holder == ""


def note(kind, api_version, obj, message, **changes):
    """An event on an object."""
    meta = obj["metadata"]
    return EventNote(
        kind=kind,
        api_version=api_version,
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        reason="VgpuEvicted",
        message=message,
        happened_at=NOW,
        component="vgpu-reconciler",
        **changes,
    )


def test_an_event_that_is_repeated_is_counted_up(cluster, api, pods):
    written = note("Pod", "v1", pods[0], "its GPU is lost", type=NoteType.WARNING)
    cluster.write_event(written)
    (event,) = api.client.events(pods[0])
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "VgpuEvicted", 1)
    assert event["source"] == {"component": "vgpu-reconciler"}
    cluster.write_event(replace(written, happened_at=NOW + 60))
    cluster.write_event(note("Pod", "v1", pods[0], "something else"))
    again, other = sorted(api.client.events(pods[0]), key=lambda each: -each["count"])
    assert (again["message"], again["count"]) == ("its GPU is lost", 2)
    assert (again["firstTimestamp"], again["lastTimestamp"]) == (
        "2025-01-01T00:00:00Z",
        "2025-01-01T00:01:00Z",
    )
    assert (other["message"], other["count"], other["type"]) == ("something else", 1, "Normal")


def test_events_of_nodes_and_share_pods_are_where_kubectl_looks(
    cluster, api, make_nodes, make_sharepod
):
    make_nodes(sample.gpushare_node("infer-9", gpus=2))
    node = api.client.get("/api/v1/nodes/infer-9")
    share_pod = make_sharepod("jupyter")
    cluster.write_event(note("Node", "v1", node, "lock cleared", type=NoteType.NORMAL))
    cluster.write_event(note("SharePod", "kubeshare.nthu/v1", share_pod, "x" * 2000))
    assert "lock cleared" in api.kubectl("describe", "node", "infer-9")
    (event,) = api.client.events(share_pod)
    assert len(event["message"].encode()) == 1024


def test_missing_rights_to_write_are_named(cluster_of):
    nobody = cluster_of(rule("pods", "list"))
    pod = PodRef("u", "default", "p")
    lease = Lease("default", "l", holder="a", duration_seconds=15)
    for right, request in (
        ('create resource "pods/eviction"', lambda: nobody.evict(pod, "1")),
        ('patch resource "pods/status"', lambda: nobody.patch_pod(pod, "1", {})),
        ('patch resource "nodes/status"', lambda: nobody.patch_node("n", "1", {})),
        ('create resource "configmaps"', lambda: nobody.write_config_map("default", "c", {}, "")),
        ('update resource "configmaps"', lambda: nobody.write_config_map("default", "c", {}, "1")),
        ('create resource "leases"', lambda: nobody.write_lease(lease)),
        (
            'create resource "events"',
            lambda: nobody.write_event(
                EventNote("Pod", "v1", "default", "p", "u", "A", "", NOW, "vgpu-reconciler")
            ),
        ),
    ):
        assert f"cannot {right}" in refused(403, "Forbidden", request)


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
    with ApiClient.connect(str(path)) as cluster, pytest.raises(ClusterError) as info:
        list(cluster.nodes())
    assert info.value.reason == "Unreachable"
    assert "elsewhere.example.com" in info.value.message


# ------------------------------------------------------------------------------------ inspect


def inspect(*args, **kwargs):
    return CliRunner().invoke(main, ["inspect", *args], **kwargs)


@pytest.fixture
def shared_cluster(api, api_namespace, make_nodes):
    """A node with two GPUs, a pod on one of them, and a pod that waits."""
    node = sample.volcano_node("gpu-1", 1)
    make_nodes(node)
    held = sample.volcano_pod("held", "gpu-1", 1, 8000, namespace=api_namespace)
    for name, on, annotations in (
        ("held", {"nodeName": "gpu-1"}, held["metadata"]["annotations"]),
        ("waits", {}, {}),
    ):
        limits = sample.volcano_limits(8000)
        api.client.create(
            objects.pod(name, api_namespace, limits=limits, annotations=annotations, **on)
        )
    return api


def without_time(result):
    document = json.loads(result.output)
    document.pop("asOf")
    return document


def test_inspect_prints_the_same_from_the_api_server_as_from_its_dump(
    shared_cluster, api_namespace
):
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
    assert "Ask for this permission" in result.output


def test_inspect_with_the_least_rights_reports_what_it_does_not_know(api, make_nodes):
    make_nodes(sample.gpushare_node("infer-1"))
    crds.load(api.client, crds.SHARE_POD)
    reader = api.client_for(rule("pods", "list"), rule("nodes", "list"))
    result = inspect("--kubeconfig", str(reader.kubeconfig))
    assert result.exit_code == 0
    output = " ".join(result.output.split())
    assert "SharePods could not be read" in output
    assert "which of gpushare's GPUs are unhealthy is not known" in output
