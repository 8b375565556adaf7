"""The truth about the node: what a real kubelet and containerd do to pods and device plugins."""

import json
import secrets
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support import live
from tests.support.bed import objects
from tests.support.bed.deviceplugin import FOLDER, DevicePlugin, pb
from tests.support.bed.images import Shown
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.kubelet_checkpoint import parse_checkpoint
from vgpu.sources.podresources import HeldDevices, PodResourcesSource

THING = "example.com/thing"
IDS = ("thing-0", "thing-1", "thing-2")


@pytest.fixture
def plugin(node):
    with DevicePlugin(node, THING, IDS) as plugin:
        plugin.wait_counted(len(IDS))
        yield plugin


def running(client, pod):
    """Create a pod and wait until it runs."""
    return client.wait_for(client.create(pod), objects.ready, "Ready")


def never_restarted(pod):
    (status,) = pod["status"]["containerStatuses"]
    return status["ready"] and status["restartCount"] == 0


def grants(node):
    """The kubelet's checkpoint, by the product's own reader: (pod UID, container) -> IDs."""
    content = node.path(f"{FOLDER}/kubelet_internal_checkpoint").read_bytes()
    found, rejections = parse_checkpoint(content)
    assert not rejections
    return {(grant.pod_uid, grant.container): grant for grant in found if grant.resource == THING}


def held(node):
    """Pod-resources, by the product's own reader: who holds THING."""
    source = PodResourcesSource(str(node.path("/var/lib/kubelet/pod-resources/kubelet.sock")))

    def known_pods():
        try:
            return source.sample()
        except SourceError as error:
            if error.reason is Reason.EMPTY_AFTER_RESTART:
                return None
            raise

    try:
        answer = wait_until(known_pods, "the kubelet knows pods")
    finally:
        source.close()
    return {who: ids for who, ids in answer.devices.items() if who.resource == THING}


# -------------------------------------------------------------------------------- the machine


def test_a_container_shows_its_environment_mounts_and_devices(control_plane, node, namespace):
    pod = running(control_plane.client, objects.pod("shows", namespace, env={"COLOUR": "blue"}))
    shown = Shown.by(control_plane.client, pod)
    assert shown.env["COLOUR"] == "blue"
    assert "/var/run/secrets/kubernetes.io/serviceaccount" in shown.mounts
    assert shown.devices["/dev/null"] == "1:3"


def test_a_pod_reaches_the_api_server_by_the_service_address(control_plane, node, namespace):
    running(control_plane.client, objects.pod("caller", namespace))
    script = """
        token=$(cat /var/run/secrets/kubernetes.io/serviceaccount/token)
        wget -q -O - --no-check-certificate --header "Authorization: Bearer $token" \\
          "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/version"
    """
    output = control_plane.kubectl("exec", "-n", namespace, "caller", "--", "sh", "-c", script)
    assert json.loads(output)["gitVersion"].startswith("v1.")


