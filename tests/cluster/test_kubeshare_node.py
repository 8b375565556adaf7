"""The node component beside a real kubelet: a whole SharePod, with the image of the release."""

import sys

import pytest

from tests.cluster.extending import free_port, request
from tests.cluster.kubesharing import CRD, GPUID, RULES, Controller, share_pod
from tests.support import nvml_fake
from tests.support.bed import crds, objects
from tests.support.bed.client import Refused
from tests.support.bed.deviceplugin import DevicePlugin
from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from tests.support.waiting import wait_until
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.sources.kubelet import DEFAULT_CHECKPOINT
from vgpu.units import GIB

UUIDS = ("GPU-real-0", "GPU-real-1")

CLUSTER_RULES = (
    {"apiGroups": ["kubeshare.nthu"], "resources": ["sharepods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "patch"]},
)
"""The rights of the node component, those on pods in kube-system alone."""


def visible(ids):
    """The answer of NVIDIA's plugin."""
    return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)})


@pytest.fixture
def component(control_plane, node, tmp_path):
    """The folder of the node component, a process with a driver of two GPUs."""
    crds.load(control_plane.client, CRD)
    path = "/apis/kubeshare.nthu/v1/sharepods"
    wait_until(lambda: control_plane.client.get(path), "SharePods are served", failures=(Refused,))
    driver = nvml_fake.FakeDriver(tmp_path)
    driver.write([nvml_fake.Device(uuid, "T4", total=16 * GIB) for uuid in UUIDS], [])
    client = control_plane.client_for(*CLUSTER_RULES)
    port = free_port()
    command = [
        *(sys.executable, "-m", "vgpu", "kubeshare", "node"),
        f"--kubeconfig={client.kubeconfig}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--node-name={node.name}",
        f"--kubelet.checkpoint={node.path(DEFAULT_CHECKPOINT)}",
        f"--kubeshare-dir={tmp_path}/scheduler",
        f"--library-dir={tmp_path}/library",
        "--node-address=10.1.2.3",
    ]
    log = tmp_path / "node.log"
    with Daemon("kubeshare-node", command, log, env=driver.env(), cwd=ROOT) as daemon:
        daemon.wait_until(lambda: request(port, "/-/ready")[0] == 200, "ready", failures=(OSError,))
        yield tmp_path
        assert daemon.stop() == 0


def test_a_share_pod_runs_on_a_real_kubelet(
    control_plane, node, product_image, component, namespace
):
    client = control_plane.client
    rights = control_plane.client_for(*RULES)
    controller = Controller(
        rights.kubeconfig, component, "--no-leader-elect", f"--holder-image={product_image}"
    )
    with DevicePlugin(node, "nvidia.com/gpu", UUIDS, visible) as plugin:
        plugin.wait_counted(2)
        info = "".join(f"{uuid}:16384," for uuid in UUIDS)
        client.wait_for(
            f"/api/v1/nodes/{node.name}",
            lambda seen: seen["metadata"]["annotations"].get("kubeshare/gpu_info") == info,
            "has its GPUs",
        )
        controller.start()
        try:
            made = client.create(share_pod("a", namespace))
            found = client.wait_for(made, objects.ready, "Ready")
            ((uuid,),) = plugin.allocated
            assert found["status"]["BoundDeviceID"] == uuid
            gpuid = found["metadata"]["annotations"][GPUID]
            holder = f"/api/v1/namespaces/kube-system/pods/kubeshare-vgpu-{node.name}-{gpuid}"
            wait_until(lambda: client.logs(holder).split() == [uuid], "the log of the holder pod")
            config = component / "scheduler" / "config" / uuid
            wait_until(config.exists, "the config file")
            assert config.read_text() == f"1\n{namespace}/a 0.500000 1.000000 {GIB}\n"
            port = found["status"]["PodManagerPort"]
            ports = component / "scheduler" / "podmanagerport" / uuid
            assert ports.read_text() == f"1\n{namespace}/a {port}\n"
            assert (component / "library" / "schedulerIP.txt").read_text() == "10.1.2.3\n"
            client.delete(made)
            wait_until(lambda: config.read_text() == "0\n", "the empty config file")
            client.wait_gone(holder)
        finally:
            assert controller.daemon.stop() == 0
