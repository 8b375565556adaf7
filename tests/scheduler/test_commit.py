"""Sequences of two replicas that random walks rarely take."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from msgspec import structs

from scheduler.bind.binder import SETTLE_SECONDS
from scheduler.bind.commit import LOST_SECONDS
from scheduler.cluster.reservations import PodPlacement, lease_name
from scheduler.reasons import BindFailure
from tests.scheduler.bursts import BATCH_WRITE, Burst
from tests.scheduler.model_api import ModelApi
from tests.scheduler.test_replicas_machine import Replica
from tests.support.waiting import wait_until
from vgpu.apiserver.connection import ClusterError


class Pair:
    """Two replicas; node n1 has one GPU of 8 units. Events come only where a test delivers them."""

    def __init__(self):
        self.now = 1_000_000.0
        self.api = ModelApi()
        self.first, self.second = (Replica(self.api, lambda: self.now) for _ in range(2))

    def close(self):
        self.first.close()
        self.second.close()

    def pod(self, name, units, priority=0):
        return self.api.pending(name, units, priority)

    def bind(self, replica, ref, node="n1"):
        assert not replica.bind(ref, node)

    def refused(self, replica, ref, fault="none"):
        """Why the pod is not bound."""
        self.api.fault = fault
        reason = replica.bind(ref, "n1")
        self.api.fault = "none"
        return reason


@pytest.fixture
def pairs():
    """Makes pairs."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Pair()))


@pytest.fixture
def pair(pairs):
    return pairs()


def test_the_claim_of_a_bound_pod_stays_for_a_replica_that_has_not_seen_it(pair):
    old, new, late = pair.pod("a", 3), pair.pod("b", 3), pair.pod("c", 5)
    pair.bind(pair.first, old)
    pair.first.show("a", pair.api.pods["a"])
    pair.bind(pair.first, new)
    assert pair.refused(pair.second, late) == "memory"


def test_a_claim_of_a_pod_that_is_gone_ends_also_for_a_replica_that_never_saw_the_pod(pair):
    """As on a node that was removed and recreated, where nobody removes the Lease."""
    old = pair.pod("a", 6)
    pair.bind(pair.first, old)
    pair.api.delete("a")
    late = pair.pod("b", 6)
    assert pair.refused(pair.second, late) == "memory"
    pair.now += SETTLE_SECONDS + 1
    pair.second.settle()
    pair.bind(pair.second, late)
    assert pair.api.pods["b"].node == "n1"


def test_a_claim_that_is_confirmed_while_another_replica_ends_it_stays(pair):
    """The pod is changed, so that old bindings fail, and bound just before its claim would go."""
    first, second = pair.pod("a", 6), pair.pod("b", 6)
    assert pair.refused(pair.first, first, "lost request") is BindFailure.UNREACHABLE
    assert pair.refused(pair.second, second) == "memory"  # it knows the claim from now on
    pair.now += LOST_SECONDS + 1
    pair.api.interruptions = {
        pair.api.requests + 3: lambda: pair.bind(pair.first, first)  # after the change of the pod
    }
    pair.second.settle()
    assert pair.api.pods["a"].node == "n1"
    assert pair.refused(pair.second, second) == "memory"


def test_a_paused_replica_cannot_bind_by_a_claim_that_has_ended(pair):
    first, second = pair.pod("a", 6), pair.pod("b", 6)
    assert pair.refused(pair.first, first, "late") is BindFailure.UNREACHABLE
    assert pair.refused(pair.second, second) == "memory"
    pair.now += LOST_SECONDS + 1
    pair.second.settle()
    pair.bind(pair.second, second)
    with pytest.raises(Exception, match="Conflict"):
        pair.api.apply(*pair.api.late.pop())
    assert [pod.node for pod in pair.api.pods.values()] == ["", "n1"]


def test_claims_of_pods_that_are_gone_leave_the_lease_with_the_next_decision(pair):
    first = pair.pod("a", 6)
    pair.bind(pair.first, first)
    pair.first.show("a", pair.api.pods["a"])
    pair.api.delete("a")
    pair.first.show("a", None)
    pair.bind(pair.first, pair.pod("b", 6))
    _, text = pair.api.leases[lease_name("n1")]
    assert "uid-b" in text
    assert "uid-a" not in text


# ---------------------------------------------------------------- what a preemption frees


def preempted(pair, name, units, priority=10):
    """A pod for which the first replica has preempted all pods of node n1; it knows that."""
    ref = pair.pod(name, units, priority=priority)
    pod = pair.api.pods[name]
    everybody = [each.ref.uid for each in pair.api.pods.values()]
    assert pair.first.preempt(pod, {"n1": everybody, "n2": []}).keys() == {"n1", "n2"}
    nominate(pair, name, "n1")
    return ref


