"""ResourceClaims on a real kubelet, with Kubernetes' example driver, as the exporter shows them.

The driver needs no hardware: it makes up GPUs with UUIDs of its own. Dynamic resource allocation is
on by default from Kubernetes 1.34 on.
"""

import sys

import pytest

from tests.support.bed import objects
from tests.support.bed.tools import Tool
from tests.support.live import parse
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.sources.dra_state import read_dra_state

API = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
GPUS = 8
INFO = "vgpu_container_resource_claim_info"
RETRIED_SECONDS = 2 * WAIT_SECONDS
"""Maximum time to wait for a pod after a reboot, in seconds: if the kubelet looks at it before the
driver has registered, the kubelet looks again a minute later."""

STATE = "/var/lib/kubelet/dra_manager_state"
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


class ExampleDriver:
    """The driver's program on a node, as its DaemonSet would start it."""

    def __init__(self, node, tools, gpus):
        self.node, self.client, self.gpus = node, node.cluster.client, gpus
        self._program = tools.path(Tool.DRA_DRIVER)
        self._starts = 0

    def start(self):
        """Start it and wait until its devices can be allocated."""
        self._starts += 1
        env = {
            "NODE_NAME": self.node.name,
            "NUM_DEVICES": str(self.gpus),
            # This version answers from its checkpoint after a reboot, and writes no CDI spec again.
            "CDI_ROOT": "/etc/cdi",
            "KUBECONFIG": str(self.node.cluster.kubeconfig),
        }
        daemon = self.node.start(f"dra-driver-{self._starts}", [self._program], env=env)
        daemon.wait_until(self._published, "publishes its devices")

    def _published(self):
        slices = self.client.list(f"{API}/resourceslices")
        own = [one["spec"] for one in slices if one["spec"].get("nodeName") == self.node.name]
        return [len(spec.get("devices", ())) for spec in own] == [self.gpus]


@pytest.fixture
def driver(control_plane, nodes, tools, request):
    client = control_plane.client
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
    }
    client.raw("POST", f"{API}/deviceclasses", device_class)
    driver = ExampleDriver(nodes(), tools, getattr(request, "param", GPUS))
    driver.start()
    yield driver
    client.raw("DELETE", f"{API}/deviceclasses/{DRIVER}")


def resource_claim(client, namespace, name):
    """A ResourceClaim of one GPU."""
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}
        },
    }
    return client.raw("POST", f"{API}/namespaces/{namespace}/resourceclaims", body).json()


def user(client, namespace, name, claim, node, containers=("main",)):
    """A pod whose containers use a ResourceClaim."""
    pod = objects.pod(
        name,
        namespace,
        resourceClaims=[{"name": "gpu", "resourceClaimName": claim}],
        nodeSelector={"kubernetes.io/hostname": node.name},
    )
    pod["spec"]["containers"] = [
        objects.container(container) | {"resources": {"claims": [{"name": "gpu"}]}}
        for container in containers
    ]
    return client.create(pod)


def shown(node):
    """(pod, container, ResourceClaim, device) of every series of the exporter's page."""
    page = node.run(
        [
            *(sys.executable, "-m", "vgpu", "exporter", "--once"),
            *("--no-collector.nvml", "--no-collector.xid", "--no-collector.process"),
            f"--kubelet.pod-resources={SOCKET}",
        ]
    )
    series = [at for at in parse(page) if at.startswith(INFO)]
    labels = [dict(pair.split("=") for pair in at[len(INFO) + 1 : -1].split(",")) for at in series]
    names = ("pod", "container", "resource_claim", "device")
    return sorted(tuple(one[name].strip('"') for name in names) for one in labels)


def prepared(node):
    """ResourceClaim -> (its pods' UIDs, its devices' names), in the kubelet's state."""
    found = read_dra_state(str(node.path(STATE)))
    return {one.name: (set(one.pod_uids), [d.device for d in one.devices]) for one in found}


def test_resource_claims_are_shown_through_restarts_and_a_reboot(control_plane, driver, namespace):
    client, node = control_plane.client, driver.node
    assert shown(node) == []  # nothing uses DRA yet: its state is empty, or not there
    claims = [resource_claim(client, namespace, f"claim-{n}")["metadata"] for n in range(GPUS)]
    pods = [
        user(client, namespace, f"pod-{n}", f"claim-{n}", node, ("main", "side")[: 1 + (n == 1)])
        for n in range(GPUS)
    ]
    pods.append(user(client, namespace, "guest", "claim-0", node))  # claim-0 has two pods
    for pod in pods:
        client.wait_for(pod, objects.ready, "Ready")

    def device(claim):
        path = f"{API}/namespaces/{namespace}/resourceclaims/{claim}"
        (result,) = client.get(path)["status"]["allocation"]["devices"]["results"]
        return result["device"]

    devices = {claim["name"]: device(claim["name"]) for claim in claims}
    expected = sorted(
        (pod["metadata"]["name"], container["name"], claim, devices[claim])
        for pod in pods
        for claim in [pod["spec"]["resourceClaims"][0]["resourceClaimName"]]
        for container in pod["spec"]["containers"]
    )
    assert len(set(devices.values())) == GPUS
    assert shown(node) == expected
    found = prepared(node)
    assert found["claim-0"][0] == {pods[0]["metadata"]["uid"], pods[-1]["metadata"]["uid"]}
    assert {name: own for name, (_, (own,)) in found.items()} == devices

    node.restart_kubelet()
    node.wait_ready()
    wait_until(lambda: shown(node) == expected, "the same after a restart of the kubelet")

    node.reboot(before_kubelet=driver.start)
    for pod in pods:
        client.wait_for(
            pod,
            lambda pod: (
                objects.ready(pod)
                and all(one["restartCount"] for one in pod["status"]["containerStatuses"])
            ),
            "Ready again",
            seconds=RETRIED_SECONDS,
        )
    wait_until(lambda: shown(node) == expected, "the same after a reboot")
    found = prepared(node)  # where this kubelet has written each device twice
    assert {name: own for name, (_, (own,)) in found.items()} == devices

    for pod in pods:
        client.delete(pod)
    wait_until(lambda: prepared(node) == {}, "all ResourceClaims are released")
    assert shown(node) == []


@pytest.mark.thorough("plugin")
@pytest.mark.parametrize("driver", [12], indirect=True)
def test_sixty_resource_claims_of_two_pods_each_come_and_go_in_waves(
    control_plane, driver, namespace
):
    client, node = control_plane.client, driver.node
    for wave in range(5):
        names = [f"claim-{wave}-{n}" for n in range(driver.gpus)]
        claims = [resource_claim(client, namespace, name) for name in names]
        pods = [
            user(client, namespace, f"{name}-{side}", name, node)
            for name in names
            for side in ("left", "right")
        ]
        for pod in pods:
            client.wait_for(pod, objects.ready, "Ready")
        of_wave = [line[:3] for line in shown(node)]
        assert of_wave == sorted(
            (f"{name}-{side}", "main", name) for name in names for side in ("left", "right")
        )
        found = prepared(node)
        assert sorted(found) == sorted(names)
        assert {len(uids) for uids, _ in found.values()} == {2}
        assert len({device for _, (device,) in found.values()}) == driver.gpus
        if wave == 2:
            node.kill_kubelet()  # pods are being deleted while it is down
        for pod in pods:
            client.delete(pod)
        if wave == 2:
            node.start_kubelet()
            node.wait_ready()
        for claim in claims:
            client.delete(claim)
        wait_until(lambda: prepared(node) == {}, "released", seconds=RETRIED_SECONDS)
        assert shown(node) == []
