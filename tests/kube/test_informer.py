"""Following one kind of object: what is kept, when it counts, and how failures are borne."""

import threading

import pytest

from tests.support.scripted_api import END, ScriptedApi, event
from tests.support.waiting import WAIT_SECONDS, wait_ended, wait_until
from vgpu.apiserver.informer import (
    ABSENT_PAUSE_SECONDS,
    IN_THE_WAY,
    STALE_SECONDS,
    Informer,
)
from vgpu.apiserver.work_queue import WorkQueue
from vgpu.kube.documents import EventType, Expired
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject
from vgpu.model.reasons import Reason, SourceError


@pytest.fixture
def follow():
    """Starts a mirror of a script. Its objects are texts; what is before the = is the key."""
    made = []

    def start(*lists, **options):
        server = ScriptedApi(*lists)
        options = {
            "key": lambda text: text.partition("=")[0],
            "pause": server.pauses.append,
            "clock": server.clock,
        } | options
        informer = Informer(server, "server", **options)
        made.append((informer, server))
        informer.start()
        return informer, server

    yield start
    for informer, server in made:
        informer.close()
        server.events.put(END)
        server.events.put(event(EventType.BOOKMARK))


def objects(informer):
    return set(informer.state().objects.values())


def wait_objects(informer, *expected):
    wait_until(
        lambda: objects(informer) == set(expected),
        f"the mirror has {expected}",
        context=lambda: str(informer.state()),
    )


def wait_synced(informer):
    wait_until(
        lambda: informer.state().synced,
        "the mirror is up to date",
        context=lambda: str(informer.state()),
    )


def wait_watched(server, *versions):
    wait_until(
        lambda: server.watched_from == [*versions],
        f"watches from {versions}",
        context=lambda: str(server.watched_from),
    )


def wait_paused(server, times):
    wait_until(
        lambda: len(server.pauses) == times,
        f"{times} pauses",
        context=lambda: str(server.pauses),
    )


def wait_woken(woken, why):
    wait_until(lambda: woken.acquire(blocking=False), f"whoever waits is woken by {why}")


def failed(reason):
    return SourceError(reason, "server", f"it was {reason.value}")


def bookmark(server):
    server.events.put(event(EventType.BOOKMARK))


def test_before_the_first_list_nothing_is_known(follow):
    """Not even that there is nothing."""
    came = threading.Event()

    class Slow(ScriptedApi):
        def list(self):
            came.wait(WAIT_SECONDS)
            return super().list()

    server = Slow(["a=1"])
    informer = Informer(server, "server", key=str, clock=server.clock)
    assert informer.state().synced is False
    assert informer.start()
    assert not informer.start()
    assert not informer.wait(0.01)
    assert (informer.state().silent, informer.state().objects) == (None, {})
    came.set()
    assert informer.wait(WAIT_SECONDS), informer.state()
    wait_synced(informer)
    informer.close()
    bookmark(server)


def test_objects_are_identified_by_their_key_and_the_newest_counts(follow):
    informer, server = follow(["a=1", "b=1", "a=2"])
    wait_objects(informer, "a=2", "b=1")
    server.events.put(event(EventType.MODIFIED, "b=2"))
    wait_objects(informer, "a=2", "b=2")
    server.events.put(event(EventType.DELETED, "a=3"))
    wait_objects(informer, "b=2")
    assert informer.state().objects.keys() == {"b"}


def test_what_is_not_to_be_kept_is_dropped_as_soon_as_it_is_seen(follow):
    informer, server = follow(["a=1", "b=0"], keep=lambda text: not text.endswith("=0"))
    wait_objects(informer, "a=1")
    server.events.put(event(EventType.ADDED, "c=0"))
    server.events.put(event(EventType.ADDED, "d=1"))
    wait_objects(informer, "a=1", "d=1")
    server.events.put(event(EventType.MODIFIED, "a=0"))
    wait_objects(informer, "d=1")


def test_a_waiting_thread_is_woken_by_every_change_and_failure_and_by_nothing_else(follow):
    woken = threading.Semaphore(0)
    informer, server = follow(["a=1"], changed=woken.release, keep=lambda text: "=0" not in text)
    wait_woken(woken, "the list")
    bookmark(server)
    server.events.put(event(EventType.ADDED, "b=0"))
    server.events.put(event(EventType.ADDED, "c=1"))
    wait_woken(woken, "a change")
    assert objects(informer) == {"a=1", "c=1"}
    assert not woken.acquire(blocking=False)
    server.events.put(failed(Reason.UNREACHABLE))
    wait_woken(woken, "a failure")
    assert informer.state().failure.reason is Reason.UNREACHABLE


