"""ResourceClaims on a real kubelet, as the exporter and `vgpu inspect` show them.

Dynamic resource allocation is on by default from Kubernetes 1.34 on, shares of a device are not.
"""

import pytest
from msgspec.structs import replace

from tests.cluster import sharing_driver
from tests.cluster.resource_claims import (
    API,
    DRIVER,
    ExampleDriver,
    check_shares,
    conflicts,
    device_class,
    exported,
    limits,
    make_resource_claim,
    prepared,
    result_of,
    shown,
    user,
    with_api,
)
from tests.support.bed import objects
from tests.support.dra import driver_checkpoint
from tests.support.regions import a_region, write
from tests.support.waiting import WAIT_SECONDS, wait_until

GPUS = 8
IN_WAVE = 12
"""Number of ResourceClaims in a wave."""

RETRIED_SECONDS = 2 * WAIT_SECONDS
"""Maximum time to wait for a pod after a reboot, in seconds: if the kubelet looks at it before the
driver has registered, the kubelet looks again a minute later."""

DRIVERS = {
    "example": (DRIVER, GPUS),
    "waves": (DRIVER, IN_WAVE),
    "sharing": (sharing_driver.DRIVER, 2),
}
"""The name of each driver, and how many GPUs it has here."""

SPECS = [f"--dra.spec-dir={folder}" for folder in ("/etc/cdi", "/run/cdi")]
WITHOUT_STATE = "--kubelet.dra-state=/var/lib/kubelet/none"


