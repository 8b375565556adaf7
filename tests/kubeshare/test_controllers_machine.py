"""Users, nodes, kubelets and the controllers in any order: no GPU is over-committed (A5).

The controllers see events as late as they like and are killed at any moment. After the disturbance
every SharePod gets its pod, or has a reason why it has not.
"""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from msgspec import structs

from kubeshare.model import LABELLED
from kubeshare.virtual_gpu import HOLDER_SECONDS
from tests.kubeshare.model_cluster import ModelCluster, labelled, node, share_pod
from tests.kubeshare.model_controllers import (
    NAMES,
    Controllers,
    require_invariants,
    require_labels_together,
    require_settled,
    settle,
)
from tests.kubeshare.test_labelled import read

NODES = {"n1": 1, "n2": 2}
LABELLED_NAMES = "stuv"
KEYS = st.sampled_from(
    [f"ns/{name}" for name in NAMES] + [f"ns/{name}{LABELLED}" for name in LABELLED_NAMES]
)
LOCALITY = st.sampled_from(
    [labelled()] * 3
    + [labelled(affinity="red"), labelled(anti_affinity="green"), labelled(exclusion="blue")]
)
PLACES = st.sampled_from([("", "")] * 4 + [("n1", "mine-1"), ("n2", "mine-2"), ("n2", "")])


class Machine(RuleBasedStateMachine):
    """The cluster with everybody who acts on it."""

    def __init__(self):
        super().__init__()
        self.cluster = ModelCluster(*(node(*each) for each in NODES.items()))
        self.controllers = Controllers(self.cluster)
        self.uids = itertools.count()

    # ------------------------------------------------------------ users

    @rule(
        name=st.sampled_from(NAMES),
        milli=st.sampled_from((50, 200, 500, 600, 1000)),
        gib=st.sampled_from((1, 6, 12)),
        locality=LOCALITY,
        place=PLACES,
        policy=st.sampled_from(("Always", "Always", "OnFailure", "Never")),
    )
    def create(self, name, milli, gib, locality, place, policy):
        if f"ns/{name}" not in self.cluster.share_pods:
            at, gpuid = place
            made = share_pod(
                name, milli, gib, node=at, gpuid=gpuid, policy=policy, locality=locality
            )
            uid = f"uid-{name}-{next(self.uids)}"
            pod = structs.replace(made.pod, ref=structs.replace(made.ref, uid=uid))
            self.cluster.store(structs.replace(made, pod=pod))

    @rule(
        name=st.sampled_from(LABELLED_NAMES),
        milli=st.sampled_from((50, 500, 1000)),
        gib=st.sampled_from((1, 6, 12)),
    )
    def create_with_labels(self, name, milli, gib):
        if f"ns/{name}" not in self.cluster.pods:
            made = read(name, milli, gib)
            ref = structs.replace(made.ref, uid=f"uid-{name}-{next(self.uids)}")
            self.cluster.store(structs.replace(made, pod=structs.replace(made.pod, ref=ref)))

    @rule(data=st.data())
    @precondition(lambda self: self.cluster.share_pods)
    def delete(self, data):
        key = data.draw(st.sampled_from(sorted(self.cluster.share_pods)))
        self.cluster.remove(self.cluster.share_pods[key])

    @rule(data=st.data())
    @precondition(lambda self: self.cluster.real_pods())
    def delete_a_pod(self, data):
        self.cluster.end(data.draw(st.sampled_from(self.cluster.real_pods())))

    @rule(name=st.sampled_from(sorted(NODES)))
    def native_pod(self, name):
        self.cluster.native_pod(name)

    @rule()
    @precondition(lambda self: self.cluster.natives())
    def native_pod_ends(self):
        self.cluster.remove(self.cluster.natives()[0])

    # ------------------------------------------------------------ nodes and kubelets

    @rule(data=st.data(), number=st.integers(0, 1))
    @precondition(lambda self: self.cluster.holders())
    def serve_holder(self, data, number):
        pod = data.draw(st.sampled_from(self.cluster.holders()))
        name = pod.pod.labels["kubeshare/nodeName"]
        self.cluster.serve_holder(pod, f"GPU-{name}-{number}")

    @rule(data=st.data(), fails=st.booleans())
    @precondition(lambda self: self.cluster.holders())
    def lose_holder(self, data, fails):
        pod = data.draw(st.sampled_from(self.cluster.holders()))
        if fails:
            self.cluster.turn(pod, "Failed")
        else:
            self.cluster.remove(pod)

    @rule(data=st.data(), phase=st.sampled_from(("Running", "Running", "Succeeded", "Failed")))
    @precondition(lambda self: self.cluster.real_pods())
    def pod_turns(self, data, phase):
        self.cluster.turn(data.draw(st.sampled_from(self.cluster.real_pods())), phase)

    @rule()
    def pods_end(self):
        self.cluster.finish_ending()

    @rule(name=st.sampled_from(sorted(NODES)), ready=st.booleans(), cordoned=st.booleans())
    def node_turns(self, name, ready, cordoned):
        if name in self.cluster.nodes:
            known = self.cluster.nodes[name]
            turned = structs.replace(known, is_ready=ready, is_cordoned=cordoned)
            self.cluster.set_node(turned)

    @rule(name=st.sampled_from(sorted(NODES)))
    def node_goes(self, name):
        self.cluster.remove_node(name)
        for pod in list(self.cluster.pods.values()):
            if pod.pod.node == name:
                self.cluster.remove(pod)

    @rule(name=st.sampled_from(sorted(NODES)))
    def node_comes(self, name):
        if name not in self.cluster.nodes:
            self.cluster.set_node(node(name, NODES[name]))

    @rule()
    def time_passes(self):
        self.cluster.now += HOLDER_SECONDS

    # ------------------------------------------------------------ the controllers

    @rule(count=st.integers(1, 10))
    def events_come(self, count):
        self.cluster.deliver(self.controllers.state, count)

    @rule(key=KEYS)
    def place(self, key):
        self.controllers.place(key)

    @rule(key=KEYS)
    def sync(self, key):
        self.controllers.sync(key)

    @rule()
    def hold(self):
        for gpu in self.controllers.state.virtual_gpus():
            self.controllers.hold(gpu.name)

    @rule()
    def work(self):
        self.cluster.deliver(self.controllers.state)
        self.controllers.round()

    @rule()
    def kill(self):
        self.controllers = Controllers(self.cluster)

    # ------------------------------------------------------------ what always holds

    @invariant()
    def holds(self):
        require_invariants(self.cluster)
        require_labels_together(self.cluster)

    def teardown(self):
        """Everything is repaired, and the controllers finish by themselves."""
        for each in self.cluster.natives():
            self.cluster.remove(each)
        for name, gpus in NODES.items():
            self.cluster.set_node(node(name, gpus))
        settle(self.cluster, Controllers(self.cluster))
        require_invariants(self.cluster)
        require_labels_together(self.cluster)
        require_settled(self.cluster)


Machine.TestCase.settings = settings(stateful_step_count=60)
TestControllers = pytest.mark.slow(Machine.TestCase)
