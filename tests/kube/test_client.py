"""The API server's client against what a real one rarely answers: errors and broken bodies."""

import itertools
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from urllib3.connection import HTTPConnection

from tests.support.answering_server import (
    Answers,
    Handler,
    anonymous_access,
    answer,
    serving,
    status,
)
from tests.support.environment import own_loopback
from tests.support.waiting import WAIT_SECONDS
from vgpu.apiserver import access, bodies, list_watch
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import GATHER_SECONDS, ClusterError, find_access
from vgpu.apiserver.retries import MOST_WAIT_SECONDS
from vgpu.kube.documents import EventType, Expired
from vgpu.kube.events import EventNote, NoteType
from vgpu.kube.kinds import CONFIG_MAPS, EVENTS, LEASES, NODES, PODS, SHARE_PODS
from vgpu.model.names import PodRef
from vgpu.model.objects import Lease
from vgpu.model.reasons import Reason, SourceError


def pod(name):
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {
            "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}]
        },
    }


def page(*names, token="", version=""):
    meta = {"continue": token, "resourceVersion": version}
    return answer({"metadata": meta, "items": [pod(name) for name in names]})


def nobody():
    """Where no server is any more."""
    with Answers((), own_loopback()) as server:
        host, port = server.server_address
    return f"http://{host}:{port}"


@pytest.fixture
def waits(monkeypatch):
    """Seconds that were waited before a further try, in place of waiting."""
    waited = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", waited.append)
    return waited


def names(pages):
    return [each.ref.name for one in pages for each in one.objects]


# ---------------------------------------------------------------- pages


def test_pages_are_asked_for_one_by_one_with_the_token_of_the_last():
    with serving(page("a", token="1"), page("b", token="2"), page("c")) as (cluster, server):
        assert names(cluster.pods(field_selector="spec.nodeName=n")) == ["a", "b", "c"]
    queries = [query for _, _, query, _ in server.requests]
    assert [query.get("continue") for query in queries] == [None, ["1"], ["2"]]
    assert {tuple(query["fieldSelector"]) for query in queries} == {("spec.nodeName=n",)}
    assert {tuple(query["limit"]) for query in queries} == {("500",)}


def test_a_token_that_expires_on_the_way_is_replaced_by_the_servers_new_one():
    expired = status(410, "Expired", "too old", **{"continue": "fresh"})
    with serving(page("a", token="1"), expired, page("b")) as (cluster, server):
        assert names(cluster.pods()) == ["a", "b"]
    assert server.requests[-1][2]["continue"] == ["fresh"]


@pytest.mark.parametrize("token", ["", "1"])
def test_an_expired_list_that_cannot_go_on_is_an_error(token):
    """The same token again would expire for ever."""
    expired = status(410, "Expired", "too old", **{"continue": token})
    answers = page("a", token="1"), expired
    with serving(*answers) as (cluster, _), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert (info.value.status, info.value.reason) == (410, "Expired")


def test_a_version_is_asked_for_once_and_the_token_knows_the_rest():
    """The server refuses both at once."""
    with serving(page("a", token="1"), page("b")) as (cluster, server):
        list(cluster.pods(resource_version="0", limit=7, namespace="team"))
    first, second = (query for _, _, query, _ in server.requests)
    assert (first["resourceVersion"], first["limit"]) == (["0"], ["7"])
    assert ("resourceVersion" in second, second["continue"]) == (False, ["1"])
    assert {path for _, path, _, _ in server.requests} == {"/api/v1/namespaces/team/pods"}


def test_share_pods_are_pods_and_none_where_kubeshare_is_not_installed():
    listed = answer({"items": [pod("shared")]})
    with serving(listed) as (cluster, server):
        (page,) = cluster.sharepod_pages()
        assert [each.ref.name for each in page.objects] == ["shared"]
    assert server.requests[0][1] == "/apis/kubeshare.nthu/v1/sharepods"
    with serving(answer(b"404 page not found\n", 404)) as (cluster, _):
        assert list_watch.sharepods(cluster).list() == ([], "")
    with serving(status(403, "Forbidden")) as (cluster, _), pytest.raises(SourceError):
        list_watch.sharepods(cluster).list()


def test_configmaps_are_none_if_there_is_none():
    config_map = answer({"metadata": {"name": "a"}, "data": {"k": "v"}})
    with serving(config_map, status(404, "NotFound"), status(403, "Forbidden")) as (cluster, _):
        assert cluster.config_map("ns", "a") == {"k": "v"}
        assert cluster.config_map("ns", "a") is None
        with pytest.raises(ClusterError):
            cluster.config_map("ns", "a")


