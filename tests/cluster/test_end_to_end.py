"""All of it on a real node: installed by the chart, scraped, broken, alerted on, and repaired.

Prometheus and Alertmanager are Debian's, jobs and rules those of the chart's own objects. The
driver is the fake one in C, and Volcano's scheduler is played: what it would write is there.

Three alerts wait for seconds here, by ``rules.alerts`` of the chart, instead of minutes or an hour.
The reconcilers wait for seconds, too, but longer: else they would repair before an alert fires.
"""

import json
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import pytest

from tests.cluster.charting import of_the_bed, shown, uninstall, with_library
from tests.cluster.plugin_node import volcano_pod
from tests.cluster.plugin_view import Sight
from tests.cluster.scraping import rule_file, scrape_jobs
from tests.support.bed import crds, objects
from tests.support.bed.monitoring import Alertmanager, Prometheus
from tests.support.nvml_fake import Device, Process, uuid
from tests.support.waiting import wait_until
from vgpu.model.units import GIB
from vgpu.schemes.volcano.node import lock_text

pytestmark = pytest.mark.slow

GPU = uuid(0)
LOCK = "hamivgpu"
ROOM = 3
"""Pods that the tenants' namespace has room for beside the first, whatever became of them."""

SOON = {"for": "3s"}
CONFIG = {
    "every": "1s",
    "ages": {"failed": "1s", "assumed": "5s", "clock_skew": "15s"},
}
"""A failure is reported at once, a lock after 5 s; both are acted on 15 s later."""

NODE_CONFIG = {
    "every": "1s",
    "ages": {"over_limit": "5s", "clock_skew": "15s"},
    "rules": {"over_limit": {"mode": "apply"}},
}
"""A container over its limit is reported at once, and its pod evicted after 20 s."""

TARGETS = {
    "vgpu-exporter": 1,
    "vgpu-device-plugin": 1,
    "vgpu-reconciler-node": 1,
    "vgpu-reconciler": 2,
}
"""By scrape job."""

PODS = 4
"""The node's reconciler is in the device plugin's."""


# ---------------------------------------------------------------- what is there


@pytest.fixture
def node(own_node):
    """A node of this test's own, with the product's image and the shim's library."""
    return with_library(own_node)


@pytest.fixture
def values(node, driver, host_proc):
    """What is installed: exporter, device plugin, both reconcilers, and how they are watched."""
    library = {"driver": (str(driver.folder), "/driver")}
    processes = {"proc": (host_proc(), "/host/proc")}
    all_processes = ["--path.procfs=/host/proc"]
    beside = shown(library | processes)
    beside["extraVolumes"] = shown(processes)["extraVolumes"]  # the plugin's pod has the other
    return of_the_bed(node) | {
        "units": {"volcanoMemoryFactor": 1024},
        "exporter": {"sampleInterval": "1s", "extraArgs": all_processes}
        | shown(library | processes),
        "devicePlugin": {"schemes": {"volcano": {"enabled": True}}} | shown(library),
        "reconciler": {
            "mode": "apply",
            "config": CONFIG,
            "nodeSelector": {"kubernetes.io/hostname": node.name},
            "node": {"config": NODE_CONFIG, "evict": True, "extraArgs": all_processes} | beside,
        },
        "monitoring": {"kind": "PodMonitor", "interval": "1s", "scrapeTimeout": "1s"},
        "rules": {
            "enabled": True,
            "alerts": {fault.alert: SOON for fault in (OverLimit, RefusedPods, StuckLock)},
        },
    }


@pytest.fixture
def installed(chart, control_plane, values, namespace, crd_files):
    """`helm template | kubectl apply` in this namespace; it is taken away at the end."""
    client = control_plane.client
    crds.load(client, *(file for file in crd_files if file != crds.SHARE_POD))
    made = chart.rendered(values, f"--namespace={namespace}")
    text = "\n---\n".join(map(json.dumps, made))
    control_plane.kubectl("apply", "--filename=-", stdin=text)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    wait_until(
        lambda: [*map(objects.ready, client.list(pods))] == [True] * PODS,
        "all are ready",
        seconds=120,  # seven programs begin at once
        context=lambda: json.dumps([pod["status"] for pod in client.list(pods)], indent=1),
    )
    yield namespace
    uninstall(client, made)


