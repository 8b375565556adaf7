"""A SharePod that cannot be read: its owner gets an event, who runs us a log line and a number."""

import json
import logging
from contextlib import contextmanager

import pytest

from kubeshare.bodies import HolderOptions, malformed_event
from kubeshare.controller import ControllerOptions
from kubeshare.decoders import SHARE_POD_OBJECTS
from kubeshare.main import ControllerProgram
from kubeshare.malformed_objects import MalformedObjects
from kubeshare.metrics import TABLES
from kubeshare.placement import KubeShareAlgorithm
from simulator.store import EVERYTHING
from tests.kubeshare.test_followed_objects import node_json, serving, share_pod_json
from tests.support.waiting import wait_until
from vgpu.kube.kinds import EVENTS, SHARE_PODS
from vgpu.metrics.render import Format, Renderer
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject
from vgpu.model.reasons import SourceError

OPTIONS = ControllerOptions(KubeShareAlgorithm.PAPER, HolderOptions("vgpu:test"))


def malformed(detail="wrong", uid="u", kind="SharePod"):
    return MalformedObject(kind, PodRef(uid, "ns", "a"), detail)


def broken_json(name, **spec):
    return {**share_pod_json(name), "spec": {"containers": [{"name": "main"}], **spec}}


@contextmanager
def running(client, leads=lambda: True):
    """The controllers, as long as they run."""
    program = ControllerProgram(client, OPTIONS, leads)
    program.start()
    try:
        yield program
    finally:
        program.stop()


def events(store, name):
    """Message and count of each warning that a SharePod cannot be read."""
    listed = store.list(EVENTS, EVERYTHING).items
    return [
        (each["type"], each["message"], each["count"])
        for each in listed
        if (each["reason"], each["involvedObject"]["name"]) == ("Malformed", name)
    ]


def test_it_has_one_event_one_log_line_and_counts_while_it_stays_as_it_is(caplog):
    text = "the object cannot be read: Expected `str`, got `int` - at `$.spec.nodeName`"
    leads = False
    bad = broken_json("bad", nodeName=5)
    with (
        caplog.at_level(logging.WARNING),
        serving(node_json("n1"), share_pod_json("good"), bad) as (store, client),
        running(client, lambda: leads) as program,
    ):
        wait_until(lambda: not program.complaint(), "the cluster is read")
        assert not events(store, "bad")  # the leader reports it
        assert program.view().malformed == {"SharePod": 1}
        leads = True
        wait_until(lambda: events(store, "bad"), "the event")
        for _ in range(3):
            program._controllers._enqueue_all()  # three resyncs
        store.patch(SHARE_PODS, "ns", "bad", {"metadata": {"labels": {"a": "b"}}})
        store.patch(SHARE_PODS, "ns", "good", {"spec": {"containers": "all"}})
        wait_until(lambda: events(store, "good"), "the other one's event")
        assert events(store, "bad") == [("Warning", text, 1)]
        page = Renderer(TABLES).render(program.view()).body(Format.TEXT).decode()
        assert 'vgpu_kubeshare_malformed_objects{kind="SharePod"} 2' in page
        store.patch(SHARE_PODS, "ns", "bad", {"spec": {"nodeName": None}})
        wait_until(lambda: program.view().malformed == {"SharePod": 1}, "it can be read")
    lines = [each for each in caplog.records if each.message == "object cannot be read"]
    assert [(each.object, "$.spec" in each.reason) for each in lines] == [
        ("SharePod ns/bad", True),
        ("SharePod ns/good", True),
    ]


def test_an_object_is_reported_again_only_if_something_else_is_wrong():
    objects = MalformedObjects()
    for found, expected in (
        (malformed(), True),
        (malformed(), False),
        (malformed("other"), True),
        (malformed("other", uid="v"), True),
        (None, False),
        (malformed("other", uid="v"), True),
    ):
        objects.set("SharePod", "ns/a", found)
        assert objects.take() == ([found] if expected else [])
    objects.set("Node", "a", malformed(kind="Node"))
    assert objects.counts() == {"SharePod": 1, "Node": 1}


def test_an_event_of_a_node_is_where_kubectl_describe_looks_for_it():
    note = malformed_event(MalformedObject("Node", PodRef("u", "", "n1"), "wrong"), 0.0)
    assert (note.kind, note.api_version, note.uid, note.name) == ("Node", "v1", "n1", "n1")


@pytest.mark.parametrize(
    ("container", "spec", "place"),
    [
        ({"env": "x"}, {}, "spec.containers[0].env"),
        ({"env": {}}, {}, "spec.containers[0].env"),
        ({"volumeMounts": "x"}, {}, "spec.containers[0].volumeMounts"),
        ({}, {"volumes": {}}, "spec.volumes"),
        ({"resources": "x"}, {}, "spec.containers[0].resources"),
        ({}, {"schedulerName": 5}, "spec.schedulerName"),
    ],
)
def test_what_its_pod_could_not_be_made_of_cannot_be_read(container, spec, place):
    document = broken_json("a", containers=[{"name": "main", **container}], **spec)
    with pytest.raises(SourceError) as refused:
        SHARE_POD_OBJECTS.one(json.dumps(document).encode())
    assert refused.value.detail.endswith(f"`$.{place}`")


@pytest.mark.parametrize(
    ("status", "place"),
    [([], "status"), ({"PodManagerPort": "x"}, "status.PodManagerPort")],
)
def test_what_is_decoded_later_is_named_with_its_place_in_the_object(status, place):
    with pytest.raises(SourceError) as refused:
        SHARE_POD_OBJECTS.one(json.dumps({**broken_json("a"), "status": status}).encode())
    assert refused.value.detail.endswith(f"`$.{place}`")
