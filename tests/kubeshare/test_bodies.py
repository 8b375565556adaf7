"""What the controllers send: KubeShare's names, and nothing of another version or another pod."""

import json

from msgspec import structs

from kubeshare.bodies import HolderOptions, holder_pod, share_pod_patch, share_pod_pod
from kubeshare.decoders import SHARE_POD_OBJECTS
from kubeshare.model import VirtualGpuName
from kubeshare.reasons import SharePodReason
from kubeshare.steps import PatchSharePod, placed_patch
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.sharepod import GPUID

CONTENT = {
    "apiVersion": "kubeshare.nthu/v1",
    "kind": "SharePod",
    "metadata": {
        "name": "a",
        "namespace": "ns",
        "uid": "uid-a",
        "resourceVersion": "7",
        "labels": {"app": "train"},
        "annotations": {
            "kubeshare/gpu_request": "0.5",
            "kubeshare/gpu_limit": "1.0",
            "kubeshare/gpu_mem": str(GIB),
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        },
    },
    "spec": {
        "initContainers": [{"name": "init"}],
        "containers": [
            {"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
            {"name": "other"},
        ],
    },
}
PLACE = VirtualGpuName("n1", "abcde")


def read(**content):
    return SHARE_POD_OBJECTS.one(json.dumps(CONTENT | content).encode(), "SharePod")


def bound():
    placed = placed_patch(read(), PLACE).after
    return structs.replace(placed, bound="GPU-0", port=50051)


def test_a_holder_stays_on_its_node_and_nobody_owns_it():
    body = holder_pod(PLACE, HolderOptions("vgpu:1", "high", ("pull",)))
    metadata, spec = body["metadata"], body["spec"]
    assert metadata["name"] == "kubeshare-vgpu-n1-abcde"
    assert (
        metadata["labels"].items()
        >= {
            "kubeshare/role": "dummyPod",
            "kubeshare/nodeName": "n1",
            GPUID: "abcde",
        }.items()
    )
    assert not {"ownerReferences", "finalizers"} & metadata.keys()
    assert spec["tolerations"] == [{"operator": "Exists"}], "every taint, also NoExecute"
    assert spec["priorityClassName"] == "high"
    assert "nodeName" not in spec, "kube-scheduler counts its GPU"
    (container,) = spec["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["resources"]["requests"]["memory"], "the first to be evicted has none"


def test_a_pod_is_its_share_pod_with_a_gpu_in_each_container():
    body = share_pod_pod(bound())
    metadata, spec = body["metadata"], body["spec"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("SharePod", "uid-a", True)
    assert metadata["labels"] == {"app": "train"}
    assert set(metadata["annotations"]) == {
        "kubeshare/gpu_request",
        "kubeshare/gpu_limit",
        "kubeshare/gpu_mem",
    }
    assert spec["nodeName"] == "n1"
    assert spec["initContainers"] == [{"name": "init"}]
    for container in spec["containers"]:
        env = {each["name"]: each.get("value") for each in container["env"]}  # the last one counts
        assert env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
        assert env["POD_MANAGER_PORT"] == "50051"
        assert env["POD_NAME"] == "ns/a"
        (mount,) = container["volumeMounts"]
        assert mount["mountPath"] == "/kubeshare/library"
        assert mount["readOnly"] is True  # all pods of the node load code from it


def test_a_write_is_a_merge_patch_of_the_version_that_was_read():
    placed = share_pod_patch(placed_patch(read(), PLACE), 0.0)
    assert placed["metadata"] == {
        "uid": "uid-a",
        "resourceVersion": "7",
        "annotations": {GPUID: "abcde"},
    }
    assert placed["spec"] == {"nodeName": "n1"}
    assert [each["type"] for each in placed["status"]["conditions"]] == ["Scheduled"]


def test_the_status_has_kubeshares_names():
    before = placed_patch(read(), PLACE).after
    after = structs.replace(bound(), pod_uid="uid-pod", copied={"phase": "Running"})
    status = share_pod_patch(PatchSharePod(before, after, SharePodReason.BOUND), 0.0)["status"]
    assert status == {
        "BoundDeviceID": "GPU-0",
        "PodManagerPort": 50051,
        "PodObjectMeta": {"name": "a", "namespace": "ns", "uid": "uid-pod"},
        "PodStatus": {"phase": "Running"},
    }
    read_again = read(spec=CONTENT["spec"] | {"nodeName": "n1"}, status=status)
    assert (read_again.bound, read_again.port, read_again.pod_uid) == ("GPU-0", 50051, "uid-pod")
    back = share_pod_patch(PatchSharePod(after, read(), SharePodReason.NODE_LOST), 0.0)
    assert back["spec"] == {"nodeName": None}
    assert back["metadata"]["annotations"] == {GPUID: None}
    assert back["status"]["BoundDeviceID"] == ""
    assert back["status"]["PodManagerPort"] == 0
