"""Idle virtual GPUs by number and age, and the metrics of holder pods and nodes."""

import pytest

from kubeshare.bodies import HolderOptions, holder_pod
from kubeshare.controller import ControllerOptions, SharePodControllers
from kubeshare.metrics import ControllerMetrics, connected_nodes
from kubeshare.model import POD_RUNNING, ClusterPod, VirtualGpuName
from kubeshare.placement import KubeShareAlgorithm
from tests.kubeshare.model_cluster import node, share_pod
from vgpu.apiserver.work_queue import WorkQueue
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.schemes.kubeshare.node import KEEP_IDLE, holder_labels, holder_name

FIRST, SECOND = VirtualGpuName("n1", "aaaaa"), VirtualGpuName("n1", "bbbbb")


class Recorded:
    """An API server that notes which pods are deleted."""

    def __init__(self):
        self.deleted = []

    def delete_pod(self, ref):
        self.deleted.append(ref.name)

    def write_event(self, note):
        pass


def holder(name, uuid="GPU-n1-0", created_at=None):
    ref = PodRef(f"uid-{name.gpuid}", "kube-system", holder_name(*name))
    labels = holder_labels(*name)
    pod = Pod(ref, node=name.node, phase=POD_RUNNING, labels=labels, created_at=created_at)
    return ClusterPod(pod, uuid=uuid)


class Idle:
    """Controllers without threads, whose clocks the test sets."""

    def __init__(self, keep_idle, idle_seconds, api=None):
        options = ControllerOptions(
            KubeShareAlgorithm.PAPER, HolderOptions("vgpu:test"), keep_idle, idle_seconds
        )
        self.now, self.metrics, self.api = 0.0, ControllerMetrics(), api or Recorded()
        self.controllers = SharePodControllers(
            self.api,
            options,
            lambda: True,
            self.metrics,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )
        self.controllers.set_node("n1", node("n1", 2))

    def see(self, pod):
        self.controllers.set_pod(f"{pod.ref.namespace}/{pod.ref.name}", pod)

    def deleted_at(self, seconds, *names):
        """The holder pods that a round at this time deletes."""
        self.now, self.api.deleted = seconds, []
        for name in names:
            self.controllers._sync(name)  # what the sync loop does for a key
        return self.api.deleted


def test_an_idle_virtual_gpu_is_kept_until_its_time_is_over():
    idle = Idle(keep_idle=1, idle_seconds=600.0)
    idle.see(holder(FIRST))
    assert idle.deleted_at(0.0, FIRST) == []
    assert idle.deleted_at(599.0, FIRST) == []
    assert idle.deleted_at(600.0, FIRST) == [holder_name(*FIRST)]


def test_a_virtual_gpu_that_was_used_again_has_its_whole_time_again():
    idle = Idle(keep_idle=1, idle_seconds=600.0)
    idle.see(holder(FIRST))
    assert idle.deleted_at(500.0, FIRST) == []
    tenant = share_pod("a", node=FIRST.node, gpuid=FIRST.gpuid)
    idle.controllers.set_share_pod("ns/a", tenant)
    assert idle.deleted_at(700.0, FIRST) == []
    idle.controllers.set_share_pod("ns/a", None)
    assert idle.deleted_at(800.0, FIRST) == []
    assert idle.deleted_at(1399.0, FIRST) == []
    assert idle.deleted_at(1400.0, FIRST) == [holder_name(*FIRST)]


def test_a_virtual_gpu_is_looked_at_again_when_its_time_is_over_and_a_used_one_is_not(monkeypatch):
    """With no time left, a delay of 0 would keep the loop busy for as long as the GPU is used."""
    delays, add_after = [], WorkQueue.add_after

    def noted(queue, key, seconds):
        delays.append((key, seconds))
        add_after(queue, key, seconds)

    monkeypatch.setattr(WorkQueue, "add_after", noted)
    idle = Idle(keep_idle=1, idle_seconds=600.0)
    idle.see(holder(FIRST))
    assert idle.deleted_at(100.0, FIRST) == []
    assert delays == [(FIRST, 600.0)]
    idle.controllers.set_share_pod("ns/a", share_pod("a", node=FIRST.node, gpuid=FIRST.gpuid))
    delays.clear()
    assert idle.deleted_at(200.0, FIRST) == []
    assert delays == []


def test_without_a_time_the_number_alone_decides():
    idle = Idle(keep_idle=1, idle_seconds=0.0)
    idle.see(holder(FIRST))
    idle.see(holder(SECOND, "GPU-n1-1"))
    assert idle.deleted_at(1e6, FIRST, SECOND) == [holder_name(*SECOND)]


@pytest.mark.parametrize("may_stay", [True, False])
def test_a_holder_that_may_be_kept_has_an_annotation_for_the_reconciler(may_stay):
    annotations = holder_pod(FIRST, HolderOptions("vgpu:test", may_stay=may_stay))["metadata"][
        "annotations"
    ]
    assert annotations == ({KEEP_IDLE: "true"} if may_stay else {})


def test_the_time_until_a_holders_gpu_is_known_is_counted_once():
    idle = Idle(keep_idle=1, idle_seconds=0.0)
    idle.see(holder(SECOND, created_at=50.0))  # as the process began
    idle.see(holder(FIRST, "", created_at=100.0))
    idle.now = 103.0
    idle.see(holder(FIRST, created_at=100.0))
    idle.see(holder(FIRST, created_at=100.0))
    assert idle.metrics.counts(frozenset())["holder_starts"] == (1, 3.0)


def test_a_node_is_connected_if_it_reports_its_gpus_and_those_of_its_holders():
    idle = Idle(keep_idle=0, idle_seconds=0.0)
    idle.controllers.set_node("plain", node("plain", 0))

    def connected():
        view = idle.controllers.view()
        return connected_nodes(view["nodes"], view["gpus"])

    assert connected() == {("n1",): 1}
    idle.see(holder(FIRST, ""))
    assert connected() == {("n1",): 0}
    idle.see(holder(FIRST))
    assert connected() == {("n1",): 1}
    idle.see(holder(VirtualGpuName("n2", "ccccc")))
    assert connected() == {("n1",): 1, ("n2",): 0}
