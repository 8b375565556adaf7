"""This node's pods, by the watch of a simulated API server, and asked for."""

import socket
import time

import pytest

from deviceplugin.apiserver.pods import Pods
from simulator.apiserver import ApiServer
from simulator.store import ObjectStore
from tests.deviceplugin.live_plugin import NODE, volcano_pod
from tests.support.answering_server import anonymous_access
from tests.support.environment import own_loopback
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.apiserver.client import ApiClient
from vgpu.kube.kinds import PODS

UUID = "GPU-aaaa"


@pytest.fixture
def store():
    return ObjectStore()


@pytest.fixture
def server(store):
    with ApiServer(store, bookmark_seconds=0.05) as server:
        yield server


@pytest.fixture
def make(server):
    """Pods that follow the server; those that are made end with the test."""
    made, open_ = [], []

    def make(url=server.url, **options):
        followed = ApiClient(anonymous_access(url), gather=0)
        asked = ApiClient(anonymous_access(url), patience=WAIT_SECONDS)
        open_.extend((followed, asked))
        changes = []
        pods = Pods(followed, asked, NODE, lambda: changes.append(1), time.monotonic)
        pods.changes = changes
        made.append(pods)
        return pods

    yield make
    for pods in made:
        pods.close()
    for cluster in open_:
        cluster.close()


def start(pods):
    pods.start()
    assert pods.wait(WAIT_SECONDS), "the first list never came"


def test_all_pods_of_the_node_are_known_and_no_others(store, make):
    ours = store.create(PODS, volcano_pod("ours", UUID))["metadata"]["uid"]
    elsewhere = volcano_pod("theirs", UUID)
    elsewhere["spec"]["nodeName"] = "node-2"
    store.create(PODS, elsewhere)
    pods = make()
    start(pods)
    assert set(pods.known()) == {ours}
    assert pods.find(ours).ref.name == "ours"
    assert pods.find("nobody") is None


def test_events_are_reported_and_the_mapping_is_the_same_until_then(store, make):
    pods = make()
    start(pods)
    assert pods.known() == {}
    before = pods.known()
    assert pods.known() is before
    count = len(pods.changes)
    uid = store.create(PODS, volcano_pod("a", UUID))["metadata"]["uid"]
    wait_until(lambda: uid in pods.known(), "the new pod is known")
    wait_until(lambda: len(pods.changes) > count, "the change is reported")
    store.evict("team", "a", {})
    wait_until(lambda: uid not in pods.known(), "the pod is known to be gone")


def test_a_static_pod_is_known_by_the_uid_that_its_node_knows(store, make):
    informer = volcano_pod("static", UUID)
    informer["metadata"]["annotations"]["kubernetes.io/config.hash"] = "hash-of-the-file"
    informer["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "hash-of-the-file"
    store.create(PODS, informer)
    pods = make()
    start(pods)
    assert set(pods.known()) == {"hash-of-the-file"}
    assert set(pods.ask()) == {"hash-of-the-file"}


def test_a_request_to_the_server_returns_what_the_watch_does_not_know(store, make):
    pods = make()  # not started: the watch never reports
    assert pods.known() is None
    uid = store.create(PODS, volcano_pod("a", UUID))["metadata"]["uid"]
    assert set(pods.ask()) == {uid}
    second = store.create(PODS, volcano_pod("b", UUID))["metadata"]["uid"]
    assert set(pods.ask()) == {uid, second}  # never of a time before the question


def test_an_unreachable_server_returns_nothing(make):
    with socket.create_server((own_loopback(), 0)) as gone:
        host, port = gone.getsockname()
    pods = make(f"http://{host}:{port}")
    pods.start()
    assert pods.wait(WAIT_SECONDS), "the first list never failed"
    assert pods.known() is None
    assert pods.find("a") is None
    assert pods.ask() is None


def test_while_a_pod_of_the_node_cannot_be_read_no_pod_counts_as_gone(store, make):
    store.create(PODS, volcano_pod("a", UUID))
    pods = make()
    start(pods)
    assert len(pods.known()) == 1
    spoilt = volcano_pod("b", UUID)
    spoilt["status"] = {"phase": 7}
    store.create(PODS, spoilt)
    wait_until(lambda: pods.known() is None, "it is seen that one cannot be read")
    assert pods.ask() is None
    store.evict("team", "b", {})
    wait_until(lambda: len(pods.known() or ()) == 1, "the rest is known again")