def test_without_a_change_the_same_mapping_is_returned_and_it_never_changes(follow):
    informer, server = follow(["a=1"])
    wait_objects(informer, "a=1")
    first = informer.state().objects
    server.now += 30
    bookmark(server)
    wait_until(lambda: informer.state().silent == 0, "the bookmark is heard")
    assert informer.state().objects is first
    server.events.put(event(EventType.MODIFIED, "a=2"))
    wait_objects(informer, "a=2")
    assert first == {"a": "a=1"}


def test_nothing_is_forgotten_before_a_new_list_is_complete(follow):
    informer, server = follow(["a=1"], failed(Reason.UNREADABLE), ["b=1"])
    wait_objects(informer, "a=1")
    seen = []

    def list_and_look():
        state = informer.state()
        seen.append((set(state.objects), state.failure and state.failure.reason))
        return ScriptedApi.list(server)

    server.list = list_and_look
    server.events.put(Expired(Reason.UNREADABLE, "server", "too old"))
    wait_objects(informer, "b=1")
    assert seen == [({"a"}, None), ({"a"}, Reason.UNREADABLE)]  # to be too late is no failure


def test_silence_makes_the_state_stale_and_a_bookmark_makes_it_synced_again(follow):
    informer, server = follow(["a=1"])
    wait_synced(informer)
    server.now += STALE_SECONDS
    assert informer.state().synced
    server.now += 1
    state = informer.state()
    assert (state.synced, state.silent) == (False, STALE_SECONDS + 1)
    assert state.objects == {"a": "a=1"}
    bookmark(server)
    wait_synced(informer)


@pytest.mark.parametrize("reason", sorted(IN_THE_WAY))
def test_a_failure_of_the_connection_leads_to_no_new_list(follow, reason):
    informer, server = follow(["a=1"])
    server.events.put(event(EventType.MODIFIED, "a=2", version="107"))
    server.events.put(failed(reason))
    wait_watched(server, "100", "107")
    assert informer.state().failure.reason is reason
    bookmark(server)
    wait_until(lambda: informer.state().failure is None, "the bookmark is heard")
    assert server.listed == 1


@pytest.mark.parametrize(
    "error",
    [failed(Reason.UNREADABLE), failed(Reason.MALFORMED), ZeroDivisionError("a defect")],
    ids=str,
)
def test_after_any_other_error_of_a_watch_the_objects_are_listed_again(follow, error):
    informer, server = follow(["a=1"], ["b=1"])
    wait_objects(informer, "a=1")
    server.events.put(error)
    wait_objects(informer, "b=1")
    assert informer.state().failure is None


def test_a_watch_that_ends_without_an_event_leads_to_a_new_list(follow):
    """As after etcd was set back to a backup: the server waits for that version for ever."""
    informer, server = follow(["a=1"], ["b=1"])
    wait_objects(informer, "a=1")
    server.events.put(END)
    wait_objects(informer, "b=1")
    wait_watched(server, "100", "200")


def test_a_kind_that_the_server_does_not_have_is_asked_for_from_time_to_time(follow):
    paused, go_on = threading.Event(), threading.Event()

    def pause(seconds):
        assert seconds == ABSENT_PAUSE_SECONDS
        paused.set()
        go_on.wait(WAIT_SECONDS)

    class Optional(ScriptedApi):
        def list(self):
            found, version = super().list()
            return found, version if found else ""

    server = Optional([], ["a=1"])
    informer = Informer(server, "server", key=str, pause=pause, clock=server.clock)
    informer.start()
    wait_until(paused.is_set, "the mirror pauses")
    assert informer.state().synced
    assert server.watched_from == []
    go_on.set()
    wait_objects(informer, "a=1")
    wait_watched(server, "200")
    informer.close()
    bookmark(server)


def test_a_server_that_ends_every_watch_at_once_is_asked_ever_more_rarely(follow, monkeypatch):
    monkeypatch.setattr("vgpu.apiserver.informer.random.random", lambda: 1.0)
    _, server = follow(["a=1"])
    for _ in range(4):
        server.events.put(END)
    wait_paused(server, 4)
    assert server.pauses == [1.0, 2.0, 4.0, 8.0]
    bookmark(server)
    server.events.put(END)
    wait_paused(server, 5)
    assert server.pauses[-1] == 1.0


