"""What filter remembers of nodes: after any event it answers as the placement does."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from scheduler.filter import node_filter
from scheduler.filter.node_filter import UNDER_WAY_SECONDS
from scheduler.reasons import BindFailure
from tests.scheduler.generated import (
    PREEMPTOR,
    PRIORITIES,
    STATES,
    ModelNode,
    preempted,
    promised,
    scaled,
    states,
    wishes,
)
from tests.scheduler.served import NOW, Served
from tests.scheduler.test_differential import NAMES, QUARTERS, limits
from tests.scheduler.test_promise import NODES, SCHEMES
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.placement.dialects import demand_of
from vgpu.placement.pods_without_gpu import UNKNOWN_GPU_SECONDS

names = st.sampled_from(NAMES)

ENDS = ("all", "one", "none")
"""The victims of a preemption that end at once."""


class Remembered(RuleBasedStateMachine):
    """A scheduler that answers after every event, beside the placement on the same objects."""

    @initialize(
        data=st.data(),
        system=st.sampled_from(sorted(NODES)),
        most_alone=st.sampled_from((0, node_filter.MOST_ALONE)),
    )
    def begin(self, data, system, most_alone):
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(node_filter, "MOST_ALONE", most_alone)
        self.system = system
        self.scheme = next(scheme for scheme in SCHEMES if scheme.row.name == system)
        self.now = NOW
        self.served = Served(clock=lambda: self.now)
        self.cache = self.served.cache
        self.first_seen = {}
        self.model = {name: ModelNode(seen=self.first_seen) for name in NAMES}
        self.unseen, self.count, self.steps = set(), 0, 0
        asked = st.tuples(QUARTERS, wishes(system), PRIORITIES)
        self.probes = [
            self.pod(*each) for each in data.draw(st.lists(asked, min_size=3, max_size=4))
        ]
        for name in NAMES:
            self.set_node(name, (STATES[system][0], ""))

    def pod(self, quarters, annotations, priority=0):
        self.count += 1
        ref = PodRef(f"uid-{self.count}", "ns", f"p{self.count}")
        container = Container("main", limits(self.system, quarters, 1))
        return Pod(
            ref,
            annotations=annotations,
            containers=(container,),
            phase="Running",
            priority=priority,
        )

    def set_node(self, name, state):
        node, unhealthy = state
        model = self.model[name]
        model.node = structs.replace(node, name=name) if node else None
        self.cache.set_node(name, model.node)
        if model.unhealthy != unhealthy:
            model.unhealthy = unhealthy
            texts = {f"unhealthy-gpu-{name}": each.unhealthy for name, each in self.model.items()}
            self.cache.set_unhealthy(texts)

    @rule(data=st.data())
    def register(self, data):
        """Nodes change, come and go."""
        for name in NAMES:
            self.set_node(name, data.draw(states(self.system)))

    # ------------------------------------------------------------ bound pods

    def drawn(self, data, names):
        """One of these pods, with its node; None if there is none."""
        return data.draw(st.sampled_from(sorted(names))) if names else None

    def seen(self):
        """The bound pods that events have shown, with their nodes."""
        return [
            (pod, name)
            for name, model in self.model.items()
            for pod in model.bound
            if pod not in self.unseen
        ]

    def bound(self, pod, name):
        return self.model[name].bound[pod]

    def bind(self, pod, name):
        """A bind, of which no event has come yet; returns whether the pod is bound."""
        ref = self.served.api.store(pod).ref
        if self.served.bind(ref, name):
            return False
        self.model[name].bound[ref.name] = self.served.api.pods[ref.name]
        self.unseen.add(ref.name)
        return True

    @rule(data=st.data(), name=names, quarters=QUARTERS, is_shown=st.booleans())
    def reserve(self, data, name, quarters, is_shown):
        pod = self.pod(quarters, data.draw(wishes(self.system)))
        if self.bind(pod, name) and is_shown:
            self.show(pod.ref.name)

    @rule(data=st.data())
    def show_bound(self, data):
        pod = self.drawn(data, self.unseen)
        if pod:
            self.show(pod)

    def show(self, pod):
        self.unseen.discard(pod)
        shown = self.served.api.pods[pod]
        self.first_seen.setdefault(shown.ref.uid, self.now)
        self.served.show(pod, shown)

    @rule(data=st.data())
    def find_deleted(self, data):
        """A bound pod is deleted before any event, and a repeated bind finds that."""
        never_seen = {name for name in self.unseen if self.cache.pod("ns", name) is None}
        name = self.drawn(data, never_seen)
        if name:
            self.unseen.discard(name)
            pod = self.served.api.pods[name]
            self.served.api.delete(name)
            assert self.served.bind(pod.ref, pod.node) is BindFailure.GONE
            del self.model[pod.node].bound[name]

    @rule(data=st.data(), change=st.sampled_from(["end", "touch", "no annotations"]))
    def change_pod(self, data, change):
        drawn = self.drawn(data, self.seen())
        if drawn:
            pod, name = drawn
            bound = self.model[name].bound
            if change == "end":
                del bound[pod]
            elif change == "touch":
                bound[pod] = structs.replace(bound[pod], labels={"touched": "yes"})
            else:
                bound[pod] = structs.replace(bound[pod], annotations={})
            self.served.show(pod, bound.get(pod))

    # ------------------------------------------------------------ what is kept for single pods

    @rule(name=names, age=st.sampled_from((-1000.0, 0.0, UNKNOWN_GPU_SECONDS / 3)))
    def reserve_elsewhere(self, name, age):
        """Another scheduler reserves a GPU for a pod, and does not bind the pod yet."""
        promised(self.served, self.model, self.system, self.pod(1, {}), name, self.now - age)

    @rule(data=st.data(), is_bound=st.booleans())
    def end_promise(self, data, is_bound):
        """The other scheduler binds its pod, or the pod is gone."""
        drawn = self.drawn(data, self.kept("promised"))
        if drawn:
            pod, name = drawn
            del self.model[name].promised[pod]
            bound = structs.replace(self.cache.pod("ns", pod), node=name) if is_bound else None
            if bound:
                self.first_seen.setdefault(bound.ref.uid, self.now)
                self.model[name].bound[pod] = bound
            self.served.show(pod, bound)

    @rule(data=st.data(), name=names, quarters=QUARTERS, ends=st.sampled_from(ENDS))
    def preempt(self, data, name, quarters, ends):
        """Pods of a node are preempted for another one, which may request what one of them has."""
        pod = self.pod(quarters, data.draw(wishes(self.system)), PREEMPTOR)
        lower = [each for each in self.seen() if self.bound(*each).priority < PREEMPTOR]
        like = self.drawn(data, lower)
        if like:
            name = like[1]
            if data.draw(st.booleans()):
                containers = self.bound(*like).containers
                pod = structs.replace(pod, annotations={}, containers=containers)
        victims = [each for each, node in lower if node == name]
        if preempted(self.served, self.model, self.scheme, pod, name, victims):
            for victim in {"all": victims, "one": like[:1] if like else [], "none": []}[ends]:
                del self.model[name].bound[victim]
                self.served.show(victim, None)

    @rule(data=st.data(), is_bound=st.booleans())
    def end_preemption(self, data, is_bound):
        """The pod is bound to its node, where that takes it already, or gone."""
        drawn = self.drawn(data, self.kept("held"))
        if drawn:
            pod, name = drawn
            held = self.model[name].held
            if not is_bound:
                del held[pod]
                self.served.api.delete(pod)
                self.served.show(pod, None)
            elif self.bind(held[pod].pod, name):
                del held[pod]

    def kept(self, what):
        """The pods for which something is kept, with their nodes."""
        return [(pod, name) for name in NAMES for pod in getattr(self.model[name], what)]

    @rule(is_checked=st.booleans())
    def pass_time(self, is_checked):
        self.now += UNKNOWN_GPU_SECONDS / 3
        if is_checked:
            self.served.settle()

    # ------------------------------------------------------------ answers

    def waiting(self):
        """The pods that find nodes as no other pod does: a bind may not have been answered."""
        for pod, _ in (*self.kept("held"), *self.kept("promised")):
            yield self.cache.pod("ns", pod)
        for pod in sorted(self.unseen):
            if self.cache.pod("ns", pod) is None:
                yield self.served.api.pods[pod]

    def probed(self):
        """Two pods, and whether they wait: requests cost most of this test."""
        self.steps += 1
        first, second = (self.probes[(self.steps + at) % len(self.probes)] for at in range(2))
        waiting = list(self.waiting()) if self.steps % 3 == 0 else []
        if waiting:
            return (first, False), (waiting[self.steps % len(waiting)], True)
        return (first, False), (second, False)

    @invariant()
    def answers_as_the_placement(self):
        for number, (probe, is_waiting) in enumerate(self.probed()):
            if not is_waiting:
                self.served.show(probe.ref.name, probe)
            demand = demand_of(probe, SCHEMES)[1]
            answers = [self.model[name].answer(self.scheme, demand, self.now) for name in NAMES]
            taken, refused = self.served.filter(probe, NAMES)
            assert ["" if name in taken else refused[name] for name in NAMES] == [
                reason for reason, _ in answers
            ]
            if number == self.steps % 2:
                scores = self.served.scores(probe, NAMES)
                assert [scores[name] for name in NAMES] == scaled(answers)
            if is_waiting:
                self.now += UNDER_WAY_SECONDS + 1  # it stays, and is bound no more
            else:
                self.served.show(probe.ref.name, None)

    def teardown(self):
        if hasattr(self, "served"):
            self.served.close()
            self.patched.undo()


TestRemembered = pytest.mark.slow(Remembered.TestCase)
