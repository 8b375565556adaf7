"""What an API server sends is unpacked within limits, whole answers and streams alike."""

import gzip
import json
import tracemalloc
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.answering_server import anonymous_access
from tests.support.hostile_server import answering_all
from vgpu.apiserver import answers, connection
from vgpu.apiserver.answers import content, pieces
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.apiserver.retries import ONCE
from vgpu.kube.kinds import NODES
from vgpu.model.reasons import SourceError

MIB = 2**20
LIST = json.dumps({"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": []}).encode()
SIZE = 16 * MIB
NESTED = gzip.compress(gzip.compress(b"0" * (SIZE)))


def packed(text, encoding="gzip", status=200):
    """An answer with this content and encoding."""
    head = f"HTTP/1.1 {status} OK\r\nContent-Encoding: {encoding}\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


@contextmanager
def answered(data):
    with (
        answering_all(data) as address,
        ApiClient(anonymous_access(f"http://{address}"), gather=0, retries=ONCE) as cluster,
    ):
        yield cluster


def listed(data):
    with answered(data) as cluster:
        return list(cluster.pages(NODES))


def refused(data):
    with pytest.raises(ClusterError) as failed:
        listed(data)
    return str(failed.value)


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(answers, "LONGEST_ANSWER", MIB)
    monkeypatch.setattr(connection, "LONGEST_LINE", MIB)


@contextmanager
def in_little_memory():
    """In less than half of what the bombs unpack to."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_a_packed_list_is_read():
    assert len(listed(packed(gzip.compress(LIST)))) == 1


@pytest.mark.parametrize("status", [200, 403])
def test_an_answer_that_unpacks_to_more_than_the_limit_is_left(small_limit, status):
    bomb = packed(gzip.compress(b" " * (SIZE)), status=status)
    with in_little_memory():
        assert "more than 1 MiB when it is unpacked" in refused(bomb)


def test_the_limit_itself_is_no_more(small_limit):
    assert len(listed(packed(gzip.compress(LIST.ljust(MIB))))) == 1
    assert "more than 1 MiB" in refused(packed(gzip.compress(LIST.ljust(MIB + 1))))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (packed(NESTED, "gzip, gzip"), "an encoding that was not asked for"),
        (packed(LIST, "br"), "an encoding that was not asked for"),
        (packed(LIST), "not gzip"),
        (packed(gzip.compress(LIST)[:-9]), "cut short"),
        (packed(gzip.compress(LIST) * 2), "goes on after its packed content"),
    ],
    ids=["packed twice", "other encoding", "not packed", "cut short", "two members"],
)
def test_an_answer_that_is_not_packed_as_asked_is_refused(answer, text):
    with in_little_memory():
        assert text in refused(answer)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("head", [CHUNKED, TO_THE_END], ids=["chunks", "no chunks"])
@pytest.mark.parametrize(
    ("text", "encoding", "error"),
    [
        (gzip.compress(b"0" * (SIZE)), b"gzip", SourceError),
        (NESTED, b"gzip, gzip", ClusterError),
    ],
    ids=["packed", "packed twice"],
)
def test_a_line_of_a_stream_that_unpacks_without_end_is_left(
    small_limit, head, text, encoding, error
):
    data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text) if head is CHUNKED else text
    answer = head + b"Content-Encoding: " + encoding + b"\r\n\r\n" + data
    with in_little_memory(), answered(answer) as cluster, pytest.raises(error):
        list(cluster.watch(NODES, "1"))


@given(st.lists(st.binary(max_size=40), max_size=9), st.integers(1, 30), st.booleans())
def test_lines_are_whole_however_they_are_sent(lines, size, is_packed):
    text = b"\n".join(lines)
    sent = gzip.compress(text) if is_packed else text
    parts = [sent[at : at + size] for at in range(0, len(sent), size)]
    headers = {"Content-Encoding": "gzip"} if is_packed else {}
    response = Sent(parts, headers)
    assert content(response) == text
    assert b"".join(pieces(response)) == text


class Sent:
    """A response that arrives in these chunks."""

    chunked = True

    def __init__(self, parts, headers):
        self.parts, self.headers = parts, headers

    @property
    def data(self):
        return b"".join(self.parts)

    def read_chunked(self, *_, **__):
        yield from self.parts


def test_what_is_unpacked_from_a_chunk_comes_before_the_next_one():
    """zlib keeps some of it without any rest of what was sent."""
    text = b"0" * (64 * 1024 + 100) + b"\n"
    sent = gzip.compress(text)
    got = []

    def one_chunk():
        yield sent
        assert b"".join(got) == text

    got.extend(pieces(Sent(one_chunk(), {"Content-Encoding": "gzip"})))
