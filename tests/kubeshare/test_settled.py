"""Nothing is written about objects that are as they should be, whatever the API server drops."""

import json

import pytest

from kubeshare.bodies import HolderOptions
from kubeshare.controller import ControllerOptions, SharePodControllers
from kubeshare.decoders import CLUSTER_PODS, SHARE_POD_OBJECTS
from kubeshare.metrics import ControllerMetrics
from kubeshare.placement import KubeShareAlgorithm
from kubeshare.step_writer import FUTILE_SECONDS
from simulator.store import ObjectStore
from tests.kube.test_merge_patches import POD_STATUSES
from tests.kubeshare.model_cluster import node
from tests.kubeshare.test_labelled import content as labelled_content
from vgpu.kube.kinds import PODS, SHARE_PODS
from vgpu.kube.verbs import PATCH
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.node import HOLDER_UUID, holder_labels, holder_name
from vgpu.schemes.kubeshare.sharepod import GPUID

UUID = "GPU-n1-0"
KINDS = {SHARE_POD_OBJECTS.plural: SHARE_PODS, CLUSTER_PODS.plural: PODS}
SHARE_POD = {
    "metadata": {
        "name": "a",
        "namespace": "ns",
        "uid": "uid-a",
        "annotations": {
            "kubeshare/gpu_request": "0.5",
            "kubeshare/gpu_limit": "1.0",
            "kubeshare/gpu_mem": str(GIB),
            GPUID: "abcde",
        },
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
    "status": {"BoundDeviceID": UUID, "PodManagerPort": 50051},
}
HOLDER = {
    "metadata": {
        "name": holder_name("n1", "abcde"),
        "namespace": "kube-system",
        "labels": holder_labels("n1", "abcde"),
        "annotations": {HOLDER_UUID: UUID},
    },
    "spec": {"nodeName": "n1", "containers": []},
    "status": {"phase": "Running"},
}
POD = {
    "metadata": {
        "name": "a",
        "namespace": "ns",
        "annotations": SHARE_POD["metadata"]["annotations"],
        "ownerReferences": [
            {
                "apiVersion": "kubeshare.nthu/v1",
                "kind": "SharePod",
                "name": "a",
                "uid": "uid-a",
                "controller": True,
            }
        ],
    },
    "spec": {
        "nodeName": "n1",
        "containers": [
            {
                "name": "main",
                "env": [
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": UUID},
                    {"name": "POD_MANAGER_PORT", "value": "50051"},
                ],
            }
        ],
    },
}


class StoreApi:
    """The API server as a store; ``drops`` are fields of a SharePod's status that it drops."""

    def __init__(self, drops=()):
        self.store, self.drops, self.patches = ObjectStore(), set(drops), []

    def send(self, verb, kind, namespace, name, body):
        self.patches.append(body)
        if verb is not PATCH:
            return json.dumps(self.store.patch_status(PODS, namespace, name, body)).encode()
        status = {key: each for key, each in body["status"].items() if key not in self.drops}
        body = {**body, "status": status}
        return json.dumps(self.store.patch(KINDS[kind.plural], namespace, name, body)).encode()

    def write_event(self, note):
        pass

    def read(self, kind, namespace, name):
        return kind.one(
            json.dumps(self.store.get(KINDS[kind.plural], namespace, name)).encode(), ""
        )


class Settling:
    """Controllers without threads, and one virtual GPU with its holder pod."""

    def __init__(self, api):
        self.api, self.leads, self.now = api, True, 1e9
        options = ControllerOptions(
            KubeShareAlgorithm.PAPER, HolderOptions("vgpu:test"), labelled_pods=True
        )
        self.controllers = SharePodControllers(
            api, options, lambda: self.leads, ControllerMetrics(), clock=lambda: self.now
        )
        self.controllers.set_node("n1", node("n1", 1))
        api.store.create(PODS, HOLDER)
        self.see(CLUSTER_PODS, "kube-system", HOLDER["metadata"]["name"])

    def see(self, kind, namespace, name):
        """An event about an object, as it is now."""
        found, key = self.api.read(kind, namespace, name), f"{namespace}/{name}"
        see = self.controllers.set_share_pod
        (see if kind is SHARE_POD_OBJECTS else self.controllers.set_pod)(key, found)

    def patches_of(self, key, work="_sync"):
        """The number of patches of a round for one key."""
        self.api.patches.clear()
        getattr(self.controllers, work)(key)  # what a loop does for a key
        return len(self.api.patches)


def tenant(api, status):
    """The controllers that know a bound SharePod, whose pod has a status."""
    api.store.create(SHARE_PODS, SHARE_POD)
    api.store.create(PODS, {**POD, "status": status})
    settling = Settling(api)
    settling.see(SHARE_POD_OBJECTS, "ns", "a")
    settling.see(CLUSTER_PODS, "ns", "a")
    return settling


@pytest.mark.parametrize("name", [name for name in POD_STATUSES if name != "ends"])
def test_a_pods_status_is_copied_once(name):
    api = StoreApi()
    settling = tenant(api, POD_STATUSES[name])
    assert settling.patches_of("ns/a") == 1
    copied = api.store.get(SHARE_PODS, "ns", "a")["status"]["PodStatus"]
    assert copied["phase"] == POD_STATUSES[name]["phase"]
    assert "lastProbeTime" not in copied["conditions"][0], "the API server dropped its null"
    assert settling.patches_of("ns/a") == 0
    settling.see(SHARE_POD_OBJECTS, "ns", "a")
    assert settling.patches_of("ns/a") == 0


def test_a_status_with_nulls_that_another_program_has_stored_is_as_good():
    """KubeShare's own device manager replaces the object, and the nulls stay."""
    api = StoreApi()
    settling = tenant(api, POD_STATUSES["runs"])
    settling.patches_of("ns/a")
    stored = api.store.get(SHARE_PODS, "ns", "a")
    status = stored["status"] | {"PodStatus": POD_STATUSES["runs"]}
    api.store.replace(SHARE_PODS, stored | {"status": status})
    settling.see(SHARE_POD_OBJECTS, "ns", "a")
    assert settling.patches_of("ns/a") == 0


def test_a_field_that_is_gone_from_the_pods_status_goes_from_the_copy():
    api = StoreApi()
    settling = tenant(api, POD_STATUSES["init"])
    settling.patches_of("ns/a")
    api.store.patch_status(PODS, "ns", "a", {"status": {"initContainerStatuses": None}})
    settling.see(CLUSTER_PODS, "ns", "a")
    assert settling.patches_of("ns/a") == 1
    assert (
        "initContainerStatuses" not in api.store.get(SHARE_PODS, "ns", "a")["status"]["PodStatus"]
    )
    assert settling.patches_of("ns/a") == 0


@pytest.mark.parametrize(
    "drops",
    [{"conditions"}, {"PodStatus"}, {"PodStatus", "PodObjectMeta", "conditions"}],
    ids=["conditions", "copy", "status"],
)
def test_a_patch_that_changes_nothing_is_sent_once_for_each_version_and_some_minutes(drops, caplog):
    """The definition of the kind is another one: it lacks fields, or has a status subresource."""
    api = StoreApi(drops)
    settling = tenant(api, POD_STATUSES["runs"])
    settling.patches_of("ns/a")
    settling.see(SHARE_POD_OBJECTS, "ns", "a")
    settling.patches_of("ns/a")
    caplog.clear()
    assert settling.patches_of("ns/a") == 0
    api.store.patch(SHARE_PODS, "ns", "a", {"metadata": {"labels": {"new": "version"}}})
    settling.see(SHARE_POD_OBJECTS, "ns", "a")
    assert settling.patches_of("ns/a") == 1
    assert settling.patches_of("ns/a") == 0
    (line,) = [each for each in caplog.records if each.message == "patch changed nothing"]
    assert all(field in line.reason for field in drops)
    api.drops.clear()  # the definition is repaired
    assert settling.patches_of("ns/a") == 0
    settling.now += FUTILE_SECONDS
    assert settling.patches_of("ns/a") == 1
    assert drops <= api.store.get(SHARE_PODS, "ns", "a")["status"].keys()
    assert settling.patches_of("ns/a") == 0


def test_the_reason_of_a_pod_with_labels_is_written_once():
    """The API server adds a null to each condition of a pod."""
    api = StoreApi()
    settling = Settling(api)
    api.store.create(PODS, labelled_content("b", labels={"sharedgpu/gpu_mem": "1e"}))
    settling.see(CLUSTER_PODS, "ns", "b")
    assert settling.patches_of("ns/b/pod") == 1
    (condition,) = api.store.get(PODS, "ns", "b")["status"]["conditions"]
    with_null = {"status": {"conditions": [condition | {"lastProbeTime": None}]}}
    api.store.replace(PODS, api.store.get(PODS, "ns", "b") | with_null)
    settling.see(CLUSTER_PODS, "ns", "b")
    assert settling.patches_of("ns/b/pod") == 0


def test_a_share_pod_that_no_node_takes_has_its_reason_once():
    api = StoreApi()
    settling = Settling(api)
    about = SHARE_POD["metadata"]
    annotations = {key: text for key, text in about["annotations"].items() if key != GPUID}
    big = {**about, "annotations": annotations | {"kubeshare/gpu_mem": str(99 * GIB)}}
    api.store.create(SHARE_PODS, {"metadata": big, "spec": {"containers": []}, "status": {}})
    settling.see(SHARE_POD_OBJECTS, "ns", "a")
    assert settling.patches_of("ns/a", "_place") == 1
    assert settling.patches_of("ns/a", "_place") == 0


def test_a_place_that_was_not_written_since_we_do_not_lead_is_not_taken():
    api = StoreApi()
    settling = Settling(api)
    about = SHARE_POD["metadata"]
    annotations = {key: text for key, text in about["annotations"].items() if key != GPUID}
    unplaced = {"metadata": {**about, "annotations": annotations}, "spec": {"containers": []}}
    api.store.create(SHARE_PODS, unplaced | {"status": {}})
    settling.see(SHARE_POD_OBJECTS, "ns", "a")
    settling.leads = False
    assert settling.patches_of("ns/a", "_place") == 0
    settling.leads = True
    assert settling.patches_of("ns/a", "_place") == 1
    assert api.store.get(SHARE_PODS, "ns", "a")["spec"]["nodeName"] == "n1"
