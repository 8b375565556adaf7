"""A bind waits for the lock of its node, one behind the other, and no longer than makes sense."""

import threading
from contextlib import ExitStack

import msgspec
import pytest
from msgspec import structs

from scheduler.bind import lock_queue
from scheduler.bind.lock_queue import LockQueue
from scheduler.flags import SchedulerOptions
from scheduler.main import LOCK_PART, command
from scheduler.reasons import BindFailure
from tests.scheduler.model_api import ModelApi
from tests.scheduler.served import HEAD, Served, binding, query
from tests.scheduler.test_node_lock import LOCKS, REGISTERS, REQUESTS, SINCE
from tests.support.waiting import WAIT_SECONDS, wait_ended, wait_until
from tests.support.web_helpers import connect
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.schemes.volcano import node as volcano_node

LONG = 10 * WAIT_SECONDS
"""Longer than any test waits: another thing ends the wait."""


class Waiting(Served):
    """A node that is locked for a pod, and a bind of another pod on a thread of its own."""

    def __init__(self, system="hami", names=("n1",)):
        self.system, self.key = system, LOCKS[system]
        stored = Node("n1", "1", annotations=REGISTERS[system])
        super().__init__(ModelApi(stored), locks=True, http_timeout=LONG)
        for name in names:
            self.cache.set_node(name, structs.replace(stored, name=name))
        assert not self.bind(self.new("first").ref, "n1")
        self.show("first", self.api.pods["first"])
        self.cache.set_node("n1", self.api.stored)

    def new(self, name):
        container = Container("main", REQUESTS[self.system])
        pod = Pod(PodRef(f"uid-{name}", "ns", name), containers=(container,), phase="Pending")
        return self.api.store(pod)

    def release(self):
        """The plugin has answered Allocate, and the watch shows it."""
        self.api.annotate({self.key: None})
        self.show_node(self.api.stored)

    def count_reads(self):
        """The nodes that are read from now on."""
        reads, read = [], self.api.node

        def node(name):
            reads.append(name)
            return read(name)

        self.api.node = node
        return reads

    def offered(self, pod, names):
        """The nodes that filter answers with; no other node is refused."""
        answer = self.post("/filter", query(pod, names))
        assert not answer["FailedNodes"]
        return answer["NodeNames"]

    def wait_for_waiting(self, number):
        wait_until(lambda: self.program.locks.waiting == number, f"{number} binds wait")


def in_thread(action):
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("system", sorted(LOCKS))
def test_a_bind_waits_until_the_plugin_has_released_the_lock(system):
    with Waiting(system) as served:
        second, reasons = served.new("second"), []
        thread = in_thread(lambda: reasons.append(served.bind(second.ref, "n1")))
        served.wait_for_waiting(1)
        assert served.cache.counts()  # the lock of the cache is free
        served.show_node(structs.replace(served.api.stored, labels={"some": "change"}))
        assert served.program.locks.waiting in (0, 1)  # it looks, and waits on
        served.release()
        wait_ended(thread, "the pod is bound")
        assert reasons == [""]
        assert served.api.pods["second"].node == "n1"
        assert len(served.api.locks_at_bind) == 2


def test_a_bind_that_waits_reads_nothing_while_events_show_the_lock():
    with Waiting() as served:
        second, reasons = served.new("second"), []
        thread = in_thread(lambda: reasons.append(served.bind(second.ref, "n1")))
        served.wait_for_waiting(1)
        reads = served.count_reads()
        for number in range(3):
            served.api.annotate({"example.com/changed": str(number)})
            served.show_node(served.api.stored)
        assert not reads
        served.release()
        wait_ended(thread, "the pod is bound")
        assert reasons == [""]
        assert not reads  # the event has shown the node as it is


def test_binds_of_one_node_that_wait_lock_it_by_one_write_each(monkeypatch):
    monkeypatch.setattr(lock_queue, "AGAIN_SECONDS", LONG)
    with Waiting() as served:
        pods = [served.new(name) for name in ("second", "third", "fourth")]
        with ExitStack() as clients:
            for number, pod in enumerate(pods, 1):
                body = msgspec.json.encode(binding(pod.ref, "n1"))
                client = clients.enter_context(connect(served.server.addresses[0]))
                client.sendall(HEAD % (b"/bind", len(body)) + body)
                served.wait_for_waiting(number)
            reads, patches = served.count_reads(), served.api.patches
            for number, pod in enumerate(pods, 1):
                served.release()
                wait_until(lambda name=pod.ref.name: served.api.pods[name].node, "it is bound")
                assert served.api.patches == patches + number
            assert not reads


