"""kill -9 before and after each request of a bind (I4): nothing is lost, and no GPU is taken twice.

A killed process sends nothing more. The next one reads all pods, and kube-scheduler asks again.
"""

import pytest

from scheduler.binder import SETTLE_SECONDS, PodBinder
from scheduler.cache import SchedulerCache
from scheduler.commit import LOST_SECONDS, LeaseCommitter, MemoryCommitter
from scheduler.node_lock import NodeLocker
from scheduler.reasons import BindError
from tests.scheduler.test_binder_machine import SCHEMES
from tests.scheduler.test_node_lock import LOCKS, LockingApi
from tests.scheduler.test_replicas_machine import LeasedApi
from vgpu.kube.objects import Container, Pod
from vgpu.model import PodRef
from vgpu.placement.dialects import demand_of

STEPS = {
    "single": ("bind",),
    "leases": ("node_claims", "write_node_claims", "bind"),
    "locks": ("node", "patch_node", "node_claims", "write_node_claims", "bind"),
}
"""The requests of a bind in their order, by the way in which it decides."""

KILLS = [
    (mode, when, step)
    for mode, steps in STEPS.items()
    for step in steps
    for when in ("before", "after")
]


class Killed(BaseException):
    """The process is no more."""


class WholeApi(LeasedApi, LockingApi):
    """Pods, a node with locks, and Leases."""


class KilledProcess:
    """The API server as a process sees it that is killed before or after one request."""

    def __init__(self, api, when="", step=""):
        self.api, self.kill = api, (when, step)
        self.requests, self.is_dead = [], False

    def __getattr__(self, name):
        request = getattr(self.api, name)

        def send(*args):
            self._die_if(self.is_dead or self.kill == ("before", name))
            self.requests.append(name)
            answer = request(*args)
            self._die_if(self.kill == ("after", name))
            return answer

        return send

    def _die_if(self, is_the_end):
        if is_the_end:
            self.is_dead = True
            raise Killed


class Restarting:
    """A cluster with one GPU of 16 GiB, and processes one after another."""

    def __init__(self, mode):
        self.mode, self.now = mode, 1_000_000.0
        self.api = WholeApi("hami")
        self.start()

    def start(self, when="", step=""):
        """A new process, which has read everything."""
        self.seen = KilledProcess(self.api, when, step)
        self.cache = SchedulerCache(SCHEMES, self.clock)
        committer = (
            MemoryCommitter(self.cache)
            if self.mode == "single"
            else LeaseCommitter(self.seen, self.cache, "ns", self.clock)
        )
        locker = NodeLocker(self.seen, self.clock) if self.mode == "locks" else None
        self.binder = PodBinder(
            self.seen, self.cache, self.clock, committer=committer, locker=locker
        )
        self.cache.set_node("n1", self.api.stored)
        self.read()

    def clock(self):
        return self.now

    def read(self):
        for pod in self.api.pods.values():
            self.cache.set_pod(f"ns/{pod.ref.name}", pod)

    def pod(self, name, gib):
        container = Container("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": gib * 1024})
        pod = Pod(PodRef(f"uid-{name}", "ns", name), containers=(container,), phase="Pending")
        self.cache.set_pod(f"ns/{name}", self.api.store(pod))

    def serve(self):
        """HAMi's plugin answers Allocate of every bound pod, and releases its lock."""
        self.api.annotate({LOCKS["hami"]: None})

    def bind(self, name):
        self.binder.bind(self.api.pods[name].ref, "n1")

    def fits(self, name):
        """Whether kube-scheduler is offered the node."""
        filtered = self.cache.filter(*demand_of(self.api.pods[name], SCHEMES), ["n1"])
        return bool(filtered.nodes)


def killed(mode, when, step):
    """A cluster in which a process was killed while it bound the pod a, of 10 GiB."""
    cluster = Restarting(mode)
    cluster.start(when, step)
    cluster.pod("a", 10)
    with pytest.raises(Killed):
        cluster.bind("a")
    is_bound = bool(cluster.api.pods["a"].node)
    assert is_bound == ((when, step) == ("after", "bind"))
    if not is_bound:  # I3
        assert not cluster.api.pods["a"].annotations
    cluster.start()
    return cluster


@pytest.mark.parametrize("mode", STEPS)
def test_a_bind_makes_these_requests(mode):
    """So that no step is missing above."""
    cluster = Restarting(mode)
    cluster.pod("a", 10)
    cluster.bind("a")
    assert tuple(cluster.seen.requests) == STEPS[mode]


@pytest.mark.parametrize(("mode", "when", "step"), KILLS)
def test_all_that_fit_are_bound_and_no_more(mode, when, step):
    cluster = killed(mode, when, step)
    cluster.bind("a")
    cluster.serve()
    cluster.read()
    for name, gib, fits in (("b", 7, False), ("c", 6, True), ("d", 1, False)):
        cluster.pod(name, gib)
        assert cluster.fits(name) == fits
        if fits:
            cluster.bind(name)
        else:
            with pytest.raises(BindError):
                cluster.bind(name)
        cluster.serve()
        cluster.read()
    assert [name for name, pod in cluster.api.pods.items() if pod.node] == ["a", "c"]


@pytest.mark.parametrize(("mode", "when", "step"), KILLS)
def test_what_was_decided_for_a_pod_that_is_deleted_is_free_again(mode, when, step):
    cluster = killed(mode, when, step)
    del cluster.api.pods["a"]
    cluster.cache.set_pod("ns/a", None)
    cluster.pod("b", 16)
    cluster.bind("b")
    assert cluster.api.pods["b"].node == "n1"


@pytest.mark.parametrize(("mode", "when", "step"), KILLS)
def test_what_was_decided_for_a_pod_that_waits_ends_only_behind_its_change(mode, when, step):
    """The killed process may have sent a binding that comes late: it must fail by then."""
    cluster = killed(mode, when, step)
    waiting = cluster.api.pods["a"]
    cluster.pod("b", 16)
    with_claim = mode != "single" and (
        step == "bind" or (when, step) == ("after", "write_node_claims")
    )
    if waiting.node:
        return
    cluster.serve()  # else the node is locked for the pod a
    if with_claim:
        with pytest.raises(BindError):
            cluster.bind("b")
        cluster.now += LOST_SECONDS + 1
        cluster.binder.settle()
        assert cluster.api.pods["a"].resource_version != waiting.resource_version
    else:
        cluster.now += SETTLE_SECONDS
        cluster.binder.settle()
        assert cluster.api.pods["a"] == waiting
    cluster.bind("b")
    assert [name for name, pod in cluster.api.pods.items() if pod.node] == ["b"]
