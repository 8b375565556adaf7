"""Which rejected pods a changed node wakes: as many as fit on it now, over HTTP.

Node n1 has GPUs of 8 units. The waker works as in the program, and writes on the pods.
"""

import pytest
from msgspec import structs

from scheduler.filter.pod_filter import MOST_WOKEN
from tests.scheduler.model_api import UNITS, gpushare_node
from tests.scheduler.served import Served, filler
from vgpu.model.objects import ResourceQuota
from vgpu.program.written_keys import RETRY


class Waiting(Served):
    """Time goes on with every question."""

    def __init__(self):
        self.now = 1_000_000.0
        super().__init__(clock=lambda: self.now)

    def node(self, gpus):
        self.cache.set_node("n1", gpushare_node("n1", gpus))

    def full(self, name, index, units=UNITS):
        """A bound pod."""
        self.show(name, filler(name, "n1", index, units))

    def rejected(self, name, units, priority=0):
        """A pod that no node takes."""
        self.api.pending(name, units, priority)
        self.show(name, self.api.pods[name])
        self.now += 1
        assert self.filter(self.api.pods[name], ["n1"])[0] == []

    def woken(self):
        """The pods that are woken by what has changed."""
        self.wake()
        woken = [name for name, pod in self.api.pods.items() if RETRY in pod.annotations]
        for name in woken:
            pod = self.api.pods[name]
            self.api.pods[name] = structs.replace(pod, annotations={})
        return woken

    def bind_woken(self, names):
        """kube-scheduler tries the pods again, and events show them."""
        for name in names:
            pod = self.api.pods[name]
            assert self.filter(pod, ["n1"])[0] == ["n1"]
            assert not self.bind(pod.ref, "n1")
            self.show(name, self.api.pods[name])


@pytest.fixture
def waiting():
    with Waiting() as waiting:
        yield waiting


def test_one_of_two_pods_is_woken_where_one_has_room(waiting):
    """That which waits longest; the other one is woken once there is room for it as well."""
    waiting.node(2)
    waiting.full("a", 0)
    waiting.full("b", 1)
    for name in ("first", "second"):
        waiting.rejected(name, 5)
    waiting.show("a", None)
    assert waiting.woken() == ["first"]
    waiting.bind_woken(["first"])
    assert waiting.woken() == []
    waiting.show("b", None)
    assert waiting.woken() == ["second"]


def test_the_most_important_pod_is_woken_first(waiting):
    waiting.node(1)
    waiting.full("a", 0)
    for name, priority in (("low", 0), ("high", 9), ("middle", 5)):
        waiting.rejected(name, 5, priority)
    waiting.show("a", None)
    assert waiting.woken() == ["high"]


def test_a_node_that_changes_without_room_wakes_nobody(waiting):
    waiting.node(1)
    waiting.full("a", 0, 5)
    waiting.full("b", 0, 3)
    waiting.rejected("large", 4)
    waiting.show("b", None)
    assert waiting.woken() == [], "3 units are free"
    waiting.rejected("small", 3 + 1)
    waiting.full("c", 0, 1)
    waiting.show("c", None)
    assert waiting.woken() == []
    waiting.show("a", None)
    assert waiting.woken() == ["large", "small"], "they were not forgotten"


def test_pods_of_different_sizes_are_woken_if_each_fits_by_itself(waiting):
    """kube-scheduler decides between them; the one that has lost is woken again."""
    waiting.node(1)
    waiting.full("a", 0)
    for name, units in (("large", 8), ("middle", 6), ("small", 4)):
        waiting.rejected(name, units)
    waiting.full("b", 0, 1)
    waiting.show("a", None)
    assert waiting.woken() == ["middle", "small"], "7 units are free"


def test_many_pods_are_woken_a_few_at_a_time_until_the_node_is_full(waiting):
    gpus, pods = 3, 2 * MOST_WOKEN
    waiting.node(gpus)
    waiting.cache.set_unhealthy({"unhealthy-gpu-n1": "0,1,2"})
    names = [f"p{number:02}" for number in range(pods)]
    for name in names:
        waiting.rejected(name, 1)
    assert waiting.woken() == []
    waiting.cache.set_unhealthy({})
    woken = waiting.woken()
    assert woken == names[:MOST_WOKEN]
    while woken:
        waiting.bind_woken(woken)
        woken = waiting.woken()
        assert len(woken) <= MOST_WOKEN
    bound = [name for name, pod in waiting.api.pods.items() if pod.node]
    assert bound == names[: gpus * UNITS]


def test_pods_beyond_the_first_few_are_woken_also_if_nothing_of_the_node_changes(waiting):
    """Those that were woken may come to other nodes."""
    waiting.node(3)
    waiting.cache.set_unhealthy({"unhealthy-gpu-n1": "0,1,2"})
    names = [f"p{number:02}" for number in range(MOST_WOKEN + 4)]
    for name in names:
        waiting.rejected(name, 1)
    waiting.woken()
    waiting.program.waker.again = 0.0
    waiting.cache.set_unhealthy({})
    assert waiting.woken() == names[:MOST_WOKEN]
    assert next_of(waiting.program.waker.nodes) == "n1"
    assert waiting.program.waker.wake_fitting("n1")
    assert waiting.woken() == names[MOST_WOKEN:]
    assert waiting.changed() == []


def test_a_raised_quota_wakes_all_that_it_admits(waiting):
    waiting.node(3)
    quota = ResourceQuota("ns", "gpus", hard={"requests.aliyun.com/gpu-mem": "0"})
    waiting.cache.set_resource_quota("ns", "gpus", quota)
    names = [f"p{number:02}" for number in range(MOST_WOKEN + 4)]
    for name in names:
        waiting.rejected(name, 1)
    waiting.relieved()
    waiting.changed()
    waiting.program.waker.again = 0.0
    waiting.cache.set_resource_quota("ns", "gpus", None)
    woken, queue = [], waiting.program.reliever.queue
    for _ in range(2):
        assert waiting.program.reliever.write(next_of(queue))
        woken += waiting.woken()
    assert woken == names


def next_of(queue):
    """What a worker gets next, when it is time; "" if nothing is to come."""
    queue.add_after("", 0.0)
    keys = []
    while "" not in keys:
        keys.append(queue.get())
        queue.done(keys[-1])
    return keys[0]


@pytest.fixture
def preempting(waiting):
    """Preempts the pod of a full node for the pod ``nominee``; others of its size wait as well."""

    def preempt(**priorities):
        waiting.node(1)
        waiting.full("a", 0)
        for name, priority in priorities.items():
            waiting.rejected(name, UNITS, priority)
        nominee = structs.replace(waiting.api.pods["nominee"], nominated_node="n1")
        assert waiting.preempt(nominee, {"n1": ["uid-a"]}).keys() == {"n1"}
        waiting.show("nominee", nominee)
        waiting.show("a", None)
        return waiting.woken()

    return preempt


def test_what_is_held_for_a_preemption_wakes_its_pod_whoever_waits_longer(preempting):
    assert preempting(low=0, equal=5, nominee=5) == ["nominee"]


def test_what_is_held_for_a_preemption_wakes_a_more_important_pod(preempting):
    assert preempting(low=0, nominee=5, high=9) == ["high"]
