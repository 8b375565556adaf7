"""The exporter of the chart on a node with NVIDIA's MPS: it reads limits with its rights alone."""

import pytest
import urllib3

from tests.cluster.charting import driver_for_pods, install, of_the_bed, shown, uninstall
from tests.support import nvidia_plugin
from tests.support.bed import objects
from tests.support.bed.deviceplugin import DevicePlugin
from tests.support.deploy_objects import kinds
from tests.support.live import parse
from tests.support.nvidia_plugin import SHARED
from tests.support.nvml_fake import Device, uuid
from tests.support.waiting import wait_until
from vgpu.model.units import MIB

GPU = uuid(0)
ROOT = "/data/mps"
"""The plugin's ``mpsRoot`` on this node: not its default."""

LINE = "[2026-09-01 10:28:13.725 Control    69] {}\n"
LOG = "".join(
    LINE.format(text)
    for text in (
        f"Starting control daemon using socket /mps/{SHARED}/pipe/control",
        "Cmd:set_default_device_pinned_mem_limit 0 4606M",
        "Cmd:set_default_active_thread_percentage 25",
    )
)
LIMITS = {
    "vgpu_container_process_memory_limit_bytes": 4606 * MIB,
    "vgpu_container_process_core_limit_ratio": 0.25,
}


@pytest.fixture
def driver(tmp_path):
    driver = driver_for_pods(tmp_path / "driver")
    driver.write([Device(GPU)])
    return driver


def through_mps(ids):
    """Without the mounts of the daemon's pipe and shared memory: no process uses them."""
    answer = nvidia_plugin.mps(ids)
    del answer.mounts[:]
    return answer


@pytest.fixture
def tenant(node, namespace):
    """A pod with one of four replicas, and the files of the daemon of its resource."""
    client, folder = node.cluster.client, f"{ROOT}/{SHARED}"
    with DevicePlugin(node, SHARED, nvidia_plugin.replicas(GPU, 4), through_mps) as plugin:
        plugin.wait_counted(4)
        pod = client.create(objects.pod("mps", namespace, limits={SHARED: 1}))
        client.wait_for(pod, objects.ready, "Ready")
        node.run(["mkdir", "-p", f"{folder}/log"])
        node.path(f"{folder}/log/control.log").write_text(LOG)
        node.path(f"{folder}/.started").touch()
        yield pod
    node.run(["rm", "-r", ROOT])


@pytest.fixture
def exporter(chart, control_plane, node, namespace, driver, host_proc):
    """Installs the exporter in its default profile; its page as series."""
    client, made = control_plane.client, []
    volumes = {"driver": (str(driver.folder), "/driver"), "proc": (host_proc(), "/host/proc")}
    own = {"sampleInterval": "1s", "extraArgs": ["--path.procfs=/host/proc"]}
    values = of_the_bed(node)
    values["paths"] = values["paths"] | {"mps": ROOT}
    values |= {"exporter": own | shown(volumes), "reconciler": {"kind": "None"}}
    rendered = chart.rendered(values, f"--namespace={namespace}", release=namespace)
    made.extend(install(client, rendered))
    (workload,) = kinds(made, "DaemonSet")
    client.wait_for(workload, lambda it: it["status"].get("numberReady") == 1, "ready")
    (pod,) = (
        pod
        for pod in client.list(f"/api/v1/namespaces/{namespace}/pods")
        if pod["metadata"]["name"] != "mps"
    )
    page = f"http://{pod['status']['podIP']}:9394/metrics"
    yield lambda: parse(urllib3.request("GET", page).data.decode())
    uninstall(client, made)


@pytest.mark.usefixtures("product_image")
def test_the_limits_of_mps_are_read_where_the_chart_names_their_folder(tenant, exporter):
    name = f'pod="{tenant["metadata"]["name"]}"'

    def limits():
        return {
            at.partition("{")[0]: value
            for at, value in exporter().items()
            if name in at and at.startswith(tuple(LIMITS))
        }

    wait_until(lambda: limits() == LIMITS, "the limits", context=lambda: str(exporter()))
