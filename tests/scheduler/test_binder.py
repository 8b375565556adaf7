"""Sequences of a bind that random walks rarely take."""

import logging
from contextlib import suppress

import pytest

from scheduler.reasons import BindFailure
from tests.scheduler.model_api import gpushare_node
from tests.scheduler.served import Served
from vgpu.apiserver.connection import ClusterError
from vgpu.program.logs import Json, Logfmt


class Cluster(Served):
    """One node with one GPU of 8 units."""

    def __init__(self):
        super().__init__()
        self.cache.set_node("n1", gpushare_node("n1", 1))

    def pod(self, name, units=8):
        return self.api.pending(name, units)

    def tried(self, ref, fault="none"):
        """Why the pod is not bound."""
        self.api.fault = fault
        reason = self.bind(ref, "n1")
        self.api.fault = "none"
        return reason


@pytest.fixture
def cluster():
    with Cluster() as cluster:
        yield cluster


def test_a_refusal_after_a_lost_answer_frees_nothing(cluster):
    """The lost write may still come: the refusal of a later one is no evidence about it."""
    first, second = cluster.pod("a"), cluster.pod("b")
    assert cluster.tried(first, "late") is BindFailure.UNREACHABLE
    assert cluster.tried(first, "refused") is BindFailure.REFUSED
    assert cluster.tried(second) == "memory"
    cluster.api.apply(*cluster.api.late.pop())
    assert [pod.node for pod in cluster.api.pods.values()] == ["n1", ""]


def test_a_refusal_frees_what_was_reserved(cluster):
    first, second = cluster.pod("a"), cluster.pod("b")
    assert cluster.tried(first, "refused") is BindFailure.REFUSED
    assert not cluster.tried(second)
    assert cluster.api.pods["b"].node == "n1"


def test_a_retry_after_a_lost_answer_keeps_the_gpu(cluster):
    cluster.cache.set_node("n1", gpushare_node("n1", 2))
    first = cluster.pod("a", 6)
    assert cluster.tried(first, "late") is BindFailure.UNREACHABLE
    (lost,) = cluster.api.late
    assert not cluster.tried(first)
    written = cluster.api.pods["a"].annotations["ALIYUN_COM_GPU_MEM_IDX"]
    assert written == lost[3]["ALIYUN_COM_GPU_MEM_IDX"]
    with suppress(ClusterError):
        cluster.api.apply(*lost)
    assert cluster.api.pods["a"].annotations["ALIYUN_COM_GPU_MEM_IDX"] == written


def test_a_pod_that_changes_between_read_and_write_is_bound_by_its_newest_state(cluster):
    ref = cluster.pod("a", 2)
    cluster.show("a", cluster.api.pods["a"])
    cluster.api.store(cluster.api.pods["a"])
    assert not cluster.tried(ref)
    assert cluster.api.pods["a"].node == "n1"


def logged_bindings(caplog):
    """Pod, node, GPU and sharing system of each Binding in the log."""
    return [
        (record.pod, record.node, record.gpu, record.scheme)
        for record in caplog.records
        if (record.levelname, record.getMessage()) == ("INFO", "pod bound")
    ]


@pytest.mark.parametrize("fault", ["none", "lost answer"])
def test_each_binding_is_logged_once_with_its_gpu(cluster, caplog, fault):
    caplog.set_level(logging.INFO)
    assert not cluster.tried(cluster.pod("a", 2), fault)
    assert logged_bindings(caplog) == [("ns/a", "n1", "0", "gpushare")]


@pytest.mark.parametrize("fault", ["refused", "late", "lost request"])
def test_a_binding_that_was_not_made_is_not_logged_as_made(cluster, caplog, fault):
    caplog.set_level(logging.INFO)
    assert cluster.tried(cluster.pod("a", 2), fault)
    assert logged_bindings(caplog) == []


def test_the_log_line_of_a_binding_cannot_be_forged_by_a_name(cluster, caplog):
    caplog.set_level(logging.INFO)
    assert not cluster.tried(cluster.pod('a" gpu=1\n\x1b[2J\u202e', 2))
    (record,) = (each for each in caplog.records if each.getMessage() == "pod bound")
    assert record.gpu == "0"
    for line in Logfmt().format(record), Json().format(record):
        assert line.isprintable()
    assert " gpu=0 " in Logfmt().format(record)
