"""The chart as helm installs, upgrades, tests and uninstalls it, beside a pod that uses a GPU.

It is upgraded from the newest commit whose chart has other pods. An uninstalled release leaves what
docs/upgrading.md lists, and nothing else.
"""

import json
import subprocess
import tarfile
from contextlib import suppress
from io import BytesIO
from types import SimpleNamespace

import pytest

from deploy.generate import CHART
from tests.cluster.charting import of_the_bed, shown, with_library
from tests.cluster.plugin_node import volcano_pod
from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.deploy_objects import pod_templates
from tests.support.environment import ROOT, missing
from tests.support.nvml_fake import uuid
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.thorough("release")]

GPU = uuid(0)
RESOURCE = "volcano.sh/vgpu-number"
FOLDER = "deploy/chart/vgpu"
WORKLOADS = {"vgpu-exporter", "vgpu-device-plugin-volcano", "vgpu-reconciler"}

KEPT = {
    "leases.coordination.k8s.io vgpu-reconciler",
    "configmaps vgpu-reconcile-state",
}
"""Objects of the release's namespace that an uninstalled release leaves; the second one is made
when there is something to remember."""

FOLDERS = (
    "/etc/gpu-manager",
    "/kubeshare",
    "/run/cdi",
    "/run/vgpu",
    "/usr/local/vgpu",
    "/var/lib/vgpu",
)
"""Folders of the node that stay: the plugin's and the schemes', and empty ones of volumes."""

OF_THE_NODE = (
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log",
)
"""Where the kubelet and the container runtime keep what they keep of any pod."""

OF_THE_CLUSTER = {
    "endpointslices.discovery.k8s.io",
    "events",
    "events.events.k8s.io",
    "pods",
    "controllerrevisions.apps",
    "replicasets.apps",
    "ipaddresses.networking.k8s.io",
}
"""Kinds of objects that come and go with others."""


# ---------------------------------------------------------------- what there is


def git(*args):
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, check=False)


@pytest.fixture
def node(own_node):
    """A node of this test's own, with the product's image and the shim's library."""
    return with_library(own_node)


@pytest.fixture
def values(node, driver):
    """Values that both charts take."""
    library = shown({"driver": (str(driver.folder), "/driver")})
    return of_the_bed(node) | {
        "units": {"volcanoMemoryFactor": 1024},
        "exporter": {"sampleInterval": "1s"} | library,
        "devicePlugin": {"schemes": {"volcano": {"enabled": True}}} | library,
        "reconciler": {
            "mode": "apply",
            "nodeSelector": {"kubernetes.io/hostname": node.name},
        },
    }


@pytest.fixture
def templates(chart, values):
    """Renders a chart's folder: workload -> the template of its pods."""
    return lambda folder: dict(pod_templates(chart.rendered(values, folder=folder)))


@pytest.fixture
def earlier_chart(templates, tmp_path):
    """The newest chart of the history whose pods are others than those of the working tree's."""
    commits = git("rev-list", "HEAD", "--", FOLDER).stdout.decode().split()
    for commit in commits:
        packed = git("archive", "--format=tar", commit, FOLDER).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(tmp_path / commit, filter="data")
        if templates(tmp_path / commit / FOLDER) != templates(CHART):
            return tmp_path / commit / FOLDER
    return missing("an earlier commit with another chart: fetch the history of the repository")