def test_a_lock_that_another_scheduler_took_after_the_event_is_waited_for():
    with Waiting() as served:
        second, reasons = served.new("second"), []
        thread = in_thread(lambda: reasons.append(served.bind(second.ref, "n1")))
        served.wait_for_waiting(1)
        served.api.annotate({served.key: None})
        free = served.api.stored
        served.new("other")
        served.api.annotate({served.key: f"{SINCE},ns,other"})
        reads = served.count_reads()
        served.show_node(free)
        wait_until(lambda: len(reads) == 1, "it has read the node")
        served.wait_for_waiting(1)
        assert not reasons
        served.release()
        wait_ended(thread, "the pod is bound")
        assert reasons == [""]


def test_a_bind_takes_the_lock_of_a_pod_that_is_gone_without_an_event_of_the_node(monkeypatch):
    monkeypatch.setattr(lock_queue, "AGAIN_SECONDS", 0.05)
    with Waiting() as served:
        second, reasons = served.new("second"), []
        thread = in_thread(lambda: reasons.append(served.bind(second.ref, "n1")))
        served.wait_for_waiting(1)
        served.api.delete("first")
        wait_ended(thread, "the pod is bound")
        assert reasons == [""]


def test_a_client_that_has_left_ends_the_wait():
    with Waiting() as served:
        body = msgspec.json.encode(binding(served.new("second").ref, "n1"))
        client = connect(served.server.addresses[0])
        client.sendall(HEAD % (b"/bind", len(body)) + body)
        served.wait_for_waiting(1)
        client.close()
        served.wait_for_waiting(0)
        wait_until(lambda: BindFailure.NODE_LOCKED in served.counts()["bind_failures"], "it failed")
        assert served.api.pods["second"].node == ""


def test_the_end_of_the_program_ends_the_wait():
    with Waiting() as served:
        second, reasons = served.new("second"), []
        thread = in_thread(lambda: reasons.append(served.bind(second.ref, "n1")))
        served.wait_for_waiting(1)
        served.program.locks.close()
        wait_ended(thread, "the bind is answered")
        assert reasons == [BindFailure.NODE_LOCKED]


def test_a_bind_waits_for_60_percent_of_kube_schedulers_timeout():
    for flags, seconds in (((), 5), (("--extender.http-timeout=30s",), 30)):
        options = SchedulerOptions.of(command.make_context("scheduler", list(flags)).params)
        assert LOCK_PART * options.http_timeout == pytest.approx(0.6 * seconds)


def test_binds_of_a_node_have_their_turn_in_the_order_in_which_they_came():
    queue, order, inside = LockQueue(LONG), [], threading.Semaphore(0)

    def bind(number):
        with queue.turn("n1", queue.patience()) as turn:
            assert turn is not None
            order.append(number)
            assert inside.acquire(timeout=WAIT_SECONDS)

    threads = []
    for number in range(4):
        threads.append(in_thread(lambda number=number: bind(number)))
        wait_until(lambda number=number: queue.waiting + len(order) == number + 1, "it is there")
    with queue.turn("n2", queue.patience()) as turn:
        assert turn is not None  # another node's binds are not in its way
    for _ in threads:
        inside.release()
    for thread in threads:
        wait_ended(thread, "the bind had its turn")
    assert order == [0, 1, 2, 3]


def test_beyond_a_number_of_waiting_binds_the_next_one_does_not_wait(monkeypatch):
    monkeypatch.setattr(lock_queue, "MOST_WAITING", 0)
    queue = LockQueue(LONG)
    with queue.turn("n1", queue.patience()), queue.turn("n1", queue.patience()) as second:
        assert second is None


NAMES = ("n1", "n2", "n3")


def test_filter_leaves_locked_nodes_out_while_others_fit():
    with Waiting(names=NAMES) as served:
        third = served.new("third")
        assert served.offered(third, NAMES) == ["n2", "n3"]
        served.cache.note_bind(third.ref.uid, "n2")
        assert served.offered(served.new("fourth"), NAMES) == ["n3"]
        assert served.offered(served.new("fifth"), ["n1"]) == ["n1"]


def test_filter_reads_no_locks_of_nodes_that_have_not_changed(monkeypatch):
    """It would read those of thousands of nodes for each pod."""
    with Waiting(names=NAMES) as served:
        monkeypatch.setattr(volcano_node, "locks", pytest.fail)
        assert served.offered(served.new("third"), NAMES) == ["n2", "n3"]
        served.cache.set_node("n1", None)
        assert served.offered(served.new("fourth"), NAMES[1:]) == ["n2", "n3"]


def test_a_lock_that_is_void_by_its_age_keeps_no_pod_from_a_node():
    with Waiting(names=NAMES) as served:
        text = "1970-01-12T13:41:40Z,ns,first"  # five minutes before NOW
        node = structs.replace(
            served.api.stored, annotations=REGISTERS["hami"] | {served.key: text}
        )
        served.show_node(node)
        assert served.offered(served.new("third"), NAMES) == list(NAMES)
