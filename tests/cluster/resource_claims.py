"""ResourceClaims on a node of the bed: drivers that need no hardware, and what is shown of them.

One driver is ours and shares its GPUs, the other is Kubernetes' example driver, whose version here
cannot.
"""

import json
import sys

from click.testing import CliRunner

from tests.cluster import sharing_driver
from tests.cluster.accounts import account
from tests.support.bed import objects
from tests.support.bed.tools import Tool
from tests.support.live import parse
from vgpu.model.units import GIB
from vgpu.sources.dra_checkpoints import read_dra_state
from vgpucli.main import main

API = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
SHARE = 4 * GIB
"""Less than half of what would fill a GPU: kube-scheduler 1.34.4 has left pods unschedulable beside
others that it was binding, although the GPU had room for all. By its source (``dynamicresources``,
``GatherAllocatedState``, also of 1.36.3) it adds what a ResourceClaim consumes twice while the
allocation is both in its cache and in flight: whole devices are a set, capacities are a sum."""

INFO = "vgpu_container_resource_claim_info"
STATE = "/var/lib/kubelet/dra_manager_state"
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


def device_class(client, name, **spec):
    """Make the DeviceClass of all devices of a driver, with the name of the driver."""
    selector = {"cel": {"expression": f"device.driver == '{name}'"}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector]} | spec,
    }
    client.raw("POST", f"{API}/deviceclasses", body)


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


def make_resource_claim(client, namespace, name, share_of="", **more):
    """A ResourceClaim of one GPU, or of SHARE of the shared GPU with this UUID.

    ``more`` are further fields of its request.
    """
    exactly = {"deviceClassName": DRIVER}
    if share_of:
        expression = f"device.attributes['{sharing_driver.DRIVER}'].uuid == '{share_of}'"
        exactly = {
            "deviceClassName": sharing_driver.DRIVER,
            "capacity": {"requests": {"memory": str(SHARE)}},
            "selectors": [{"cel": {"expression": expression}}],
        }
    return post_resource_claim(client, namespace, name, {"exactly": exactly | more})


def post_resource_claim(client, namespace, name, request):
    """A ResourceClaim with one request."""
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu"} | request]}},
    }
    return client.raw("POST", f"{API}/namespaces/{namespace}/resourceclaims", body).json()


def user(client, namespace, name, resource_claim, node, containers=("main",)):
    """A pod whose containers use a ResourceClaim."""
    pod = objects.pod(
        name,
        namespace,
        resourceClaims=[{"name": "gpu", "resourceClaimName": resource_claim}],
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


def conflicts(page, kind):
    """The number of conflicts of a type on an exporter's page; None if it does not have it."""
    return page.get(("vgpu_allocation_conflicts", ("type", f'"{kind}"')))


def limits(page):
    """(pod, container) -> limit of memory on an exporter's page, in bytes."""
    return of_containers(page, "vgpu_container_memory_limit_bytes")


def of_containers(page, family):
    """(pod, container) -> value of a family on an exporter's page."""
    return {
        (dict(labels)["pod"].strip('"'), dict(labels)["container"].strip('"')): value
        for (name, *labels), value in page.items()
        if name == family
    }


def prepared(node):
    """ResourceClaim -> (its pods' UIDs, its devices' names), in the kubelet's state."""
    dra_state = read_dra_state(str(node.path(STATE)))
    return {one.name: (set(one.pod_uids), [d.device for d in one.devices]) for one in dra_state}


def result_of(client, namespace, resource_claim):
    path = f"{API}/namespaces/{namespace}/resourceclaims/{resource_claim}"
    (result,) = client.get(path)["status"]["allocation"]["devices"]["results"]
    return result


def with_api(control_plane):
    """The exporter's flags to ask the API server for ResourceClaims, with its account."""
    kubeconfig = account(control_plane, "exporter").kubeconfig
    return "--collector.dra", f"--kubeconfig={kubeconfig}"


def check_shares(control_plane, driver, results, expected):
    """The API server adds share IDs, sizes and UUIDs; what counts once on a GPU counts once."""
    node = driver.node
    dra = with_api(control_plane)
    ids = {resource_claim: result["shareID"] for resource_claim, result in results.items()}
    assert len(set(ids.values())) == len(results)
    assert shown(node, *dra, more=("share_id",)) == [(*one, ids[one[2]]) for one in expected]
    sizes = of_containers(exported(node, *dra), "vgpu_container_memory_allocated_bytes")
    assert sizes == {(pod, container): SHARE for pod, container, *_ in expected}
    (view,) = inspected(control_plane, node)["nodes"]
    held = {device["uuid"]: device["memoryHeldBytes"] for device in view["devices"]}
    assert set(held) == set(driver.uuids)
    assert sum(held.values()) == len(results) * SHARE
    assert sum(device["sharesHeld"] for device in view["devices"]) == len(results)
    pods = {(pod, resource_claim) for pod, _, resource_claim, _ in expected}
    assert pods == {
        (holding["pod"]["name"], resource_claim["name"])
        for device in view["devices"]
        for holding in device["holdings"]
        for resource_claim in holding["resourceClaims"]
    }


def inspected(control_plane, node):
    """The document of `vgpu inspect` about a node."""
    command = ["inspect", "--kubeconfig", str(control_plane.kubeconfig), "-o", "json", node.name]
    outcome = CliRunner().invoke(main, command, catch_exceptions=False)
    return json.loads(outcome.output)
