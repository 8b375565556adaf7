"""What filter remembers of nodes: after any event it answers as the placement does."""

import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from scheduler.reasons import BindFailure
from tests.scheduler.served import NOW, Served
from tests.scheduler.test_differential import NAMES, QUARTERS, limits
from tests.scheduler.test_other_schedulers import RESERVED
from tests.scheduler.test_promise import NODES, SCHEMES
from vgpu.kube.objects import Container, Pod
from vgpu.model import PodRef
from vgpu.placement.dialects import demand_of
from vgpu.placement.node_view import RESERVED_SECONDS, ForeignPromise, node_view
from vgpu.placement.result import Placement, PlacementReason

names = st.sampled_from(NAMES)


class Remembered(RuleBasedStateMachine):
    """A scheduler that answers after every event, beside the placement on the same objects."""

    @initialize(system=st.sampled_from(sorted(NODES)))
    def begin(self, system):
        self.system = system
        self.scheme = next(scheme for scheme in SCHEMES if scheme.row.name == system)
        self.now = NOW
        self.served = Served(clock=lambda: self.now)
        self.cache = self.served.cache
        self.nodes, self.pods, self.reserved, self.promises = {}, {}, {}, {}
        self.count = self.steps = 0
        for name in NAMES:
            self.register(name)

    def pod(self, quarters):
        self.count += 1
        ref = PodRef(f"uid-{self.count}", "ns", f"p{self.count}")
        container = Container("main", limits(self.system, quarters, 1))
        return Pod(ref, containers=(container,), phase="Running")

    def show(self, name, pod):
        self.served.show(name, pod)
        self.pods.pop(name, None)
        if pod is not None:
            self.pods[name] = pod

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
        """A bind, of which no event has come yet."""
        ref = self.served.api.store(self.pod(quarters)).ref
        if not self.served.bind(ref, name):
            self.reserved[ref.name] = self.served.api.pods[ref.name]

    @rule(name=names, age=st.sampled_from([-1000, 0, RESERVED_SECONDS / 3]))
    def reserve_elsewhere(self, name, age):
        """Another scheduler reserves a GPU for a pod, and does not bind the pod."""
        at = self.now - age
        annotations = RESERVED[self.system](at, name)
        pod = structs.replace(self.pod(1), annotations=annotations)
        self.promises[pod.ref.name] = ForeignPromise(pod.ref, name, min(at, self.now))
        self.show(pod.ref.name, pod)

    @rule(is_checked=st.booleans())
    def pass_time(self, is_checked):
        self.now += RESERVED_SECONDS / 3
        if is_checked:
            self.served.settle()

    @rule(data=st.data())
    def show_bound(self, data):
        if self.reserved:
            name = data.draw(st.sampled_from(sorted(self.reserved)))
            self.show(name, self.reserved.pop(name))

    @rule(data=st.data())
    def find_deleted(self, data):
        """A bound pod is deleted before any event, and a repeated bind finds that."""
        if self.reserved:
            pod = self.reserved.pop(data.draw(st.sampled_from(sorted(self.reserved))))
            self.served.api.delete(pod.ref.name)
            assert self.served.bind(pod.ref, pod.node) is BindFailure.GONE

    @rule(data=st.data(), change=st.sampled_from(["end", "touch", "no annotations"]))
    def change_pod(self, data, change):
        if self.pods:
            name = data.draw(st.sampled_from(sorted(self.pods)))
            pod = self.pods[name]
            changed = {
                "end": None,
                "touch": structs.replace(pod, labels={"touched": "yes"}),
                "no annotations": structs.replace(pod, annotations={}),
            }[change]
            self.show(name, changed)

    def expected(self, pod):
        """The placement's answer for each node: why it does not take the pod, and its score."""
        demand = demand_of(pod, SCHEMES)[1]
        for name in NAMES:
            if name not in self.nodes:
                yield PlacementReason.UNKNOWN_NODE, 0
                continue
            bound = itertools.chain(self.pods.values(), self.reserved.values())
            here = [pod for pod in bound if pod.node == name]
            promised = [
                self.promises[key]
                for key, pod in self.pods.items()
                if not pod.node and pod.annotations and self.promises[key].node == name
            ]
            if self.system == "gpushare":
                promised = []  # its annotations name no node
            view = node_view(self.nodes[name], self.scheme, here, promised, (), now=self.now)
            if view.reason is not None:
                yield view.reason, 0
                continue
            placed = self.scheme.dialect.choose(demand, view.candidate)
            cause = "" if isinstance(placed, Placement) else placed.cause
            yield cause, self.scheme.dialect.score(demand, view.candidate)

    @invariant()
    def answers_as_the_placement(self):
        self.steps += 1
        for quarters in (1, 3) if self.steps % 2 else (2, 4):  # requests cost most of this test
            ref = PodRef(f"probe-{quarters}", "ns", f"probe-{quarters}")
            probe = Pod(ref, containers=(Container("main", limits(self.system, quarters, 1)),))
            self.served.show(ref.name, probe)
            taken, refused = self.served.filter(probe, NAMES)
            scores = self.served.scores(probe, NAMES)
            self.served.show(ref.name, None)  # it is never bound
            answers = {
                name: ("" if name in taken else refused[name], scores[name]) for name in NAMES
            }
            assert answers == dict(zip(NAMES, self.expected(probe), strict=True))

    def teardown(self):
        if hasattr(self, "served"):
            self.served.close()


TestRemembered = pytest.mark.slow(Remembered.TestCase)