def test_a_node_is_a_machine_of_its_own(node):
    assert node.run(["hostname"]).strip() == node.name
    assert node.run(["cat", "/proc/sys/kernel/random/boot_id"]).strip() == node.boot_id
    processes = node.run(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null || true"])  # some end
    assert "kubelet" in processes
    assert "pytest" not in processes
    node.run(["sh", "-c", "echo here >/etc/written; echo here >/usr/local/written"])
    assert node.path("/usr/local/written").read_text() == "here\n"
    for written in ("/etc/written", "/usr/local/written"):
        assert not Path(written).exists()


def test_the_kubelet_does_not_set_the_kernel_of_the_machine(node):
    panic = "/proc/sys/kernel/panic"
    assert node.path(panic).read_text().strip() == "10"  # to what it always sets it
    mounts = node.run(["cat", "/proc/self/mountinfo"]).splitlines()
    assert panic in [mount.split()[4] for mount in mounts]  # not the real one


def test_the_product_finds_its_sources_where_it_looks_by_default(
    control_plane, node, namespace, plugin
):
    running(control_plane.client, objects.pod("seen", namespace, limits={THING: 1}))
    page = live.parse(node.run([sys.executable, "-m", "vgpu", "exporter", "--once"]))
    for collector in ("kubelet", "process", "shim", "limits", "plugin"):
        assert page[f'vgpu_collector_success{{collector="{collector}"}}'] == 1, collector
    # Pod names, container names and the checkpoint: nothing was missing or refused.
    assert not [name for name in page if name.startswith('vgpu_collector_rejected{collector="kube')]


# -------------------------------------------------------------------------- the device plugin


def test_devices_of_a_plugin_are_allocated_to_a_container(control_plane, node, namespace, plugin):
    pod = running(control_plane.client, objects.pod("user", namespace, limits={THING: 2}))
    (ids,) = plugin.allocated
    assert len(ids) == 2
    assert set(ids) < set(IDS)
    assert Shown.by(control_plane.client, pod).env["THINGS"] == ",".join(sorted(ids))


def test_who_asks_for_more_than_there_is_stays_pending(control_plane, node, namespace, plugin):
    client = control_plane.client
    pod = client.create(objects.pod("greedy", namespace, limits={THING: 4}))
    client.wait_for(pod, lambda pod: objects.condition(pod, "PodScheduled") == "False", "refused")
    assert not plugin.allocated


def test_the_checkpoint_and_pod_resources_report_who_holds_what(
    control_plane, node, namespace, plugin
):
    client = control_plane.client
    one = running(client, objects.pod("one", namespace, limits={THING: 1}))
    two = running(client, objects.pod("two", namespace, limits={THING: 2}))
    by_uid = {uid: set(grant.device_ids) for (uid, _), grant in grants(node).items()}
    by_name = {who.pod: set(ids) for who, ids in held(node).items()}
    assert by_name == {
        pod["metadata"]["name"]: by_uid[pod["metadata"]["uid"]] for pod in (one, two)
    }
    assert sorted(map(len, by_name.values())) == [1, 2]
    assert set().union(*by_name.values()) == set(IDS)
    (grant,) = (g for (uid, _), g in grants(node).items() if uid == two["metadata"]["uid"])
    assert grant.env == {"THINGS": ",".join(grant.device_ids)}


def test_an_unhealthy_device_is_no_longer_allocatable(node, plugin):
    plugin.set_health("thing-1", healthy=False)
    plugin.wait_counted(3, 2)
    plugin.set_health("thing-1", healthy=True)
    plugin.wait_counted(3)


def test_allocations_survive_a_restart_of_the_kubelet(control_plane, node, namespace, plugin):
    client = control_plane.client
    pod = running(client, objects.pod("survivor", namespace, limits={THING: 1}))
    mine = pod["metadata"]["uid"], "main"
    before = grants(node)[mine]
    socket = plugin.socket
    node.restart_kubelet()
    wait_until(lambda: not socket.exists(), "the kubelet deletes the plugin's socket")
    plugin.register()
    node.wait_ready()
    plugin.wait_counted(len(IDS))
    assert grants(node)[mine] == before
    holder = HeldDevices(namespace, "survivor", "main", THING)
    wait_until(lambda: holder in held(node), "the kubelet knows the pod again")
    (taken,) = plugin.allocated
    running(client, objects.pod("rest", namespace, limits={THING: 2}))
    assert set(plugin.allocated[1]) == set(IDS) - set(taken)
    assert never_restarted(client.get(pod))


def test_a_killed_kubelet_leaves_the_containers_alone(control_plane, node, namespace, plugin):
    client = control_plane.client
    pod = running(client, objects.pod("survivor", namespace, limits={THING: 1}))
    node.kill_kubelet()
    node.start_kubelet()
    plugin.register()
    node.wait_ready()
    plugin.wait_counted(len(IDS))
    running(client, objects.pod("rest", namespace, limits={THING: 2}))
    assert never_restarted(client.get(pod))


def test_a_pod_that_comes_while_the_plugin_is_away_fails_for_good(
    control_plane, node, namespace, plugin
):
    client = control_plane.client
    plugin.stop()
    plugin.wait_counted(len(IDS), 0)
    pod = client.create(objects.pod("early", namespace, limits={THING: 1}, nodeName=node.name))
    pod = client.wait_for(pod, objects.phase("Failed"), "Failed")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "no healthy devices present" in pod["status"]["message"]


# ---------------------------------------------------------------------------------------- CDI


class Cdi:
    """A CDI device that sets BOUND in a container. Its name is new: the runtime knows old ones."""

    def __init__(self, node):
        self.name = secrets.token_hex(8)
        self.folder = node.path("/var/run/cdi")

    def answer(self, _ids):
        device = pb.CDIDevice(name=f"example.com/bed={self.name}")
        return pb.ContainerAllocateResponse(cdi_devices=[device])

    def write(self):
        edits = {"env": [f"BOUND={self.name}"]}
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "example.com/bed",
            "devices": [{"name": self.name, "containerEdits": edits}],
        }
        self.folder.mkdir(exist_ok=True)
        new = self.folder / f".{self.name}"
        new.write_text(json.dumps(spec))
        new.rename(self.folder / f"{self.name}.json")


