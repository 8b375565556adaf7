"""Sequences of a bind that random walks rarely take."""

from contextlib import suppress

import pytest

from scheduler.binder import BindError, PodBinder
from scheduler.cache import SchedulerCache
from scheduler.reasons import BindFailure
from tests.scheduler.test_binder_machine import SCHEMES, ModelApi, gpushare_node
from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import Container, Pod
from vgpu.model import PodRef

NOW = 1_000_000.0


class Cluster:
    """One node with one GPU of 8 units."""

    def __init__(self):
        self.api = ModelApi()
        self.cache = SchedulerCache(SCHEMES, lambda: NOW)
        self.cache.set_node("n1", gpushare_node("n1", 1))
        self.binder = PodBinder(self.api, self.cache, lambda: NOW)

    def pod(self, name, units=8):
        container = Container("main", {"aliyun.com/gpu-mem": units})
        return self.api.store(
            Pod(PodRef(f"uid-{name}", "ns", name), containers=(container,), phase="Pending")
        ).ref

    def bind(self, ref, fault="none"):
        self.api.fault = fault
        try:
            self.binder.bind(ref, "n1")
        finally:
            self.api.fault = "none"


def test_a_refusal_after_a_lost_answer_frees_nothing():
    """The lost write may still come: the refused one says nothing about it."""
    cluster = Cluster()
    first, second = cluster.pod("a"), cluster.pod("b")
    for fault in ("late", "refused"):
        with pytest.raises(BindError):
            cluster.bind(first, fault)
    with pytest.raises(BindError) as refused:
        cluster.bind(second)
    assert refused.value.reason == "memory"
    cluster.api.apply(*cluster.api.late.pop())
    assert [pod.node for pod in cluster.api.pods.values()] == ["n1", ""]


def test_a_refusal_frees_what_was_reserved():
    cluster = Cluster()
    first, second = cluster.pod("a"), cluster.pod("b")
    with pytest.raises(BindError) as refused:
        cluster.bind(first, "refused")
    assert refused.value.reason is BindFailure.REFUSED
    cluster.bind(second)
    assert cluster.api.pods["b"].node == "n1"


def test_a_retry_after_a_lost_answer_keeps_the_gpu():
    cluster = Cluster()
    cluster.cache.set_node("n1", gpushare_node("n1", 2))
    first = cluster.pod("a", 6)
    with pytest.raises(BindError):
        cluster.bind(first, "late")
    (lost,) = cluster.api.late
    cluster.bind(first)
    written = cluster.api.pods["a"].annotations["ALIYUN_COM_GPU_MEM_IDX"]
    assert written == lost[3]["ALIYUN_COM_GPU_MEM_IDX"]
    with suppress(ClusterError):
        cluster.api.apply(*lost)
    assert cluster.api.pods["a"].annotations["ALIYUN_COM_GPU_MEM_IDX"] == written


def test_a_pod_that_changes_between_read_and_write_is_bound_by_its_newest_state():
    cluster = Cluster()
    ref = cluster.pod("a", 2)
    cluster.cache.set_pod("ns/a", cluster.api.pods["a"])
    cluster.api.store(cluster.api.pods["a"])
    cluster.bind(ref)
    assert cluster.api.pods["a"].node == "n1"
