"""Binds and events in any order, with lost answers and late writes: no GPU is over-committed.

kube-scheduler asks over HTTP. The API server is a model. Events reach the cache in their order, but
as late as they like.
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
from scheduler.cluster import demands
from scheduler.cluster.demands import MOST_SHAPES
from tests.scheduler.model_api import UNITS, gpushare_node
from tests.scheduler.served import Served
from vgpu.apiserver.connection import ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.dialects import scheduler_schemes
from vgpu.placement.node_view import node_view

SCHEMES = scheduler_schemes({})
GPUSHARE = next(scheme for scheme in SCHEMES if scheme.row.name == "gpushare")
NAMES = ("n1", "n2")

NODE_OBJECTS = {name: gpushare_node(name, count) for name, count in zip(NAMES, (1, 2), strict=True)}


class Binding(RuleBasedStateMachine):
    """Users, kube-scheduler, the network and time take turns."""

    pods = Bundle("pods")

    def __init__(self):
        super().__init__()
        self.now = 1_000_000.0
        self.served = Served(clock=lambda: self.now)
        self.api, self.cache = self.served.api, self.served.cache
        self.uids = itertools.count(1)
        for name, node in NODE_OBJECTS.items():
            self.cache.set_node(name, node)

    @rule(target=pods, name=st.sampled_from("abcdef"), units=st.sampled_from((2, 5, 6, UNITS)))
    def create(self, name, units):
        if name in self.api.pods:
            return multiple()
        ref = PodRef(f"uid-{next(self.uids)}", "ns", name)
        container = Container("main", {"aliyun.com/gpu-mem": units})
        return self.api.store(Pod(ref, containers=(container,), phase="Pending")).ref

    @rule(ref=pods)
    def touch(self, ref):
        """Another client changes the pod."""
        pod = self.api.pods.get(ref.name)
        if pod is not None and pod.ref == ref:
            self.api.store(pod)

    @rule(ref=pods, units=st.sampled_from((2, 5, 6)))
    def resize(self, ref, units):
        """The pod asks for another amount, which the API server allows of no real pod's limits."""
        pod = self.api.pods.get(ref.name)
        if pod is not None and pod.ref == ref and not pod.node:
            container = Container("main", {"aliyun.com/gpu-mem": units})
            self.api.store(structs.replace(pod, containers=(container,)))

    @rule(number=st.sampled_from((1, MOST_SHAPES)))
    def remember_shapes(self, number):
        """From now on each other request makes the cache forget, as many of them do."""
        demands.MOST_SHAPES = number

    @rule(ref=pods)
    def delete(self, ref):
        pod = self.api.pods.get(ref.name)
        if pod is not None and pod.ref == ref:
            self.api.delete(ref.name)

    @rule(
        ref=pods,
        node=st.sampled_from(NAMES),
        fault=st.sampled_from(
            ("none", "none", "refused", "lost request", "lost answer", "late", "late", "down")
        ),
    )
    def bind(self, ref, node, fault):
        self.api.fault = fault
        reason = self.served.bind(ref, node)
        self.api.fault = "none"
        if not reason:
            pod = self.api.pods[ref.name]
            assert (pod.ref, pod.node) == (ref, node), "a success without a binding"

    @rule(ref=pods)
    def ask(self, ref):
        """kube-scheduler asks for nodes."""
        pod = self.api.pods.get(ref.name)
        if pod is not None and pod.ref == ref and not pod.node:
            self.served.filter(pod, NAMES)

    @precondition(lambda self: self.api.late)
    @rule()
    def arrive_late(self):
        """A write reaches the API server long after its sender stopped waiting."""
        with suppress(ClusterError):
            self.api.apply(*self.api.late.pop(0))

    @precondition(lambda self: self.api.events)
    @rule(count=st.integers(1, 4))
    def deliver(self, count):
        for name, pod in self.api.events[:count]:
            self.served.show(name, pod)
        del self.api.events[:count]

    @rule(seconds=st.sampled_from((1.0, SETTLE_SECONDS)))
    def wait_a_little(self, seconds):
        self.now += seconds
        self.served.settle()

    @rule()
    def wait_long(self):
        """Wait until no write can be on its way any more."""
        self.now += LOST_SECONDS + 1
        self.api.late.clear()
        self.served.settle()

    @invariant()
    def no_gpu_is_overcommitted(self):
        for name, node in NODE_OBJECTS.items():
            bound = [pod for pod in self.api.pods.values() if pod.node == name]
            view = node_view(node, GPUSHARE, bound, (), (), now=self.now)
            assert view.reason is None, view.detail
            for gpu in view.candidate.gpus:
                assert gpu.memory_bytes <= gpu.capacity_bytes

    def teardown(self):
        demands.MOST_SHAPES = MOST_SHAPES
        self.served.close()
        self.at_rest()

    def at_rest(self):
        """At rest the cache counts exactly what is there: nothing leaks."""
        self.wait_long()
        self.deliver(len(self.api.events))
        self.now += SETTLE_SECONDS
        self.served.settle()
        for name, node in NODE_OBJECTS.items():
            bound = [pod for pod in self.api.pods.values() if pod.node == name]
            true = node_view(node, GPUSHARE, bound, (), (), now=self.now)
            assert self.cache.view(name).candidate.gpus == true.candidate.gpus


TestBinding = pytest.mark.slow(Binding.TestCase)