@pytest.fixture
def helm(tools, control_plane, namespace, tmp_path):
    """Runs helm on the release `vgpu`: helm("upgrade", chart, values=…)."""

    def run(command, *args, values=None):
        program = [tools.path("helm"), command, "vgpu", *args, f"--namespace={namespace}"]
        kubeconfig = [f"--kubeconfig={control_plane.kubeconfig}"]
        given = ["--values=-"] if values is not None else []
        done = subprocess.run(
            [*program, *kubeconfig, *given],
            input=json.dumps(values),
            env={"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    return run


@pytest.fixture
def wait_running(control_plane, namespace):
    """Waits until all workloads run in their newest form; the pods of the release."""
    client = control_plane.client

    def workloads():
        for kind in ("daemonsets", "deployments"):
            yield from client.list(f"/apis/apps/v1/namespaces/{namespace}/{kind}")

    def is_done(workload):
        status = workload["status"]
        wanted = status.get("desiredNumberScheduled", workload["spec"].get("replicas"))
        updated = status.get("updatedNumberScheduled", status.get("updatedReplicas"))
        ready = status.get("numberAvailable", status.get("availableReplicas"))
        there = status.get("currentNumberScheduled", status.get("replicas"))
        current = status.get("observedGeneration") == workload["metadata"]["generation"]
        return current and wanted and wanted == updated == ready == there

    def is_ours(metadata):
        ours = "app.kubernetes.io/instance" in metadata.get("labels", {})
        return ours and "deletionTimestamp" not in metadata

    def ends_of_logs():
        for pod in client.list(f"/api/v1/namespaces/{namespace}/pods"):
            for container in pod["spec"]["containers"]:
                log = []
                with suppress(Refused):  # it has not started
                    log = client.logs(pod, container["name"]).splitlines()
                yield "\n".join([f"{pod['metadata']['name']} {container['name']}:", *log[-5:]])

    def wait():
        wait_until(
            lambda: (
                {each["metadata"]["name"] for each in workloads()} == WORKLOADS
                and all(map(is_done, workloads()))
            ),
            "all workloads run in their newest form",
            seconds=180,
            context=lambda: "\n".join(ends_of_logs()),
        )
        pods = client.list(f"/api/v1/namespaces/{namespace}/pods")
        return [pod for pod in pods if is_ours(pod["metadata"])]

    return wait


def uids(pods, workload):
    """The pods of a workload of the release."""
    label = "app.kubernetes.io/component"
    component = workload.removeprefix("vgpu-")
    return {pod["metadata"]["uid"] for pod in pods if pod["metadata"]["labels"][label] == component}


def everything(cluster, namespace):
    """Objects of the cluster: "kind name" of those of the namespace and of those of none."""
    printed = ("--ignore-not-found", "--output=jsonpath={.items[*].metadata.name}")
    for namespaced, where in (("true", [f"--namespace={namespace}"]), ("false", [])):
        listed = ("api-resources", "--verbs=list", f"--namespaced={namespaced}", "--output=name")
        for kind in sorted(set(cluster.kubectl(*listed).split()) - OF_THE_CLUSTER):
            names = cluster.kubectl("get", kind, *where, *printed)
            yield from (f"{kind} {name}" for name in names.split())


def folders(node):
    """The folders of the node, down to those that hold a program's own."""
    places = "/etc /kubeshare /opt /run /usr/local /var"  # /tmp is the machine's
    find = f"find {places} -xdev -maxdepth 3 -type d 2>/dev/null || true"
    return set(node.run(["sh", "-c", find]).split())


# ---------------------------------------------------------------- the test


def test_a_release_is_upgraded_beside_a_running_pod_and_leaves_what_the_page_lists(
    earlier_chart, templates, control_plane, node, namespace, values, helm, wait_running
):
    client, cluster = control_plane.client, control_plane
    before, files = set(everything(cluster, namespace)), folders(node)
    state = SimpleNamespace(uuids=[GPU], node=node)

    def start(name):
        pod = client.create(volcano_pod(name, namespace, state, {"main": [(0, 16, 30)]}))
        return client.wait_for(pod, objects.ready, "Ready")

    # An earlier chart is installed, and a pod gets a part of the GPU.
    helm("install", str(earlier_chart), values=values)
    old_pods = wait_running()
    client.wait_for(
        node.object(), lambda it: it["status"]["allocatable"].get(RESOURCE) == "10", "offers all"
    )
    (first,) = start("first")["status"]["containerStatuses"]

    # The upgrade replaces our pods, and the tenant's runs on.
    helm("upgrade", str(CHART), values=values)
    new_pods = wait_running()
    before_upgrade, after = templates(earlier_chart), templates(CHART)
    for workload in WORKLOADS:
        old, new = uids(old_pods, workload), uids(new_pods, workload)
        assert len(old) == len(new) > 0
        assert (old == new) is (before_upgrade[workload] == after[workload])
    pod = client.get(f"/api/v1/namespaces/{namespace}/pods/first")
    (still,) = pod["status"]["containerStatuses"]
    assert objects.ready(pod)
    assert (still["containerID"], still["restartCount"]) == (first["containerID"], 0)
    start("second")

    # The chart's own tests pass, and leave no pod.
    helm("test")
    left = {pod["metadata"]["name"] for pod in client.list(f"/api/v1/namespaces/{namespace}/pods")}
    assert left == {"first", "second"} | {pod["metadata"]["name"] for pod in new_pods}

    # What stays of the release is on the page.
    for name in ("first", "second"):
        pod = client.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        client.delete(pod)
        client.wait_gone(pod)
    helm("uninstall")
    for pod in new_pods:
        client.wait_gone(pod)
    kept = set(everything(cluster, namespace)) - before
    assert "leases.coordination.k8s.io vgpu-reconciler" in kept
    assert kept <= KEPT
    assert client.get("/api/v1/nodes/" + node.name)["status"]["allocatable"][RESOURCE] == "0"
    made = sorted(folders(node) - files)
    assert [path for path in made if not path.startswith((*FOLDERS, *OF_THE_NODE))] == []
    page = (ROOT / "docs" / "upgrading.md").read_text()
    for name in ("vgpu-reconciler", "vgpu-reconcile-state", "/var/lib/vgpu"):
        assert f"`{name}`" in page