def nominate(pair, name, node):
    pod = pair.api.store(structs.replace(pair.api.pods[name], nominated_node=node))
    pair.first.show(name, pod)


def test_what_a_preemption_frees_is_kept_for_its_pod_at_every_replica(pair):
    ref = preempted(pair, "a", 6)
    for replica in (pair.first, pair.second):
        assert pair.refused(replica, pair.pod("b", 6, priority=10)) == "memory"
    pair.bind(pair.second, ref)  # a replica that did not answer preempt
    assert pair.api.pods["a"].node == "n1"


def test_a_more_important_pod_takes_what_is_held(pair):
    ref = preempted(pair, "a", 6)
    pair.bind(pair.second, pair.pod("b", 6, priority=11))
    assert pair.refused(pair.first, ref) == "memory"


def test_a_pod_does_not_get_what_is_held_for_it_while_its_victims_are_there(pair):
    victim = pair.pod("v", 4)
    pair.bind(pair.first, victim)
    pair.first.show("v", pair.api.pods["v"])
    ref = preempted(pair, "a", 6)
    assert pair.refused(pair.first, ref) == "memory"
    assert pair.refused(pair.second, ref) == "memory"
    pair.first.show("v", None)
    pair.bind(pair.first, ref)


def test_nothing_is_held_once_the_pod_is_nominated_no_more_or_elsewhere(pairs):
    for node in ("", "n2"):
        pair = pairs()
        preempted(pair, "a", 6)
        nominate(pair, "a", node)
        pair.now += SETTLE_SECONDS
        pair.first.settle()
        pair.bind(pair.second, pair.pod("b", 6))
        assert pair.api.pods["b"].node == "n1"


def test_a_pod_that_is_bound_elsewhere_frees_what_was_held(pair):
    ref = preempted(pair, "a", 6)
    pair.bind(pair.first, ref, "n2")
    pair.first.show("a", pair.api.pods["a"])
    pair.now += SETTLE_SECONDS
    assert pair.refused(pair.second, pair.pod("b", 6)) == "memory"  # it reads the Lease
    pair.second.settle()
    pair.bind(pair.second, pair.pod("c", 6))


# ---------------------------------------------------------------- the Lease


def test_a_lease_that_cannot_be_read_refuses_its_node(pair):
    pair.api.leases[lease_name("n1")] = ("1", '{"uid-x": 7}')
    assert pair.refused(pair.first, pair.pod("a", 1)) is BindFailure.LEASE_UNREADABLE


def test_a_long_name_of_a_node_has_a_lease_too():
    assert lease_name("gpu-1") == "vgpu-node-gpu-1"
    assert len(lease_name("n" * 253)) <= 253


def test_a_second_decision_about_a_node_is_one_write_of_its_lease(pair):
    for name in "ab":
        ref, before = pair.pod(name, 2), pair.api.requests
        pair.first.show(name, pair.api.pods[name])
        pair.bind(pair.first, ref)
    assert pair.api.requests == before + 2  # the Lease and the Binding
    assert {pod.node for pod in pair.api.pods.values()} == {"n1"}


def test_a_replica_that_knows_an_old_lease_decides_by_the_new_one(pair):
    pair.bind(pair.first, pair.pod("a", 2))
    pair.bind(pair.second, pair.pod("b", 4))
    assert pair.refused(pair.first, pair.pod("c", 4)) == "memory"
    pair.bind(pair.first, pair.pod("d", 2))
    claimed = pair.api.leases[lease_name("n1")][1]
    assert [name for name in "abcd" if f"uid-{name}" in claimed] == ["a", "b", "d"]


# ---------------------------------------------------------------- several binds in one write


class Together:
    """Binds at the first replica that wait while the Lease of node n1 is written for another."""

    def __init__(self, pair, **sizes):
        self.pair, self.api = pair, pair.api
        self.refs = [pair.pod(name, units) for name, units in sizes.items()]
        for name in sizes:
            pair.first.show(name, pair.api.pods[name])
        self.burst = Burst(pair.first, self.refs, together=self._gathered)
        self.at_write, self.lease_writes = lambda: None, 0

    def _gathered(self):
        self.versions = [self.api.leases.get(lease_name("n1"), ("",))[0]]
        self.api.interruptions = {self.api.requests + BATCH_WRITE: self.at_write}

    def bind(self):
        return self.burst.bind()

    def bound(self):
        return [ref.name for ref in self.refs if self.api.pods[ref.name].node]


def claimed(api, names):
    _, text = api.leases[lease_name("n1")]
    return [name for name in names if f"uid-{name}" in text]


