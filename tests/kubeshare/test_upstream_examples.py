"""The examples of KubeShare's own repository are placed, or have a reason why not.

They are described by their facts: branch release-1.0, ``doc/yaml``; branch master, ``test``. Of
master's only ``OpportunisticPod/pod16.yaml`` has a null: its container's ``resources`` is empty.
"""

import json

import pytest
import yaml

from kubeshare.bodies import share_pod_pod
from kubeshare.decoders import CLUSTER_PODS, SHARE_POD_OBJECTS
from kubeshare.model import ConditionType
from kubeshare.reasons import SharePodReason
from tests.kubeshare.model_cluster import ModelCluster, node
from tests.kubeshare.model_controllers import Controllers, settle, settled
from tests.kubeshare.test_labelled import WIRED
from vgpu.model.units import GIB

MEMORY = 3_145_728_000
LARGE = 3_073_741_824
LIMITS = {"limits": {"cpu": "1", "memory": "4Gi"}}
WHOLE = {"limits": {"cpu": "1", "memory": "4Gi", "nvidia.com/gpu": 6}}


def metadata(name, **fields):
    uid = f"uid-{name}"
    return {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": "1", **fields}


def release_1(name, request, *, limit="1.0", memory=MEMORY, **spec):
    """A SharePod of release 1."""
    numbers = {"gpu_request": request, "gpu_limit": limit, "gpu_mem": str(memory)}
    annotations = {f"kubeshare/{key}": text for key, text in numbers.items()}
    container = {"name": "cuda", "image": "nvidia/cuda", "command": ["sh"]}
    return {
        "apiVersion": "kubeshare.nthu/v1",
        "kind": "SharePod",
        "metadata": metadata(name, annotations=annotations),
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


def release_2(name, request, limit="1.0", *, resources=LIMITS, env=WIRED, **labels):
    """A pod of release 2, with the variables that our admission policy adds."""
    numbers = {"gpu_request": request, "gpu_limit": limit, **labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(
            name, labels={f"sharedgpu/{key}": text for key, text in numbers.items()}
        ),
        "spec": {
            "schedulerName": "kubeshare-scheduler",
            "containers": [{"name": "pytorch", "env": env, "resources": resources}],
        },
        "status": {"phase": "Pending"},
    }


PLACED = [
    release_1("pod1", "0.4", restartPolicy="OnFailure"),
    release_1("pod2", "0.6", restartPolicy="OnFailure"),
    *(release_1(f"sharepod{number}", "0.5") for number in (1, 2, 3, 4)),
    release_2("with-memory", "0.2", gpu_mem=str(LARGE)),
    release_2("pod16-with-memory", "0.2", resources=None, gpu_mem=str(LARGE)),
]
"""Examples that fit on a GPU."""

REFUSED = {
    "gpu_mem": [
        *(release_2(f"pod{number}", "0.2") for number in range(11, 16)),
        release_2("pod16", "0.2", resources=None),
        release_2("half", "0.5"),
        release_2("three-tenths", "0.3", "0.3"),
        release_2("whole", "1.0"),
    ],
    "above 1.0": [release_2("part-above", "2.0", "2.5"), release_2("long", "1", "2")],
    "whole GPUs": [release_2("two", "2.0", "2.0")],
    "group_name": [release_2("gang", "0.2", group_name="nv")],
    "gpu_model": [release_2("model", "1.0", gpu_model="NVIDIA-GeForce-GTX-1080")],
}
"""Examples that release 2's scheduler takes and the controllers refuse, by a part of the reason."""


def stored(document):
    kind = CLUSTER_PODS if document["kind"] == "Pod" else SHARE_POD_OBJECTS
    return kind.one(json.dumps(document).encode(), document["kind"])


def cluster_with(document):
    cluster = ModelCluster(node("n1", 2))
    cluster.store(stored(document))
    return cluster, Controllers(cluster)


def found_in(cluster, document):
    name = document["metadata"]["name"]
    if document["kind"] == "Pod":
        return cluster.pods[f"ns/{name}"].labelled
    return cluster.share_pods[f"ns/{name}"]


@pytest.mark.parametrize("document", PLACED, ids=lambda each: each["metadata"]["name"])
def test_an_example_is_placed_and_runs(document):
    cluster, controllers = cluster_with(document)
    settled(cluster, controllers)
    found = found_in(cluster, document)
    assert (found.node, bool(found.bound)) == ("n1", True)


@pytest.mark.parametrize("reason", REFUSED)
def test_an_example_that_is_not_placed_has_the_reason(reason):
    for document in REFUSED[reason]:
        cluster, controllers = cluster_with(document)
        settle(cluster, controllers)
        condition = found_in(cluster, document).condition(ConditionType.SCHEDULED)
        assert condition.reason == SharePodReason.INVALID_REQUEST
        assert reason in condition.message


def test_the_example_of_whole_gpus_is_none_of_ours():
    document = release_2("zzz", "0", resources=WHOLE)
    del document["spec"]["schedulerName"], document["metadata"]["labels"]
    assert stored(document).labelled is None


POD_16 = """
apiVersion: kubeshare.nthu/v1
kind: SharePod
metadata:
  name: pod16
  namespace: ns
  uid: u
  labels:
  annotations:
    kubeshare/gpu_request: "0.2"
    kubeshare/gpu_limit: "1.0"
    kubeshare/gpu_mem: "3073741824"
    kubeshare/sched_affinity:
spec:
  schedulerName:
  nodeName:
  nodeSelector:
  tolerations:
  volumes:
  containers:
    - name: pytorch
      resources:
      env:
      volumeMounts:
status:
"""


def test_a_share_pod_whose_fields_are_empty_in_its_manifest_is_placed_and_gets_its_pod():
    document = yaml.safe_load(POD_16)
    cluster, controllers = cluster_with(document)
    settled(cluster, controllers)
    found = found_in(cluster, document)
    assert (found.node, found.request.memory_bytes > 2 * GIB) == ("n1", True)
    body = share_pod_pod(found)
    (container,) = body["spec"]["containers"]
    assert body["spec"]["nodeName"] == "n1"
    assert {"NVIDIA_VISIBLE_DEVICES", "POD_MANAGER_IP"} < {
        each["name"] for each in container["env"]
    }
    assert body["metadata"]["labels"] == {}