def test_a_watch_that_the_server_accepts_again_ends_the_failure_and_is_no_event(follow):
    informer, server = follow(["a=1"])
    server.events.put(SourceError(Reason.UNREACHABLE, "server"))
    wait_watched(server, "100", "100")
    assert informer.state().failure is not None
    server.accepts = True
    server.now += 7
    server.events.put(SourceError(Reason.UNREACHABLE, "server"))
    wait_until(lambda: informer.state().failure is None, "the failure has ended")
    assert informer.health().silent == 7
    assert server.listed == 1


def test_after_a_long_outage_everything_is_listed_again(follow):
    _, server = follow(["a=1"], list_after=60.0)
    server.events.put(SourceError(Reason.UNREACHABLE, "server"))
    wait_watched(server, "100", "100")
    server.now += 61
    server.events.put(SourceError(Reason.UNREACHABLE, "server"))
    wait_watched(server, "100", "100", "200")
    assert server.listed == 2


def test_who_cannot_wait_long_asks_again_within_the_time_that_it_sets(follow, monkeypatch):
    monkeypatch.setattr("vgpu.apiserver.informer.random.random", lambda: 1.0)
    _, server = follow(["a=1"], longest_pause=3.0)
    for _ in range(4):
        server.events.put(SourceError(Reason.UNREACHABLE, "server"))
    wait_paused(server, 4)
    assert server.pauses == [1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("accepts", [False, True])
def test_a_server_that_is_back_from_an_outage_is_listed_soon(follow, monkeypatch, accepts):
    """It has forgotten the version; that is its first word, and no reason to wait yet longer."""
    monkeypatch.setattr("vgpu.apiserver.informer.random.random", lambda: 1.0)
    _, server = follow(["a=1"])
    server.accepts = accepts
    for _ in range(4):
        server.events.put(SourceError(Reason.UNREACHABLE, "server"))
    server.events.put(Expired(Reason.UNREADABLE, "server", "too old"))
    wait_paused(server, 5)
    assert server.pauses == [1.0, 2.0, 4.0, 8.0, 1.0]
    wait_until(lambda: server.listed == 2, "a second list")


def test_a_server_that_forgets_every_version_is_asked_ever_more_rarely(follow, monkeypatch):
    monkeypatch.setattr("vgpu.apiserver.informer.random.random", lambda: 1.0)
    _, server = follow(["a=1"])
    for _ in range(4):
        server.events.put(Expired(Reason.UNREADABLE, "server", "too old"))
    wait_paused(server, 4)
    assert server.pauses == [1.0, 2.0, 4.0, 8.0]


def test_a_closed_informer_watches_no_longer(follow):
    before = set(threading.enumerate())
    informer, server = follow(["a=1"])
    (thread,) = set(threading.enumerate()) - before
    wait_objects(informer, "a=1")
    informer.close()
    server.events.put(event(EventType.ADDED, "b=1"))
    wait_ended(thread, "the mirror's thread ends")


def test_the_key_of_whatever_changed_is_for_a_work_queue_and_after_a_list_all_are(follow):
    keys = WorkQueue()
    unread = MalformedObject("Pod", PodRef("d", "", ""), "no phase")

    def taken(count):
        wait_until(lambda: len(keys) == count, f"{count} keys wait")
        return [keys.get() for _ in range(count)]

    _, server = follow(
        ["a=1", "b=1"],
        ["b=2", "c=1", unread],
        key=lambda each: each.ref.uid if each is unread else each.partition("=")[0],
        keep=lambda text: not text.endswith("=dropped"),
        enqueue=keys.add,
    )
    assert taken(2) == ["a", "b"]
    for key in "ab":
        keys.done(key)
    server.events.put(event(EventType.MODIFIED, "b=2"))
    server.events.put(event(EventType.ADDED, "x=dropped"))
    server.events.put(event(EventType.DELETED, "b=2"))
    server.events.put(event(EventType.ADDED, "b=3"))
    assert taken(1) == ["b"]
    server.events.put(Expired(Reason.UNREADABLE, "server", "too old"))
    assert taken(3) == ["a", "c", "d"]  # a is gone
    keys.done("b")
    assert taken(1) == ["b"]
    assert len(keys) == 0
