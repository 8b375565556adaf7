"""The truth about a reboot of a node."""

import pytest

from tests.support.bed import objects
from tests.support.bed.deviceplugin import FOLDER, DevicePlugin
from tests.support.waiting import wait_until

THING = "example.com/thing"


@pytest.fixture
def own_node(nodes):
    """A node of this test's own, which alone takes its pods."""
    return nodes()


def on(node, **spec):
    return {**spec, "nodeSelector": {"kubernetes.io/hostname": node.name}}


def test_a_reboot_ends_every_process_and_keeps_var(own_node):
    kept, gone = ("/var/lib", "/etc", "/usr/local"), ("/run", "/dev")
    for folder in (*kept, *gone):
        own_node.path(f"{folder}/was-here").touch()
    boot = own_node.boot_id
    sleeper = own_node.start("sleeper", ["sleep", "1000000"])

    own_node.reboot()
    assert own_node.boot_id != boot
    assert own_node.run(["cat", "/proc/sys/kernel/random/boot_id"]).strip() == own_node.boot_id
    assert own_node.object()["status"]["nodeInfo"]["bootID"] == own_node.boot_id
    assert not sleeper.running
    for folder in kept:
        assert own_node.path(f"{folder}/was-here").exists(), folder
    for folder in gone:
        assert not own_node.path(f"{folder}/was-here").exists(), folder


def test_a_pod_without_devices_is_started_again(control_plane, own_node, namespace):
    client = control_plane.client
    pod = client.create(objects.pod("plain", namespace, **on(own_node)))
    client.wait_for(pod, objects.ready, "Ready")
    own_node.reboot()
    client.wait_for(
        pod,
        lambda pod: objects.ready(pod) and pod["status"]["containerStatuses"][0]["restartCount"],
        "Ready again",
    )


def test_a_pod_with_devices_fails_because_no_plugin_is_up_yet(control_plane, own_node, namespace):
    client = control_plane.client
    with DevicePlugin(own_node, THING, ["a", "b"]) as plugin:
        plugin.wait_counted(2)
        web = client.create(objects.deployment("web", namespace, limits={THING: 1}, **on(own_node)))
        client.wait_for(web, lambda web: web["status"].get("readyReplicas") == 1, "one ready")
        pods = f"/api/v1/namespaces/{namespace}/pods"
        (first,) = client.list(pods)
        checkpoint = own_node.path(f"{FOLDER}/kubelet_internal_checkpoint").read_bytes()
        assert first["metadata"]["uid"].encode() in checkpoint

        own_node.reboot()
        failed = client.wait_for(first, objects.phase("Failed"), "Failed")
        assert failed["status"]["reason"] == "UnexpectedAdmissionError"

        plugin.register()
        plugin.wait_counted(2)
        (second,) = wait_until(
            lambda: [pod for pod in client.list(pods) if objects.ready(pod)], "one ready again"
        )
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
        assert client.get(first)["status"]["phase"] == "Failed"  # nobody clears it away
