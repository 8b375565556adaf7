"""Events: recorded by anybody, in their order, each once, and dropped where there are too many."""

import logging
import threading

import pytest

from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.apiserver.event_recorder import EventRecorder, EventWriter
from vgpu.kube.events import EventDeduplicator, EventNote, event_note
from vgpu.model.names import PodRef
from vgpu.model.objects import Node, Pod

LIMIT = 20


def a_note(name, at=1000.0):
    return EventNote("Pod", "v1", "ml", name, "", "VgpuEvicted", "the pod was evicted", at, "test")


def test_events_are_written_in_their_order_until_the_end():
    written = []
    writer = EventWriter(EventRecorder(LIMIT), written.append)
    for name in "abc":
        writer.record(a_note(name))
    writer.finish(WAIT_SECONDS, lambda: False)
    assert [note.name for note in written] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("seconds", "stopping"), [(0.0, False), (3600.0, True)], ids=["late", "stopping"]
)
def test_events_that_are_not_written_in_time_are_dropped_and_counted_in_the_log(
    seconds, stopping, caplog
):
    begun, released, written = threading.Event(), threading.Event(), []

    def write(note):
        begun.set()
        released.wait(WAIT_SECONDS)
        written.append(note.name)

    writer = EventWriter(EventRecorder(LIMIT), write)
    writer.record(*map(a_note, "abc"))
    assert begun.wait(WAIT_SECONDS)
    with caplog.at_level(logging.WARNING):
        writer.finish(seconds, lambda: stopping)
    assert [record.events for record in caplog.records] == [2]
    released.set()
    wait_until(lambda: written == ["a"], "the one under way is written")


def test_of_too_many_events_the_last_are_dropped(caplog):
    begun, released, written = threading.Event(), threading.Event(), []

    def write(note):
        begun.set()
        released.wait(WAIT_SECONDS)
        written.append(note.name)

    writer = EventWriter(EventRecorder(LIMIT), write)
    writer.record(a_note("first"))
    assert begun.wait(WAIT_SECONDS)
    writer.record(*(a_note(str(number)) for number in range(LIMIT + 5)))
    released.set()
    with caplog.at_level(logging.WARNING):
        writer.finish(WAIT_SECONDS, lambda: False)
    assert written == ["first", *map(str, range(LIMIT))]
    assert [record.events for record in caplog.records] == [5]


def test_a_defect_in_writing_one_event_costs_no_other(caplog):
    written = []

    def write(note):
        if note.name == "a":
            raise RuntimeError(note.name)
        written.append(note.name)

    writer = EventWriter(EventRecorder(LIMIT), write)
    writer.record(*map(a_note, "ab"))
    writer.finish(WAIT_SECONDS, lambda: False)
    assert written == ["b"]
    assert len(caplog.records) == 1


# ---------------------------------------------------------------- what waits


def names(recorder):
    taken = []
    while (note := recorder.take()) is not None:
        taken.append(note.name)
    return "".join(taken)


@pytest.mark.parametrize(("keeps_newest", "kept"), [(True, "cde"), (False, "abc")])
def test_of_too_many_events_the_oldest_or_the_newest_are_dropped(keeps_newest, kept):
    recorder = EventRecorder(3, keeps_newest=keeps_newest)
    recorder.record(*map(a_note, "abcde"))
    assert len(recorder) == 3
    assert names(recorder) == kept


def test_what_could_not_be_written_comes_first_again():
    recorder = EventRecorder(2, keeps_newest=True)
    recorder.record(*map(a_note, "ab"))
    first = recorder.take()
    recorder.put_back(first)
    assert names(recorder) == "ab"
    recorder.record(a_note("c"))
    taken = recorder.take()
    recorder.record(*map(a_note, "de"))
    recorder.put_back(taken)
    assert names(recorder) == "cd"


# ---------------------------------------------------------------- what is news


def test_the_same_is_recorded_again_only_after_a_while():
    recorder = EventRecorder(LIMIT, repeat_seconds=300)
    recorder.record(*(a_note("a", at) for at in (0, 1, 299, 300, 301)), a_note("b", 301))
    assert names(recorder) == "aab"


def test_without_a_time_every_event_is_recorded_since_the_server_counts_them():
    recorder = EventRecorder(LIMIT)
    recorder.record(*(a_note("a") for _ in range(3)))
    assert names(recorder) == "aaa"


def test_what_was_reported_is_forgotten_in_time():
    deduplicator = EventDeduplicator(300)
    for number in range(100):
        assert deduplicator.is_news(a_note(str(number), number * 300))
    assert len(deduplicator) == 1


def test_an_event_is_about_an_object_as_kubectl_looks_for_it():
    ref = PodRef("u", "ml", "p")
    for about in (ref, Pod(ref)):
        note = event_note(about, "Reason", "words", 5.0, component="test")
        assert (note.kind, note.namespace, note.name, note.uid) == ("Pod", "ml", "p", "u")
    note = event_note(Node("gpu-1", uid="its-uid"), "Reason", "words", 5.0, component="test")
    assert (note.kind, note.namespace, note.name, note.uid) == ("Node", "", "gpu-1", "gpu-1")
