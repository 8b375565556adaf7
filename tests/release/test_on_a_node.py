"""The image's archive and the chart's package of a release, on a node that has nothing of ours."""

import json
import subprocess

import pytest
import yaml

from deploy.release import oci
from tests.cluster.charting import driver_for_pods, of_the_bed, shown
from tests.release.publisher import SETTING
from tests.release.test_artefacts import CHART, IMAGE
from tests.support.bed import objects
from tests.support.nvml_fake import Device
from vgpu import __version__

pytestmark = [pytest.mark.slow, pytest.mark.thorough("release")]

GPU = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def own_node(nodes, dist):
    """A node with the image of the release, imported as docs/releasing.md has it."""
    node = nodes()
    node.import_image(dist / IMAGE)
    return node


@pytest.fixture
def driver(tmp_path):
    """A driver with one GPU, for pods."""
    driver = driver_for_pods(tmp_path / "driver")
    driver.write([Device(GPU)])
    return driver


@pytest.fixture
def helm(tools, control_plane):
    """Runs helm against the cluster: helm("install", …, values={…}); what it prints."""

    def run(*words, values=None):
        command = [tools.path("helm"), *words, f"--kubeconfig={control_plane.kubeconfig}"]
        command += ["--values=-"] if values is not None else []
        ran = subprocess.run(
            command, input=json.dumps(values), capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


def test_the_image_starts_with_its_own_entrypoint_and_user(own_node, namespace, control_plane):
    """And the node knows it by its tag and by its digest."""
    client = control_plane.client
    placed = {"nodeSelector": {"kubernetes.io/hostname": own_node.name}, "restartPolicy": "Never"}
    pod = objects.pod("own", namespace, image=f"{SETTING['image']}:{__version__}", **placed)
    (container,) = pod["spec"]["containers"]
    container["args"] = ["--version"]
    container["securityContext"] = {"runAsNonRoot": True}  # the kubelet asks the image for its user
    ran = client.wait_for(client.create(pod), objects.phase("Succeeded"), "Succeeded")
    assert client.logs(ran).startswith(f"vgpu {__version__} ")


def test_the_charts_package_runs_the_image_by_its_digest_and_is_scraped(
    own_node, dist, driver, namespace, control_plane, helm, prometheus
):
    client = control_plane.client
    digest = oci.index_digest(dist / IMAGE)
    defaults = yaml.safe_load(helm("show", "values", str(dist / CHART)))
    assert defaults["image"]["digest"] == digest
    values = of_the_bed(own_node) | {
        "image": {"pullPolicy": "Never"},
        "exporter": shown({"driver": (str(driver.folder), "/driver")}) | {"profile": "minimal"},
        "reconciler": {"kind": "None"},
    }
    where = f"--namespace={namespace}"
    helm("install", "release", str(dist / CHART), where, values=values)
    try:
        (exporter,) = client.list(f"/apis/apps/v1/namespaces/{namespace}/daemonsets")
        client.wait_for(exporter, lambda it: it["status"].get("numberReady") == 1, "ready")
        (pod,) = client.list(f"/api/v1/namespaces/{namespace}/pods")
        (container,) = pod["spec"]["containers"]
        assert container["image"] == f"{SETTING['image']}@{digest}"
        pids = own_node.run(["pgrep", "-u", "65532", "-f", "vgpu exporter"])
        assert len(pids.split()) == 1
        server = prometheus(f"{pod['status']['podIP']}:9394")
        server.wait_for("vgpu_gpu_memory_total_bytes")
        assert server.value("vgpu_build_info") == 1
    finally:
        helm("uninstall", "release", where, "--wait")
