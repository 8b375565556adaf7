"""The simulated API server through the real client, as the reconciler uses it."""

import http.client
import json
import threading

import pytest
from msgspec.structs import replace

from simulator import store as stores
from simulator.apiserver import MOST_BODY, ApiServer
from simulator.store import ObjectStore, Selector, StoreError
from tests.support.waiting import WAIT_SECONDS
from vgpu.apiserver import list_watch
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.documents import EventType, Keep
from vgpu.kube.events import EventNote
from vgpu.kube.kinds import EVENTS, NODES, PODS, SHARE_PODS
from vgpu.kube.verbs import MERGE_STATUS, PATCH_STATUS
from vgpu.model.objects import Lease

OLD, KEPT, NEW = "volcano.sh/old", "volcano.sh/kept", "volcano.sh/new"


def pod(name, node="n1", phase="Running", **annotations):
    return {
        "metadata": {"namespace": "ns", "name": name, "annotations": annotations},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}],
        },
        "status": {"phase": phase},
    }


@pytest.fixture
def store():
    return ObjectStore()


@pytest.fixture
def api(store):
    with ApiServer(store, bookmark_seconds=0.05) as server:
        yield server


@pytest.fixture
def cluster(api, tmp_path):
    config = tmp_path / "kubeconfig"
    config.write_text(api.kubeconfig())
    with ApiClient.connect(str(config)) as client:
        yield client


def refused(call):
    with pytest.raises(ClusterError) as info:
        call()
    return info.value.status, info.value.reason


def names(pages):
    return [each.ref.name for page in pages for each in page.objects]


# ---------------------------------------------------------------- lists


def test_the_pages_of_a_list_are_of_one_version_whatever_happens_meanwhile(store, cluster):
    for name in "abcde":
        store.create(PODS, pod(name))
    pages = cluster.pods(limit=2)
    first = next(pages)
    store.create(PODS, pod("aa"))
    store.evict("ns", "e", {})
    rest = list(pages)
    assert names([first, *rest]) == list("abcde")
    assert {page.resource_version for page in (first, *rest)} == {"5"}
    assert names(cluster.pods()) == ["a", "aa", "b", "c", "d"]


def test_a_list_that_nobody_goes_on_with_expires(store, cluster, monkeypatch):
    monkeypatch.setattr(stores, "OPEN_LISTS", 1)
    for name in "abc":
        store.create(PODS, pod(name))
    old, new = cluster.pods(limit=1), cluster.pods(limit=1)
    assert names([next(old), next(new)]) == ["a", "a"]
    assert refused(lambda: next(old)) == (410, "Expired")
    assert names(new) == ["b", "c"]


def test_selectors_choose_by_values_and_an_empty_value_is_an_absent_field(store, cluster):
    store.create(PODS, pod("bound", phase="Pending"))
    store.create(PODS, pod("running"))
    unbound = pod("unbound", phase="Pending")
    del unbound["spec"]["nodeName"]
    store.create(PODS, unbound)

    def chosen(selector):
        return names(cluster.pods(field_selector=selector))

    assert chosen("spec.nodeName=,status.phase=Pending") == ["unbound"]
    assert chosen("spec.nodeName=n1,status.phase=Pending") == ["bound"]
    assert names(cluster.pods(namespace="other")) == []
    assert chosen("spec.nodeName=n1,status.phase!=Failed,status.phase!=Pending") == ["running"]
    assert refused(lambda: chosen("status.phase in (Failed)")) == (400, "BadRequest")


def test_what_is_not_there_is_not_found(cluster):
    assert refused(lambda: cluster.pod("ns", "nobody")) == (404, "NotFound")
    assert refused(lambda: cluster.node("nowhere")) == (404, "NotFound")
    assert cluster.config_map("ns", "none") is None
    assert cluster.lease("ns", "none") is None
    assert list_watch.sharepods(cluster).list()[0] == []


# ---------------------------------------------------------------- watches


def watched(events, number):
    """The first events that are no bookmarks; each is of a later version than those before."""
    found, versions = [], []
    while len(found) < number:
        event = next(events)
        if event.type is not EventType.BOOKMARK:
            found.append((event.type, event.object.ref.name))
            versions.append(int(event.resource_version))
    assert versions == sorted(set(versions))
    return found


