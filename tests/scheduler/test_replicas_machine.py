"""Several replicas with Leases: whichever answers, and wherever it stops, no GPU is over-committed.

Each replica has a cache of its own, with events as late as they like. While one replica binds,
another one acts between any two of its requests to the API server; a request's answer may be lost,
or the request may be carried out long after its sender stopped waiting.
"""

import itertools
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
)
from msgspec import structs

from scheduler.bind.binder import SETTLE_SECONDS
from scheduler.bind.commit import LOST_SECONDS
from tests.scheduler.bursts import Burst, OrderedApi
from tests.scheduler.model_api import UNITS, ModelApi
from tests.scheduler.served import Served
from tests.scheduler.test_binder_machine import GPUSHARE, NODE_OBJECTS
from vgpu.apiserver.connection import ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.node_view import node_view

REPLICAS = 2
MOSTLY_ONE = ("n1", "n1", "n1", "n2")


class Replica(Served):
    """One process, and how many events it has read."""

    def __init__(self, api, clock):
        super().__init__(OrderedApi(api), clock, leases=True)
        self.seen = 0
        for name, node in NODE_OBJECTS.items():
            self.cache.set_node(name, node)


FAULTS = (
    *("none", "none", "none", "refused", "lost request", "lost answer", "late", "late"),
    *("lease down", "lease not written", "lease written"),
)


