"""What feature gates of Kubernetes 1.34 change in what is read of ResourceClaims.

On by default are DRAAdminAccess and DRAPrioritizedList; DRAExtendedResource is not. The others
change nothing here: DRAPartitionableDevices and DRADeviceTaints have further fields in
ResourceSlices (tests/kube/test_resource_claims.py), ResourceHealthStatus has them in the status of
pods, which is not read. With DRADeviceTaints alone kube-scheduler waits for an API (v1alpha3) that
is off, so that gate is not set: taints are tested with the newer Kubernetes, where they are on.
"""

import pytest

from tests.cluster import sharing_driver
from tests.cluster.resource_claims import (
    API,
    INFO,
    device_class,
    exported,
    inspected,
    make_resource_claim,
    of_containers,
    post_resource_claim,
    result_of,
    shown,
    user,
    with_api,
)
from tests.support.bed import objects
from tests.support.bed.cluster import start_cluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.thorough("plugin")

GATES = (
    "DRAConsumableCapacity",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
    "ResourceHealthStatus",
)
OF_KUBELET = ("DRAExtendedResource", "ResourceHealthStatus")
EXTENDED = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def control_plane(workplace, tools):
    """A control plane with the gates on."""
    flag = f"--feature-gates={','.join(f'{gate}=true' for gate in GATES)}"
    programs = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    flags = dict.fromkeys(programs, (flag,))
    with start_cluster(workplace, tools, name="gates", controllers=True, flags=flags) as cluster:
        yield cluster


@pytest.fixture
def driver(control_plane, nodes):
    """GPUs that ResourceClaims share, and that also supply NVIDIA's extended resource."""
    client, name = control_plane.client, sharing_driver.DRIVER
    device_class(client, name, extendedResourceName=EXTENDED)
    with sharing_driver.SharingDriver(nodes(gates=OF_KUBELET), gpus=2) as driver:
        driver.wait_published()
        yield driver
    client.raw("DELETE", f"{API}/deviceclasses/{name}")


def test_an_extended_resource_that_a_resource_claim_supplies(control_plane, driver, namespace):
    """Its pod has no ResourceClaim in its spec, and requests what a device plugin would have."""
    client, node = control_plane.client, driver.node
    selector = {"kubernetes.io/hostname": node.name}
    pod = client.create(
        objects.pod("train", namespace, limits={EXTENDED: 1}, nodeSelector=selector)
    )
    pod = client.wait_for(pod, objects.ready, "Ready")
    name = pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    result = result_of(client, namespace, name)
    assert shown(node) == [("train", "main", name, result["device"])]
    page = exported(node, *with_api(control_plane))
    assert of_containers(page, "vgpu_container_shares_allocated") == {("train", "main"): 1}
    document = inspected(control_plane, node)
    held = [
        (holding["pod"]["name"], holding["container"], device["uuid"])
        for view in document["nodes"]
        for device in view["devices"]
        for holding in device["holdings"]
    ]
    uuid = driver.uuids[int(result["device"].removeprefix("gpu-"))]
    assert held == [("train", "main", uuid)]
    assert document["nvidia"] == []  # no device plugin has anything to do with it
    client.delete(pod)
    wait_until(lambda: shown(node) == [], "released")


def test_admin_access_and_an_alternative_of_a_request(control_plane, driver, namespace):
    client, node = control_plane.client, driver.node
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    client.patch(f"/api/v1/namespaces/{namespace}", label)
    make_resource_claim(client, namespace, "eyes", driver.uuids[0], adminAccess=True)
    alternatives = [
        {"name": name, "deviceClassName": sharing_driver.DRIVER}
        | {"capacity": {"requests": {"memory": memory}}}
        for name, memory in (("large", "100Gi"), ("small", "10Gi"))
    ]
    post_resource_claim(client, namespace, "either", {"firstAvailable": alternatives})
    pods = [
        user(client, namespace, f"{resource_claim}-user", resource_claim, node)
        for resource_claim in ("eyes", "either")
    ]
    for pod in pods:
        client.wait_for(pod, objects.ready, "Ready")
    assert result_of(client, namespace, "eyes")["adminAccess"]
    assert result_of(client, namespace, "either")["request"] == "gpu/small"
    (holder,) = shown(node, *with_api(control_plane), more=("request",))
    assert (holder[0], holder[2], holder[-1]) == ("either-user", "either", "gpu")
    assert {one[0] for one in shown(node)} == {"eyes-user", "either-user"}  # nobody knows better
    page = exported(node, *with_api(control_plane))
    sizes = [value for (family, *_), value in page.items() if family.endswith("allocated_bytes")]
    assert INFO in {family for family, *_ in page}
    assert 10 * 2**30 in sizes
    for pod in pods:
        client.delete(pod)
    wait_until(lambda: shown(node) == [], "released")