@pytest.fixture
def driver(control_plane, nodes, tools, request):
    client = control_plane.client
    name, gpus = DRIVERS[request.param]
    device_class(client, name)
    if name == sharing_driver.DRIVER:
        driver = sharing_driver.SharingDriver(nodes(), gpus)
    else:
        driver = ExampleDriver(nodes(), tools, gpus)
    driver.start()
    driver.wait_published()
    yield driver
    driver.stop()
    client.raw("DELETE", f"{API}/deviceclasses/{name}")


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
    resource_claims = [
        make_resource_claim(client, namespace, f"claim-{n}", uuids[n % len(uuids)])["metadata"]
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
    results = {
        resource_claim["name"]: result_of(client, namespace, resource_claim["name"])
        for resource_claim in resource_claims
    }
    devices = {resource_claim: result["device"] for resource_claim, result in results.items()}
    expected = sorted(
        (pod["metadata"]["name"], container["name"], resource_claim, devices[resource_claim])
        for pod in pods
        for resource_claim in [pod["spec"]["resourceClaims"][0]["resourceClaimName"]]
        for container in pod["spec"]["containers"]
    )
    assert len(set(devices.values())) == (2 if shares else GPUS)
    assert shown(node) == expected
    if shares:
        check_shares(control_plane, driver, results, expected)
        check_missing_spec(driver, resource_claims[0])
        check_without_state(control_plane, driver, resource_claims[2], results)
    preparation = prepared(node)
    assert preparation["claim-0"][0] == {pods[0]["metadata"]["uid"], pods[-1]["metadata"]["uid"]}
    assert {name: own for name, (_, (own,)) in preparation.items()} == devices

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
    preparation = prepared(node)  # where this kubelet has written each device twice
    assert {name: own for name, (_, (own,)) in preparation.items()} == devices
    if shares:
        driver.wait_published()
        check_shares(control_plane, driver, results, expected)
        assert conflicts(exported(node, *SPECS), "cdi_spec_missing") == 0  # /run was empty

    for pod in pods:
        client.delete(pod)
    wait_until(lambda: prepared(node) == {}, "all ResourceClaims are released")
    assert shown(node) == []


def check_missing_spec(driver, resource_claim):
    """A CDI spec that the driver has promised, and that is gone, by both sources of the kubelet."""
    node, kind = driver.node, "cdi_spec_missing"
    spec = node.path(f"{sharing_driver.CDI}/{sharing_driver.DRIVER}-{resource_claim['uid']}.json")
    content = spec.read_text()
    spec.unlink()
    for flags in ((), (WITHOUT_STATE,)):
        assert conflicts(exported(node, *SPECS, *flags), kind) == 1
    spec.write_text(content)


def check_without_state(control_plane, driver, resource_claim, results):
    """What pod-resources and the API server show without the kubelet's state.

    A ResourceClaim of the driver's checkpoint that the API server lacks, and whose region it is
    that HAMi's driver makes for a ResourceClaim.
    """
    node, kind = driver.node, "resource_claim_left"
    of_api = with_api(control_plane)
    result = results[resource_claim["name"]]
    uuid = {result["device"]: driver.uuids[int(result["device"].removeprefix("gpu-"))]}
    exists = (
        resource_claim["uid"],
        resource_claim["namespace"],
        resource_claim["name"],
        [result],
        uuid,
    )
    left = ("no-such-uid", resource_claim["namespace"], resource_claim["name"], [result], uuid)
    checkpoint = node.path(f"{sharing_driver.FOLDER}/checkpoint.json")
    checkpoint.write_bytes(driver_checkpoint(exists, left))
    regions = f"/usr/local/vgpu/claims/{resource_claim['uid']}"
    node.run(["mkdir", "-p", regions])
    region = a_region("v1.2", devices=1)
    (limited,) = (replace(device, uuid=uuid[result["device"]]) for device in region.devices)
    write(node.path(f"{regions}/share.cache"), replace(region, devices=(limited,)))
    page = exported(node, WITHOUT_STATE, *of_api)
    assert conflicts(page, kind) == 1
    assert limits(page) == {("pod-2", "main"): limited.memory_limit_bytes}
    assert limits(exported(node)) == limits(page)  # by the state, without the API server
    checkpoint.unlink()
    node.run(["rm", "-r", regions])


@pytest.mark.thorough("plugin")
@pytest.mark.parametrize("driver", ["waves", "sharing"], indirect=True)
def test_sixty_resource_claims_of_two_pods_each_come_and_go_in_waves(
    control_plane, driver, namespace
):
    """With the second driver all of a wave are shares of two GPUs, six of each."""
    client, node = control_plane.client, driver.node
    shares = isinstance(driver, sharing_driver.SharingDriver)
    uuids = driver.uuids if shares else [""]
    for wave in range(5):
        names = [f"claim-{wave}-{n}" for n in range(IN_WAVE)]
        resource_claims = [
            make_resource_claim(client, namespace, name, uuids[n % len(uuids)])
            for n, name in enumerate(names)
        ]
        pods = []
        for name in names:
            for side in ("left", "right"):
                pods.append(user(client, namespace, f"{name}-{side}", name, node))
                client.wait_for(pods[-1], lambda pod: pod["spec"].get("nodeName"), "bound")
        for pod in pods:
            client.wait_for(pod, objects.ready, "Ready")
        results = {name: result_of(client, namespace, name) for name in names}
        expected = sorted(
            (f"{name}-{side}", "main", name, results[name]["device"])
            for name in names
            for side in ("left", "right")
        )
        assert shown(node) == expected
        preparation = prepared(node)
        assert sorted(preparation) == sorted(names)
        assert {len(uids) for uids, _ in preparation.values()} == {2}
        assert len({device for _, (device,) in preparation.values()}) == (2 if shares else IN_WAVE)
        if shares:
            check_shares(control_plane, driver, results, expected)
        if wave == 2:
            node.kill_kubelet()  # pods are being deleted while it is down
        for pod in pods:
            client.delete(pod)
        if wave == 2:
            node.start_kubelet()
            node.wait_ready()
        for resource_claim in resource_claims:
            client.delete(resource_claim)
        wait_until(lambda: prepared(node) == {}, "released", seconds=RETRIED_SECONDS)
        assert shown(node) == []