def test_unhealthy_gpus_are_found_among_the_configmaps():
    items = [
        {"metadata": {"name": "unhealthy-gpu-n1"}, "data": {"gpus": "0,1"}},
        {"metadata": {"name": "coredns"}, "data": {"Corefile": "."}},
    ]
    with serving(answer({"kind": "ConfigMapList", "items": items})) as (cluster, server):
        assert cluster.unhealthy_gpus() == {"n1": "0,1"}
    assert server.requests[0][1] == "/api/v1/namespaces/kube-system/configmaps"


def test_names_cannot_leave_their_place_in_a_path():
    with serving(status(404, "NotFound")) as (cluster, server), pytest.raises(ClusterError):
        cluster.node("../pods?watch=1")
    assert server.requests[0][1] == "/api/v1/nodes/..%2Fpods%3Fwatch%3D1"


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_of_dots_is_no_step_in_a_path(name):
    with serving(status(404, "NotFound")) as (cluster, server), pytest.raises(ClusterError):
        cluster.pod("ns", name)
    dots = name.replace(".", "%2E")
    assert server.requests[0][1] == f"/api/v1/namespaces/ns/pods/{dots}"


def test_an_object_without_a_name_is_not_found_and_never_all_of_them():
    with serving() as (cluster, server):
        for request in (
            lambda: cluster.node(""),
            lambda: cluster.pod("ns", ""),
            lambda: cluster.patch_node("", "1", {}),
        ):
            with pytest.raises(ClusterError) as info:
                request()
            assert info.value.status == 404
        assert cluster.lease("ns", "") is None
        assert server.requests == []


# ---------------------------------------------------------------- a busy server


def test_a_busy_server_is_asked_again_after_the_time_that_it_names(waits):
    busy = answer(b"{}", 429, Retry_After="7")
    with serving(busy, page("a")) as (cluster, _):
        assert names(cluster.pods()) == ["a"]
    assert waits == [7]


def test_a_retry_after_of_an_hour_is_limited(waits):
    with serving(answer(b"{}", 503, Retry_After="3600"), page("a")) as (cluster, _):
        assert names(cluster.pods()) == ["a"]
    assert waits == [MOST_WAIT_SECONDS]


def test_a_server_that_stays_busy_is_an_error_with_its_wish(waits):
    busy = status(429, "TooManyRequests", "try later")
    busy[1]["Retry-After"] = "5"
    with serving(*[busy] * 5) as (cluster, server), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert (info.value.status, info.value.reason, info.value.retry_after) == (
        429,
        "TooManyRequests",
        5.0,
    )
    assert len(server.requests) == 5


def test_a_write_is_never_tried_again(waits):
    busy = answer(b"{}", 429, Retry_After="1")
    with serving(busy) as (cluster, server), pytest.raises(ClusterError) as info:
        cluster.patch_node_status("n", [{"op": "remove", "path": "/a"}])
    assert info.value.status == 429
    assert [(method, path) for method, path, _, _ in server.requests] == [
        ("PATCH", "/api/v1/nodes/n/status")
    ]
    assert waits == []


def test_a_write_whose_answer_breaks_off_is_not_tried_again():
    broken = answer(b"{", Content_Length="100", Connection="close")
    with serving(broken) as (cluster, server), pytest.raises(ClusterError) as info:
        cluster.patch_node_status("n", [])
    assert info.value.reason == "Unreachable"
    assert len(server.requests) == 1


def test_a_dry_run_is_requested_from_the_server():
    with serving(answer({"metadata": {"name": "n"}})) as (cluster, server):
        assert cluster.patch_node_status("n", [], dry_run=True).name == "n"
    assert server.requests[0][2] == {"dryRun": ["All"]}


def test_a_write_that_finds_nobody_is_not_tried_again(waits, monkeypatch):
    connect = HTTPConnection.connect
    tries = []
    monkeypatch.setattr(HTTPConnection, "connect", lambda self: (tries.append(1), connect(self)))
    with ApiClient(anonymous_access(nobody())) as cluster:
        with pytest.raises(ClusterError) as info:
            cluster.evict(REF, "1")
        assert info.value.reason == "Unreachable"
        assert len(tries) == 1
        assert cluster.requests == {("create", "0"): 1}
        with pytest.raises(ClusterError):
            cluster.node("n")
        assert len(tries) > 2  # as a read is


# ---------------------------------------------------------------- writing