class Monitoring(NamedTuple):
    """Prometheus and Alertmanager of the test."""

    prometheus: Prometheus
    alertmanager: Alertmanager

    def hears_of(self, alert):
        """Whether one of them has the alert now."""
        return bool(self.prometheus.alerts(alert) or self.alertmanager.alerts(alert))


@pytest.fixture
def monitoring(installed, control_plane, prometheus, alertmanager, tmp_path):
    """Prometheus with the chart's scrape jobs and alerts, and Alertmanager."""
    client = control_plane.client
    rules = rule_file(client, installed, tmp_path / "rules.json")
    jobs = scrape_jobs(client, installed)
    server = prometheus(jobs=jobs, rules=[rules], alertmanager=alertmanager)
    query = "count by (job) (up == 1)"
    wait_until(
        lambda: {labels["job"]: number for labels, number in server.query(query)} == TARGETS,
        "all are scraped",
        context=lambda: json.dumps(server.api("/api/v1/targets"), indent=1),
    )
    return Monitoring(server, alertmanager)


@pytest.fixture
def tenants(control_plane, installed):
    """The name of a namespace with ROOM for one pod and a few more."""
    with control_plane.namespace("tenants") as name:
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "pods", "namespace": name},
            "spec": {"hard": {"count/pods": str(1 + ROOM)}},
        }
        client = control_plane.client
        client.wait_for(client.create(quota), lambda it: it["status"].get("hard"), "counted")
        yield name


def promised(name, node, namespace, gib):
    """A Deployment of one pod, to whom its scheduler promises so much of the GPU, in GiB."""
    allocation_state = SimpleNamespace(uuids=[GPU], node=node)
    pod = volcano_pod(name, namespace, allocation_state, {"main": [(0, gib, 10)]})
    annotations = pod["metadata"]["annotations"]
    return objects.deployment(name, namespace, annotations=annotations, **pod["spec"])


def pods_of(client, namespace, name):
    """The pods of that Deployment, those that have failed or are on their way out among them."""
    return client.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"app={name}")


# ---------------------------------------------------------------- what goes wrong


class Fault:
    """Something that goes wrong.

    Attributes:
        alert, labels: the alert that fires, and its labels.
        metric: a query that has an answer as long as it is so.
        done: one that has an answer once the reconciler has healed it.
    """

    alert: str
    labels: Mapping[str, str]
    metric: str
    done: str

    def inject(self):
        """Make it so."""
        raise NotImplementedError

    def is_over(self):
        """Whether it is so no more."""
        raise NotImplementedError


class OverLimit(Fault):
    """A program uses 6 GiB of the 4 that its container was allocated, until its pod is evicted.

    In the pod that its Deployment makes instead it is content with 3.
    """

    alert = "VgpuContainerOverLimit"
    metric = "vgpu_container_memory_used_bytes > vgpu_container_memory_limit_bytes"
    done = (
        'vgpu_reconcile_actions_total{rule="over_limit", outcome="done"} == 1'
        f" and on () vgpu_container_memory_used_bytes == {3 * GIB}"
    )

    def __init__(self, node, namespace, driver, host_proc):
        self.node, self.client, self.namespace = node, node.cluster.client, namespace
        self.driver, self.host_proc = driver, host_proc
        self.processes = []
        self.client.create(promised("greedy", node, namespace, 4))
        wait_until(lambda: [*map(objects.ready, self._pods())] == [True], "greedy runs")
        (self.first,) = self._pods()
        self.labels = {"pod": self.first["metadata"]["name"], "container": "main"}

    def inject(self):
        self._use(self.first, 6 * GIB)

    def is_over(self):
        self._show_processes()
        pods = self._pods()
        uids = {pod["metadata"]["uid"] for pod in pods}
        if len(pods) != 1 or self.first["metadata"]["uid"] in uids or not objects.ready(pods[0]):
            return False
        self._use(pods[0], 3 * GIB)
        return True

    def _pods(self):
        return pods_of(self.client, self.namespace, "greedy")

    def _use(self, pod, used):
        """The pod's program begins to use so much of the GPU."""
        self.processes.append(Process(GPU, Sight.of(self.node, pod).pid, used=used))
        self.host_proc()  # has it, too
        self._show_processes()

    def _show_processes(self):
        """The driver lists them as long as they live."""
        living = set(self.node.run(["ls", "/proc"]).split())
        self.processes = [one for one in self.processes if str(one.pid) in living]
        used = sum(one.used for one in self.processes)
        self.driver.write([Device(GPU, total=80 * GIB, used=used)], self.processes)


