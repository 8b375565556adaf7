"""ResourceClaims on a real kubelet, as the exporter and `vgpu inspect` show them.

Two drivers, which need no hardware: one of ours that shares its GPUs, and Kubernetes' example
driver, whose version here cannot. Dynamic resource allocation is on by default from Kubernetes 1.34
on, shares of a device are not.
"""

import json
import sys

import pytest
from click.testing import CliRunner

from tests.cluster import sharing_driver
from tests.support.bed import objects
from tests.support.bed.tools import Tool
from tests.support.live import parse
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.cli import main
from vgpu.sources.dra_state import read_dra_state
from vgpu.units import GIB

API = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
GPUS = 8
SHARE = 4 * GIB
"""Less than half of what would fill a GPU: kube-scheduler 1.34.4 has left pods unschedulable beside
others that it was binding, although the GPU had room for all."""

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

    def wait_published(self):
        """It has been waited for."""

    def _published(self):
        slices = self.client.list(f"{API}/resourceslices")
        own = [one["spec"] for one in slices if one["spec"].get("nodeName") == self.node.name]
        return [len(spec.get("devices", ())) for spec in own] == [self.gpus]

    def stop(self):
        """It ends with its node."""


DRIVERS = {"example": (DRIVER, GPUS), "waves": (DRIVER, 12), "sharing": (sharing_driver.DRIVER, 2)}
"""The name of each driver, and how many GPUs it has here."""


@pytest.fixture
def driver(control_plane, nodes, tools, request):
    client = control_plane.client
    name, gpus = DRIVERS[request.param]
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{name}'"}}]},
    }
    client.raw("POST", f"{API}/deviceclasses", device_class)
    if request.param == "sharing":
        driver = sharing_driver.SharingDriver(nodes(), gpus)
    else:
        driver = ExampleDriver(nodes(), tools, gpus)
    driver.start()
    driver.wait_published()
    yield driver
    driver.stop()
    client.raw("DELETE", f"{API}/deviceclasses/{name}")


def resource_claim(client, namespace, name, share_of=""):
    """A ResourceClaim of one GPU, or of SHARE of the shared GPU with this UUID."""
    exactly = {"deviceClassName": DRIVER}
    if share_of:
        expression = f"device.attributes['{sharing_driver.DRIVER}'].uuid == '{share_of}'"
        exactly = {
            "deviceClassName": sharing_driver.DRIVER,
            "capacity": {"requests": {"memory": str(SHARE)}},
            "selectors": [{"cel": {"expression": expression}}],
        }
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
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


def exported(node, *flags):
    """The exporter's page on a node: name and labels of each series, and its value."""
    page = node.run(
        [
            *(sys.executable, "-m", "vgpu", "exporter", "--once"),
            *("--no-collector.nvml", "--no-collector.xid", "--no-collector.process"),
            f"--kubelet.pod-resources={SOCKET}",
            *flags,
        ]
    )
    series = {}
    for at, value in parse(page).items():
        name, _, labels = at.rstrip("}").partition("{")
        series[name, *(tuple(pair.split("=", 1)) for pair in labels.split(",") if pair)] = value
    return series


def shown(node, *flags, more=()):
    """(pod, container, ResourceClaim, device) of every series of the exporter's page."""
    found = [dict(labels) for name, *labels in exported(node, *flags) if name == INFO]
    names = ("pod", "container", "resource_claim", "device", *more)
    return sorted(tuple(one[name].strip('"') for name in names) for one in found)


def allocated(node, *flags):
    """(pod, container) -> memory of every container on the exporter's page, in bytes."""
    return {
        (dict(labels)["pod"].strip('"'), dict(labels)["container"].strip('"')): value
        for (name, *labels), value in exported(node, *flags).items()
        if name == "vgpu_container_memory_allocated_bytes"
    }


