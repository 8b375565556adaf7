"""The node's own object beside its pods: when it is read, and what a refusal costs.

The server is played by a script here; the real one is in tests/cluster/test_exporter_api.py.
"""

import queue

import pytest

from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.kube.documents import EventType, Expired, WatchEvent
from vgpu.model.names import PodRef
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.pods import NodeListWatcher, NodeWatch

END = object()
FORBIDDEN = SourceError(Reason.FORBIDDEN, "node n", 'Forbidden: cannot get resource "nodes"')


class Server:
    """One pod, a watch that is fed by ``events``, and a node that is read ``asked`` times."""

    def __init__(self, *nodes):
        self.nodes = list(nodes)
        self.events = queue.Queue()
        self.asked = 0
        self.opened = 0

    def list(self):
        return [Pod(PodRef("u", "team", "a"), node="n")], "100"

    def watch(self, version, opened):
        self.opened += 1
        opened()
        while (event := self.events.get(timeout=WAIT_SECONDS)) is not END:
            if isinstance(event, Exception):
                raise event
            yield event

    def read(self):
        answer = self.nodes[min(self.asked, len(self.nodes) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def follow(monkeypatch):
    monkeypatch.setattr("vgpu.sources.pods.FIRST_LIST_SECONDS", WAIT_SECONDS)
    made = []

    def start(*nodes):
        server = Server(*nodes)
        watch = NodeWatch(server, server.read, "server")
        made.append((watch, server))
        return watch, server

    yield start
    for watch, server in made:
        watch.close()
        server.events.put(END)


def wait_opened(server, times):
    wait_until(
        lambda: server.opened == times,
        f"the watch is opened {times} times",
        context=lambda: f"it was {server.opened} times, and the node asked {server.asked} times",
    )


def bookmark(version):
    return WatchEvent(EventType.BOOKMARK, version)


def test_the_first_sample_has_pods_and_node(follow):
    watch, server = follow(Node("n", resource_version="1"))
    sample = watch.sample(5000.0)
    assert [pod.ref.name for pod in sample.pods] == ["a"]
    assert sample.node == Node("n", resource_version="1")
    assert sample.rejections == ()
    wait_opened(server, 1)
    assert server.asked == 1


@pytest.mark.slow
def test_the_node_is_read_again_when_the_watch_is_reopened_and_never_for_an_event(follow):
    watch, server = follow(Node("n", resource_version="1"), Node("n", resource_version="2"))
    watch.sample(0.0)
    server.events.put(bookmark("101"))
    server.events.put(END)
    wait_opened(server, 2)
    assert watch.sample(0.0).node.resource_version == "2"
    assert server.asked == 2
    server.events.put(Expired(Reason.UNREADABLE, "server", "too old"))
    wait_opened(server, 3)
    assert server.asked == 3


def test_a_missing_right_is_a_rejection_beside_the_pods(follow):
    watch, _ = follow(FORBIDDEN)
    sample = watch.sample(0.0)
    assert sample.node is None
    assert [pod.ref.name for pod in sample.pods] == ["a"]
    (refused,) = sample.rejections
    assert (refused.object_name, refused.reason) == ("node n", Reason.FORBIDDEN)
    assert refused.detail == FORBIDDEN.detail


def test_a_failure_that_may_pass_is_tried_again_with_an_event_once_a_minute():
    now, away = [0.0], SourceError(Reason.UNREACHABLE, "node n", "timed out")
    server = Server(away, away, Node("n"))
    api = NodeListWatcher(server, server.read, lambda: now[0])
    _, version = api.list()
    asked = []
    events = api.watch(version)
    for at in (59.0, 60.0, 119.0, 120.0, 1000.0):
        now[0] = at
        server.events.put(bookmark("101"))
        next(events)
        asked.append(server.asked)
    assert asked == [1, 2, 2, 3, 3]
    assert (api.last_read.node, api.last_read.rejections) == (Node("n"), ())


def test_a_missing_right_is_not_asked_for_again_with_every_event():
    server = Server(FORBIDDEN)
    api = NodeListWatcher(server, server.read, lambda: 1000.0 * server.asked)
    _, version = api.list()
    server.events.put(bookmark("101"))
    next(api.watch(version))
    assert server.asked == 1


def test_what_was_read_before_stands_while_it_is_refused(follow):
    watch, server = follow(Node("n"), FORBIDDEN, Node("n"))
    watch.sample(0.0)
    server.events.put(bookmark("101"))
    server.events.put(END)
    wait_until(lambda: watch.sample(0.0).rejections, "the refusal is reported")
    assert watch.sample(0.0).node == Node("n")
    server.events.put(bookmark("102"))
    server.events.put(END)
    wait_until(lambda: not watch.sample(0.0).rejections, "the node is read again")
