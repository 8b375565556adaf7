"""kill -9 before and after each request of a bind (I4): nothing is lost, and no GPU is taken twice.

A killed process sends nothing more. The next one reads all pods, and kube-scheduler asks again.
"""

from contextlib import ExitStack

import pytest
from msgspec import structs

from scheduler.bind.binder import SETTLE_SECONDS
from scheduler.bind.commit import LOST_SECONDS
from tests.scheduler.bursts import BATCH_WRITE, Burst, OrderedApi
from tests.scheduler.model_api import ModelApi
from tests.scheduler.served import NOW, Served
from tests.scheduler.test_node_lock import LOCKS, REGISTERS
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.web.connection import ClientLeft
from vgpu.web.routes import route_of

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


VERB_REQUESTS = frozenset().union(*STEPS.values(), ["pod", "patch_pod"])


class Killed(BaseException):
    """The process is no more."""


class Process(Served):
    """Closes its connection without an answer when it is killed."""

    def routes(self):
        routes = ((path, route_of(entry)) for path, entry in super().routes().items())
        return {path: structs.replace(r, handler=self.dying(r.handler)) for path, r in routes}

    def dying(self, handler):
        def handle(request):
            try:
                return handler(request)
            except Killed:
                raise ClientLeft from None

        return handle


class KilledProcess:
    """The API server as a process sees it that is killed before or after one request."""

    def __init__(self, api, when="", step=""):
        self.api, self.kill = api, (when, step)
        self.requests, self.is_dead = [], False

    def __getattr__(self, name):
        request = getattr(self.api, name)
        if name not in VERB_REQUESTS:
            return request

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
        self.mode, self.now = mode, NOW
        self.api = ModelApi(Node("n1", "1", annotations=REGISTERS["hami"]))
        self.process = None

    def start(self, when="", step=""):
        """A new process, which has read everything."""
        self.stop()
        self.seen = KilledProcess(self.api, when, step)
        self.process = Process(
            OrderedApi(self.seen),
            lambda: self.now,
            leases=self.mode != "single",
            locks=self.mode == "locks",
        )
        self.process.cache.set_node("n1", self.api.stored)
        self.read()

    def stop(self):
        if self.process is not None:
            self.process.close()

    def read(self):
        for pod in self.api.pods.values():
            self.process.show(pod.ref.name, pod)

    def pod(self, name, gib):
        container = Container("main", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": gib * 1024})
        pod = Pod(PodRef(f"uid-{name}", "ns", name), containers=(container,), phase="Pending")
        self.process.show(name, self.api.store(pod))

    def serve(self):
        """HAMi's plugin answers Allocate of every bound pod, and releases its lock."""
        self.api.annotate({LOCKS["hami"]: None})

    def bind(self, name):
        """Why the pod is not bound."""
        return self.process.bind(self.api.pods[name].ref, "n1")

    def fits(self, name):
        """Whether kube-scheduler is offered the node."""
        return bool(self.process.filter(self.api.pods[name], ["n1"])[0])


@pytest.fixture
def restarting():
    """Makes clusters."""
    with ExitStack() as stack:

        def make(mode):
            cluster = Restarting(mode)
            stack.callback(cluster.stop)
            cluster.start()
            return cluster

        yield make


@pytest.fixture
def killed(restarting, mode, when, step):
    """A cluster in which a process was killed while it bound the pod a, of 10 GiB."""
    cluster = restarting(mode)
    cluster.start(when, step)
    cluster.pod("a", 10)
    with pytest.raises(ConnectionError):
        cluster.bind("a")
    is_bound = bool(cluster.api.pods["a"].node)
    assert is_bound == ((when, step) == ("after", "bind"))
    if not is_bound:  # I3
        assert not cluster.api.pods["a"].annotations
    cluster.start()
    return cluster


@pytest.mark.parametrize("mode", STEPS)
def test_a_bind_makes_these_requests(restarting, mode):
    """So that no step is missing above."""
    cluster = restarting(mode)
    cluster.pod("a", 10)
    assert not cluster.bind("a")
    assert tuple(cluster.seen.requests) == STEPS[mode]


@pytest.mark.parametrize(("mode", "when", "step"), KILLS)
def test_all_that_fit_are_bound_and_no_more(killed):
    cluster = killed
    assert not cluster.bind("a")
    cluster.serve()
    cluster.read()
    for name, gib, fits in (("b", 7, False), ("c", 6, True), ("d", 1, False)):
        cluster.pod(name, gib)
        assert cluster.fits(name) == fits
        assert bool(cluster.bind(name)) != fits
        cluster.serve()
        cluster.read()
    assert [name for name, pod in cluster.api.pods.items() if pod.node] == ["a", "c"]


@pytest.mark.parametrize(("mode", "when", "step"), KILLS)
def test_what_was_decided_for_a_pod_that_is_deleted_is_free_again(killed):
    cluster = killed
    cluster.api.delete("a")
    cluster.process.show("a", None)
    cluster.pod("b", 16)
    assert not cluster.bind("b")
    assert cluster.api.pods["b"].node == "n1"


@pytest.mark.parametrize(("mode", "when", "step"), KILLS)
def test_what_was_decided_for_a_pod_that_waits_ends_only_behind_its_change(
    killed, mode, when, step
):
    """The killed process may have sent a binding that comes late: it must fail by then."""
    cluster = killed
    waiting = cluster.api.pods["a"]
    cluster.pod("b", 16)
    with_claim = mode != "single" and (
        step == "bind" or (when, step) == ("after", "write_node_claims")
    )
    if waiting.node:
        return
    cluster.serve()  # else the node is locked for the pod a
    if with_claim:
        assert cluster.bind("b") == "memory"
        cluster.now += LOST_SECONDS + 1
        cluster.process.settle()
        assert cluster.api.pods["a"].resource_version != waiting.resource_version
    else:
        cluster.now += SETTLE_SECONDS
        cluster.process.settle()
        assert cluster.api.pods["a"] == waiting
    assert not cluster.bind("b")
    assert [name for name, pod in cluster.api.pods.items() if pod.node] == ["b"]


# ---------------------------------------------------------------- several binds in one write

BATCH_STEPS = {"write_node_claims": BATCH_WRITE, "bind": BATCH_WRITE + 1}
"""The batch's write and its first Binding, by their number from the first bind's write."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", BATCH_STEPS)
def test_all_of_a_batch_are_bound_after_the_kill_and_no_more(restarting, step, when):
    cluster = restarting("leases")
    for name in "abc":
        cluster.pod(name, 4)
    killed = cluster.seen

    def wait_for_the_step():
        number = cluster.api.requests + BATCH_STEPS[step] - 1
        cluster.api.interruptions = {number: lambda: setattr(killed, "kill", (when, step))}

    refs = [cluster.api.pods[name].ref for name in "abc"]
    assert Burst(cluster.process, refs, together=wait_for_the_step).bind() == ["", None, None]
    bound = [name for name, pod in cluster.api.pods.items() if pod.node]
    assert bound == (["a", "b"] if (when, step) == ("after", "bind") else ["a"])
    assert not any(pod.annotations for name, pod in cluster.api.pods.items() if name not in bound)
    cluster.start()
    for name in "bc":
        assert not cluster.bind(name)
    cluster.read()
    cluster.pod("d", 5)
    assert cluster.bind("d") == "memory"
    cluster.pod("e", 4)
    assert not cluster.bind("e")


def test_a_batch_whose_pods_are_deleted_after_the_kill_leaves_nothing(restarting):
    cluster = restarting("leases")
    for name in "abc":
        cluster.pod(name, 4)
    killed = cluster.seen

    def wait_for_the_binding():
        number = cluster.api.requests + BATCH_WRITE
        cluster.api.interruptions = {number: lambda: setattr(killed, "kill", ("before", "bind"))}

    refs = [cluster.api.pods[name].ref for name in "abc"]
    Burst(cluster.process, refs, together=wait_for_the_binding).bind()
    for name in "abc":
        cluster.api.delete(name)
    cluster.start()
    cluster.pod("d", 16)
    assert cluster.bind("d") == "memory"  # it reads the Lease
    cluster.now += SETTLE_SECONDS + 1
    cluster.process.settle()
    assert not cluster.bind("d")
