"""The tests of ResourceClaims with a newer Kubernetes, whose kubelet knows share IDs.

The programs are built by `make cluster-tools ARGS=--newer`. Shares and taints of devices are on by
default there, so no gate is set.
"""

import pytest

from tests.cluster.resource_claims import (
    STATE,
    inspected,
    make_resource_claim,
    prepared,
    result_of,
    shown,
    user,
)
from tests.cluster.test_resource_claims import (
    WITHOUT_STATE,
    driver,
    test_resource_claims_are_shown_through_restarts_and_a_reboot,
    test_sixty_resource_claims_of_two_pods_each_come_and_go_in_waves,
)
from tests.support.bed import objects
from tests.support.bed import tools as bed_tools
from tests.support.bed.cluster import start_cluster
from tests.support.environment import missing
from tests.support.waiting import wait_until
from vgpu.sources.dra_checkpoints import read_dra_state

__all__ = (
    "driver",
    "test_resource_claims_are_shown_through_restarts_and_a_reboot",
    "test_sixty_resource_claims_of_two_pods_each_come_and_go_in_waves",
)
pytestmark = pytest.mark.thorough("plugin")


@pytest.fixture(scope="module")
def control_plane(workplace, tools):
    """A control plane of the newer Kubernetes; its nodes have the kubelet."""
    try:
        newer = bed_tools.newer(tools)
    except bed_tools.ToolsMissing as error:
        missing(str(error))
    with start_cluster(workplace, newer, name="newer", controllers=True) as cluster:
        yield cluster


@pytest.mark.parametrize("driver", ["sharing"], indirect=True)
def test_the_kubelet_itself_knows_the_shares_of_a_device(control_plane, driver, namespace):
    """In its state and by pod-resources, without the API server."""
    client, node = control_plane.client, driver.node
    version = client.raw("GET", "/version").json()["gitVersion"]
    assert version == bed_tools.NEWER.version
    names = ("first", "second")
    for name in names:  # two shares of one GPU
        make_resource_claim(client, namespace, name, driver.uuids[0])
    pods = [user(client, namespace, name, name, node) for name in names]
    for pod in pods:
        client.wait_for(pod, objects.ready, "Ready")
    ids = {name: result_of(client, namespace, name)["shareID"] for name in names}
    expected = sorted((name, "main", name, "gpu-0", ids[name]) for name in names)
    for flags in ((), (WITHOUT_STATE,)):
        assert shown(node, *flags, more=("share_id",)) == expected
    state = read_dra_state(str(node.path(STATE)))
    assert {
        resource_claim.name: resource_claim.devices[0].share_id for resource_claim in state
    } == ids
    for pod in pods:
        client.delete(pod)
    wait_until(lambda: prepared(node) == {}, "released")


@pytest.mark.parametrize("driver", ["sharing"], indirect=True)
def test_a_device_that_is_taken_out_of_service_is_held_by_nobody(control_plane, driver, namespace):
    """Kubernetes evicts the pods of a device with a taint, and no other pod."""
    client, node = control_plane.client, driver.node
    names = ("broken", "sound")
    for name, uuid in zip(names, driver.uuids, strict=True):
        make_resource_claim(client, namespace, name, uuid)
    pods = [user(client, namespace, name, name, node) for name in names]
    for pod in pods:
        client.wait_for(pod, objects.ready, "Ready")
    assert [one[0] for one in shown(node)] == [*names]
    driver.taint(0, "NoExecute")
    wait_until(lambda: [one[0] for one in shown(node)] == ["sound"], "one pod is evicted")
    (view,) = inspected(control_plane, node)["nodes"]
    held = {device["uuid"]: device["sharesHeld"] for device in view["devices"]}
    assert held == dict(zip(driver.uuids, (0, 1), strict=True))
    client.delete(pods[1])
    wait_until(lambda: prepared(node) == {}, "released")
