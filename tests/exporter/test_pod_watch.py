"""Following a node's pods: what is returned, when it is withdrawn, and how failures are handled.

The server is played by a script here, for what a real one does not do on demand; the real one is
in tests/cluster/test_exporter_api.py.
"""

import pytest

from tests.support.scripted_api import END, ScriptedApi, event
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.apiserver.informer import STALE_SECONDS
from vgpu.kube.documents import EventType, Expired
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, ContainerState, MalformedObject, Pod, Status
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.pods import PodWatch, pod_sample


def pod(name, phase="Running", **changes):
    return Pod(ref=PodRef(f"uid-{name}", "team", name), node="n", phase=phase, **changes)


FORBIDDEN = SourceError(Reason.FORBIDDEN, "server", "Forbidden: cannot list pods")


@pytest.fixture
def follow(monkeypatch):
    """Starts a watch of a script; its clock stands still, and it does not pause."""
    monkeypatch.setattr("vgpu.sources.pods.FIRST_LIST_SECONDS", WAIT_SECONDS)
    made = []

    def start(*lists):
        server = ScriptedApi(*lists)
        watch = PodWatch(server, "server", pause=server.pauses.append, clock=server.clock)
        made.append((watch, server))
        return watch, server

    yield start
    for watch, server in made:
        watch.close()
        server.events.put(END)
        server.events.put(event(EventType.BOOKMARK))


def names(watch):
    return {pod.ref.name for pod in watch.sample(5000.0).pods}


def wait_names(watch, *expected):
    wait_until(
        lambda: names(watch) == set(expected),
        f"the pods are {expected}",
        context=lambda: str(watch.sample(5000.0)),
    )


def wait_watched(server, *versions):
    wait_until(
        lambda: server.watched_from == [*versions],
        f"watches from {versions}",
        context=lambda: str(server.watched_from),
    )


def refused(watch):
    try:
        watch.sample(5000.0)
    except SourceError as error:
        return error
    return None


def test_pods_are_listed_once_and_then_followed(follow):
    watch, server = follow([pod("a")])
    assert names(watch) == {"a"}
    server.events.put(event(EventType.ADDED, pod("b")))
    wait_names(watch, "a", "b")
    server.events.put(event(EventType.MODIFIED, pod("b", phase="Failed")))
    wait_until(
        lambda: {s.ref.name: s.phase for s in watch.sample(0.0).statuses}["b"] == "Failed",
        "pod b has failed",
    )
    server.events.put(event(EventType.DELETED, pod("b")))
    wait_names(watch, "a")
    assert server.listed == 1


def test_without_new_values_the_same_objects_are_returned(follow):
    watch, server = follow([pod("a")])
    first = watch.sample(5000.0)
    server.now += 60
    server.events.put(event(EventType.BOOKMARK, version="9"))
    wait_until(lambda: watch.sample(5000.0).heard_at == 5000.0, "the bookmark is heard")
    assert watch.sample(5000.0).pods is first.pods


def test_a_watch_goes_on_from_the_last_version_that_was_heard(follow):
    watch, server = follow([pod("a")])
    watch.sample(0.0)
    server.events.put(event(EventType.BOOKMARK, version="107"))
    server.events.put(END)
    wait_watched(server, "100", "107")
    assert server.listed == 1


def test_a_version_that_is_too_old_leads_to_a_new_list(follow):
    watch, server = follow([pod("a")], [pod("b")])
    watch.sample(0.0)
    server.events.put(Expired(Reason.UNREADABLE, "server", "Expired: too old"))
    wait_names(watch, "b")
    wait_watched(server, "100", "200")
    assert watch.sample(0.0).rejections == ()


def test_a_broken_connection_is_reported_and_the_pods_stay_meanwhile(follow):
    watch, server = follow([pod("a")])
    watch.sample(0.0)
    server.events.put(SourceError(Reason.UNREACHABLE, "server", "Unreachable: it broke"))
    wait_until(lambda: watch.sample(0.0).rejections, "the failure is reported")
    assert names(watch) == {"a"}
    assert server.listed == 1
    server.events.put(event(EventType.BOOKMARK))
    wait_until(lambda: not watch.sample(0.0).rejections, "the bookmark is heard")


