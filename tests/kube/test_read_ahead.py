"""The next page of a list is requested while the last one is decoded."""

import threading

import pytest

from tests.support.answering_server import answer, serving, status
from tests.support.waiting import WAIT_SECONDS
from vgpu.apiserver.connection import ClusterError
from vgpu.apiserver.reader import ReadAhead, next_token
from vgpu.kube.documents import Keep


def page(*names, token=""):
    items = [{"metadata": {"name": name, "namespace": "ns", "uid": name}} for name in names]
    return answer({"metadata": {"continue": token}, "items": items})


def names(pages):
    return [pod.ref.name for page in pages for pod in page.pods]


def read(cluster):
    return names(cluster.pods(keep=Keep.ALL, ahead=True))


@pytest.mark.parametrize(
    ("text", "token"),
    [
        (
            b'{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"ab=="},"items":[]}',
            "ab==",
        ),
        (b'{"metadata": {"continue" : "x"}, "items": []}', "x"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[{"a":{"continue":"no"}}]}', ""),
        (b'{"items":[],"metadata":{"continue":"behind"}}', ""),
        (b'{"metadata":{"continue":""},"items":[]}', ""),
        (b'{"metadata":{"continue":"es\\"caped"},"items":[]}', ""),
        (b"no JSON", ""),
        (b"", ""),
    ],
)
def test_the_token_is_found_in_front_of_the_objects_only(text, token):
    assert next_token(text) == token


def test_the_next_page_is_requested_before_the_last_one_is_used():
    """The answer to the second request is waited for while the first page is in hand."""
    asked = threading.Event()

    def ask(query):
        if query:
            asked.set()
        return str(query).encode()

    reading = ReadAhead(ask)
    assert reading.answer({}) == b"{}"
    reading.begin({"continue": "1"})
    assert asked.wait(WAIT_SECONDS)
    assert reading.answer({"continue": "1"}) == b"{'continue': '1'}"
    reading.close()


def test_the_requests_are_those_of_a_list_that_is_read_page_by_page():
    with serving(page("a", token="1"), page("b", token="2"), page("c")) as (cluster, server):
        assert read(cluster) == ["a", "b", "c"]
    tokens = [query.get("continue") for _, _, query, _ in server.requests]
    assert tokens == [None, ["1"], ["2"]]


def test_a_token_that_expires_on_the_way_is_replaced():
    expired = status(410, "Expired", "too old", **{"continue": "fresh"})
    with serving(page("a", token="1"), expired, page("b")) as (cluster, server):
        assert read(cluster) == ["a", "b"]
    assert server.requests[-1][2]["continue"] == ["fresh"]


def test_an_error_comes_where_the_page_would():
    forbidden = status(403, "Forbidden", "no pods for you")
    with serving(page("a", token="1"), forbidden) as (cluster, _):
        pages = cluster.pods(ahead=True)
        next(pages)
        with pytest.raises(ClusterError, match="no pods for you"):
            next(pages)


def test_another_query_than_the_one_that_was_begun_is_asked_for_itself():
    reading = ReadAhead(lambda query: str(query).encode())
    reading.begin({"continue": "1"})
    assert reading.answer({"continue": "2"}) == b"{'continue': '2'}"
    reading.close()