REF = PodRef("u-1", "ns", "p")
LEASE = Lease("ns", "l", "7", "me", 15, 1735689600.25, None, 3)
AT, COMPONENT = 1735689600.9, "vgpu-reconciler"
NOTE = EventNote("Pod", "v1", "ns", "p", "u-1", "Evicted", "why", AT, COMPONENT, NoteType.WARNING)
NAMED = {"metadata": {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "8"}}
META = {"namespace": "ns", "name": "c"}
OURS = {"labels": {"app.kubernetes.io/name": "vgpu"}}
PATCHES = {"a": "b", "c": None}
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain: what the server takes for a name."""


@pytest.mark.parametrize(
    ("write", "request_", "body"),
    [
        (
            lambda cluster, **dry: cluster.evict(REF, "7", **dry),
            "POST /api/v1/namespaces/ns/pods/p/eviction application/json",
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"namespace": "ns", "name": "p"},
                "deleteOptions": {"preconditions": {"uid": "u-1", "resourceVersion": "7"}},
            },
        ),
        (
            lambda cluster, **dry: cluster.patch_pod(REF, "7", PATCHES, **dry),
            "PATCH /api/v1/namespaces/ns/pods/p/status application/merge-patch+json",
            {"metadata": {"resourceVersion": "7", "uid": "u-1", "annotations": PATCHES}},
        ),
        (
            lambda cluster, **dry: cluster.patch_node("n", "7", PATCHES, **dry),
            "PATCH /api/v1/nodes/n/status application/merge-patch+json",
            {"metadata": {"resourceVersion": "7", "annotations": PATCHES}},
        ),
        (
            lambda cluster, **dry: cluster.patch_node("n", "7", {}, labels=PATCHES, **dry),
            "PATCH /api/v1/nodes/n/status application/merge-patch+json",
            {"metadata": {"resourceVersion": "7", "annotations": {}, "labels": PATCHES}},
        ),
        (
            lambda cluster, **dry: cluster.patch_sharepod(REF, "7", {}, **dry),
            "PATCH /apis/kubeshare.nthu/v1/namespaces/ns/sharepods/p application/merge-patch+json",
            {"metadata": {"resourceVersion": "7", "uid": "u-1", "annotations": {}}},
        ),
        (
            lambda cluster, **dry: cluster.patch_sharepod(REF, "7", {}, node=None, **dry),
            "PATCH /apis/kubeshare.nthu/v1/namespaces/ns/sharepods/p application/merge-patch+json",
            {
                "metadata": {"resourceVersion": "7", "uid": "u-1", "annotations": {}},
                "spec": {"nodeName": None},
            },
        ),
    ],
)
def test_a_patch_of_another_owners_object_names_the_version_that_it_was_made_for(
    write, request_, body
):
    with serving(answer(NAMED), answer(NAMED)) as (cluster, server):
        write(cluster)
        write(cluster, dry_run=True)
    for (method, path, _, sent), content_type in zip(server.requests, server.types, strict=True):
        assert f"{method} {path} {content_type}" == request_
        assert json.loads(sent) == body
    assert [query for _, _, query, _ in server.requests] == [{}, {"dryRun": ["All"]}]


@pytest.mark.parametrize(
    ("write", "request_", "body"),
    [
        (
            lambda cluster: cluster.write_config_map("ns", "c", {"k": "v"}, ""),
            "POST /api/v1/namespaces/ns/configmaps",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": META | OURS, "data": {"k": "v"}},
        ),
        (
            lambda cluster: cluster.write_config_map("ns", "c", {}, "7"),
            "PUT /api/v1/namespaces/ns/configmaps/c",
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": META | OURS | {"resourceVersion": "7"},
                "data": {},
            },
        ),
        (
            lambda cluster: cluster.write_lease(LEASE),
            "PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/l",
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"namespace": "ns", "name": "l", "resourceVersion": "7"},
                "spec": {
                    "holderIdentity": "me",
                    "leaseDurationSeconds": 15,
                    "acquireTime": "2025-01-01T00:00:00.250000Z",
                    "leaseTransitions": 3,
                },
            },
        ),
        (
            lambda cluster: cluster.write_lease(Lease("ns", "l")),
            "POST /apis/coordination.k8s.io/v1/namespaces/ns/leases",
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"namespace": "ns", "name": "l"},
                "spec": {},
            },
        ),
    ],
)
def test_an_object_of_ours_is_created_or_just_the_state_that_was_read_replaced(
    write, request_, body
):
    with serving(answer(NAMED)) as (cluster, server):
        write(cluster)
    ((method, path, query, sent),) = server.requests
    assert f"{method} {path}" == request_
    assert (json.loads(sent), query) == (body, {})


def test_the_new_version_of_a_written_object_is_returned():
    read = {"metadata": NAMED["metadata"], "data": {"k": "v"}}
    lease = {
        "metadata": NAMED["metadata"],
        "spec": {
            "holderIdentity": "me",
            "acquireTime": "2025-01-01T00:00:00.250000Z",
            "renewTime": None,
        },
    }
    answers = answer(read), answer(read), answer(lease), status(404, "NotFound")
    with serving(*answers) as (cluster, _):
        assert cluster.write_config_map("ns", "c", {"k": "v"}, "7") == "8"
        assert cluster.versioned_config_map("ns", "c") == ({"k": "v"}, "8")
        assert cluster.lease("ns", "n") == Lease("ns", "n", "8", "me", 0, 1735689600.25)
        assert cluster.lease("ns", "n") is None


def test_an_event_is_created_once_and_then_counted():
    exists = status(409, "AlreadyExists")
    counted = answer({**NAMED, "count": 4})
    with serving(answer(NAMED), exists, counted, answer(NAMED)) as (cluster, server):
        cluster.write_event(NOTE)
        cluster.write_event(replace(NOTE, happened_at=NOTE.happened_at + 60))
    created, again, read, counted = server.requests
    event = json.loads(created[3])
    name = event["metadata"]["name"]
    assert json.loads(again[3])["metadata"]["name"] == name
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "ns", "name": name},
        "involvedObject": {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": "ns",
            "name": "p",
            "uid": "u-1",
        },
        "reason": "Evicted",
        "message": "why",
        "type": "Warning",
        "source": {"component": "vgpu-reconciler"},
        "firstTimestamp": "2025-01-01T00:00:00Z",
        "lastTimestamp": "2025-01-01T00:00:00Z",
        "count": 1,
    }
    place = f"/api/v1/namespaces/ns/events/{name}"
    assert [read[:2], counted[:2]] == [("GET", place), ("PATCH", place)]
    assert json.loads(counted[3]) == {"count": 5, "lastTimestamp": "2025-01-01T00:01:00Z"}


@given(
    st.lists(
        st.builds(
            EventNote,
            kind=st.sampled_from(["Pod", "Node"]),
            api_version=st.just("v1"),
            namespace=st.sampled_from(["", "ns"]),
            name=st.sampled_from(["p", "a" * 253, "a" * 199 + ".-b"]),
            uid=st.sampled_from(["u", "v"]),
            reason=st.sampled_from(["A", "B"]),
            message=st.one_of(st.sampled_from(["", "é" * 600, "x" * 2000]), st.text()),
            happened_at=st.floats(0, 2e9),
            type=st.sampled_from(NoteType),
            component=st.sampled_from(["vgpu-reconciler", "vgpu-device-plugin"]),
        ),
        min_size=2,
        max_size=2,
    )
)
def test_only_what_is_the_same_but_for_its_time_has_the_same_name(notes):
    first, second = (bodies.event(note) for note in notes)
    for event in (first, second):
        assert NAME.fullmatch(event["metadata"]["name"])
        assert len(event["metadata"]["name"]) <= 253
        assert len(event["message"].encode()) <= 1024
    timeless = {"metadata": 0, "firstTimestamp": 0, "lastTimestamp": 0}
    assert (first["metadata"] == second["metadata"]) == (first | timeless == second | timeless)


@pytest.mark.parametrize(
    ("text", "limit", "clipped"),
    [
        ("abcd", 4, "abcd"),
        ("abcde", 4, "a…"),
        ("éé", 4, "éé"),
        ("ééé", 5, "é…"),
        ("ééé", 4, "…"),  # half a letter is none
        ("\ud800", 4, "?"),
    ],
)
def test_a_long_message_ends_where_a_letter_ends(text, limit, clipped):
    assert bodies.clipped(text, limit) == clipped


def test_an_event_of_what_has_no_namespace_is_in_the_default_one():
    event = bodies.event(replace(NOTE, kind="Node", namespace=""))
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


def test_an_event_that_is_refused_is_not_counted():
    with serving(status(403, "Forbidden")) as (cluster, _), pytest.raises(ClusterError) as info:
        cluster.write_event(NOTE)
    assert info.value.status == 403


# ---------------------------------------------------------------- counting


def test_every_request_is_counted_by_verb_and_answer(waits):
    refused = [status(404, "NotFound"), answer(b"{}", 429, Retry_After="1"), page("a"), watch()]
    written = [answer(NAMED), status(409, "Conflict"), answer(NAMED)]
    with serving(*refused, *written) as (cluster, _):
        assert cluster.config_map("ns", "n") is None
        list(cluster.pods())
        list(cluster.watch(PODS, "1"))
        cluster.patch_node("n", "1", {})
        with pytest.raises(ClusterError):
            cluster.write_lease(LEASE)
        cluster.evict(REF, "1")
        assert cluster.requests == {
            ("get", "404"): 1,
            ("list", "429"): 1,
            ("list", "200"): 1,
            ("watch", "200"): 1,
            ("patch", "200"): 1,
            ("update", "409"): 1,
            ("create", "200"): 1,
        }


@pytest.mark.slow
def test_requests_of_many_threads_are_all_counted():
    with serving(*[answer(NAMED)] * 400) as (cluster, _):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(cluster.node, ["n"] * 400))
        assert cluster.requests == {("get", "200"): 400}


# ---------------------------------------------------------------- followed by a mirror


def test_a_list_to_be_followed_is_watched_from_its_first_page():
    """Where the token expired, later pages are of a later time; watch events fill the gap."""
    expired = status(410, "Expired", "too old", **{"continue": "2"})
    pages = page("a", token="1", version="7"), expired, page("b", version="9")
    with serving(*pages) as (cluster, _):
        pods, version = list_watch.pods(cluster).list()
    assert [pod.ref.name for pod in pods] == ["a", "b"]
    assert version == "7"


@pytest.mark.parametrize(
    ("refusal", "reason", "expired"),
    [
        (status(403, "Forbidden"), Reason.FORBIDDEN, False),
        (status(401, "Unauthorized"), Reason.FORBIDDEN, False),
        (status(410, "Expired"), Reason.UNREADABLE, True),
        (status(404, "NotFound"), Reason.ABSENT, True),
        (status(500, "InternalError"), Reason.UNREADABLE, False),
    ],
)
def test_a_refused_watch_is_a_source_error(refusal, reason, expired):
    with serving(refusal) as (cluster, _):
        with pytest.raises(SourceError) as info:
            list(list_watch.nodes(cluster).watch("1"))
        assert info.value.object_name == cluster.server
    assert (info.value.reason, isinstance(info.value, Expired)) == (reason, expired)


def test_only_share_pods_may_be_unknown_to_the_server():
    missing = status(404, "NotFound")
    with serving(missing, missing, missing) as (cluster, _):
        assert list_watch.sharepods(cluster).list() == ([], "")
        for kind in (list_watch.nodes(cluster), list_watch.pods(cluster)):
            with pytest.raises(SourceError):
                kind.list()


# ---------------------------------------------------------------- what is no answer of Kubernetes

PROXY = b"<html><body>502 Bad Gateway \xff</body></html>"


def test_a_proxys_error_page_is_quoted(waits):
    with serving(*[answer(PROXY, 502)] * 5) as (cluster, _), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert (info.value.status, info.value.reason) == (502, "HTTP 502")
    assert "502 Bad Gateway" in info.value.message


def test_only_the_beginning_of_a_long_page_is_quoted():
    with serving(answer(b"x" * 10_000, 400)) as (cluster, _), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert info.value.message.endswith(": " + "x" * 200)


def test_a_login_page_is_not_followed():
    elsewhere = answer(b"", 302, Location="http://127.0.0.1:1/login")
    with serving(elsewhere) as (cluster, server), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert info.value.status == 302
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body", [PROXY, b"", b"[]", b'{"items": 3}', b'{"items": [{"metadata": {}}]}', b"[" * 100_000]
)
def test_a_page_that_is_none_is_malformed_and_names_the_server(body):
    with serving(answer(body)) as (cluster, _), pytest.raises(SourceError) as info:
        list(cluster.pods())
    assert info.value.reason is Reason.MALFORMED
    assert info.value.object_name == f"{cluster.server}/api/v1/pods"


@pytest.mark.parametrize(
    "read",
    [
        lambda cluster: cluster.node("n"),
        lambda cluster: cluster.pod("a", "b"),
        lambda cluster: cluster.sharepod("a", "b"),
        lambda cluster: cluster.lease("a", "b"),
        lambda cluster: cluster.capacity("n"),
        lambda cluster: list(cluster.nodes()),
        lambda cluster: list(cluster.sharepod_pages()),
        lambda cluster: cluster.config_map("a", "b"),
        lambda cluster: cluster.unhealthy_gpus(),
        lambda cluster: list(cluster.watch(PODS, "1")),
        lambda cluster: list(cluster.watch(NODES, "1")),
        lambda cluster: list(cluster.watch(SHARE_PODS, "1")),
        lambda cluster: cluster.patch_node_status("n", []),
        lambda cluster: cluster.patch_node("n", "1", {}),
        lambda cluster: cluster.patch_pod(REF, "1", {}),
        lambda cluster: cluster.patch_sharepod(REF, "1", {}),
        lambda cluster: cluster.write_config_map("a", "b", {}, ""),
        lambda cluster: cluster.write_lease(LEASE),
    ],
)
def test_html_in_place_of_json_is_malformed_everywhere(read):
    with serving(answer(PROXY + b"\n")) as (cluster, _), pytest.raises(SourceError) as info:
        read(cluster)
    assert info.value.reason is Reason.MALFORMED


def test_a_body_that_breaks_off_is_read_again(waits):
    broken = answer(b'{"items": [', Content_Length="1000", Connection="close")
    with serving(broken, page("a")) as (cluster, _):
        assert names(cluster.pods()) == ["a"]


def test_a_body_that_always_breaks_off_is_unreachable(waits):
    broken = answer(b'{"items": [', Content_Length="1000", Connection="close")
    with serving(*[broken] * 5) as (cluster, _), pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert info.value.reason == "Unreachable"
    assert cluster.server in info.value.message


def test_a_body_of_unknown_length_that_breaks_off_is_malformed():
    broken = answer(b'{"items": [', Content_Length=None, Connection="close")
    with serving(broken) as (cluster, _), pytest.raises(SourceError):
        list(cluster.pods())


# ---------------------------------------------------------------- watching


def line(kind, obj):
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def watch(*lines):
    return answer(b"".join(lines), Content_Length=None, Connection="close")


def test_a_watch_gives_events_and_bookmarks_until_the_server_ends_it():
    events_of_server = watch(
        line("ADDED", {"kind": "Pod", **pod("a")}),
        line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "9"}}),
    )
    with serving(events_of_server) as (cluster, server):
        events = list(cluster.watch(PODS, "7", field_selector="spec.nodeName=n"))
    assert [event.type for event in events] == [EventType.ADDED, EventType.BOOKMARK]
    assert events[1].resource_version == "9"
    query = server.requests[0][2]
    assert (query["resourceVersion"], query["allowWatchBookmarks"]) == (["7"], ["true"])


def test_an_event_is_returned_as_soon_as_it_arrives():
    """In chunks, as the API server sends it, and as a proxy does that has put them together."""
    event_line = line("ADDED", {"kind": "Pod", **pod("a")})
    half = len(event_line) // 2
    parts = [event_line[:half], event_line[half:] + event_line]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    in_chunks = answer(chunks + b"0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked")
    unfinished = answer(event_line * 2, Content_Length="9999")  # and the connection stays open
    for each in (in_chunks, unfinished):
        with serving(each) as (cluster, _):
            events = cluster.watch(PODS, "1")
            assert [next(events).object.ref.name for _ in range(2)] == ["a", "a"]
            events.close()


@pytest.mark.parametrize(
    ("gather", "apart", "slept"),
    [
        ({}, 0.4, {GATHER_SECONDS}),  # lines come close together
        ({}, 0.6, set()),  # a line after a silence
        ({}, 0.001, set()),  # the line had already arrived
        ({"gather": 0.01}, 0.004, {0.01}),
        ({"gather": 0.01}, 0.02, set()),
        ({"gather": 0}, 0.1, set()),
    ],
)
def test_only_lines_that_come_close_together_gather(gather, apart, slept, monkeypatch):
    sleeps, seconds = [], itertools.count(step=apart)
    clock = SimpleNamespace(time=time.time, monotonic=lambda: next(seconds), sleep=sleeps.append)
    monkeypatch.setattr("vgpu.apiserver.connection.time", clock)
    one_event = watch(line("ADDED", {"kind": "Pod", **pod("a")}))
    with serving(one_event, **gather) as (cluster, _):
        assert len(list(cluster.watch(PODS, "1"))) == 1
    assert set(sleeps) == slept


def test_one_node_is_followed_by_its_name_from_the_servers_memory():
    node_document = {"kind": "Node", "metadata": {"name": "n", "resourceVersion": "8"}}
    listed = answer({"metadata": {"resourceVersion": "7"}, "items": [node_document]})
    with serving(listed, watch(line("MODIFIED", node_document))) as (cluster, server):
        followed_ = list_watch.node(cluster, "n")
        (node,), version = followed_.list()
        (event,) = followed_.watch(version)
    assert (node.name, version, event.object.name) == ("n", "7", "n")
    (_, _, asked, _), (_, _, watched, _) = server.requests
    assert asked["fieldSelector"] == watched["fieldSelector"] == ["metadata.name=n"]
    assert (asked["resourceVersion"], watched["resourceVersion"]) == (["0"], ["7"])


@pytest.mark.slow
def test_a_watch_may_be_silent_as_long_as_the_server_keeps_it_open_and_no_longer(monkeypatch):
    """A connection that is half open would hang for ever."""
    monkeypatch.setattr("vgpu.apiserver.reader.WATCH_SECONDS", (1, 1))
    monkeypatch.setattr("vgpu.apiserver.connection.STREAM_GRACE_SECONDS", 0.05)
    event_line = line("ADDED", {"kind": "Pod", **pod("a")})
    # Then the server breaks off, which is another end.
    monkeypatch.setattr(Handler, "timeout", WAIT_SECONDS)
    hangs = answer(event_line, Content_Length="9999")
    with serving(hangs) as (cluster, server):
        events = cluster.watch(PODS, "1")
        assert next(events).object.ref.name == "a"
        with pytest.raises(ClusterError, match=r"no answer within 1\.05 s"):
            next(events)
    assert server.requests[0][2]["timeoutSeconds"] == ["1"]


def test_watches_do_not_all_end_at_once():
    with serving(*[watch()] * 20) as (cluster, server):
        for _ in range(20):
            list(cluster.watch(NODES, "1"))
    seconds = {int(query["timeoutSeconds"][0]) for _, _, query, _ in server.requests}
    assert len(seconds) > 1
    assert all(240 <= each <= 300 for each in seconds)


def test_a_line_without_end_is_malformed(monkeypatch):
    monkeypatch.setattr("vgpu.apiserver.connection.LONGEST_LINE", 1000)
    with serving(watch(b"x" * 5000)) as (cluster, _), pytest.raises(SourceError) as info:
        list(cluster.watch(PODS, "1"))
    assert info.value.reason is Reason.MALFORMED


@pytest.mark.parametrize(
    ("kind", "path", "document"),
    [
        (PODS, "/api/v1/pods", {"kind": "Pod", **pod("a")}),
        (
            SHARE_PODS,
            "/apis/kubeshare.nthu/v1/sharepods",
            {"kind": "SharePod", **pod("a")},
        ),
        (NODES, "/api/v1/nodes", {"kind": "Node", "metadata": {"name": "a"}}),
        (CONFIG_MAPS, "/api/v1/configmaps", {"kind": "ConfigMap", "metadata": {"name": "a"}}),
        (EVENTS, "/api/v1/events", {"kind": "Event", "metadata": {"name": "a"}}),
        (
            LEASES,
            "/apis/coordination.k8s.io/v1/leases",
            {"kind": "Lease", "metadata": {"name": "a"}},
        ),
    ],
)
def test_each_kind_is_watched_where_it_is_and_takes_no_other(kind, path, document):
    other = {"kind": "Secret", "metadata": {"name": "s"}}
    with serving(watch(line("ADDED", document), line("ADDED", other))) as (cluster, server):
        events = cluster.watch(kind, "7", label_selector="a=b")
        assert next(events).object is not None
        with pytest.raises(SourceError, match="Secret"):
            next(events)
    method, asked, query, _ = server.requests[0]
    assert (method, asked, query["labelSelector"]) == ("GET", path, ["a=b"])


def test_a_watch_that_is_too_old_is_an_error_in_the_stream_or_before_it():
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    with serving(watch(line("ERROR", gone)), status(410, "Expired")) as (cluster, _):
        for _ in range(2):
            with pytest.raises(ClusterError) as info:
                list(cluster.watch(PODS, "1"))
            assert (info.value.status, info.value.reason) == (410, "Expired")


@pytest.mark.parametrize(
    "broken",
    [
        {"Content_Length": "9999"},
        {"Content_Length": None, "Transfer_Encoding": "chunked"},
    ],
)
def test_a_watch_that_breaks_off_is_unreachable(broken):
    event_line = line("ADDED", {"kind": "Pod", **pod("a")})
    if "Transfer_Encoding" in broken:
        event_line = b"%x\r\n%s\r\n" % (len(event_line), event_line)
    with serving(answer(event_line, Connection="close", **broken)) as (cluster, _):
        events = cluster.watch(PODS, "1")
        assert next(events).object.ref.name == "a"
        with pytest.raises(ClusterError) as info:
            next(events)
    assert info.value.reason == "Unreachable"


# ---------------------------------------------------------------- finding the server


def test_a_server_that_is_not_there_is_unreachable(waits):
    with ApiClient(anonymous_access(nobody())) as cluster, pytest.raises(ClusterError) as info:
        list(cluster.pods())
    assert (info.value.status, info.value.reason) == (0, "Unreachable")
    assert cluster.server in info.value.message


KUBECONFIG = """
current-context: here
contexts:
- {name: here, context: {cluster: c, user: u}}
- {name: other, context: {cluster: d, user: u}}
clusters:
- {name: c, cluster: {server: "https://one:6443"}}
- {name: d, cluster: {server: "https://two:6443/"}}
users: [{name: u, user: {token: secret}}]
"""


@pytest.fixture
def no_cluster(monkeypatch, tmp_path):
    """No kubeconfig of the person who tests, and no pod."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_kubeconfig_is_found_by_flag_then_environment_then_home(no_cluster, monkeypatch):
    (no_cluster / ".kube").mkdir()
    (no_cluster / ".kube" / "config").write_text(KUBECONFIG.replace("one", "home"))
    named, from_environment = no_cluster / "named", no_cluster / "from_environment"
    named.write_text(KUBECONFIG)
    from_environment.write_text(KUBECONFIG.replace("one", "environment"))
    assert ApiClient.connect().server == "https://home:6443"
    monkeypatch.setenv("KUBECONFIG", str(from_environment))
    assert ApiClient.connect().server == "https://environment:6443"
    assert ApiClient.connect(str(named)).server == "https://one:6443"
    assert ApiClient.connect(str(named), "other").server == "https://two:6443"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "- a",
        "\x00",
        "apiVersion: v1",
        KUBECONFIG.replace("current-context: here", "current-context: nowhere"),
        KUBECONFIG.replace('server: "https://one:6443"', ""),
        KUBECONFIG.replace("clusters:", "clusters: 3\nothers:"),
        KUBECONFIG.replace("token: secret", "client-certificate: /none, client-key: /none"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_an_error_that_names_it(no_cluster, text):
    path = no_cluster / "config"
    path.write_text(text)
    with pytest.raises(ClusterError) as info:
        ApiClient.connect(str(path))
    assert (info.value.status, info.value.reason) == (0, "NoConfiguration")
    assert str(path) in info.value.message


def test_where_no_cluster_is_configured_the_message_is_what_to_do_and_no_class_of_ours(no_cluster):
    with pytest.raises(ClusterError) as info:
        ApiClient.connect()
    message = "no cluster is configured: pass --kubeconfig FILE or set KUBECONFIG"
    assert str(info.value).startswith(message)
    assert str(info.value).endswith("this is not a pod: KUBERNETES_SERVICE_HOST is not set)")


def test_a_missing_kubeconfig_is_an_error_that_names_the_file(no_cluster, monkeypatch):
    with pytest.raises(ClusterError, match="/none: no such file"):
        ApiClient.connect("/none")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(ClusterError, match="/nowhere: no such file"):
        ApiClient.connect()
    monkeypatch.delenv("KUBECONFIG")
    with pytest.raises(ClusterError, match="pass --kubeconfig FILE or set KUBECONFIG"):
        ApiClient.connect()


def test_in_a_pod_its_service_account_is_used(no_cluster, monkeypatch):
    for name, text in account(no_cluster).items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(access, "ACCOUNT", str(no_cluster))
    assert ApiClient.connect().server == "https://10.0.0.1:443"


def account(folder, host="10.0.0.1"):
    """A pod's, in the folder; the variables that belong to it."""
    (folder / "token").write_text("secret\n")
    (folder / "ca.crt").write_text("certificate")
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}


