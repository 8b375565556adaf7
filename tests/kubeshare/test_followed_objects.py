"""What the controllers and the node component follow, beside an API server in this process."""

from contextlib import contextmanager

import pytest

from kubeshare.informers import ControllerInformers
from kubeshare.model import ClusterNode, ClusterPod, SharePod
from kubeshare.node_component import NodeComponent, NodeOptions
from simulator.apiserver import ApiServer
from simulator.store import ObjectStore
from tests.kubelet.test_checkpoint import checkpoint, entry
from tests.support.answering_server import anonymous_access
from tests.support.waiting import wait_until
from vgpu.apiserver.client import ApiClient
from vgpu.kube.kinds import NODES, PODS, SHARE_PODS
from vgpu.model.allocation import Device
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.node import (
    GPU_INFO,
    HOLDER_NAMESPACE,
    HOLDER_UUID,
    holder_labels,
    holder_name,
)


def metadata(name, namespace="ns", **fields):
    return {"name": name, "namespace": namespace, "uid": f"uid-{name}", **fields}


def pod_json(name, namespace="ns", node="", **fields):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(name, namespace, **fields),
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }


def node_json(name):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": f"uid-{name}"}}


def share_pod_json(name):
    return {
        "apiVersion": "kubeshare.nthu/v1",
        "kind": "SharePod",
        "metadata": metadata(name),
        "spec": {"containers": [{"name": "main"}]},
    }


def holder_json(gpuid, **fields):
    labels = holder_labels("n1", gpuid)
    return pod_json(holder_name("n1", gpuid), HOLDER_NAMESPACE, "n1", labels=labels, **fields)


@contextmanager
def serving(*objects):
    """A store with these objects, and a client of an API server that serves it."""
    kinds = {"Node": NODES, "Pod": PODS, "SharePod": SHARE_PODS}
    store = ObjectStore()
    for each in objects:
        store.create(kinds[each["kind"]], each)
    with ApiServer(store) as api, ApiClient(anonymous_access(api.url)) as client:
        yield store, client


class Received:
    """The objects that the controllers received, by kind and key."""

    def __init__(self):
        self.objects = {}

    def set_node(self, key, found):
        self.objects["node", key] = found

    def set_pod(self, key, found):
        self.objects["pod", key] = found

    def set_share_pod(self, key, found):
        self.objects["share_pod", key] = found


def test_the_controllers_receive_each_kind_as_its_own_class():
    """Before and after all kinds were listed once."""
    with serving(node_json("n1"), pod_json("a"), share_pod_json("s")) as (store, client):
        received = Received()
        informers = ControllerInformers(client, received)
        try:
            assert informers.complaint() == "the cluster has not been read completely yet"
            informers.start()
            wait_until(lambda: not informers.complaint(), "all kinds are listed")
            for kind, new in ((NODES, node_json("n2")), (PODS, pod_json("b"))):
                store.create(kind, new)
            store.create(SHARE_PODS, share_pod_json("t"))
            wait_until(lambda: len(received.objects) == 6, "the new ones", context=str)
        finally:
            informers.close()
    assert {place: type(found) for place, found in received.objects.items()} == {
        ("node", "n1"): ClusterNode,
        ("node", "n2"): ClusterNode,
        ("pod", "ns/a"): ClusterPod,
        ("pod", "ns/b"): ClusterPod,
        ("share_pod", "ns/s"): SharePod,
        ("share_pod", "ns/t"): SharePod,
    }


@pytest.fixture
def component(tmp_path, monkeypatch):
    """A running node component's store, and the file of the kubelet's checkpoint."""
    monkeypatch.setattr("kubeshare.node_component.ROUND_SECONDS", 0.02)
    (tmp_path / "checkpoint").write_bytes(checkpoint())
    options = NodeOptions("n1", str(tmp_path / "checkpoint"), str(tmp_path / "scheduler"), "", "")
    with serving(node_json("n1"), holder_json("bbbbb"), holder_json("aaaaa")) as (store, client):
        gpus = (Device("GPU-a", memory_bytes=16 * GIB), Device("GPU-b", memory_bytes=GIB))
        started = NodeComponent(client, client, options, lambda: gpus)
        started.start()
        try:
            yield store, tmp_path / "checkpoint"
        finally:
            started.stop()


def held(gpuid, uuid):
    """The kubelet's entry of a holder pod."""
    return entry(PodUID=f"uid-{holder_name('n1', gpuid)}", DeviceIDs={"-1": [uuid]})


def reported(store, gpuid):
    found = store.get(PODS, HOLDER_NAMESPACE, holder_name("n1", gpuid))
    return found["metadata"].get("annotations", {}).get(HOLDER_UUID)


def test_each_new_checkpoint_of_the_kubelet_is_read(component):
    """Whether its bytes come before or after those of the last one in any order."""
    store, path = component
    path.write_bytes(checkpoint(held("bbbbb", "GPU-b")))
    wait_until(lambda: reported(store, "bbbbb") == "GPU-b", "the first holder's GPU")
    assert reported(store, "aaaaa") is None
    path.write_bytes(checkpoint(held("aaaaa", "GPU-a"), held("bbbbb", "GPU-b")))
    wait_until(lambda: reported(store, "aaaaa") == "GPU-a", "the second holder's GPU")
    path.write_bytes(checkpoint(held("aaaaa", "GPU-b"), held("bbbbb", "GPU-a")))
    wait_until(lambda: reported(store, "aaaaa") == "GPU-b", "the second holder's next GPU")
    wait_until(lambda: reported(store, "bbbbb") == "GPU-a", "the first holder's next GPU")


def test_the_gpus_of_the_node_are_on_its_object(component):
    store, _ = component

    def info():
        return store.get(NODES, "", "n1")["metadata"].get("annotations", {}).get(GPU_INFO)

    assert wait_until(info, "the node's GPUs") == "GPU-a:16384,GPU-b:1024,"
