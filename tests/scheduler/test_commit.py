"""Sequences of two replicas that random walks rarely take."""

import pytest

from scheduler.commit import LOST_SECONDS
from scheduler.node_claims import lease_name
from scheduler.reasons import BindError, BindFailure
from tests.scheduler.test_replicas_machine import LeasedApi, Replica
from vgpu.kube.objects import Container, Pod
from vgpu.model import PodRef


class Pair:
    """Two replicas; node n1 has one GPU of 8 units. Events come only where a test delivers them."""

    def __init__(self):
        self.now = 1_000_000.0
        self.api = LeasedApi()
        self.first, self.second = (Replica(self.api, lambda: self.now) for _ in range(2))

    def pod(self, name, units):
        container = Container("main", {"aliyun.com/gpu-mem": units})
        ref = PodRef(f"uid-{name}", "ns", name)
        return self.api.store(Pod(ref, containers=(container,), phase="Pending")).ref

    def bind(self, replica, ref, fault="none"):
        self.api.fault = fault
        try:
            replica.binder.bind(ref, "n1")
        finally:
            self.api.fault = "none"

    def refused(self, replica, ref, fault="none"):
        with pytest.raises(BindError) as error:
            self.bind(replica, ref, fault)
        return error.value.reason


def test_the_claim_of_a_bound_pod_stays_for_a_replica_that_has_not_seen_it():
    pair = Pair()
    old, new, late = pair.pod("a", 3), pair.pod("b", 3), pair.pod("c", 5)
    pair.bind(pair.first, old)
    pair.first.cache.set_pod("ns/a", pair.api.pods["a"])
    pair.bind(pair.first, new)
    assert pair.refused(pair.second, late) == "memory"


def test_a_claim_that_is_confirmed_while_another_replica_ends_it_stays():
    """The pod is changed, so that old bindings fail, and bound just before its claim would go."""
    pair = Pair()
    first, second = pair.pod("a", 6), pair.pod("b", 6)
    assert pair.refused(pair.first, first, "lost request") is BindFailure.UNREACHABLE
    assert pair.refused(pair.second, second) == "memory"  # it knows the claim from now on
    pair.now += LOST_SECONDS + 1
    pair.api.interruptions = {
        pair.api.requests + 3: lambda: pair.bind(pair.first, first)  # after the change of the pod
    }
    pair.second.binder.settle()
    assert pair.api.pods["a"].node == "n1"
    assert pair.refused(pair.second, second) == "memory"


def test_a_paused_replica_cannot_bind_by_a_claim_that_has_ended():
    pair = Pair()
    first, second = pair.pod("a", 6), pair.pod("b", 6)
    assert pair.refused(pair.first, first, "late") is BindFailure.UNREACHABLE
    assert pair.refused(pair.second, second) == "memory"
    pair.now += LOST_SECONDS + 1
    pair.second.binder.settle()
    pair.bind(pair.second, second)
    with pytest.raises(Exception, match="Conflict"):
        pair.api.apply(*pair.api.late.pop())
    assert [pod.node for pod in pair.api.pods.values()] == ["", "n1"]


def test_claims_of_pods_that_are_gone_leave_the_lease_with_the_next_decision():
    pair = Pair()
    first = pair.pod("a", 6)
    pair.bind(pair.first, first)
    pair.first.cache.set_pod("ns/a", pair.api.pods["a"])
    del pair.api.pods["a"]
    pair.first.cache.set_pod("ns/a", None)
    pair.bind(pair.first, pair.pod("b", 6))
    _, text = pair.api.leases[lease_name("n1")]
    assert "uid-b" in text
    assert "uid-a" not in text


def test_a_lease_that_cannot_be_read_refuses_its_node():
    pair = Pair()
    pair.api.leases[lease_name("n1")] = ("1", '{"uid-x": 7}')
    assert pair.refused(pair.first, pair.pod("a", 1)) is BindFailure.LEASE_UNREADABLE


def test_a_long_name_of_a_node_has_a_lease_too():
    assert lease_name("gpu-1") == "vgpu-node-gpu-1"
    assert len(lease_name("n" * 253)) <= 253
