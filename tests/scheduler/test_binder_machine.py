"""Binds and events in any order, with lost answers and late writes: no GPU is over-committed.

The API server is a model: it keeps pods, checks preconditions, and may apply a write whose sender
has given up. Events reach the cache in their order, but as late as they like.
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

from scheduler.binder import LOST_SECONDS, SETTLE_SECONDS, BindError, PodBinder
from scheduler.cache import SchedulerCache
from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import Container, Node, Pod
from vgpu.model import PodRef
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.node_view import node_view

SCHEMES = scheduler_schemes({})
GPUSHARE = next(scheme for scheme in SCHEMES if scheme.row.name == "gpushare")
UNITS = 8
NAMES = ("n1", "n2")


def gpushare_node(name, count):
    capacity = {"aliyun.com/gpu-mem": count * UNITS, "aliyun.com/gpu-count": count}
    return Node(name, capacity=capacity, allocatable=capacity)


NODE_OBJECTS = {name: gpushare_node(name, count) for name, count in zip(NAMES, (1, 2), strict=True)}


class ModelApi:
    """Pods by name, with the API server's rules for a Binding."""

    def __init__(self):
        self.pods, self.events, self.late = {}, [], []
        self.versions = itertools.count(1)
        self.fault = "none"

    def store(self, pod):
        pod = structs.replace(pod, resource_version=str(next(self.versions)))
        self.pods[pod.ref.name] = pod
        self.events.append((pod.ref.name, pod))
        return pod

    def pod(self, namespace, name):
        if self.fault == "down":
            raise ClusterError(0, "Unreachable", "no answer")
        if name not in self.pods:
            raise ClusterError(404, "NotFound", name)
        return self.pods[name]

    def apply(self, ref, version, node, annotations):
        pod = self.pods.get(ref.name)
        if pod is None:
            raise ClusterError(404, "NotFound", ref.name)
        if pod.ref.uid != ref.uid or pod.resource_version != version or pod.node:
            raise ClusterError(409, "Conflict", ref.name)
        self.store(structs.replace(pod, node=node, annotations={**pod.annotations, **annotations}))

    def bind(self, ref, version, node, annotations):
        fault = self.fault
        if fault == "refused":
            raise ClusterError(403, "Forbidden", "no")
        if fault in ("late", "down"):
            self.late.append((ref, version, node, annotations))
            raise ClusterError(0, "Unreachable", "no answer")
        if fault != "lost request":
            self.apply(ref, version, node, annotations)
        if fault in ("lost request", "lost answer"):
            raise ClusterError(504, "Timeout", "no answer")


class Binding(RuleBasedStateMachine):
    """Users, kube-scheduler, the network and time take turns."""

    pods = Bundle("pods")

    def __init__(self):
        super().__init__()
        self.now = 1_000_000.0
        self.api = ModelApi()
        self.cache = SchedulerCache(SCHEMES, lambda: self.now)
        self.binder = PodBinder(self.api, self.cache, lambda: self.now)
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

    @rule()
    def forget_shapes(self):
        """As after many other requests."""
        self.cache._shapes._shapes.clear()

    @rule(ref=pods)
    def delete(self, ref):
        pod = self.api.pods.get(ref.name)
        if pod is not None and pod.ref == ref:
            del self.api.pods[ref.name]
            self.api.events.append((ref.name, None))

    @rule(
        ref=pods,
        node=st.sampled_from(NAMES),
        fault=st.sampled_from(
            ("none", "none", "refused", "lost request", "lost answer", "late", "late", "down")
        ),
    )
    def bind(self, ref, node, fault):
        self.api.fault = fault
        try:
            self.binder.bind(ref, node)
        except BindError:
            pass
        else:
            pod = self.api.pods[ref.name]
            assert (pod.ref, pod.node) == (ref, node), "a success without a binding"
        finally:
            self.api.fault = "none"

    @rule(ref=pods)
    def ask(self, ref):
        """kube-scheduler asks for nodes."""
        pod = self.api.pods.get(ref.name)
        if pod is not None and pod.ref == ref and not pod.node:
            self.cache.filter(*demand_of(pod, SCHEMES), NAMES)

    @precondition(lambda self: self.api.late)
    @rule()
    def arrive_late(self):
        """A write reaches the API server long after its sender has given up."""
        with suppress(ClusterError):
            self.api.apply(*self.api.late.pop(0))

    @precondition(lambda self: self.api.events)
    @rule(count=st.integers(1, 4))
    def deliver(self, count):
        for name, pod in self.api.events[:count]:
            self.cache.set_pod(f"ns/{name}", pod)
        del self.api.events[:count]

    @rule(seconds=st.sampled_from((1.0, SETTLE_SECONDS)))
    def wait_a_little(self, seconds):
        self.now += seconds
        self.binder.settle()

    @rule()
    def wait_long(self):
        """So long that no write is on its way any more."""
        self.now += LOST_SECONDS + 1
        self.api.late.clear()
        self.binder.settle()

    @invariant()
    def no_gpu_is_overcommitted(self):
        for name, node in NODE_OBJECTS.items():
            bound = [pod for pod in self.api.pods.values() if pod.node == name]
            view = node_view(node, GPUSHARE, bound, (), (), now=self.now)
            assert view.reason is None, view.detail
            for gpu in view.candidate.gpus:
                assert gpu.memory_bytes <= gpu.capacity_bytes

    def teardown(self):
        """At rest the cache counts exactly what is there: nothing leaks."""
        self.wait_long()
        self.deliver(len(self.api.events))
        self.now += SETTLE_SECONDS
        self.binder.settle()
        for name, node in NODE_OBJECTS.items():
            bound = [pod for pod in self.api.pods.values() if pod.node == name]
            true = node_view(node, GPUSHARE, bound, (), (), now=self.now)
            assert self.cache.view(name).candidate.gpus == true.candidate.gpus


TestBinding = pytest.mark.slow(Binding.TestCase)
