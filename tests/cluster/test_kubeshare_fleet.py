"""KubeShare's controllers with 500 SharePods on 50 nodes of kwok, which play pods by themselves."""

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import urllib3

from tests.cluster.accounts import account
from tests.cluster.kubeshare_watch import ShareWatch
from tests.cluster.kubesharing import CRD, GPU_BYTES, Controller, reason_of, share_pod
from tests.support.bed import crds, objects
from tests.support.bed.client import Refused
from tests.support.bed.cluster import start_cluster
from tests.support.bed.fleet import FLAGS, Fleet, create
from tests.support.bed.population import CARDS, Population
from tests.support.waiting import wait_ended, wait_until
from vgpu.model.units import MIB
from vgpu.schemes.kubeshare.node import HOLDER_UUID, ROLE

pytestmark = pytest.mark.thorough("fleets")

NODES, SHARE_PODS = 50, 500
SIZES = (500, 900, 1000, 1000)
"""Thousandths; 500 SharePods need about 440 GPUs, of which there are 400."""

SECONDS = 900.0


def gpu_node(number):
    """A node of the fleet with GPUs of NVIDIA's plugin, as the node component reports them."""
    node = Population(NODES, 0).node(number)
    name, status = node["metadata"]["name"], node["status"]
    uuids = [f"GPU-{name}-{gpu}" for gpu in range(CARDS)]
    info = "".join(f"{uuid}:{GPU_BYTES // MIB}," for uuid in uuids)
    node["metadata"]["annotations"]["kubeshare/gpu_info"] = info
    for amounts in (status["capacity"], status["allocatable"]):
        for resource in [each for each in amounts if "/" in each]:
            del amounts[resource]
        amounts["nvidia.com/gpu"] = str(CARDS)
    return node, uuids


class Reporter(threading.Thread):
    """Plays the node components: each holder pod that runs gets a GPU of its node."""

    def __init__(self, client, gpus):
        super().__init__(name="reporter", daemon=True)
        self.client, self.gpus, self.ending = client, gpus, threading.Event()

    def run(self):
        while not self.ending.wait(0.2):
            with suppress(Refused, urllib3.exceptions.HTTPError):
                self._round()

    def _round(self):
        path = "/api/v1/namespaces/kube-system/pods"
        pods = self.client.list(path, labelSelector=ROLE)
        held = {(pod["metadata"].get("annotations") or {}).get(HOLDER_UUID) for pod in pods}
        for pod in pods:
            annotations = pod["metadata"].get("annotations") or {}
            if not objects.ready(pod) or HOLDER_UUID in annotations:
                continue
            free = next(gpu for gpu in self.gpus[pod["spec"]["nodeName"]] if gpu not in held)
            held.add(free)
            with suppress(Refused):  # it was deleted meanwhile
                self.client.patch(pod, {"metadata": {"annotations": {HOLDER_UUID: free}}})


@pytest.fixture
def fleet(workplace, tools):
    """Nodes without pods, with kube-scheduler and the garbage collector."""
    with (
        start_cluster(
            workplace, tools, name="kubeshare-fleet", controllers=True, flags=FLAGS
        ) as cluster,
        Fleet(cluster, Population(NODES, 0)) as fleet,
    ):
        made = [gpu_node(number) for number in range(NODES)]
        create(cluster.client, [node for node, _ in made])
        fleet.settle()
        crds.load(cluster.client, CRD)
        gpus = {node["metadata"]["name"]: uuids for node, uuids in made}
        reporter = Reporter(cluster.client, gpus)
        reporter.start()
        fleet.gpus = gpus
        yield fleet
        reporter.ending.set()
        wait_ended(reporter, "the reporter ends")


def test_five_hundred_share_pods_come_and_go(fleet, tmp_path, figure):
    client, cluster = fleet.client, fleet.cluster
    controller = Controller(
        account(cluster, "kubeshare-controller").kubeconfig, tmp_path, "--no-leader-elect"
    )
    controller.start()
    chance = random.Random(21)
    with cluster.namespace() as namespace, ShareWatch(client, fleet.gpus) as watch:
        path = f"/apis/kubeshare.nthu/v1/namespaces/{namespace}/sharepods"
        asked = [
            share_pod(f"p{number}", namespace, chance.choice(SIZES), chance.choice((1, 2, 4)))
            for number in range(SHARE_PODS)
        ]

        def share_pods():
            return client.list(path)

        def is_decided(found):
            is_refused = reason_of(found, "Scheduled") == "Unschedulable"
            return objects.ready(found) or is_refused

        begun = time.monotonic()
        create(client, asked)
        controller.daemon.wait_until(
            lambda: all(map(is_decided, share_pods())),
            "all are Ready or refused",
            seconds=SECONDS,
        )
        took = time.monotonic() - begun
        running = [each for each in share_pods() if objects.ready(each)]
        figure(
            f"KubeShare: {len(running)} of {SHARE_PODS} SharePods are Ready on {NODES} nodes"
            f" {took:.0f} s after their creation; {process_of(controller)}"
        )
        assert SHARE_PODS // 2 < len(running) < SHARE_PODS
        for each in running[: len(running) // 2]:
            client.delete(each)
        left = SHARE_PODS - len(running) // 2
        controller.daemon.wait_until(
            lambda: len(found := share_pods()) == left and all(map(is_decided, found)),
            "those that are left are Ready or refused",
            seconds=SECONDS,
        )
        ready_now = sum(map(objects.ready, share_pods()))
        assert ready_now >= len(running) - len(running) // 2
        client.raw("DELETE", path)
        holders = "/api/v1/namespaces/kube-system/pods"
        controller.daemon.wait_until(
            lambda: not client.list(holders, labelSelector=ROLE),
            "no holder is left",
            seconds=SECONDS,
        )
        wait_until(
            lambda: not client.list(f"/api/v1/namespaces/{namespace}/pods"), "no pod is left"
        )
        watch.require_unbroken()
        figure(f"KubeShare: {watch.events} changes of shares; {process_of(controller)}")
    assert controller.daemon.stop() == 0


def process_of(controller):
    """CPU time and memory of the controllers' process."""
    process = Path(f"/proc/{controller.daemon.pid}")
    user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
    status = (process / "status").read_text().splitlines()
    resident = next(line.split()[1] for line in status if line.startswith("VmRSS"))
    return f"{(int(user) + int(system)) / 100:.1f} s of CPU time, {int(resident) // 1024} MiB"
