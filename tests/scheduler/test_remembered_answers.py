"""What filter remembers of nodes: after any event it answers as a scheduler that has just begun."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from scheduler.cache import SchedulerCache
from scheduler.node_cache import PodPlacement
from scheduler.promise import promise_annotations
from tests.scheduler.test_differential import NAMES, QUARTERS, limits
from tests.scheduler.test_promise import NODES, SCHEMES
from tests.scheduler.test_verbs import NOW
from vgpu.kube.objects import Container, Pod
from vgpu.model import PodRef
from vgpu.placement.dialects import demand_of

names = st.sampled_from(NAMES)


class Remembered(RuleBasedStateMachine):
    """A cache that answers after every event, beside one that is made anew for each answer."""

    @initialize(system=st.sampled_from(sorted(NODES)))
    def begin(self, system):
        self.system = system
        self.cache = SchedulerCache(SCHEMES, lambda: NOW)
        self.nodes, self.pods, self.reserved = {}, {}, {}
        self.count = 0
        for name in NAMES:
            self.register(name)

    def pod(self, quarters):
        self.count += 1
        ref = PodRef(f"uid-{self.count}", "ns", f"p{self.count}")
        container = Container("main", limits(self.system, quarters, 1))
        return Pod(ref, containers=(container,), phase="Running")

    def set_pod(self, key, pod):
        self.cache.set_pod(key, pod)
        self.pods.pop(key, None)
        if pod is not None:
            self.pods[key] = pod

    @rule(name=names)
    def register(self, name):
        self.nodes[name] = structs.replace(NODES[self.system], name=name)
        self.cache.set_node(name, self.nodes[name])

    @rule(name=names)
    def lose_node(self, name):
        self.nodes.pop(name, None)
        self.cache.set_node(name, None)

    @rule(name=names, quarters=QUARTERS)
    def reserve(self, name, quarters):
        pod = self.pod(quarters)
        placement = self.cache.reserve(*demand_of(pod, SCHEMES), name)
        if isinstance(placement, PodPlacement):
            annotations = promise_annotations(pod, placement, NOW)
            self.reserved[f"ns/{pod.ref.name}"] = structs.replace(
                pod, node=name, annotations=annotations
            )

    @rule(data=st.data())
    def show_bound(self, data):
        if self.reserved:
            key = data.draw(st.sampled_from(sorted(self.reserved)))
            self.set_pod(key, self.reserved.pop(key))

    @rule(data=st.data())
    def refuse_binding(self, data):
        if self.reserved:
            key = data.draw(st.sampled_from(sorted(self.reserved)))
            pod = self.reserved.pop(key)
            self.cache.release(pod.ref.uid, pod.node)

    @rule(data=st.data(), change=st.sampled_from(["end", "touch", "no annotations"]))
    def change_pod(self, data, change):
        if self.pods:
            key = data.draw(st.sampled_from(sorted(self.pods)))
            pod = self.pods[key]
            changed = {
                "end": None,
                "touch": structs.replace(pod, labels={"touched": "yes"}),
                "no annotations": structs.replace(pod, annotations={}),
            }[change]
            self.set_pod(key, changed)

    def answers(self, cache):
        found = []
        for quarters in range(1, 5):
            ref = PodRef(f"probe-{quarters}", "ns", f"probe-{quarters}")
            probe = Pod(ref, containers=(Container("main", limits(self.system, quarters, 1)),))
            demand = demand_of(probe, SCHEMES)
            filtered = cache.filter(*demand, NAMES)
            causes = {name: each.cause for name, each in filtered.refused.by_name().items()}
            found.append((filtered.nodes, causes, cache.scores(*demand, NAMES)))
            cache.bury(ref.uid)  # it is never bound
        return found

    @invariant()
    def answers_as_a_new_one(self):
        remembered = self.answers(self.cache)
        if self.reserved:
            return  # a new one would not know of them
        new = SchedulerCache(SCHEMES, lambda: NOW)
        for name, node in self.nodes.items():
            new.set_node(name, node)
        for key, pod in self.pods.items():
            new.set_pod(key, pod)
        assert remembered == self.answers(new)


TestRemembered = pytest.mark.slow(Remembered.TestCase)