def test_a_watch_sends_every_change_after_its_version_and_then_bookmarks(store, cluster):
    store.create(PODS, pod("before"))
    (page,) = cluster.pods(keep=Keep.ALL)
    events = cluster.watch(PODS, page.resource_version)
    store.create(PODS, pod("a"))
    store.patch(PODS, "ns", "a", {"status": {"phase": "Failed"}})
    store.create(NODES, {"metadata": {"name": "n1"}})
    store.evict("ns", "a", {})
    assert watched(events, 3) == [
        (EventType.ADDED, "a"),
        (EventType.MODIFIED, "a"),
        (EventType.DELETED, "a"),
    ]
    bookmark = next(events)
    assert bookmark.type is EventType.BOOKMARK
    assert bookmark.resource_version == str(store.version)


def test_what_a_selector_no_longer_chooses_is_gone_to_its_watch(store, cluster):
    store.create(PODS, pod("moves", phase="Pending"))
    events = cluster.watch(PODS, "1", field_selector="status.phase=Pending")
    store.patch(PODS, "ns", "moves", {"status": {"phase": "Running"}})
    store.patch(PODS, "ns", "moves", {"status": {"phase": "Pending"}})
    assert watched(events, 2) == [(EventType.DELETED, "moves"), (EventType.ADDED, "moves")]


@pytest.mark.parametrize("store", [ObjectStore(history=2)])
def test_a_watch_from_a_version_that_is_forgotten_has_expired(cluster, store):
    for name in "abcd":
        store.create(PODS, pod(name))
    assert refused(lambda: next(cluster.watch(PODS, "1"))) == (410, "Expired")
    assert watched(cluster.watch(PODS, "2"), 2) == [(EventType.ADDED, "c"), (EventType.ADDED, "d")]


def test_a_watch_ends_when_its_time_is_up_or_the_server_does(store, api):
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=WAIT_SECONDS)
    connection.request("GET", "/api/v1/pods?watch=true&timeoutSeconds=0")
    lines = connection.getresponse().read().splitlines()  # to the end of the last chunk
    assert [json.loads(line)["type"] for line in lines] == ["BOOKMARK"]
    connection.request("GET", "/api/v1/pods?watch=true")
    response = connection.getresponse()
    threading.Timer(0.1, store.close).start()
    assert set(map(type, map(json.loads, response.read().splitlines()))) <= {dict}
    connection.close()


# ---------------------------------------------------------------- patches


def test_a_patch_sets_and_removes_annotations_and_makes_a_new_version(store, cluster):
    made = store.create(PODS, pod("p", **{OLD: "1", KEPT: "2"}))
    before = cluster.pod("ns", "p")
    after = cluster.patch_pod(before.ref, before.resource_version, {OLD: None, NEW: "3"})
    assert after.annotations == {KEPT: "2", NEW: "3"}
    assert int(after.resource_version) > int(before.resource_version)
    assert cluster.pod("ns", "p") == after
    assert made["metadata"]["annotations"] == {OLD: "1", KEPT: "2"}  # who has it keeps it


def test_a_patch_that_changes_nothing_makes_no_new_version(store, cluster):
    store.create(PODS, pod("p", **{OLD: "1"}))
    before = cluster.pod("ns", "p")
    assert cluster.patch_pod(before.ref, before.resource_version, {OLD: "1"}) == before


def test_a_patch_of_another_version_is_a_conflict_and_of_another_identity_invalid(store, cluster):
    store.create(PODS, pod("p"))
    old = cluster.pod("ns", "p")
    cluster.patch_pod(old.ref, old.resource_version, {OLD: "1"})

    def patch(ref, version):
        return lambda: cluster.patch_pod(ref, version, {OLD: "2"})

    new = cluster.pod("ns", "p")
    another = replace(old.ref, uid="another")
    assert refused(patch(old.ref, old.resource_version)) == (409, "Conflict")
    assert refused(patch(another, new.resource_version)) == (422, "Invalid")
    assert cluster.pod("ns", "p") == new


def test_nodes_and_sharepods_are_patched_too_and_a_sharepod_taken_from_its_node(store, cluster):
    store.create(NODES, {"metadata": {"name": "n1", "annotations": {"lock": "x"}}})
    node = cluster.node("n1")
    assert cluster.patch_node("n1", node.resource_version, {"lock": None}).annotations == {}
    store.create(SHARE_PODS, pod("s") | {"status": {}})
    sharepod = cluster.sharepod("ns", "s")
    patched = cluster.patch_sharepod(sharepod.ref, sharepod.resource_version, {}, node=None)
    assert (sharepod.node, patched.node) == ("n1", "")


def test_a_dry_run_answers_as_if_and_keeps_nothing(store, cluster):
    store.create(PODS, pod("p"))
    before = cluster.pod("ns", "p")
    version = before.resource_version
    after = cluster.patch_pod(before.ref, version, {NEW: "1"}, dry_run=True)
    assert after.annotations == {NEW: "1"}
    cluster.evict(before.ref, version, dry_run=True)
    assert cluster.pod("ns", "p") == before
    stale = lambda: cluster.evict(before.ref, "0", dry_run=True)  # noqa: E731
    assert refused(stale) == (409, "Conflict")
    assert store.version == 1


