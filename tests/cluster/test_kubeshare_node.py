"""The chart's KubeShare beside a real kubelet, with just its rights: a whole SharePod."""

import pytest

from tests.cluster.charting import (
    Chart,
    driver_for_pods,
    install,
    of_the_bed,
    shown,
    uninstall,
)
from tests.cluster.kubesharing import GPUID, share_pod
from tests.support import nvml_fake
from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.bed.deviceplugin import DevicePlugin
from tests.support.deploy_objects import kinds
from tests.support.waiting import wait_until
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.units import GIB

UUIDS = ("GPU-real-0", "GPU-real-1")


def visible(ids):
    """The answer of NVIDIA's plugin."""
    return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)})


@pytest.fixture
def installed(control_plane, node, tools, tmp_path, namespace, product_image):
    """The node has a driver of two GPUs, the controllers twice, and the node component."""
    del product_image
    driver = driver_for_pods(tmp_path / "driver")
    driver.write([nvml_fake.Device(uuid, "T4", total=16 * GIB) for uuid in UUIDS], [])
    values = {
        "exporter": {"enabled": False},
        "reconciler": {"kind": "None"},
        "priorityClass": {"create": False},
        "kubeshare": {
            "enabled": True,
            "node": shown({"driver": (str(driver.folder), "/driver")}),
        },
    }
    client, chart = control_plane.client, Chart(tools.path("helm"))
    where = f"--namespace={namespace}"
    rendered = chart.rendered(of_the_bed(node) | values, where, release=namespace)
    crd = kinds(rendered, "CustomResourceDefinition")
    others = [each for each in rendered if each not in crd]
    install(client, crd)  # it stays, as by its own policy
    path = "/apis/kubeshare.nthu/v1/sharepods"
    wait_until(lambda: client.get(path), "SharePods are served", failures=(Refused,))
    made = install(client, others)
    yield made
    uninstall(client, made)


def test_a_share_pod_runs_on_a_real_kubelet_with_the_rights_of_the_chart(
    control_plane, node, installed, namespace
):
    client = control_plane.client
    (deployment,) = kinds(installed, "Deployment")
    (daemon_set,) = kinds(installed, "DaemonSet")
    with DevicePlugin(node, "nvidia.com/gpu", UUIDS, visible) as plugin:
        plugin.wait_counted(2)
        info = "".join(f"{uuid}:16384," for uuid in UUIDS)
        client.wait_for(
            f"/api/v1/nodes/{node.name}",
            lambda seen: seen["metadata"]["annotations"].get("kubeshare/gpu_info") == info,
            "has its GPUs",
        )
        client.wait_for(deployment, lambda it: it["status"].get("readyReplicas") == 2, "ready")
        client.wait_for(daemon_set, lambda it: it["status"].get("numberReady") == 1, "ready")
        ours = client.list(f"/api/v1/namespaces/{namespace}/pods")
        made = client.create(share_pod("a", namespace))
        found = client.wait_for(made, objects.ready, "Ready")
        ((uuid,),) = plugin.allocated
        assert found["status"]["BoundDeviceID"] == uuid
        gpuid = found["metadata"]["annotations"][GPUID]
        holder = f"/api/v1/namespaces/kube-system/pods/kubeshare-vgpu-{node.name}-{gpuid}"
        wait_until(lambda: client.logs(holder).split() == [uuid], "the log of the holder pod")
        assert client.get(holder)["spec"]["priority"] == 10**9
        scheduler = node.path("/kubeshare/scheduler")
        config = scheduler / "config" / uuid
        wait_until(config.exists, "the config file")
        assert config.read_text() == f"1\n{namespace}/a 0.500000 1.000000 {GIB}\n"
        port = found["status"]["PodManagerPort"]
        ports = scheduler / "podmanagerport" / uuid
        assert ports.read_text() == f"1\n{namespace}/a {port}\n"
        address = node.path("/kubeshare/library/schedulerIP.txt").read_text()
        assert address.strip() in {each["address"] for each in node.object()["status"]["addresses"]}
        client.delete(made)
        wait_until(lambda: config.read_text() == "0\n", "the empty config file")
        client.wait_gone(holder)
        for pod in ours:
            assert "forbidden" not in client.logs(pod).lower()