def test_an_address_of_ipv6_is_one(tmp_path):
    environ = account(tmp_path, "fd00::1")
    assert access.as_pod(environ, str(tmp_path)).server == "https://[fd00::1]:443"


def test_a_pod_s_server_has_to_prove_itself(tmp_path):
    made = access.as_pod(account(tmp_path), str(tmp_path)).pool.connection_pool_kw
    assert made["cert_reqs"] == "CERT_REQUIRED"
    assert made["ca_certs"] == str(tmp_path / "ca.crt")


def test_a_pod_s_token_is_read_again_and_one_that_is_missing_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(access, "TOKEN_SECONDS", -1.0)
    found = access.as_pod(account(tmp_path), str(tmp_path))
    assert found.credentials() == {"authorization": "Bearer secret"}
    (tmp_path / "token").write_text("renewed")
    assert found.credentials() == {"authorization": "Bearer renewed"}
    (tmp_path / "token").unlink()
    assert found.credentials() == {"authorization": "Bearer renewed"}


def test_a_program_with_many_threads_keeps_as_many_connections(tmp_path):
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    pool = find_access(str(kubeconfig), connections=40).pool
    assert pool.connection_from_url("https://127.0.0.1:1").pool.maxsize == 40


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("token", ""),
        ("token", None),
        ("token", "two\nlines"),
        ("token", "n\xf6"),
        ("ca.crt", None),
        ("ca.crt", ""),
    ],
)
def test_an_incomplete_service_account_is_no_configuration(no_cluster, monkeypatch, file, content):
    for name, text in account(no_cluster).items():
        monkeypatch.setenv(name, text)
    (no_cluster / file).unlink()
    if content is not None:
        (no_cluster / file).write_text(content)
    monkeypatch.setattr(access, "ACCOUNT", str(no_cluster))
    with pytest.raises(ClusterError, match=f"pass --kubeconfig FILE.*{file}") as info:
        ApiClient.connect()
    assert (info.value.status, info.value.reason) == (0, "NoConfiguration")


def test_the_official_client_costs_nothing_where_no_kubeconfig_is_read():
    program = "import sys, vgpu.apiserver.client; sys.exit('kubernetes' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_token_is_sent(no_cluster):
    class Keeping(Handler):
        def do_GET(self):  # noqa: N802  # http.server's name
            self.server.sent = self.headers["Authorization"]
            super().do_GET()

    path = no_cluster / "config"
    with serving(page("a")) as (cluster, server):
        server.RequestHandlerClass = Keeping
        path.write_text(KUBECONFIG.replace("https://one:6443", cluster.server))
        with ApiClient.connect(str(path)) as authorized:
            assert names(authorized.pods()) == ["a"]
    assert server.sent == "Bearer secret"