SPEC = {"containers": [{"name": "main", "image": "its-own"}]}
OWNERS = [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]


@pytest.mark.parametrize("kind", [PODS, NODES])
def test_through_status_no_spec_changes_and_no_owner_of_a_pod(store, cluster, kind):
    """As at a real API server (tests/cluster/test_account_policy.py)."""
    made = pod("p") if kind is PODS else {"metadata": {"name": "p"}}
    store.create(kind, made | {"spec": SPEC, "status": {}})
    place = made["metadata"].get("namespace", "")
    metadata = {"annotations": {NEW: "1"}, "labels": {NEW: "2"}, "ownerReferences": OWNERS}
    stolen = {"metadata": metadata, "spec": {"containers": None, "taints": []}, "status": {"a": 1}}
    cluster.send(MERGE_STATUS, kind, place, "p", stolen)
    after = store.get(kind, place, "p")
    assert (after["spec"], after["status"]) == (SPEC, {"a": 1})
    assert after["metadata"]["annotations"][NEW] == "1"
    assert after["metadata"]["labels"] == {NEW: "2"}
    assert ("ownerReferences" in after["metadata"]) == (kind is NODES)
    paths = ("/spec/unschedulable", "/status/b")
    operations = [{"op": "add", "path": path, "value": True} for path in paths]
    cluster.send(PATCH_STATUS, kind, place, "p", operations)
    after = store.get(kind, place, "p")
    assert (after["spec"], after["status"]) == (SPEC, {"a": 1, "b": True})


@pytest.mark.parametrize("value", [None, "text", []])
def test_a_patch_that_leaves_no_metadata_is_invalid(store, cluster, value):
    store.create(NODES, {"metadata": {"name": "n"}})
    operations = [{"op": "replace", "path": "/metadata", "value": value}]
    assert refused(lambda: cluster.patch_node_status("n", operations)) == (422, "Invalid")


# ---------------------------------------------------------------- bindings


def test_a_binding_writes_node_and_annotations_at_once_and_once_only(store, cluster):
    store.create(PODS, pod("a", node="", **{KEPT: "1"}))
    before = cluster.pod("ns", "a")
    another = replace(before.ref, uid="another")
    version = before.resource_version
    assert refused(lambda: cluster.bind(another, version, "n2", {})) == (409, "Conflict")
    assert refused(lambda: cluster.bind(before.ref, "0", "n2", {})) == (409, "Conflict")
    cluster.bind(before.ref, version, "n2", {NEW: "2"})
    after = cluster.pod("ns", "a")
    assert (after.node, after.annotations) == ("n2", {KEPT: "1", NEW: "2"})
    again = after.resource_version
    assert refused(lambda: cluster.bind(after.ref, again, "n3", {})) == (409, "Conflict")


def test_a_binding_without_a_node_is_no_binding(store, api):
    store.create(PODS, pod("a", node=""))
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=WAIT_SECONDS)
    for target in ({}, {"name": ""}, "n2"):
        body = json.dumps({"target": target})
        connection.request("POST", "/api/v1/namespaces/ns/pods/a/binding", body)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["reason"]) == (400, "BadRequest")
    connection.close()


# ---------------------------------------------------------------- evictions


def test_an_eviction_needs_the_identity_and_the_version_that_it_names(store, cluster):
    store.create(PODS, pod("p"))
    stored = cluster.pod("ns", "p")
    another = replace(stored.ref, uid="another")
    assert refused(lambda: cluster.evict(another, stored.resource_version)) == (409, "Conflict")
    assert refused(lambda: cluster.evict(stored.ref, "0")) == (409, "Conflict")
    cluster.evict(stored.ref, stored.resource_version)
    assert refused(lambda: cluster.pod("ns", "p")) == (404, "NotFound")
    assert refused(lambda: cluster.evict(stored.ref, stored.resource_version)) == (404, "NotFound")


def test_the_handler_of_an_eviction_acts_before_the_next_request(store, cluster):
    store.on_gone = lambda gone: store.create(PODS, pod(f"after-{gone['metadata']['name']}"))
    store.create(PODS, pod("p"))
    stored = cluster.pod("ns", "p")
    cluster.evict(stored.ref, stored.resource_version)
    assert names(cluster.pods()) == ["after-p"]


# ---------------------------------------------------------------- the reconciler's own objects