def test_pods_of_a_stale_watch_are_withdrawn_with_the_reason(follow):
    watch, server = follow([pod("a")])
    assert watch.sample(5000.0).heard_at == 5000.0
    server.now += STALE_SECONDS
    assert watch.sample(5000.0).heard_at == 5000.0 - STALE_SECONDS
    server.now += 1
    assert refused(watch).reason is Reason.TIMEOUT
    server.events.put(FORBIDDEN)
    wait_until(lambda: refused(watch).detail == FORBIDDEN.detail, "the refusal is reported")
    server.events.put(event(EventType.BOOKMARK))
    wait_until(lambda: refused(watch) is None, "the watch works")


def test_a_list_that_is_refused_is_the_reason_until_it_works(follow):
    watch, server = follow(FORBIDDEN, FORBIDDEN, [pod("a")])
    seen = []
    wait_until(lambda: seen.append(refused(watch)) or seen[-1] is None, "the list is served")
    assert {(each.reason, each.detail) for each in seen[:-1]} <= {
        (FORBIDDEN.reason, FORBIDDEN.detail)
    }
    assert names(watch) == {"a"}
    assert len(server.pauses) == 2


def test_a_node_without_any_pod_is_the_wrong_name_and_no_evidence(follow):
    watch, server = follow([])
    error = refused(watch)
    assert error.reason is Reason.ABSENT
    assert "--node-name" in error.detail
    server.events.put(event(EventType.ADDED, pod("a")))
    wait_until(lambda: refused(watch) is None, "the watch works")


def test_after_an_unreadable_event_the_pods_are_listed_again(follow):
    watch, server = follow([pod("a")], [pod("b")])
    watch.sample(0.0)
    server.events.put(SourceError(Reason.MALFORMED, "server", "not JSON"))
    wait_names(watch, "b")


def test_a_pod_that_cannot_be_read_is_refused_and_no_proof_that_others_are_gone(follow):
    bad = MalformedObject("Pod", PodRef("uid-b", "team", "b"), "phase: 7", "n")
    watch, server = follow([pod("a"), bad])
    wait_names(watch, "a")
    sample = watch.sample(5000.0)
    assert not sample.complete
    assert sample.names["uid-b"].name == "b"
    assert [(each.object_name, each.reason) for each in sample.rejections] == [
        ("Pod team/b", Reason.MALFORMED)
    ]
    server.events.put(event(EventType.MODIFIED, pod("b")))
    wait_names(watch, "a", "b")
    sample = watch.sample(5000.0)
    assert sample.complete
    assert sample.rejections == ()
    assert server.listed == 1


def test_a_defect_of_ours_does_not_end_the_watch(follow):
    watch, server = follow([pod("a")], [pod("b")])
    watch.sample(0.0)
    server.events.put(ZeroDivisionError("a defect"))
    wait_names(watch, "b")


# ---------------------------------------------------------------- what is read of pods


def init(state, reason="", name="fetch"):
    containers = (Container("main"), Container(name, kind=ContainerKind.INIT))
    status = Status(name, state, id="c1", kind=ContainerKind.INIT, reason=reason)
    return pod("a", containers=containers, statuses=(status,))


@pytest.mark.parametrize(
    ("state", "reason", "finished"),
    [
        (ContainerState.TERMINATED, "Completed", True),
        (ContainerState.TERMINATED, "Error", False),  # it will be started again
        (ContainerState.RUNNING, "", False),
        (ContainerState.WAITING, "CrashLoopBackOff", False),
    ],
)
def test_only_an_init_container_that_did_its_work_is_finished(state, reason, finished):
    sample = pod_sample([init(state, reason)], complete=True)
    assert sample.finished == ({("uid-a", "fetch")} if finished else frozenset())
    assert sample.containers["c1"].container == "fetch"


def test_an_app_container_that_ended_may_be_started_again():
    status = Status("main", ContainerState.TERMINATED, reason="Completed")
    assert not pod_sample([pod("a", statuses=(status,))], complete=True).finished