def test_binds_that_wait_for_a_write_of_the_lease_are_the_next_write_together(pair):
    together = Together(pair, a=2, b=2, c=2, d=2)
    before = pair.api.requests
    assert together.bind() == [""] * 4
    assert together.burst.joined == 3
    assert pair.api.requests == before + 1 + 2 + 4  # a read, two writes, and each Binding
    assert claimed(pair.api, "abcd") == list("abcd")


def test_no_binding_comes_before_its_claim_is_in_the_lease(pair):
    together, seen = Together(pair, a=2, b=2, c=2), []
    bind = pair.api.bind

    def watched(ref, *rest):
        seen.append(claimed(pair.api, ref.name))
        bind(ref, *rest)

    pair.api.bind = watched
    assert together.bind() == [""] * 3
    assert seen == [["a"], ["b"], ["c"]]


def test_one_bind_of_a_batch_that_does_not_fit_leaves_the_others_alone(pair):
    together = Together(pair, a=2, b=7, c=2, d=3, e=4)
    errors = together.bind()
    assert [bool(error) for error in errors] == [False, True, False, False, True]
    assert together.bound() == claimed(pair.api, "abcde") == ["a", "c", "d"]


def test_a_batch_is_decided_again_when_another_replica_has_written_the_lease(pair):
    together = Together(pair, a=1, b=2, c=3, d=2)
    late = pair.pod("z", 3)
    together.at_write = lambda: pair.bind(pair.second, late)
    errors = together.bind()
    assert [bool(error) for error in errors] == [False, False, True, False]
    assert claimed(pair.api, "abcdz") == ["a", "b", "d", "z"]


@pytest.mark.parametrize("fault", ["lease not written", "lease written"])
def test_a_batch_whose_write_is_not_answered_binds_nobody_and_is_tried_again(pair, fault):
    together = Together(pair, a=2, b=2, c=2)
    together.at_write = lambda: setattr(pair.api, "fault", fault)
    errors = together.bind()
    pair.api.fault = "none"
    assert together.bound() == ["a"]
    assert all("the Lease of node n1 was not written" in error for error in errors[1:])
    for ref in together.refs[1:]:
        pair.bind(pair.second, ref)
    assert pair.refused(pair.first, pair.pod("d", 3)) == "memory"


def test_one_claim_that_the_api_server_refuses_does_not_stop_the_others_of_its_batch(pair):
    together = Together(pair, a=2, b=2, c=2)
    write = pair.api.write_node_claims

    def refusing(namespace, name, text, *rest):
        if "uid-b" in text:
            raise ClusterError(422, "Invalid", "annotations are too long")
        return write(namespace, name, text, *rest)

    pair.api.write_node_claims = refusing
    errors = together.bind()
    assert [bool(error) for error in errors] == [False, True, False]
    assert together.bound() == claimed(pair.api, "abc") == ["a", "c"]
    pair.bind(pair.first, pair.pod("d", 4))  # nothing is reserved for the pod b


def test_a_client_that_leaves_changes_nothing_for_the_others_of_its_batch(pair):
    together = Together(pair, a=2, b=2, c=2)
    together.at_write = lambda: together.burst.leave(1)
    assert together.bind() == ["", None, ""]
    wait_until(lambda: together.bound() == ["a", "b", "c"], "all are bound")
    assert claimed(pair.api, "abc") == ["a", "b", "c"]


def decision(pair, ref):
    """The arguments of a decision about the pod."""
    return pair.first.program.cache.demand_of(pair.api.pods[ref.name])


def test_an_unexpected_error_about_one_pod_stops_no_other_of_its_batch(pair):
    committer, decider = pair.first.program.committer, pair.first.program.cache
    first, second, bad = (decision(pair, pair.pod(name, 2)) for name in "abc")
    reserve, write = decider.reserve, pair.api.write_node_claims
    others = []

    def failing(scheme, demand, node):
        if demand.pod.name == "c":
            raise RuntimeError("no decision")
        return reserve(scheme, demand, node)

    def joined(*args):
        pair.api.write_node_claims = write
        for number, each in enumerate((bad, second), start=1):
            others.append(pool.submit(committer.reserve, *each, "n1"))
            wait_until(lambda number=number: committer.group.waiting == number, "it has joined")
        return write(*args)

    decider.reserve, pair.api.write_node_claims = failing, joined
    with ThreadPoolExecutor() as pool:
        committer.reserve(*first, "n1")
    assert isinstance(others[0].exception(), RuntimeError)
    assert isinstance(others[1].result(), PodPlacement)
    assert claimed(pair.api, "abc") == ["a", "b"]


def test_a_write_with_an_unexpected_error_leaves_no_reservation(pair):
    def failing(*_):
        raise RuntimeError("no answer")

    pair.api.write_node_claims = failing
    with pytest.raises(RuntimeError):
        pair.first.program.committer.reserve(*decision(pair, pair.pod("a", 2)), "n1")
    assert pair.first.program.cache.counts()[2] == 0