class Replicas(RuleBasedStateMachine):
    """Users, kube-scheduler, the network, time and the replicas take turns."""

    pods = Bundle("pods")

    def __init__(self):
        super().__init__()
        self.now = 1_000_000.0
        self.api = ModelApi()
        self.replicas = [self._replica() for _ in range(REPLICAS)]
        self.uids = itertools.count(1)

    def _replica(self):
        return Replica(self.api, lambda: self.now)

    @rule(target=pods, name=st.sampled_from("abcde"), units=st.sampled_from((2, 3, 5, 6, UNITS)))
    def create(self, name, units):
        if name in self.api.pods:
            return multiple()
        ref = PodRef(f"uid-{next(self.uids)}", "ns", name)
        container = Container("main", {"aliyun.com/gpu-mem": units})
        return self.api.store(Pod(ref, containers=(container,), phase="Pending")).ref

    @rule(ref=pods)
    def touch(self, ref):
        pod = self.api.pods.get(ref.name)
        if pod is not None and pod.ref == ref:
            self.api.store(pod)

    @rule(ref=pods)
    def delete(self, ref):
        pod = self.api.pods.get(ref.name)
        if pod is not None and pod.ref == ref:
            self.api.delete(ref.name)

    @rule(
        number=st.integers(0, REPLICAS - 1),
        ref=pods,
        node=st.sampled_from(MOSTLY_ONE),
        fault=st.sampled_from(FAULTS),
        other=pods,
        other_node=st.sampled_from(MOSTLY_ONE),
        after=st.integers(1, 7),
        seconds=st.sampled_from((0.0, 0.0, LOST_SECONDS + 1)),
    )
    def bind(self, number, ref, node, fault, other, other_node, after, seconds):
        """A bind, while the next replica binds another pod, or settles after a long time."""
        others = self.replicas[(number + 1) % REPLICAS]

        def interrupt():
            self.api.fault, before = "none", self.api.fault
            self.now += seconds
            if seconds:
                others.settle()
            others.bind(other, other_node)
            self.api.fault = before

        self.api.interruptions = {self.api.requests + after: interrupt}
        self.api.fault = fault
        reason = self.replicas[number].bind(ref, node)
        self.api.fault, self.api.interruptions = "none", {}
        if not reason:
            pod = self.api.pods[ref.name]
            assert (pod.ref, pod.node) == (ref, node), "a success without a binding"

    @rule(
        number=st.integers(0, REPLICAS - 1),
        first=pods,
        second=pods,
        third=pods,
        fault=st.sampled_from(FAULTS),
        other=pods,
        after=st.integers(1, 9),
    )
    def bind_together(self, number, first, second, third, fault, other, after):
        """Binds of one node that are decided together, while the next replica binds another pod."""
        refs = list(dict.fromkeys((first, second, third)))
        others = self.replicas[(number + 1) % REPLICAS]

        def interrupt():
            self.api.fault, before = "none", self.api.fault
            others.bind(other, "n1")
            self.api.fault = before

        def begin():
            self.api.interruptions = {self.api.requests + after: interrupt}
            self.api.fault = fault

        errors = Burst(self.replicas[number], refs, together=begin).bind()
        self.api.fault, self.api.interruptions = "none", {}
        for ref, error in zip(refs, errors, strict=True):
            if not error:
                pod = self.api.pods[ref.name]
                assert (pod.ref, pod.node) == (ref, "n1"), "a success without a binding"

    @rule(
        number=st.integers(0, REPLICAS - 1),
        ref=pods,
        node=st.sampled_from(MOSTLY_ONE),
        fault=st.sampled_from(FAULTS),
    )
    def preempt(self, number, ref, node, fault):
        """kube-scheduler nominates the pod; the victims leave whenever ``delete`` takes them."""
        pod = self.api.pods.get(ref.name)
        if pod is None or pod.ref != ref or pod.node:
            return
        everybody = [each.ref.uid for each in self.api.pods.values()]
        if not self.replicas[number].preempt(pod, {node: everybody}):
            return
        self.api.store(structs.replace(pod, nominated_node=node))
        self.api.fault = fault
        self.deliver(number, len(self.api.events))
        self.api.fault = "none"

    @rule(ref=pods)
    def nominate_no_more(self, ref):
        pod = self.api.pods.get(ref.name)
        if pod is not None and pod.ref == ref:
            self.api.store(structs.replace(pod, nominated_node=""))

    @precondition(lambda self: self.api.late)
    @rule()
    def arrive_late(self):
        with suppress(ClusterError):
            self.api.apply(*self.api.late.pop(0))

    @rule(number=st.integers(0, REPLICAS - 1), count=st.integers(1, 4))
    def deliver(self, number, count):
        replica = self.replicas[number]
        for name, pod in self.api.events[replica.seen : replica.seen + count]:
            replica.show(name, pod)
        replica.seen = min(replica.seen + count, len(self.api.events))

    @rule(number=st.integers(0, REPLICAS - 1))
    def restart(self, number):
        """kill -9, and a new process that lists all pods before it answers."""
        self.replicas[number].close()
        replica = self.replicas[number] = self._replica()
        for pod in self.api.pods.values():
            replica.show(pod.ref.name, pod)
        replica.seen = len(self.api.events)

    @rule(
        number=st.integers(0, REPLICAS - 1),
        seconds=st.sampled_from((1.0, SETTLE_SECONDS, LOST_SECONDS + 1)),
    )
    def wait(self, number, seconds):
        """Writes may be on their way for any time: only their preconditions end them."""
        self.now += seconds
        self.replicas[number].settle()

    @invariant()
    def no_gpu_is_overcommitted(self):
        for name, node in NODE_OBJECTS.items():
            bound = [pod for pod in self.api.pods.values() if pod.node == name]
            view = node_view(node, GPUSHARE, bound, (), (), now=self.now)
            assert view.reason is None, view.detail
            for gpu in view.candidate.gpus:
                assert gpu.memory_bytes <= gpu.capacity_bytes

    def teardown(self):
        for replica in self.replicas:
            replica.close()
        self.at_rest()

    def at_rest(self):
        """At rest every replica counts exactly what is there: nothing leaks."""
        self.api.late.clear()
        for pod in list(self.api.pods.values()):
            self.api.store(structs.replace(pod, nominated_node=""))
        for replica in self.replicas:
            for _ in range(3):
                for name, pod in self.api.events[replica.seen :]:
                    replica.show(name, pod)
                replica.seen = len(self.api.events)
                self.now += LOST_SECONDS + SETTLE_SECONDS
                replica.settle()
            for name, node in NODE_OBJECTS.items():
                bound = [pod for pod in self.api.pods.values() if pod.node == name]
                true = node_view(node, GPUSHARE, bound, (), (), now=self.now)
                assert replica.cache.view(name).candidate.gpus == true.candidate.gpus


TestReplicas = pytest.mark.slow(Replicas.TestCase)