def prepared(node):
    """ResourceClaim -> (its pods' UIDs, its devices' names), in the kubelet's state."""
    found = read_dra_state(str(node.path(STATE)))
    return {one.name: (set(one.pod_uids), [d.device for d in one.devices]) for one in found}


def result_of(client, namespace, claim):
    path = f"{API}/namespaces/{namespace}/resourceclaims/{claim}"
    (result,) = client.get(path)["status"]["allocation"]["devices"]["results"]
    return result


@pytest.mark.parametrize(
    "driver",
    ["sharing", pytest.param("example", marks=pytest.mark.thorough("plugin"))],
    indirect=True,
)
def test_resource_claims_are_shown_through_restarts_and_a_reboot(control_plane, driver, namespace):
    client, node = control_plane.client, driver.node
    shares = isinstance(driver, sharing_driver.SharingDriver)
    assert shown(node) == []  # nothing uses DRA yet: its state is empty, or not there
    uuids = driver.uuids if shares else [""]
    claims = [
        resource_claim(client, namespace, f"claim-{n}", uuids[n % len(uuids)])["metadata"]
        for n in range(GPUS)
    ]
    pods = []
    for n in range(GPUS):
        containers = ("main", "side")[: 1 + (n == 1)]
        pods.append(user(client, namespace, f"pod-{n}", f"claim-{n}", node, containers))
        client.wait_for(pods[-1], lambda pod: pod["spec"].get("nodeName"), "bound")  # one by one
    pods.append(user(client, namespace, "guest", "claim-0", node))  # claim-0 has two pods
    for pod in pods:
        client.wait_for(pod, objects.ready, "Ready")
    results = {claim["name"]: result_of(client, namespace, claim["name"]) for claim in claims}
    devices = {claim: result["device"] for claim, result in results.items()}
    expected = sorted(
        (pod["metadata"]["name"], container["name"], claim, devices[claim])
        for pod in pods
        for claim in [pod["spec"]["resourceClaims"][0]["resourceClaimName"]]
        for container in pod["spec"]["containers"]
    )
    assert len(set(devices.values())) == (2 if shares else GPUS)
    assert shown(node) == expected
    if shares:
        check_shares(control_plane, driver, results, expected)
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
    if shares:
        driver.wait_published()
        check_shares(control_plane, driver, results, expected)

    for pod in pods:
        client.delete(pod)
    wait_until(lambda: prepared(node) == {}, "all ResourceClaims are released")
    assert shown(node) == []


def check_shares(control_plane, driver, results, expected):
    """The API server adds share IDs, sizes and UUIDs; what counts once on a GPU counts once."""
    node = driver.node
    kubeconfig = f"--kubeconfig={control_plane.kubeconfig}"
    dra = ("--collector.dra", kubeconfig)
    ids = {claim: result["shareID"] for claim, result in results.items()}
    assert len(set(ids.values())) == GPUS
    assert shown(node, *dra, more=("share_id",)) == [(*one, ids[one[2]]) for one in expected]
    sizes = allocated(node, *dra)
    assert sizes == {(pod, container): SHARE for pod, container, *_ in expected}
    command = ["inspect", "--kubeconfig", str(control_plane.kubeconfig), "-o", "json", node.name]
    outcome = CliRunner().invoke(main, command, catch_exceptions=False)
    (view,) = json.loads(outcome.output)["nodes"]
    held = {device["uuid"]: device["memoryHeldBytes"] for device in view["devices"]}
    assert set(held) == set(driver.uuids)
    assert sum(held.values()) == GPUS * SHARE
    assert sum(device["sharesHeld"] for device in view["devices"]) == GPUS
    pods = {(pod, claim) for pod, _, claim, _ in expected}
    assert pods == {
        (holding["pod"]["name"], claim["name"])
        for device in view["devices"]
        for holding in device["holdings"]
        for claim in holding["resourceClaims"]
    }


@pytest.mark.thorough("plugin")
@pytest.mark.parametrize("driver", ["waves"], indirect=True)
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