def test_containerd_1_7_injects_cdi_devices(control_plane, node, namespace):
    client, cdi = control_plane.client, Cdi(node)
    cdi.write()
    with DevicePlugin(node, THING, IDS, cdi.answer) as plugin:
        plugin.wait_counted(len(IDS))
        pod = running(client, objects.pod("bound", namespace, limits={THING: 1}))
        assert Shown.by(client, pod).env["BOUND"] == cdi.name


def test_an_unknown_cdi_name_is_retried_until_it_is_known(control_plane, node, namespace):
    client, cdi = control_plane.client, Cdi(node)

    def refused(pod):
        (status,) = pod["status"].get("containerStatuses", [{}])
        waiting = status.get("state", {}).get("waiting", {})
        return waiting.get("reason") == "CreateContainerError" and (
            "unresolvable CDI devices" in waiting["message"]
        )

    with DevicePlugin(node, THING, IDS, cdi.answer) as plugin:
        plugin.wait_counted(len(IDS))
        pod = client.create(objects.pod("early", namespace, limits={THING: 1}))
        client.wait_for(pod, refused, "CreateContainerError")
        cdi.write()
        client.wait_for(pod, objects.ready, "Ready")
        assert Shown.by(client, pod).env["BOUND"] == cdi.name


def test_containerd_1_6_ignores_cdi_devices_silently(control_plane, nodes, namespace):
    client, old = control_plane.client, nodes(containerd="1.6")
    cdi = Cdi(old)
    cdi.write()
    with DevicePlugin(old, THING, IDS, cdi.answer) as plugin:
        plugin.wait_counted(len(IDS))
        here = {"kubernetes.io/hostname": old.name}
        pod = objects.pod("unbound", namespace, limits={THING: 1}, nodeSelector=here)
        assert "BOUND" not in Shown.by(client, running(client, pod)).env
        assert plugin.allocated


# --------------------------------------------------------------------------------- two nodes


def test_pods_spread_over_two_nodes_reach_one_another_and_are_drained(
    control_plane, node, nodes, namespace
):
    client = control_plane.client
    second = nodes()
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    serve = ["sh", "-c", "hostname >/tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
    web = client.create(
        objects.deployment("web", namespace, 2, command=serve, topologySpreadConstraints=[spread])
    )
    client.wait_for(web, lambda web: web["status"].get("readyReplicas") == 2, "two ready")
    pods = client.list(f"/api/v1/namespaces/{namespace}/pods")
    by_node = {pod["spec"]["nodeName"]: pod for pod in pods}
    assert by_node.keys() == {node.name, second.name}

    here, there = by_node[node.name], by_node[second.name]
    fetch = ["wget", "-q", "-O", "-", f"http://{there['status']['podIP']}:8080/"]
    name = here["metadata"]["name"]
    output = control_plane.kubectl("exec", "-n", namespace, name, "--", *fetch)
    assert output.strip() == there["metadata"]["name"]
    assert fetched(there["status"]["podIP"]) == there["metadata"]["name"]  # from the test as well

    client.patch(
        web,
        [{"op": "remove", "path": "/spec/template/spec/topologySpreadConstraints"}],
        kind="json",
    )
    control_plane.kubectl("cordon", second.name)  # else a pod may still be on its way to it
    control_plane.kubectl("drain", second.name, "--ignore-daemonsets")
    client.wait_for(web, lambda web: web["status"].get("readyReplicas") == 2, "two ready")
    assert not client.list(
        f"/api/v1/namespaces/{namespace}/pods", fieldSelector=f"spec.nodeName={second.name}"
    )


def fetched(ip):
    with urlopen(f"http://{ip}:8080/", timeout=WAIT_SECONDS) as answer:
        return answer.read().decode().strip()