def test_a_config_map_is_created_once_and_replaced_by_who_knows_its_version(cluster):
    first = cluster.write_config_map("ns", "state", {"a": "1"}, "")
    create = lambda: cluster.write_config_map("ns", "state", {}, "")  # noqa: E731
    assert refused(create) == (409, "AlreadyExists")
    second = cluster.write_config_map("ns", "state", {"a": "2"}, first)
    stale = lambda: cluster.write_config_map("ns", "state", {"a": "3"}, first)  # noqa: E731
    assert refused(stale) == (409, "Conflict")
    assert cluster.versioned_config_map("ns", "state") == ({"a": "2"}, second)


def test_a_lease_is_taken_by_one_of_two(cluster):
    lease = Lease("ns", "leader", holder="one", duration_seconds=15, renewed_at=1000.0)
    held = cluster.write_lease(lease)
    assert (held.holder, held.renewed_at) == ("one", 1000.0)
    cluster.write_lease(replace(held, renewed_at=1001.0))
    late = lambda: cluster.write_lease(replace(held, holder="two"))  # noqa: E731
    assert refused(late) == (409, "Conflict")
    assert cluster.lease("ns", "leader").holder == "one"


def test_an_event_that_is_written_again_is_counted(store, cluster):
    note = EventNote("Pod", "v1", "ns", "p", "u", "Said", "words", 1000.0, "test")
    for _ in range(3):
        cluster.write_event(note)
    (event,) = store.list(EVENTS, Selector("ns")).items
    assert event["count"] == 3


# ---------------------------------------------------------------- requests of no sense


CONFIG_MAPS = "/api/v1/namespaces/ns/configmaps"
ONE_POD = "/api/v1/namespaces/ns/pods/p"
EVICTION = f"{ONE_POD}/eviction"
WITH_BODY = [
    (400, "POST", CONFIG_MAPS, "{"),
    (400, "POST", CONFIG_MAPS, "[" * 100_000),
    (400, "POST", CONFIG_MAPS, "[]"),
    (400, "POST", CONFIG_MAPS, '{"metadata": 1}'),
    (400, "POST", CONFIG_MAPS, '{"metadata": {}}'),
    (400, "POST", CONFIG_MAPS, '{"metadata": {"name": 1}}'),
    (400, "POST", CONFIG_MAPS, '{"metadata": {"name": "a", "namespace": "another"}}'),
    (404, "POST", EVICTION, '{"deleteOptions": 1}'),
    (400, "POST", EVICTION, '{"deleteOptions": {"preconditions": {"uid": 1}}}'),
    (405, "POST", "/api/v1/nodes/n/eviction", "{}"),
    (404, "PATCH", ONE_POD, "{}"),
]
WITHOUT = [
    (404, "GET", "/"),
    (404, "GET", "/api/v2"),
    (404, "GET", "/apis/apps/v1/replicasets"),
    (405, "GET", f"{ONE_POD}/log"),
    (405, "DELETE", ONE_POD),
    (400, "GET", "/api/v1/pods?limit=many"),
    (400, "GET", "/api/v1/pods?watch=true&resourceVersion=x"),
]


@pytest.mark.parametrize("sent", [*WITH_BODY, *((*each, None) for each in WITHOUT)])
def test_it_is_refused_with_a_status_and_the_connection_goes_on(api, sent):
    answer, method, path, body = sent
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=WAIT_SECONDS)
    for _ in range(2):
        connection.request(method, path, body, {"Content-Type": "application/merge-patch+json"})
        response = connection.getresponse()
        status = json.loads(response.read())
        assert (response.status, status["code"], status["kind"]) == (answer, answer, "Status")
    connection.close()


def test_patches_of_another_kind_are_not_understood(api):
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=WAIT_SECONDS)
    connection.request("PATCH", ONE_POD, "{}", {"Content-Type": "application/json-patch+json"})
    assert connection.getresponse().status == 415
    connection.close()


@pytest.mark.parametrize("length", ["-1", "x", str(MOST_BODY + 1)])
def test_a_body_of_no_length_or_of_too_much_is_not_read(api, length):
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=WAIT_SECONDS)
    connection.putrequest("POST", "/api/v1/namespaces/ns/configmaps")
    connection.putheader("Content-Length", length)
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    response.read()
    connection.close()


def test_an_object_needs_its_version_only_if_it_names_one(store):
    store.create(PODS, pod("p"))
    kept = store.replace(PODS, pod("p", a="1"))
    assert kept["metadata"]["uid"] == store.get(PODS, "ns", "p")["metadata"]["uid"]
    with pytest.raises(StoreError, match="not found"):
        store.replace(PODS, pod("another"))