class RefusedPods(Fault):
    """The device plugin crashes, and before it is back a Deployment's pods ask for a share.

    Each is refused and replaced, until the quota has no room for another one. Then the plugin's
    return alone does not help.
    """

    alert = "VgpuStuckPods"
    labels: ClassVar = {"rule": "refused"}
    metric = 'vgpu_reconcile_findings{rule="refused"} > 0'
    done = f'sum(vgpu_reconcile_actions_total{{rule="refused", outcome="done"}}) >= {ROOM}'

    def __init__(self, node, namespace):
        self.node, self.client, self.namespace = node, node.cluster.client, namespace

    def inject(self):
        self._crash()
        self.client.create(promised("train", self.node, self.namespace, 8))
        wait_until(self._no_room_is_left, "no room is left")

    def _crash(self):
        self.node.run(["sh", "-c", "pkill -KILL -f '[v]gpu device-plugin' || true"])

    def _no_room_is_left(self):
        self._crash()  # again, should it have been quicker back than the pods came
        reasons = [pod["status"].get("reason") for pod in self._pods()]
        return reasons == ["UnexpectedAdmissionError"] * ROOM

    def is_over(self):
        return [*map(objects.ready, self._pods())] == [True]

    def _pods(self):
        return pods_of(self.client, self.namespace, "train")


class StuckLock(Fault):
    """A scheduler locks the node and dies: no pod comes that would release the lock."""

    alert = "VgpuNodeLockStuck"
    labels: ClassVar = {"rule": "stale_lock"}
    metric = 'vgpu_reconcile_findings{rule="stale_lock"} > 0'
    done = 'vgpu_reconcile_actions_total{rule="stale_lock", outcome="done"} == 1'

    def __init__(self, node):
        self.node, self.client = node, node.cluster.client

    def inject(self):
        annotations = {LOCK: lock_text(int(time.time()), None)}
        self.client.patch(self.node.object(), {"metadata": {"annotations": annotations}})

    def is_over(self):
        return LOCK not in self.node.object()["metadata"]["annotations"]


def follow(fault, monitoring):
    """From the fault until nobody speaks of it any more; what came when is printed."""
    name, began = type(fault).__name__, time.monotonic()

    def note(what):
        print(f"{name}: {time.monotonic() - began:5.1f} s  {what}")

    fault.inject()
    note("it is so")
    monitoring.prometheus.wait_for(fault.metric)
    note("the metrics show it")
    monitoring.prometheus.wait_for_alert(fault.alert, **fault.labels)
    note(f"{fault.alert} fires in Prometheus")
    monitoring.alertmanager.wait_for_alert(fault.alert, **fault.labels)
    note("Alertmanager has it")
    assert not fault.is_over(), "it was over before an alert fired"
    wait_until(fault.is_over, f"{name}: over")
    note("it is over")
    wait_until(lambda: not monitoring.prometheus.query(fault.metric), f"{name}: out of the metrics")
    wait_until(lambda: not monitoring.hears_of(fault.alert), f"{fault.alert}: resolved")
    note("it is resolved in both")
    monitoring.prometheus.wait_for(fault.done)
    note("the reconciler's metrics say that it has healed it")


def test_faults_are_found_reported_and_repaired(node, driver, host_proc, monitoring, tenants):
    faults = (
        OverLimit(node, tenants, driver, host_proc),
        RefusedPods(node, tenants),
        StuckLock(node),
    )
    for fault in faults:
        follow(fault, monitoring)
    # A cycle may take longer than the second after which the next is due here.
    firing = 'ALERTS{alertstate="firing", alertname!="VgpuReconcileCyclesMissed"}'
    query = f"count by (alertname) (count_over_time({firing}[1h]))"
    fired = {labels["alertname"] for labels, _ in monitoring.prometheus.query(query)}
    assert fired == {fault.alert for fault in faults}
